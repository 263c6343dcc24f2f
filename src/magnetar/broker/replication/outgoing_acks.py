"""Messages that were acknowledged out of order, as other clusters are told of them: by name, each once.

PIP-33 carries a position only. What lies behind it and is consumed already would be given again after a failover: of a Shared
subscription with one slow consumer, any number.
"""

from __future__ import annotations

from typing import Final

from magnetar.broker.replication.origin_log import origin_in
from magnetar.broker.replication.origins import runs_of
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.errors import EntryNotFoundError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.wire.pulsar.markers import SubscriptionUpdate

RANGES_MAX: Final = 10_000
"""Ranges of a cursor that are looked at, the first ones; what lies behind is told when the ranges before it have closed."""

ENTRIES_PER_UPDATE_MAX: Final = 20_000
"""Messages that one update tells of; the next one goes on."""


class OutgoingAcks:
    """Of one subscription. `again` when somebody may have missed what was told."""

    def __init__(self, subscription: Subscription, ledger: ManagedLedger, cluster: str) -> None:
        self._subscription = subscription
        self._ledger = ledger
        self._cluster = cluster
        self._told: set[tuple[Position, Position]] = set()
        self._seen: tuple[Position, int] = EARLIEST, 0

    def again(self) -> None:
        self._told.clear()
        self._seen = EARLIEST, 0

    def followed(self) -> None:
        """What is acknowledged now was told by another cluster, to all."""
        if not self._subscription.consumers:
            self._told = set(self._subscription.cursor.individual_ranges(RANGES_MAX))

    @property
    def untold(self) -> int:
        """Entries acknowledged out of order of which the others do not know yet."""
        ranges = self._subscription.cursor.individual_ranges(RANGES_MAX)
        return sum(self._ledger.entries_between(*each) for each in ranges if each not in self._told)

    async def update(self) -> SubscriptionUpdate | None:
        """What was acknowledged since the last one, None when that is nothing. Raises what reading raised."""
        cursor = self._subscription.cursor
        seen = cursor.mark_delete_position, cursor.individually_acknowledged
        if seen == self._seen:
            return None
        complete = True
        held = cursor.individual_ranges(RANGES_MAX) if seen[1] else []
        told = self._told.intersection(held)
        found: dict[str, list[Position]] = {}
        left = ENTRIES_PER_UPDATE_MAX
        for each in held:
            if each in told:
                continue
            left -= self._ledger.entries_between(*each)
            if left < 0 and found:
                complete = False
                break
            await self._collect(*each, found)
            told.add(each)
        self._told = told
        if complete:
            self._seen = seen
        if not found:
            return None
        acknowledged = {cluster: runs_of(sorted(places)) for cluster, places in found.items()}
        return SubscriptionUpdate(self._subscription.name, {}, acknowledged)

    async def _collect(self, after: Position, upto: Position, found: dict[str, list[Position]]) -> None:
        position = self._ledger.next_position(after)
        while position <= upto:
            try:
                origin = origin_in(await self._ledger.read_entry(position))
            except EntryNotFoundError:
                origin = None
            if origin is not None and not origin.cluster:
                found.setdefault(self._cluster, []).append(position)
            elif origin is not None and origin.source is not None:
                found.setdefault(origin.cluster, []).append(origin.source)
            position = self._ledger.next_position(position)
