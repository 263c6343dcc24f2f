"""What clients do while the nemesis works. Every workload writes a history; its checker is in checkers.py.

Clients speak the protocol themselves, so that a history has no hidden repeats: a client library sends again what it got no answer to.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pulsar
from bench.faults.history import History
from bench.faults.targets import Door, Target
from tests.support.raw_client import NO_POSITION, message, split
from tests.support.raw_transactions import RawTransactions

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe

BROKEN = (OSError, AssertionError, EOFError)
"""A connection that has ended, or an answer that did not come in time: nobody knows what became of the request."""
ANSWER_S = 3.0
NAMESPACE = "persistent://public/default"
POSITIONS = 2000
"""Messages that a cursor is set to in turn."""
TXN_TTL_MS = 10_000
SETTLED_TIMEOUT_S = 100.0
"""For the transactions that are open when the faults end."""
HELD_BACK = 7
"""Every so many messages one is never acknowledged."""

Work = Callable[["Run", int], None]


class Run:
    """One run of a workload: its threads go on until `over`."""

    def __init__(self, target: Target, history: History, seed: str, gap_s: float) -> None:
        self.target, self.history, self.seed, self.gap_s = target, history, seed, gap_s
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self.closing = ExitStack()
        """What the workload has opened besides."""
        self._threads: list[threading.Thread] = []

    def random(self, name: object) -> random.Random:
        return random.Random(f"{self.seed}/{name}")

    def start(self, work: Work, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            thread = threading.Thread(target=self._guarded, args=(work, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, work: Work, number: int) -> None:
        while not self.over.is_set():
            try:
                work(self, number)
            except BROKEN:
                self.over.wait(0.1)
            except BaseException as error:
                self.errors.append(error)
                return

    def finish(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)
        if self.errors:
            raise self.errors[0]

    def numbers(self, process: object) -> Any:
        """A counter that goes on over connections."""
        store = self.__dict__.setdefault("_numbers", {})
        return store.setdefault(process, [0])


def retried(what: Callable[[], Any], for_s: float = 120.0) -> Any:
    """Of the end of a run: the faults are over, the service has to come back by itself."""
    deadline = time.monotonic() + for_s
    while True:
        try:
            return what()
        except (*BROKEN, pulsar.PulsarException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def contents(target: Door, topic: str) -> list[tuple[list[int], str]]:
    """Everything a reader gets: (ledger, entry) and text."""
    connection = target.dial(topic)
    answer = connection.lookup(topic).lookupTopicResponse.brokerServiceUrl
    connection.close()
    client = pulsar.Client(
        answer, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"), operation_timeout_seconds=10
    )
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            got = reader.read_next(10_000)
            found.append(([got.message_id().ledger_id(), got.message_id().entry_id()], got.data().decode()))
        reader.close()
        return found
    finally:
        client.close()


def subscribe(connection: RawTransactions, topic: str, name: str, kind: int, **options: Any) -> None:
    answer = connection.subscribe(topic, name, kind, **options)
    if answer.type != BaseCommand.SUCCESS:
        raise ConnectionRefusedError(answer.error.message)


def keep_all(target: Door, topic: str, name: str, kind: int = CommandSubscribe.Shared, **options: Any) -> None:
    """Make the topic and a subscription at its beginning, which keeps what is published."""

    def made() -> None:
        connection = target.dial(topic, 10.0)
        try:
            subscribe(connection, topic, name, kind, permits=0, **options)
        finally:
            connection.close()

    retried(made)


# ---- set, dedup: what has a receipt is there, in the order of sending; with deduplication once


def publishing(run: Run, process: int, topic: str, keys: int = 0, door: Door | None = None) -> None:
    """One producer on one connection, up to eight messages without a receipt; what broke is sent again first."""
    pending: list[int] = run.__dict__.setdefault("_pending", {}).setdefault(process, [])
    counter, name = run.numbers(process), f"p{process}"
    connection = (door or run.target).dial(topic, ANSWER_S)
    try:
        answer = connection.producer(topic, producer_name=name)
        if answer.type != BaseCommand.PRODUCER_SUCCESS:
            raise ConnectionRefusedError(answer.error.message)
        again = list(pending)
        for number in again:
            run.history.add(process, "info", "again", f"{name}:{number}")
        while not run.over.is_set():
            batch = again or [counter[0] + each for each in range(8)]
            if not again:
                counter[0] += len(batch)
                pending.extend(batch)
                for number in batch:
                    run.history.add(process, "invoke", "add", f"{name}:{number}")
            for number in batch:
                key = {"partition_key": f"k{number % keys}"} if keys else {}
                data = message(f"{name}:{number}".encode(), sequence_id=number, producer_name=name, **key)
                connection.publish(data, sequence_id=number)
            again = []
            for _ in batch:
                receipt = connection.receipt()
                if receipt.type != BaseCommand.SEND_RECEIPT:
                    raise ConnectionError(receipt.send_error.message)
                number, place = receipt.send_receipt.sequence_id, receipt.send_receipt.message_id
                where = None if place.ledgerId == NO_POSITION else [place.ledgerId, place.entryId]
                pending.remove(number)
                run.history.add(process, "ok", "add", f"{name}:{number}", place=where)
            run.over.wait(run.gap_s)
    finally:
        connection.close()


def repeats(run: Run) -> Callable[[], None]:
    """The same without pauses, so that a fault always meets messages that are stored and have no receipt yet."""
    run.gap_s /= 10
    return sets(run)


def sets(run: Run) -> Callable[[], None]:
    topic = f"{NAMESPACE}/set-{run.seed}"
    keep_all(run.target, topic, "keep")
    run.start(lambda run, process: publishing(run, process, topic), 3)

    def end() -> None:
        read = retried(lambda: contents(run.target, topic))
        run.history.add("reader", "ok", "read", [text for _, text in read], places=[place for place, _ in read])

    return end


# ---- key-shared: no key at two consumers, each key in order


def holding(run: Run, process: int, topic: str) -> None:
    """A consumer that keeps what it has for a while, and leaves now and then."""
    rng = run.random((process, time.monotonic_ns()))
    name = f"c{process}"
    epoch = run.target.epoch
    connection = run.target.dial(topic, ANSWER_S)
    try:
        subscribe(connection, topic, "sub", CommandSubscribe.Key_Shared, permits=20)
        held: list[tuple[float, Any, str]] = []
        leaves_s = time.monotonic() + rng.uniform(0.5, 4.0)
        while not run.over.is_set() and time.monotonic() < leaves_s:
            try:
                command, data = connection.message(0.02)
                text = split(data)[1].decode()
                place = command.message.message_id
                value = [text, split(data)[0].partition_key, place.ledgerId, place.entryId]
                run.history.add(name, "ok", "deliver", value, epoch=epoch)
                held.append((time.monotonic() + rng.choice((0.0, 0.05, 0.5)), place, text))
            except TimeoutError:
                pass
            for each in [each for each in held if each[0] <= time.monotonic()]:
                held.remove(each)
                run.history.add(name, "invoke", "ack", each[2], epoch=epoch)
                connection.ack(each[1], receipt=False)
                connection.flow(1)
    finally:
        run.history.add(name, "info", "left", None, epoch=epoch)
        connection.close()


def key_shared(run: Run) -> Callable[[], None]:
    topic = f"{NAMESPACE}/keys-{run.seed}"
    keep_all(run.target, topic, "sub", CommandSubscribe.Key_Shared)
    keep_all(run.target, topic, "keep")
    run.start(lambda run, process: publishing(run, process, topic, keys=5), 1)
    run.start(lambda run, process: holding(run, process, topic), 3, first=1)

    def end() -> None:
        rest_of(run, topic, "sub", CommandSubscribe.Key_Shared)
        read = retried(lambda: contents(run.target, topic))
        run.history.add("reader", "ok", "read", [text for _, text in read])

    return end


def rest_of(run: Run, topic: str, subscription: str, kind: int, door: Door | None = None, **more: Any) -> None:
    """What a subscription still delivers at the end, until nothing comes for two seconds."""

    def drained() -> list[Any]:
        connection = (door or run.target).dial(topic, 10.0)
        found: list[Any] = []
        try:
            subscribe(connection, topic, subscription, kind, permits=100_000)
            while True:
                try:
                    command, data = connection.message(2.0)
                except TimeoutError:
                    return found
                place = command.message.message_id
                found.append([split(data)[1].decode(), [place.ledgerId, place.entryId]])
        finally:
            connection.close()

    run.history.add("last", "ok", "rest", retried(drained), **more)


# ---- acks: what was confirmed never comes again, what was not does


def acknowledging(run: Run, process: int, topic: str) -> None:
    connection = run.target.dial(topic, ANSWER_S)
    try:
        subscribe(connection, topic, "sub", CommandSubscribe.Exclusive, permits=100_000)
        while not run.over.is_set():
            try:
                command, data = connection.message(0.1)
            except TimeoutError:
                continue
            place = command.message.message_id
            text = split(data)[1].decode()
            where = [place.ledgerId, place.entryId]
            run.history.add(process, "ok", "deliver", text, place=where)
            if int(text.partition(":")[2]) % HELD_BACK == 0:
                continue
            run.history.add(process, "invoke", "ack", text, place=where)
            answer = connection.ack(place)
            assert answer is not None
            kind = "fail" if answer.ackResponse.HasField("error") else "ok"
            run.history.add(process, kind, "ack", text, place=where)
    finally:
        connection.close()


def acks(run: Run) -> Callable[[], None]:
    topic = f"{NAMESPACE}/acks-{run.seed}"
    keep_all(run.target, topic, "sub", CommandSubscribe.Exclusive)
    keep_all(run.target, topic, "keep")
    run.start(lambda run, process: publishing(run, process, topic), 1)
    run.start(lambda run, process: acknowledging(run, process, topic), 1, first=1)

    def end() -> None:
        rest_of(run, topic, "sub", CommandSubscribe.Exclusive)
        run.target.epoch += 1
        run.target.kill()
        run.target.start_again()
        rest_of(run, topic, "sub", CommandSubscribe.Exclusive)
        read = retried(lambda: contents(run.target, topic))
        run.history.add("reader", "ok", "read", [text for _, text in read], places=[place for place, _ in read])

    return end


# ---- register: a cursor is one, its position read and written by several clients


def mark_delete_position(run: Run, path: str) -> str:
    return str(run.target.rest("GET", f"{path}/internalStats")["cursors"]["sub"]["markDeletePosition"])


def resetting(run: Run, process: int, topic: str, ids: list[list[int]], fresh: list[int]) -> None:
    rng = run.random((process, time.monotonic_ns()))
    path = topic.replace("://", "/")
    # After an operation nobody knows the end of, a process of a new name goes on: that is how histories are written.
    counter = run.numbers(process)
    while not run.over.is_set():
        me = process + 10 * counter[0]
        if rng.random() < 0.5 and fresh:
            value = fresh.pop()  # each is written once, so that a read says which write it saw
            body = {"ledgerId": ids[value][0], "entryId": ids[value][1], "partitionIndex": -1}
            f, call = "write", partial(run.target.rest, "POST", f"{path}/subscription/sub/resetcursor", body)
        else:
            value, f, call = None, "read", partial(mark_delete_position, run, path)
        run.history.add(me, "invoke", f, value)
        try:
            found = call()
        except (OSError, ValueError, KeyError) as error:
            refused = "refused" in str(error)  # no connection, no request
            run.history.add(me, "fail" if f == "read" or refused else "info", f, value, error=str(error))
            counter[0] += 1
            run.over.wait(0.1)
            continue
        if f == "read":
            ledger_id, _, entry_id = found.partition(":")
            before = [place for place in ids if place <= [int(ledger_id), int(entry_id)]]
            value = len(before)
        run.history.add(me, "ok", f, value)
        run.over.wait(run.gap_s * 3)


def registers(run: Run) -> Callable[[], None]:
    topic = f"{NAMESPACE}/register-{run.seed}"
    path = topic.replace("://", "/")
    keep_all(run.target, topic, "sub")
    connection = run.target.dial(topic, 10.0)
    connection.producer(topic)
    ids = []
    for number in range(POSITIONS):
        connection.publish(message(b"%d" % number, sequence_id=number), sequence_id=number)
        place = connection.receipt().send_receipt.message_id
        ids.append([place.ledgerId, place.entryId])
    connection.close()
    run.history.add(9, "invoke", "write", 1)
    body = {"ledgerId": ids[1][0], "entryId": ids[1][1], "partitionIndex": -1}
    run.target.rest("POST", f"{path}/subscription/sub/resetcursor", body)
    run.history.add(9, "ok", "write", 1)
    fresh = list(range(2, POSITIONS))
    run.random("positions").shuffle(fresh)
    run.start(lambda run, process: resetting(run, process, topic, ids, fresh), 4)
    return lambda: None


# ---- transactions: list-append

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
"""Who serves it has the coordinator, and Apache Pulsar opens it for nobody who has not looked the topic up."""


def with_coordinator(connection: RawTransactions) -> None:
    connection.lookup(COORDINATOR_TOPIC)
    connection.connect_coordinator()


def appending(run: Run, process: int, topics: list[str]) -> None:
    """Transactions that append to one to three topics; every fourth is aborted on purpose."""
    rng = run.random((process, time.monotonic_ns()))
    counter = run.numbers("values")
    connection = run.target.dial(topics[0], ANSWER_S)
    ended = True
    connections = run.numbers(("connections", process))
    connections[0] += 1
    me = process + 10 * connections[0]  # who does not know how an operation ended goes on under a new name
    value: list[list[Any]] = []
    try:
        with_coordinator(connection)
        for number, topic in enumerate(topics):
            connection.lookup(topic)
            answer = connection.producer(topic, producer_id=number + 1)
            if answer.type != BaseCommand.PRODUCER_SUCCESS:
                raise ConnectionRefusedError(answer.error.message)
        while not run.over.is_set():
            chosen = rng.sample(range(len(topics)), rng.randint(1, len(topics)))
            value = []
            for each in chosen:
                counter[0] += 1
                value.append(["append", each, counter[0] * 10 + process])
            commit = rng.random() < 0.75
            run.history.add(me, "invoke", "txn", value)
            ended = False
            txn = connection.begin(TXN_TTL_MS)
            connection.add_partitions(txn, *(topics[each] for each in chosen))
            for _, each, element in value:
                receipt = connection.publish_in(txn, b"%d" % element, producer_id=each + 1, sequence_id=element)
                if receipt.type != BaseCommand.SEND_RECEIPT:
                    raise ConnectionError(receipt.send_error.message)
            (connection.commit if commit else connection.abort)(txn)
            run.history.add(me, "ok" if commit else "fail", "txn", value)
            ended = True
            run.over.wait(run.gap_s)
    finally:
        if not ended:
            run.history.add(me, "info", "txn", value)
        connection.close()


def transactions(run: Run) -> Callable[[], None]:
    topics = [f"{NAMESPACE}/list-{run.seed}-{number}" for number in range(3)]
    for topic in topics:
        keep_all(run.target, topic, "keep")
    run.start(lambda run, process: appending(run, process, topics), 3)

    def read_once(run: Run, process: int) -> None:
        for number, topic in enumerate(topics):
            run.history.add(process, "invoke", "txn", [["r", number, None]])
            try:
                read = [int(text) for _, text in contents(run.target, topic)]
            except (*BROKEN, pulsar.PulsarException):
                run.history.add(process, "fail", "txn", [["r", number, None]])
                continue
            run.history.add(process, "ok", "txn", [["r", number, read]])
        run.over.wait(1.0)

    run.start(read_once, 1, first=8)

    def end() -> None:
        lists = last_lists(
            lambda: [[int(text) for _, text in retried(lambda t=t: contents(run.target, t))] for t in topics],
            lambda: any(_open_transactions(run.target, topic) for topic in topics),
        )
        for number, read in enumerate(lists):
            run.history.add(9, "invoke", "txn", [["r", number, None]])
            run.history.add(9, "ok", "txn", [["r", number, read]], final=True)

    return end


def last_lists(
    read: Callable[[], list[list[int]]], is_open: Callable[[], bool], pause_s: float = 2.0
) -> list[list[int]]:
    """The lists once no transaction holds readers back any more: open ones end by their coordinator's time-out.

    `is_open` is asked before a reading. Asked afterwards it would call a reading the last one that a transaction had held back which
    ended in the middle of it.
    """
    deadline = time.monotonic() + SETTLED_TIMEOUT_S
    last: list[list[int]] = []
    while True:
        held_back = is_open()
        lists = read()
        if (lists == last and not held_back) or time.monotonic() > deadline:
            return lists
        last = lists
        time.sleep(pause_s)


# ---- pipeline: what one transaction takes from a queue and passes on


def passing_on(run: Run, process: int, source: str, sink: str) -> None:
    """Each message is acknowledged and published again in one transaction; every fourth is aborted on purpose."""
    rng = run.random((process, time.monotonic_ns()))
    connection, output = run.target.dial(source, ANSWER_S), run.target.dial(sink, ANSWER_S)
    try:
        with_coordinator(connection)
        answer = output.producer(sink)
        if answer.type != BaseCommand.PRODUCER_SUCCESS:
            raise ConnectionRefusedError(answer.error.message)
        subscribe(connection, source, "sub", CommandSubscribe.Shared, permits=5)
        while not run.over.is_set():
            try:
                command, data = connection.message(0.1)
            except TimeoutError:
                continue
            text = split(data)[1].decode()
            commit = rng.random() < 0.75
            run.history.add(process, "invoke", "pass", text)
            txn = connection.begin(TXN_TTL_MS)
            connection.add_partitions(txn, sink)
            connection.add_subscription(txn, source, "sub")
            receipt = output.publish_in(txn, text.encode(), sequence_id=run.numbers("sequence")[0])
            run.numbers("sequence")[0] += 1
            if receipt.type != BaseCommand.SEND_RECEIPT:
                raise ConnectionError(receipt.send_error.message)
            connection.ack_in(txn, command.message.message_id)
            (connection.commit if commit else connection.abort)(txn)
            run.history.add(process, "ok" if commit else "fail", "pass", text)
            connection.flow(1)
    finally:
        connection.close()
        output.close()


def pipelines(run: Run) -> Callable[[], None]:
    source, sink = (f"{NAMESPACE}/{name}-{run.seed}" for name in ("source", "sink"))
    keep_all(run.target, source, "sub")
    keep_all(run.target, source, "keep")
    keep_all(run.target, sink, "keep")
    run.start(lambda run, process: publishing(run, process, source), 1)
    run.start(lambda run, process: passing_on(run, process, source, sink), 3, first=1)

    def end() -> None:
        time.sleep(TXN_TTL_MS / 1000 + 2)  # what nobody ended has timed out by then
        run.target.epoch += 1
        run.target.kill()
        run.target.start_again()
        rest_of(run, source, "sub", CommandSubscribe.Shared)
        for name, topic in (("passed", sink), ("read", source)):
            run.history.add(
                "reader", "ok", name, [text for _, text in retried(lambda t=topic: contents(run.target, t))]
            )

    return end


def _open_transactions(target: Target, topic: str) -> int:
    try:
        stats = target.rest("GET", topic.replace("://", "/") + "/stats")
    except OSError:
        return 1
    return int(stats.get("ongoingTxnCount", 0))
