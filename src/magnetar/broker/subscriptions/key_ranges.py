"""Which hashing serves which Key_Shared mode."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.broker.dispatch.lanes import KeyRanges
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.types import KeySharedMode
from magnetar.hashing.consistent import ConsistentHashRanges
from magnetar.hashing.ranges import AutoSplitRanges
from magnetar.hashing.sticky import StickyRanges


class _Splitting:
    """The broker splits: what ranges a consumer brings does not matter."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: ConsistentHashRanges | AutoSplitRanges) -> None:
        self._ranges = ranges

    def add(self, member: str, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges.add(member)

    def remove(self, member: str) -> None:
        self._ranges.remove(member)

    def ranges(self) -> list[tuple[int, int, str]]:
        return self._ranges.ranges()


def ranges_for(mode: KeySharedMode, config: SubscriptionConfig) -> KeyRanges:
    """Empty ranges of the configured kind."""
    if mode is KeySharedMode.STICKY:
        return StickyRanges()
    if config.key_shared_consistent_hashing:
        return _Splitting(ConsistentHashRanges(config.key_shared_points, separator="\0"))
    return _Splitting(AutoSplitRanges())
