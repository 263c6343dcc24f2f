"""Watermarks: how far event time has come in a relation, less the delay. A decision core.

An epoch works with the watermarks of the manifest before it; what it sees raises those of its own manifest. They never fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from magnetar.pipeline.operators.operator import EpochContext


def advanced(now_us: Mapping[str, int], seen_us: Mapping[str, int | None]) -> dict[str, int]:
    """The watermarks after an epoch. `seen_us`: the newest event time of a relation's rows less its delay, None without rows."""
    found = dict(now_us)
    for relation, seen in seen_us.items():
        if seen is not None:
            found[relation] = max(seen, found.get(relation, seen))
    return found


def combined(watermarks_us: Mapping[str, int], relations: Iterable[str]) -> int | None:
    """Of what is made of several relations: the least; None while one of them has none, or when there are none."""
    found = [watermarks_us.get(relation) for relation in relations]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def context(
    epoch: int, time_us: int, relations: Iterable[str], now_us: Mapping[str, int], before_us: Mapping[str, int]
) -> EpochContext:
    """What a view's operators are told: `now_us` of the manifest before the epoch, `before_us` of the one before that."""
    names = tuple(relations)
    return EpochContext(epoch, time_us, combined(now_us, names), combined(before_us, names))


def is_settled(relations: Iterable[str], now_us: Mapping[str, int], before_us: Mapping[str, int]) -> bool:
    """Whether another epoch without rows would find no window to close."""
    names = tuple(relations)
    return combined(now_us, names) == combined(before_us, names)
