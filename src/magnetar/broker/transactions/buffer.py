"""The transaction buffer of one topic: which of its entries belong to open or aborted transactions, and the markers that end them.

Entries of transactions lie in the topic like any others. What is open is found again by reading the topic from the cursor
`pulsar.transactions` on; the aborted transactions of before are in that cursor's properties, stored together with its position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import TRANSACTION_ABORTED_PER_TOPIC_MAX
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.transactions.buffer_state import BufferState, OpenTransaction
from magnetar.broker.transactions.types import (
    MARKERS,
    TXN_ABORT,
    TXN_COMMIT,
    TransactionLogError,
    TxnId,
    marker,
    txn_of,
)
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position
from magnetar.managed_ledger.reads import read_page
from magnetar.wire.pulsar.headers import parse_metadata

logger = logging.getLogger(__name__)

CURSOR_NAME = "pulsar.transactions"

Marked = Callable[[Position, OpenTransaction | None], None]
"""`marked(position, aborted)`: a marker lies at `position`; `aborted` is what nobody will ever see because of it."""


class TransactionBuffer:
    """A snapshot is taken after `snapshot_transactions` ended ones, or `snapshot_interval_ms` after the last with the next end."""

    def __init__(
        self,
        ledger: ManagedLedger,
        cursor: ManagedCursor,
        clock: Clock,
        marked: Marked,
        snapshot_transactions: int,
        snapshot_interval_ms: int,
    ) -> None:
        self.state = BufferState()
        self.committed = 0
        """Transactions committed here since the topic was loaded."""
        self.snapshot_ms = 0
        """Wall time of the last snapshot."""
        self.recovery_ms = (0, 0)
        """Wall time at which reading the topic began and ended."""
        self._ledger = ledger
        self._cursor = cursor
        self._clock = clock
        self._marked = marked
        self._snapshot_transactions = snapshot_transactions
        self._snapshot_interval_ms = snapshot_interval_ms
        self._ended_since = 0

    @classmethod
    async def open(
        cls,
        ledger: ManagedLedger,
        clock: Clock,
        marked: Marked,
        snapshot_transactions: int,
        snapshot_interval_ms: int,
    ) -> TransactionBuffer:
        """Read what there is; a topic's first transaction makes the cursor. Raises TransactionLogError, the storage's error."""
        cursor = await ledger.open_cursor(CURSOR_NAME, initial=LATEST)
        buffer = cls(ledger, cursor, clock, marked, snapshot_transactions, snapshot_interval_ms)
        await buffer._recover()
        return buffer

    async def _recover(self) -> None:
        began_ms = self._clock.now_ms()
        try:
            self.state.restore(self._cursor.properties)
        except ValueError:
            raise TransactionLogError(f"the snapshot in the cursor {CURSOR_NAME} cannot be read") from None
        self._cursor.rewind()
        while page := await read_page(self._cursor):
            for entry in page:
                self._replay(entry)
        self.recovery_ms = (began_ms, self._clock.now_ms())
        self.snapshot()

    def _replay(self, entry: Entry) -> None:
        metadata = parse_metadata(entry.data)
        txn = txn_of(metadata)
        if txn is None:
            return
        if metadata.HasField("marker_type") and metadata.marker_type in MARKERS:
            self._end_at(txn, metadata.marker_type == TXN_COMMIT, entry.position)
        else:
            self.state.stored(txn, entry.position)

    # ---- Ending

    def check_room(self) -> None:
        """Check that another transaction may publish here. Raises NotAllowedError."""
        if self.state.aborted_count >= TRANSACTION_ABORTED_PER_TOPIC_MAX:
            raise NotAllowedError(
                f"{self._ledger.name} still stores messages of {TRANSACTION_ABORTED_PER_TOPIC_MAX} aborted transactions;"
                " let its subscriptions consume them, or shorten its retention"
            )

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Durable on return. Raises why the marker could not be stored."""
        if self.state.has(txn):
            await self._mark(txn, commit)
        for stale in self.state.left_over(txn.most, low_water_mark):
            logger.warning("transaction left over, aborting it topic=%s transaction=%s", self._ledger.name, stale)
            await self._mark(stale, commit=False)

    async def _mark(self, txn: TxnId, commit: bool) -> None:
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
            if error is None:
                self._end_at(txn, commit, Position(ledger_id, entry_id))
                self._ended_since += 1
                self._snapshot_if_due()
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        self._ledger.append(marker(txn, commit, self._clock.now_ms()), done)
        await stored

    def _end_at(self, txn: TxnId, commit: bool, position: Position) -> None:
        found = self.state.ended(txn, commit, position)
        self.committed += commit
        self._marked(position, None if commit else found)

    # ---- Snapshots

    def _snapshot_if_due(self) -> None:
        old = self._clock.now_ms() - self.snapshot_ms >= self._snapshot_interval_ms
        if old or self._ended_since >= self._snapshot_transactions:
            self.snapshot()

    def snapshot(self) -> None:
        """Move the cursor to where everything before is decided, with the aborted transactions in its properties."""
        self._ended_since = 0
        self.snapshot_ms = self._clock.now_ms()
        self.state.forget_before(self._ledger.first_position.ledger_id)
        self._cursor.acknowledge_cumulative(self.readable_end, self.state.snapshot())

    # ---- For reading

    @property
    def readable_end(self) -> Position:
        """The last position that may be read."""
        first_open = self.state.first_open
        return self._ledger.last_confirmed if first_open is None else self._ledger.index.previous(first_open)

    def hides(self, entry: Entry) -> bool:
        """True for an entry of an aborted transaction, or a marker."""
        metadata = metadata_of(entry)
        if metadata.marker_type >= 0:
            return True
        if entry.position > self.state.last_abort:
            return False
        txn = txn_of(parse_metadata(entry.data))
        if txn is None or not self.state.is_aborted(txn):
            return False
        metadata.marker_type = TXN_ABORT  # for all subscriptions: what is hidden is consumed unseen, like a marker
        return True

    def hide(self, entries: Sequence[Entry]) -> None:
        """Mark the entries of aborted transactions."""
        last_abort = self.state.last_abort
        for entry in entries:
            if entry.position <= last_abort:
                self.hides(entry)
