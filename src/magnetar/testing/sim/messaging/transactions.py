"""Transactions as list-append: workers that take messages from one topic and append to others, all of it or nothing.

`TransactionHistory` is the checker; it belongs to no process. The terms are Elle's: G1a is an aborted message that somebody saw.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from magnetar.testing.sim.history import History
from magnetar.testing.sim.messaging.clients import Consumer, connect_to_owner
from magnetar.testing.sim.messaging.connection import REQUEST_TIMEOUT_S, ClientError, Connection
from magnetar.testing.sim.messaging.nodes import ApplicationNode
from magnetar.testing.sim.messaging.promises import (
    NOWHERE,
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    TopicHistory,
    payload_of_message,
)
from magnetar.testing.sim.messaging.scenario import MessagingScenario
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import (
    ABORT,
    COMMIT,
    BaseCommand,
    CommandAck,
    MessageMetadata,
    ServerError,
)

ATOMIC: Final = "T1 a committed transaction is there whole, every other one not at all"
ABORTED: Final = "T2 nobody sees a message of a transaction that is not committed (G1a)"
ONCE: Final = "T3 a message that transactions take is taken by one of them"

WORK: Final = "work"
"""The workers' subscription."""

COORDINATORS: Final = "persistent://pulsar/system/transaction_coordinator_assign-partition-"
TAKEN_MAX: Final = 3
ATTEMPTS_MAX: Final = 40
"""Of ending a transaction, when the worker has decided to find out what became of it."""

WORD: Final = 64

Txn = tuple[int, int]
"""Most and least bits."""


class Outcome(Enum):
    OPEN = "not asked to commit"
    ASKED = "asked to commit, without an answer"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Transaction:
    """One of a worker's. `appended`: topic and message; with where each is stored. `taken`: of the first topic."""

    number: int
    worker: str
    txn: Txn | None = None
    outcome: Outcome = Outcome.OPEN
    appended: dict[tuple[str, Name], Place] = field(default_factory=dict)
    taken: list[Place] = field(default_factory=list)

    def __str__(self) -> str:
        return f"transaction {self.number} {self.txn} of {self.worker} ({self.outcome.value})"


class TransactionHistory:
    """All transactions of a run."""

    def __init__(self, promises: Promises) -> None:
        self.transactions: list[Transaction] = []
        self._promises = promises
        self._of: dict[tuple[str, Name], Transaction] = {}
        self._seen: set[tuple[str, Name]] = set()

    def begin(self, worker: str) -> Transaction:
        made = Transaction(len(self.transactions) + 1, worker)
        self.transactions.append(made)
        return made

    def sends(self, transaction: Transaction, topic: TopicHistory, name: Name, payload: bytes) -> None:
        self._of[topic.name, name] = transaction
        self._promises.sent(topic, name, payload)

    def seen(self, topic: TopicHistory, name: Name) -> None:
        """A client has got a message."""
        transaction = self._of.get((topic.name, name))
        if transaction is None:
            return
        self._seen.add((topic.name, name))
        if transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
            self._promises.violate(ABORTED, f"{topic.name}: {name} was delivered, of {transaction}")

    def committed(self, transaction: Transaction, work: SubscriptionHistory) -> None:
        """The commit is answered: what was appended counts as published, what was taken as acknowledged."""
        transaction.outcome = Outcome.COMMITTED
        for (topic, name), place in transaction.appended.items():
            self._promises.receipt(self._promises.topics[topic], name, place)
        self._promises.settled(work, transaction.taken, transaction.worker)

    def check(self, contents: dict[str, dict[Place, Name]], source: str) -> None:
        """`contents`: all that the topics hold in the end, by topic."""
        stored = {(topic, name) for topic, places in contents.items() for name in places.values()}
        takers: dict[Place, list[Transaction]] = {}
        for transaction in self.transactions:
            there = {each: each in stored for each in transaction.appended}
            self._promises.history.count(f"transactions {transaction.outcome.value}")
            visible = any(there.values())
            if visible and not all(there.values()):
                missing = [each for each, found in there.items() if not found]
                self._promises.violate(ATOMIC, f"{transaction} is there without {missing[:3]}")
            if visible and transaction.outcome in (Outcome.OPEN, Outcome.ABORTED):
                self._promises.violate(ATOMIC, f"{transaction} is there")
            if transaction.outcome is Outcome.COMMITTED and there and not visible:
                self._promises.violate(ATOMIC, f"{transaction} is gone")
            if visible:
                for place in dict.fromkeys(transaction.taken):  # the rest of a batch may come twice to one consumer
                    takers.setdefault(place, []).append(transaction)
        for topic, name in self._seen - stored:
            self._promises.violate(ATOMIC, f"{topic}: {name} was delivered and is gone")
        for place, name in contents[source].items():
            by = takers.get(place, [])
            if len(by) != 1:
                self._promises.violate(ONCE, f"{name} at {place} was taken by {[str(each) for each in by]}")


class Refused(ClientError):
    """The broker has answered with an error of transactions; `code` is its ServerError."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{ServerError.Name(code)}: {text}")  # type: ignore[arg-type]
        self.code = code


async def asked(connection: Connection, command: BaseCommand, field_name: str, answer_field: str) -> Any:
    answer = getattr(await connection.ask(command, getattr(command, field_name)), answer_field)
    if answer.HasField("error"):
        raise Refused(answer.error, answer.message)
    return answer


class Appender:
    """A producer of one topic whose messages belong to transactions. It sends nothing twice."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._waiting: dict[int, asyncio.Future[Place]] = {}
        connection.on_command = self._command
        connection.on_closed = self._closed

    @classmethod
    async def open(cls, connection: Connection, topic: str, name: str) -> Appender:
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id = topic, 1
        command.producer.producer_name, command.producer.user_provided_producer_name = name, True
        await connection.ask(command, command.producer)
        return cls(connection)

    async def append(self, txn: Txn, name: Name, key: str, payload: bytes) -> Place:
        """Raises ClientError."""
        metadata = MessageMetadata(
            producer_name=name.producer, sequence_id=name.number, publish_time=1, partition_key=key
        )
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, name.number, 1
        command.send.txnid_most_bits, command.send.txnid_least_bits = txn
        if self.connection.closed:
            raise ClientError("the connection is closed")
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting[name.number] = future
        self.connection.send(command, with_checksum(metadata, payload))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await future
        except TimeoutError as error:
            raise ClientError("no receipt in time") from error
        finally:
            self._waiting.pop(name.number, None)

    def _command(self, command: BaseCommand, rest: bytes) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            future = self._waiting.get(command.send_receipt.sequence_id)
            where = command.send_receipt.message_id
            if future is not None and not future.done():
                future.set_result(Place(where.ledgerId, where.entryId))
        elif command.type in (BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER):
            self.connection.close()

    def _closed(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientError("the connection was lost"))
                future.exception()


class WorkConsumer(Consumer):
    """Acknowledges in transactions."""

    async def acknowledge_in(self, txn: Txn, places: list[Place]) -> None:
        """Raises ClientError."""
        connection = self.connection
        if connection is None:
            raise ClientError("not connected")
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, CommandAck.Individual
        command.ack.txnid_most_bits, command.ack.txnid_least_bits = txn
        for place in places:
            added = command.ack.message_id.add(ledgerId=place.ledger_id, entryId=place.entry_id)
            if place.batch_index >= 0:
                batch = self._batches.get(place[:2])
                if batch is None:
                    raise ClientError("the connection was lost, and its batches with it")
                size = batch.size
                left = ((1 << size) - 1) & ~(1 << place.batch_index)
                words = [left >> WORD * number & 2**WORD - 1 for number in range((size + WORD - 1) // WORD)]
                added.ack_set.extend(word - 2**WORD if word >> WORD - 1 else word for word in words)
                added.batch_size = size
        await asked(connection, command, "ack", "ackResponse")


class Surroundings(Protocol):
    """The part of a run that a worker needs."""

    scenario: MessagingScenario
    history: History
    promises: Promises
    draining: bool
    ended: bool

    @property
    def broker_hosts(self) -> list[str]: ...

    def worked(self) -> None: ...

    def next_number(self, name: str) -> int: ...


class TransactionWorker:
    """One application: takes up to three messages, appends to one or more topics, commits or aborts."""

    def __init__(
        self, run: Surroundings, history: TransactionHistory, node: ApplicationNode, rng: random.Random
    ) -> None:
        self._run = run
        self._history = history
        self._node = node
        self._rng = rng
        self._name = node.name
        first, *others = run.promises.topics.values()
        self._lists = others
        self._work = first.subscriptions[WORK]
        self.consumer = WorkConsumer(
            node, run.broker_hosts, first, rng, run.promises, self._work, queue=10, by_index=True
        )
        self._appenders: dict[str, Appender] = {}
        self._coordinators: dict[int, Connection] = {}

    async def work(self) -> None:
        """Until the run ends."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.consumer.run())
            while not self._run.ended:
                places = await self._taken()
                if not places and self._run.draining:
                    continue
                self._run.worked()
                try:
                    await self._transaction(places)
                except ClientError:
                    self._run.history.count("transactions given up")
                    self._drop()
                    await asyncio.sleep(self._rng.expovariate(10.0))
                self._run.worked()
            self.consumer.stop()
            self._drop()

    def _drop(self) -> None:
        """Everything begins anew: the broker delivers again what is not acknowledged."""
        self.consumer.disconnect()
        for connection in [*(each.connection for each in self._appenders.values()), *self._coordinators.values()]:
            connection.close()
        self._appenders.clear()
        self._coordinators.clear()

    async def _taken(self) -> list[Place]:
        consumer = self.consumer
        if not consumer.inbox:
            consumer.arrived.clear()
            try:
                async with asyncio.timeout(0.2):
                    await consumer.arrived.wait()
            except TimeoutError:
                return []
        count = min(len(consumer.inbox), self._rng.randint(1, TAKEN_MAX))
        return [consumer.take().place for _ in range(count)]

    async def _transaction(self, places: list[Place]) -> None:
        rng, scenario, draining = self._rng, self._run.scenario, self._run.draining
        record = self._history.begin(self._name)
        number = rng.randrange(scenario.broker["initial_num_transaction_coordinators"])
        record.txn = txn = await self._begin(number)
        lists = rng.sample(self._lists, rng.randint(1, len(self._lists)))
        await self._name_topics(number, txn, [topic.name for topic in lists])
        if places:
            await self._name_work(number, txn)
        steps = [self._append_step(record, txn, topic) for topic in lists for _ in range(rng.randint(1, 2))]
        if places:
            steps.insert(rng.randrange(len(steps) + 1), self._take_step(record, txn, places))
        for step in steps:
            await step()
            if not draining and rng.random() < 0.1:
                await asyncio.sleep(rng.expovariate(20.0))
        if not draining and rng.random() < scenario.linger:
            if rng.random() < 0.5:
                raise ClientError("left alone")
            await asyncio.sleep(rng.uniform(0.5, 1.2) * scenario.ttl_s)
        if not draining and rng.random() < scenario.aborts:
            record.outcome = Outcome.ABORTED
            await self._end(number, txn, commit=False)
        else:
            await self._commit(number, record, txn)

    def _append_step(self, record: Transaction, txn: Txn, topic: TopicHistory) -> Callable[[], Any]:
        async def append() -> None:
            appender = self._appenders.get(topic.name)
            if appender is None or appender.connection.closed:
                connection = await self._connected(topic.name)
                try:
                    appender = self._appenders[topic.name] = await Appender.open(connection, topic.name, self._name)
                except ClientError:
                    connection.close()
                    raise
            name = Name(self._name, self._run.next_number(f"{self._name} {topic.name}"))
            key = f"k{self._rng.randrange(self._run.scenario.keys)}"
            payload = payload_of_message(name, key, str(record.number).encode())
            self._history.sends(record, topic, name, payload)
            record.appended[topic.name, name] = Place(NOWHERE, NOWHERE)
            record.appended[topic.name, name] = await appender.append(txn, name, key, payload)

        return append

    def _take_step(self, record: Transaction, txn: Txn, places: list[Place]) -> Callable[[], Any]:
        async def take() -> None:
            record.taken += places
            await self.consumer.acknowledge_in(txn, places)

        return take

    # ---- The coordinator

    async def _connected(self, topic: str) -> Connection:
        connection, _ = await connect_to_owner(self._node, self._run.broker_hosts, topic, self._rng)
        return connection

    async def _coordinator(self, number: int) -> Connection:
        found = self._coordinators.get(number)
        if found is not None and not found.closed:
            return found
        connection = await self._connected(f"{COORDINATORS}{number}")
        command = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
        command.tcClientConnectRequest.tc_id = number
        try:
            await asked(connection, command, "tcClientConnectRequest", "tcClientConnectResponse")
        except ClientError:
            connection.close()
            raise
        self._coordinators[number] = connection
        return connection

    async def _begin(self, number: int) -> Txn:
        command = BaseCommand(type=BaseCommand.NEW_TXN)
        command.newTxn.tc_id, command.newTxn.txn_ttl_millis = number, int(self._run.scenario.ttl_s * 1000)
        answer = await asked(await self._coordinator(number), command, "newTxn", "newTxnResponse")
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def _name_topics(self, number: int, txn: Txn, topics: list[str]) -> None:
        command = BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN)
        request = command.addPartitionToTxn
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.partitions.extend(topics)
        await asked(await self._coordinator(number), command, "addPartitionToTxn", "addPartitionToTxnResponse")

    async def _name_work(self, number: int, txn: Txn) -> None:
        command = BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN)
        request = command.addSubscriptionToTxn
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.subscription.add(topic=self.consumer.topic.name, subscription=WORK)
        await asked(await self._coordinator(number), command, "addSubscriptionToTxn", "addSubscriptionToTxnResponse")

    async def _end(self, number: int, txn: Txn, commit: bool) -> None:
        command = BaseCommand(type=BaseCommand.END_TXN)
        request = command.endTxn
        request.txnid_most_bits, request.txnid_least_bits = txn
        request.txn_action = COMMIT if commit else ABORT
        await asked(await self._coordinator(number), command, "endTxn", "endTxnResponse")

    async def _commit(self, number: int, record: Transaction, txn: Txn) -> None:
        """Some workers ask until they know; others leave it at the first silence."""
        rng = self._rng
        attempts = ATTEMPTS_MAX if rng.random() < 0.7 else 1
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(rng.uniform(0.05, 1.0))
            sent = record.outcome is Outcome.ASKED
            try:
                await self._coordinator(number)
                record.outcome = Outcome.ASKED
                await self._end(number, txn, commit=True)
            except Refused as error:
                if error.code == ServerError.InvalidTxnStatus or (
                    error.code == ServerError.TransactionNotFound and not sent
                ):
                    record.outcome = Outcome.ABORTED
                    raise
                if error.code == ServerError.TransactionNotFound:
                    raise
            except ClientError:
                pass
            else:
                self._history.committed(record, self._work)
                return
        raise ClientError("nobody knows what became of it")
