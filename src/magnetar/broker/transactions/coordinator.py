"""One transaction coordinator: its transactions, their log, and carrying out what was decided.

What a client is told is in the log first. Ending takes two steps: the outcome is logged, then every topic and subscription carries it
out, each as often as it takes; a crash in between goes on where the log says. Then the records of the transaction are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.broker.errors import (
    AuthorizationError,
    ServiceNotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from magnetar.broker.transactions import coordinator_records as records
from magnetar.broker.transactions.coordinator_state import CoordinatorState, Transaction, TxnStatus, complete
from magnetar.broker.transactions.grants import TOPIC_ITSELF, Naming, belongs_to
from magnetar.broker.transactions.log import RecordLog
from magnetar.broker.transactions.types import Participants, TxnId

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10.0
"""Pause after a step of ending a transaction failed; it doubles with each further failure."""

END_ANSWER_S = 25.0
"""Time-out of waiting for all topics when a transaction ends; the clients' own time-out is 30 s."""

RESERVED_AT_ONCE = 10_000
"""Numbers that the log sets aside in one write: none of them is given out again after a restart."""

LATENCY_BOUNDS_MS = (10, 20, 50, 100, 500, 1000, 5000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000)
"""Pulsar's buckets of `pulsar_txn_execution_latency`; one more for what took longer."""


class TransactionCounters:
    """Plain ints, read at scrape time."""

    __slots__ = ("aborted", "committed", "created", "latency_buckets", "timed_out")

    def __init__(self) -> None:
        self.created = 0
        self.committed = 0
        self.aborted = 0
        self.timed_out = 0
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)


class TransactionCoordinator:
    """`who` in its calls is the role that asks: others' transactions are refused with AuthorizationError."""

    def __init__(
        self, state: CoordinatorState, log: RecordLog, participants: Participants, clock: Clock, scope: TaskScope
    ) -> None:
        self.state = state
        self.log = log
        self.counters = TransactionCounters()
        self.recovery_ms = (0, 0)
        """Wall time at which the log was begun and ended to be read."""
        self._participants = participants
        self._clock = clock
        self._scope = scope
        self._ending: dict[TxnId, asyncio.Future[None]] = {}
        self._naming: list[tuple[str, Naming]] = []
        """Requests under way to name a topic, by its complete name."""
        self._deadline_moved = asyncio.Event()
        self._reserving = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def coordinator_id(self) -> int:
        return self.state.coordinator_id

    async def recover(self) -> None:
        """Read the log; decided transactions continue to be carried out, open ones continue with their time-outs."""
        began_ms = self._clock.now_ms()
        found: dict[TxnId, Transaction] = {}
        strays = [
            entry.position
            async for entry in self.log.records()
            if not records.replay(self.state, found, entry.position, entry.data)
        ]
        self.log.forget(strays)
        self.state.restored(self._clock.now_ms())
        self.state.highest = max(self.state.highest, self.log.reserved)
        for transaction in self.state:
            if transaction.status is not TxnStatus.OPEN:
                self._carry_out(transaction, logged=True)
        self._remember(self._scope.supervise(self._end_expired, f"transaction timeouts {self.coordinator_id}"))
        self.recovery_ms = (began_ms, self._clock.now_ms())
        if found:
            logger.info("transactions recovered coordinator=%d count=%d", self.coordinator_id, len(self.state))

    def _remember(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop where it is: what was decided stands in the log, and whoever opens it next carries it out."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for carried_out in self._ending.values():
            if not carried_out.done():
                carried_out.set_exception(ServiceNotReadyError("the transaction coordinator moves to another broker"))
                carried_out.exception()  # perhaps nobody waits for it
        await self.log.close()

    # ---- What clients ask for

    async def new(self, timeout_ms: int, owner: str) -> TxnId:
        """Raises TooManyRequestsError, NotAllowedError for a timeout that is not possible, or why the log could not be written."""
        self.state.check_open(timeout_ms, owner)
        async with self._reserving:
            if self.state.highest >= self.log.reserved:
                await self.log.reserve(self.state.highest + RESERVED_AT_ONCE)
        transaction = self.state.open(self._clock.now_ms(), timeout_ms, owner)
        txn = transaction.txn
        try:
            await self._record(transaction, records.opened(transaction, self.state.highest))
        except BaseException:
            self.state.forget(txn)
            raise
        self.counters.created += 1
        self._deadline_moved.set()
        return txn

    async def add_partitions(self, txn: TxnId, topics: Sequence[str], who: str | None) -> None:
        """The transaction will publish to these. Raises TransactionNotFoundError, InvalidTxnStatusError, TopicNotFoundError ..."""
        owner = self._owned(self.state.get_open(txn), who).owner
        with self._naming_now(Naming(txn.least, TOPIC_ITSELF, owner), topics):
            for topic in topics:
                await self._participants.prepare_partition(topic, txn, owner)
            transaction = self.state.add_partitions(txn, topics)
        data = records.partitions_added(txn, topics, self._clock.now_ms(), self.state.highest)
        await self._record(transaction, data)

    async def add_subscriptions(self, txn: TxnId, subscriptions: Sequence[tuple[str, str]], who: str | None) -> None:
        """The transaction will acknowledge there: pairs of topic and subscription. Raises as `add_partitions`."""
        owner = self._owned(self.state.get_open(txn), who).owner
        with ExitStack() as naming:
            for topic, subscription in subscriptions:
                naming.enter_context(self._naming_now(Naming(txn.least, subscription, owner), [topic]))
            for topic, subscription in subscriptions:
                await self._participants.prepare_subscription(topic, subscription, txn, owner)
            transaction = self.state.add_subscriptions(txn, subscriptions)
        data = records.subscriptions_added(txn, subscriptions, self._clock.now_ms(), self.state.highest)
        await self._record(transaction, data)

    @contextmanager
    def _naming_now(self, naming: Naming, topics: Sequence[str]) -> Iterator[None]:
        """Until the state holds the names, a broker that asks has to be told of them, too: the topic may move meanwhile."""
        entries = [(complete(topic), naming) for topic in topics]
        self._naming.extend(entries)
        try:
            yield
        finally:
            for entry in entries:
                self._naming.remove(entry)

    def named(self, topic: str) -> list[Naming]:
        """What may be done at a topic, given by its complete name, in the transactions that are open."""
        return [naming for name, naming in self._naming if name == topic] + self.state.named(topic)

    async def end(self, txn: TxnId, commit: bool, who: str | None) -> None:
        """End the transaction and wait until that is carried out everywhere.

        Raises TransactionNotFoundError, InvalidTxnStatusError, and ServiceNotReadyError when it takes too long: it continues then, and
        another call waits again.
        """
        self._owned(self.state.get(txn), who)
        carried_out = self._end(txn, commit)
        await asyncio.wait([carried_out], timeout=END_ANSWER_S)
        if not carried_out.done():
            raise ServiceNotReadyError(f"the outcome of {txn} is not carried out everywhere yet; ask again")
        carried_out.result()

    async def _record(self, transaction: Transaction, data: bytes) -> None:
        """Durable on return."""
        place = await self.log.append(data)
        if transaction.txn in self.state:
            transaction.places.append(place)
        else:
            self.log.forget([place])  # it ended meanwhile

    def _owned(self, transaction: Transaction, who: str | None) -> Transaction:
        if not belongs_to(transaction.owner, who):
            raise AuthorizationError(f"transaction {transaction.txn} belongs to another role")
        return transaction

    # ---- Carrying out

    def _end(self, txn: TxnId, commit: bool) -> asyncio.Future[None]:
        if not self.state.end(txn, commit):
            return self._ending[txn]
        return self._carry_out(self.state.get(txn), logged=False)

    def _carry_out(self, transaction: Transaction, logged: bool) -> asyncio.Future[None]:
        carried_out = asyncio.get_running_loop().create_future()
        self._ending[transaction.txn] = carried_out
        work = self._finish(transaction, logged, carried_out)
        self._remember(self._scope.spawn(work, f"end transaction {transaction.txn}", FATAL))
        return carried_out

    async def _finish(self, transaction: Transaction, logged: bool, carried_out: asyncio.Future[None]) -> None:
        txn, status = transaction.txn, transaction.status
        commit = status is TxnStatus.COMMITTING
        low = self.state.low_water_mark

        async def log_outcome() -> None:
            data = records.ended(txn, status, self._clock.now_ms(), self.state.highest)
            await self._record(transaction, data)

        if not logged:
            await self._until_done(txn, log_outcome)
        steps: list[Callable[[], Awaitable[None]]] = [
            *(self._partition_step(topic, txn, commit, low) for topic in transaction.partitions),
            *(self._subscription_step(*each, txn, commit, low) for each in transaction.subscriptions),
        ]
        await asyncio.gather(*(self._until_done(txn, step) for step in steps))
        self.state.forget(txn)
        self.log.forget(transaction.places)
        del self._ending[txn]
        self._count(transaction, commit)
        if not carried_out.done():
            carried_out.set_result(None)

    def _partition_step(self, topic: str, txn: TxnId, commit: bool, low: int) -> Callable[[], Awaitable[None]]:
        return lambda: self._participants.end_on_partition(topic, txn, commit, low)

    def _subscription_step(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low: int
    ) -> Callable[[], Awaitable[None]]:
        return lambda: self._participants.end_on_subscription(topic, subscription, txn, commit, low)

    async def _until_done(self, txn: TxnId, step: Callable[[], Awaitable[None]]) -> None:
        """Again and again: the outcome is decided, so no failure is an answer. What is gone has nothing to carry out."""
        delay_s = RETRY_FIRST_S
        while True:
            try:
                await step()
                return
            except (TopicNotFoundError, SubscriptionNotFoundError) as error:
                logger.info("nothing left to end transaction=%s: %s", txn, error)
                return
            except MagnetarError as error:
                logger.warning("transaction not ended yet transaction=%s retry_s=%.1f error=%s", txn, delay_s, error)
            except Exception:  # our bug, in one step: the transaction must not hang on it without a word
                logger.exception("transaction not ended yet transaction=%s retry_s=%.1f", txn, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RETRY_MAX_S)

    def _count(self, transaction: Transaction, commit: bool) -> None:
        counters = self.counters
        if commit:
            counters.committed += 1
        else:
            counters.aborted += 1
        took_ms = self._clock.now_ms() - transaction.started_ms
        counters.latency_buckets[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1

    async def _end_expired(self) -> None:
        """Abort what is open beyond its time."""
        while True:
            self._deadline_moved.clear()
            deadline_ms = self.state.next_deadline_ms()
            wait_s = None if deadline_ms is None else max(0.0, (deadline_ms - self._clock.now_ms()) / 1000)
            try:
                async with asyncio.timeout(wait_s):
                    await self._deadline_moved.wait()
            except TimeoutError:
                for txn in self.state.expired(self._clock.now_ms()):
                    logger.info("transaction timed out transaction=%s", txn)
                    self.counters.timed_out += 1
                    self._end(txn, commit=False)

    # ---- What topics ask

    def allows(self, txn: TxnId, topic: str, subscription: str, who: str | None) -> bool:
        """True if the transaction is open, belongs to `who`, and has named this: the topic (by its complete name), or a subscription."""
        if txn not in self.state:
            return False
        transaction = self.state.get(txn)
        if transaction.status is not TxnStatus.OPEN or not belongs_to(transaction.owner, who):
            return False
        if subscription == TOPIC_ITSELF:
            return topic in transaction.partitions.values()
        return (topic, subscription) in transaction.subscriptions.values()
