"""What one persistent topic has to do with transactions: nothing, until the first one names it.

From then on it has a buffer, and its subscriptions read through gates. The cursor of the buffer says after a restart that it did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from magnetar.base.errors import MagnetarError
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import PENDING_ACKS_SUFFIX, TopicName
from magnetar.broker.replicators.replicator_set import ReplicatorSet
from magnetar.broker.subscriptions import transactional
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.publish import NO_ID, PublishOp, PublishOwner
from magnetar.broker.topics.subscription_set import SubscriptionSet, TopicContext
from magnetar.broker.transactions.buffer import CURSOR_NAME, TransactionBuffer
from magnetar.broker.transactions.buffer_state import BufferState, OpenTransaction
from magnetar.broker.transactions.grants import Grants
from magnetar.broker.transactions.log import RecordLog, TransactionStorage
from magnetar.broker.transactions.pending_acks import STORE_CURSOR, PendingAcks
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.metadata import paths


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


class TransactionPublishOp(PublishOp):
    """A publish whose entry the buffer must know of before anybody may read it."""

    __slots__ = ("_state", "_txn")

    def __init__(
        self,
        state: BufferState,
        txn: TxnId,
        producer: PublishOwner,
        sequence_id: int,
        highest_sequence_id: int,
        num_messages: int,
        data_bytes: int,
    ) -> None:
        super().__init__(producer, [sequence_id], [highest_sequence_id], [num_messages], [data_bytes])
        self._state = state
        self._txn = txn
        state.sending(txn)

    def done(self, error: MagnetarError | None, ledger_id: int, entry_id: int, count: int) -> None:
        stored = error is None and ledger_id != NO_ID
        self._state.sent(self._txn, Position(ledger_id, entry_id) if stored else None)
        super().done(error, ledger_id, entry_id, count)


class TopicTransactions:
    """`buffer` is None for a topic that never saw a transaction."""

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        subscriptions: SubscriptionSet,
        compaction: TopicCompaction,
        replicators: ReplicatorSet,
        context: TopicContext,
    ) -> None:
        self.buffer: TransactionBuffer | None = None
        self.grants = Grants()
        self.log_fenced: Callable[[ManagedLedgerFencedError], None] = lambda error: None
        """Called when the log of a subscription's pending acknowledgements seems to be another broker's: load the topic anew."""
        self._name = name
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._compaction = compaction
        self._replicators = replicators
        self._context = context
        self._preparing = asyncio.Lock()

    async def load(self) -> None:
        """Before anything is read of the topic."""
        if CURSOR_NAME not in self._ledger.cursors:
            return
        storage = self._storage()
        await self._open_buffer(storage)
        for subscription in self._subscriptions.all:
            if await storage.factory.exists(self._store_name(subscription.name)):
                await self._open_pending(storage, subscription)

    def _storage(self) -> TransactionStorage:
        storage = self._context.transactions
        if storage is None:
            raise NotAllowedError(f"{self._name} cannot take part in transactions")
        return storage

    async def _open_buffer(self, storage: TransactionStorage) -> TransactionBuffer:
        buffer = await TransactionBuffer.open(
            self._ledger, self._context.clock, self._marked, storage.snapshot_transactions, storage.snapshot_interval_ms
        )
        self.buffer = buffer
        self._compaction.readable = buffer
        self._subscriptions.added = self._gate
        for subscription in self._subscriptions.all:
            self._gate(subscription)
        self._replicators.read_through(lambda: SubscriptionGate(buffer))
        return buffer

    def _gate(self, subscription: Subscription) -> None:
        assert self.buffer is not None
        subscription.cursor.gate = SubscriptionGate(self.buffer, subscription.pending_acks)

    def _marked(self, position: Position, aborted: OpenTransaction | None) -> None:
        """Markers, and what an abort hides, count in no backlog."""
        for cursor in [*(subscription.cursor for subscription in self._subscriptions.all), *self._replicators.cursors]:
            cursor.acknowledge([position])
            for ledger_id, first, last in (aborted.runs or ()) if aborted is not None else ():
                cursor.pass_over(Position(ledger_id, first), Position(ledger_id, last + 1))

    # ---- Taking part

    async def prepare(self) -> TransactionBuffer:
        """A transaction is going to publish here. Raises NotAllowedError when too much of aborted ones is stored."""
        buffer = self.buffer
        if buffer is None:
            async with self._preparing:
                buffer = self.buffer or await self._open_buffer(self._storage())
        buffer.check_room()
        return buffer

    async def prepare_subscription(self, name: str) -> None:
        """A transaction is going to acknowledge there. Raises SubscriptionNotFoundError, NotAllowedError for a reader's."""
        subscription = self._subscriptions.get(name)
        if subscription.pending_acks is not None:
            return
        if not subscription.durable:
            raise NotAllowedError(f"{name} is not durable: transactions cannot acknowledge there")
        if self.buffer is None:
            await self.prepare()
        async with self._preparing:
            if subscription.pending_acks is None:
                await self._open_pending(self._storage(), subscription)

    async def _open_pending(self, storage: TransactionStorage, subscription: Subscription) -> None:
        log = await RecordLog.open(storage.factory, self._store_name(subscription.name), STORE_CURSOR, storage.ledgers)
        log.ledger.add_fence_listener(lambda error: self.log_fenced(error))
        pending = PendingAcks(self._ledger, subscription.cursor, log)
        await pending.recover()
        subscription.pending_acks = pending
        self._gate(subscription)

    def _store_name(self, subscription: str) -> str:
        name = self._name
        local = f"{name.local_name}-{subscription}{PENDING_ACKS_SUFFIX}"
        return paths.managed_ledger_name(name.tenant, name.namespace, name.domain, local)

    async def end(self, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Durable on return. Raises why the marker could not be stored."""
        self.grants.ended(txn, low_water_mark)
        if self.buffer is not None:
            await self.buffer.end(txn, commit, low_water_mark)

    async def end_on_subscription(self, name: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Durable on return. Raises SubscriptionNotFoundError, or why it could not be stored."""
        self.grants.ended(txn, low_water_mark)
        await transactional.end(self._subscriptions.get(name), txn, commit, low_water_mark)

    # ---- For the topic

    def readable_end(self) -> Position:
        """The last position that may be read: what follows waits for a transaction."""
        return self._ledger.last_confirmed if self.buffer is None else self.buffer.readable_end

    async def last_visible(self) -> Position:
        """The last position that consumers may see; (ledger, -1) or before everything when there is none."""
        buffer, ledger, hidden = self.buffer, self._ledger, self._ledger.hidden
        if buffer is None and not hidden:
            return ledger.last_confirmed
        position = self.readable_end()
        while position.entry_id >= 0 and position >= ledger.first_position:
            if position not in hidden and (buffer is None or not buffer.hides(await ledger.read_entry(position))):
                return position
            position = ledger.index.previous(position)
        return Position(position.ledger_id, -1)

    def check_ended(self) -> None:
        """Raises PreconditionFailedError while a transaction is open here."""
        if self.buffer is not None and self.buffer.state.busy:
            raise PreconditionFailedError(f"transactions are open in {self._name}; commit or abort them first")

    def snapshot(self) -> None:
        if self.buffer is not None:
            self.buffer.snapshot()

    def stats(self) -> Mapping[str, int]:
        """Pulsar's counters of the topic's stats."""
        state = self.buffer.state if self.buffer is not None else None
        return {
            "ongoingTxnCount": state.open_count if state is not None else 0,
            "abortedTxnCount": state.aborted_count if state is not None else 0,
            "committedTxnCount": self.buffer.committed if self.buffer is not None else 0,
        }

    async def delete(self) -> None:
        """The logs of the subscriptions, which are not in the topic's own list. The subscriptions are closed."""
        if CURSOR_NAME not in self._ledger.cursors:
            return
        factory = self._storage().factory
        for cursor in list(self._ledger.cursors):
            name = self._store_name(cursor)
            if await factory.exists(name):
                await factory.delete(name)
