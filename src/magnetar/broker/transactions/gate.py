"""The gate of a subscription on a topic with transactions, which decides what it may read. Topics without transactions have no gate."""

from __future__ import annotations

from magnetar.broker.transactions.buffer import TransactionBuffer
from magnetar.broker.transactions.pending_acks import PendingAcks
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position


class SubscriptionGate:
    """Implements `ReadGate`. `pending` is None until a transaction acknowledges in the subscription."""

    __slots__ = ("_buffer", "pending")

    def __init__(self, buffer: TransactionBuffer, pending: PendingAcks | None = None) -> None:
        self._buffer = buffer
        self.pending = pending

    @property
    def stop(self) -> Position | None:
        return self._buffer.state.first_open

    def held_back(self, after: Position) -> int:
        return self._buffer.state.held_back(after)

    def admit(self, entries: list[Entry]) -> list[Entry]:
        if self._buffer.state.aborted_count:
            self._buffer.hide(entries)
        pending = self.pending
        return pending.admit(entries) if pending is not None and pending.state else entries

    def remaining(self, position: Position, words: list[int] | None) -> list[int] | None:
        pending = self.pending
        return words if pending is None or not pending.state else pending.remaining(position, words)
