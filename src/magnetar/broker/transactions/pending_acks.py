"""The acknowledgements of open transactions in one subscription, with their log.

A commit applies them to the cursor, an abort leaves the messages to be delivered again. Their records are forgotten when that is
durable, before the coordinator is told: should the server die in between, the coordinator asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.base.errors import MagnetarError
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.transactions import pending_records as records
from magnetar.broker.transactions.log import RecordLog
from magnetar.broker.transactions.pending_state import WHOLE, Ack, PendingState, PendingTransaction
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.ack_ranges import BATCH_SIZE_MAX, int_to_words, words_to_int
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ports import DurableDone
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor.cursor import ManagedCursor
    from magnetar.managed_ledger.ledger import ManagedLedger

STORE_CURSOR = "__pending_ack_state"


class PendingAcks:
    """`ledger` and `cursor` are the subscription's; `log` is where what is pending is kept."""

    def __init__(self, ledger: ManagedLedger, cursor: ManagedCursor, log: RecordLog) -> None:
        self.state = PendingState(self._already, lambda: cursor.mark_delete_position)
        self.log = log
        self._ledger = ledger
        self._cursor = cursor

    async def recover(self) -> None:
        async for entry in self.log.records():
            records.replay(self.state, entry.position, entry.data)

    def _already(self, position: Position) -> int:
        cursor = self._cursor
        if cursor.is_acknowledged(position):
            return WHOLE
        words = cursor.acks.remaining_of_batch(*position)
        return 0 if words is None else ~words_to_int(words)

    # ---- Acknowledging

    def acknowledge(self, txn: TxnId, acks: Sequence[Ack], cumulative: bool, done: DurableDone | None) -> None:
        """`done` once it is durable. Raises TransactionConflictError, NotAllowedError; then nothing has changed."""
        if cumulative:
            acks = acks[-1:]
            self.state.acknowledge_upto(txn, acks[0])
        else:
            self.state.acknowledge(txn, acks)

        def logged(error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
            place = Position(ledger_id, entry_id)
            pending = self.state.get(txn)
            if error is None and pending is not None:
                pending.places.append(place)
            elif error is None:
                self.log.forget([place])  # the transaction ended meanwhile
            if done is not None:
                done(error)

        self.log.append_nowait(records.encode(txn, acks, cumulative), logged)

    def left_of(self, ack: Ack) -> int:
        """Messages of an entry that nobody has acknowledged yet."""
        if ack.acked == WHOLE:
            return 0
        everything = (1 << ack.batch_size) - 1
        return (everything & ~(self._already(ack.position) | self.state.taken(ack.position))).bit_count()

    # ---- Ending

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> list[PendingTransaction]:
        """Durable on return; answers what was aborted and is to be delivered again. Raises why it could not be stored."""
        aborted: list[PendingTransaction] = []
        if commit:
            pending = self.state.get(txn)
            if pending is not None:
                await self._apply(pending)
                await self._forget(pending.places)
                self.state.forget(txn)
        else:
            await self._abort(txn, aborted)
        for stale in self.state.left_over(txn.most, low_water_mark):
            await self._abort(stale, aborted)
        return aborted

    async def _abort(self, txn: TxnId, aborted: list[PendingTransaction]) -> None:
        pending = self.state.get(txn)
        if pending is None:
            return
        await self._forget(pending.places)
        self.state.forget(txn)
        aborted.append(pending)

    async def _apply(self, pending: PendingTransaction) -> None:
        cursor = self._cursor
        waits: list[asyncio.Future[None]] = []
        whole = [ack.position for ack in pending.individual.values() if ack.acked == WHOLE]
        if whole:
            cursor.acknowledge(whole, _waiting(waits))
        for ack in pending.individual.values():
            if ack.acked != WHOLE:
                self._apply_batch(ack, waits)
        upto = pending.cumulative
        if upto is not None and upto.acked == WHOLE:
            cursor.acknowledge_cumulative(upto.position, None, _waiting(waits))
        elif upto is not None:
            cursor.acknowledge_cumulative(self._ledger.index.previous(upto.position), None, _waiting(waits))
            self._apply_batch(upto, waits)
        for wait in waits:
            await wait

    def _apply_batch(self, ack: Ack, waits: list[asyncio.Future[None]]) -> None:
        size = min(ack.batch_size, BATCH_SIZE_MAX)
        self._cursor.acknowledge_batch(ack.position, records.left_of(ack), size, _waiting(waits))

    async def _forget(self, places: Sequence[Position]) -> None:
        waits: list[asyncio.Future[None]] = []
        self.log.forget(places, _waiting(waits))
        await waits[0]

    # ---- For reading

    def admit(self, entries: list[Entry]) -> list[Entry]:
        """The entries without those of which open transactions have acknowledged everything that is left."""
        taken = self.state.taken
        return [entry for entry in entries if not self._takes(entry, taken(entry.position))]

    def _takes(self, entry: Entry, taken: int) -> bool:
        if taken in (0, WHOLE):
            return taken == WHOLE
        everything = (1 << metadata_of(entry).num_messages) - 1
        return not everything & ~(taken | self._already(entry.position))

    def remaining(self, position: Position, words: list[int] | None) -> list[int] | None:
        """`words`: what the cursor says is left of a batch, None for all of it; the same without what is pending."""
        taken = self.state.taken(position)
        if not taken:
            return words
        if words is not None:
            return int_to_words(words_to_int(words) & ~taken)
        size = max((self._size_of(txn, position) for txn in self.state.transactions), default=0)
        return int_to_words(((1 << size) - 1) & ~taken) if size else words

    def _size_of(self, txn: TxnId, position: Position) -> int:
        pending = self.state.get(txn)
        if pending is None:
            return 0
        upto = pending.cumulative
        ack = pending.individual.get(position) or (upto if upto is not None and upto.position == position else None)
        return ack.batch_size if ack is not None else 0

    async def close(self, deleting: bool) -> None:
        """`deleting`: the subscription goes for good, and what was pending with it."""
        await (self.log.delete() if deleting else self.log.close())


def _waiting(waits: list[asyncio.Future[None]]) -> DurableDone:
    """A `done` whose future is added to `waits`."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits.append(future)

    def done(error: MagnetarError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done
