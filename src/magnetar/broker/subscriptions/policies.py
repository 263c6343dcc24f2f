"""Subscription types, and the dispatch policy that serves each: the one place where a type is bound to its dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher, Log
from magnetar.broker.dispatch.lanes import KeyRanges
from magnetar.broker.dispatch.ports import EntrySource, Scheduler
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.hashing.consistent import ConsistentHashRanges
from magnetar.hashing.ranges import AutoSplitRanges
from magnetar.hashing.sticky import StickyRanges


class SubscriptionType(IntEnum):
    """The way in which consumers share a subscription (wire: CommandSubscribe.SubType)."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3

    @property
    def holds_entries(self) -> bool:
        """True if several consumers get entries at the same time."""
        return POLICIES[self].dispatcher.holds_entries

    @property
    def keyed(self) -> bool:
        """True if the key of an entry says which consumer gets it."""
        return POLICIES[self].dispatcher.keyed


class KeySharedMode(IntEnum):
    """Whether the broker or the consumers decide about hash ranges (wire: KeySharedMode)."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class DispatchContext:
    """What a subscription gives to the dispatcher that it makes."""

    topic_name: str
    source: EntrySource
    """The cursor, or around it the compacted part of the topic."""
    log: Log
    config: SubscriptionConfig
    mode: KeySharedMode
    compacted: bool
    scheduler: Scheduler
    rewind: Callable[[], None]
    """Makes the pump begin anew at the mark-delete position."""
    new_delayed_index: Callable[[], DelayedIndex]
    """Makes the index of policies that hold delayed messages back."""


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """One row of the table below."""

    dispatcher: type[Dispatcher]
    make: Callable[[DispatchContext], Dispatcher]


def _exclusive(context: DispatchContext) -> Dispatcher:
    return SingleActiveDispatcher(
        context.source,
        context.scheduler,
        context.rewind,
        context.topic_name,
        announces=False,
        charges_hidden=context.compacted,
    )


def _failover(context: DispatchContext) -> Dispatcher:
    return SingleActiveDispatcher(
        context.source,
        context.scheduler,
        context.rewind,
        context.topic_name,
        announces=True,
        delay_ms=context.config.failover_delay_ms,
        always_by_ring=context.config.failover_by_ring,
        charges_hidden=context.compacted,
    )


def _shared(context: DispatchContext) -> Dispatcher:
    return SharedDispatcher(context.source, context.new_delayed_index(), context.config.max_unacked_per_subscription)


def _key_shared(context: DispatchContext) -> Dispatcher:
    config = context.config
    return KeySharedDispatcher(
        context.source,
        context.log,
        context.new_delayed_index(),
        config.max_unacked_per_subscription,
        ranges_for(context.mode, config),
        config.key_shared_waiting_max,
    )


POLICIES: Final[Mapping[SubscriptionType, DispatchPolicy]] = {
    SubscriptionType.Exclusive: DispatchPolicy(SingleActiveDispatcher, _exclusive),
    SubscriptionType.Failover: DispatchPolicy(SingleActiveDispatcher, _failover),
    SubscriptionType.Shared: DispatchPolicy(SharedDispatcher, _shared),
    SubscriptionType.Key_Shared: DispatchPolicy(KeySharedDispatcher, _key_shared),
}


class _BrokerRanges:
    """Ranges that the broker splits: those a consumer brings do not matter."""

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
    """Empty ranges of the kind that the Key_Shared mode and the configuration ask for."""
    if mode is KeySharedMode.STICKY:
        return StickyRanges()
    if config.key_shared_consistent_hashing:
        return _BrokerRanges(ConsistentHashRanges(config.key_shared_points, separator="\0"))
    return _BrokerRanges(AutoSplitRanges())
