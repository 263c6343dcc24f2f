"""Producers and consumers of the official client that go on while the server dies, and remember what they were promised."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pulsar

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw import ClosedByServer, RawClient

SEND_TIMEOUT_MS = 120_000
"""The client's own 30 s are less than what a server that is killed twice takes to come back on a machine with much else to do."""

MessageKey = tuple[int, int, int]
"""Ledger, entry, batch index (-1 outside a batch)."""

PAUSE_S = 0.02
BURST = 8
"""Messages between two pauses: about 400 a second from each producer."""

WINDOW = 500
"""Messages of one producer without a receipt: what a fault may duplicate at most."""

UNFLUSHED_S = 1.0
"""Acknowledgements without a receipt that are younger than this when the server dies may be undone (promise P5)."""


def key_of(message_id: Any) -> MessageKey:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


class Producing(threading.Thread):
    """Sends `name:0`, `name:1`, ... asynchronously until `finish`."""

    def __init__(self, client: pulsar.Client, topic: str, name: str, *, keys: int = 0, **options: Any) -> None:
        super().__init__(name=name, daemon=True)
        options.setdefault("send_timeout_millis", SEND_TIMEOUT_MS)
        self._producer = client.create_producer(
            topic, producer_name=name, block_if_queue_full=True, max_pending_messages=WINDOW, **options
        )
        self._keys = keys
        self._over = threading.Event()
        self.sent = 0
        self.rush = 0
        """Messages to send at once with the next burst."""
        self.stored: dict[int, MessageKey] = {}
        """Where the receipt says that each sequence number is."""
        self.failures: list[pulsar.Result] = []
        self.longest_pause_s = 0.0
        """Between two receipts."""
        self._last_receipt_s: float | None = None
        self.start()

    def run(self) -> None:
        while not self._over.wait(PAUSE_S):
            count, self.rush = BURST + self.rush, 0
            for _ in range(count):
                self._send(self.sent)
                self.sent += 1

    def _send(self, number: int) -> None:
        def done(result: pulsar.Result, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                self.stored[number] = key_of(message_id)
                now_s = time.monotonic()
                if self._last_receipt_s is not None:
                    self.longest_pause_s = max(self.longest_pause_s, now_s - self._last_receipt_s)
                self._last_receipt_s = now_s
            else:
                self.failures.append(result)

        key = {"partition_key": f"key-{number % self._keys}"} if self._keys else {}
        self._producer.send_async(f"{self.name}:{number}".encode(), done, **key)

    def finish(self) -> None:
        """No more messages; waits for all receipts."""
        self._over.set()
        self.join(60)
        self._producer.flush()
        deadline = time.monotonic() + 30
        while len(self.stored) + len(self.failures) < self.sent and time.monotonic() < deadline:
            time.sleep(0.01)


@dataclass
class Acked:
    """One message as one subscription saw it."""

    acked_s: float | None = None
    received_s: list[float] = field(default_factory=list)


class Consuming(threading.Thread):
    """Receives and acknowledges until `finish`. `skip`: every so many sequence numbers one is never acknowledged."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        subscription: str,
        *,
        cumulative_every: int = 0,
        skip: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(name=subscription, daemon=True)
        self.subscription = subscription
        self._consumer = client.subscribe(
            topic, subscription, initial_position=pulsar.InitialPosition.Earliest, **options
        )
        self._cumulative_every = cumulative_every
        self._skip = skip
        self._over = threading.Event()
        self.seen: dict[MessageKey, Acked] = {}
        self.payloads: dict[MessageKey, bytes] = {}
        self.received_s: list[float] = []
        self._unacked: list[MessageKey] = []
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                message = self._consumer.receive(100)
            except pulsar.Timeout:
                continue
            now = time.monotonic()
            key = key_of(message.message_id())
            self.received_s.append(now)
            self.seen.setdefault(key, Acked()).received_s.append(now)
            self.payloads[key] = message.data()
            self._acknowledge(message, key, now)

    def _acknowledge(self, message: Any, key: MessageKey, now: float) -> None:
        if self._cumulative_every:
            self._unacked.append(key)
            if len(self._unacked) < self._cumulative_every:
                return
            self._consumer.acknowledge_cumulative(message)
            for earlier in self._unacked:
                self._acked(earlier, now)
            self._unacked.clear()
        elif not self._skipped(message.data()):
            self._consumer.acknowledge(message)
            self._acked(key, now)

    def _acked(self, key: MessageKey, now: float) -> None:
        state = self.seen[key]
        if state.acked_s is None:
            state.acked_s = now

    def _skipped(self, payload: bytes) -> bool:
        return bool(self._skip) and int(payload.rpartition(b":")[2]) % self._skip == 0

    def finish(self) -> None:
        """Acknowledges what is due, leaves the connection open for the client's own grouping, and ends."""
        self._over.set()
        self.join(10)
        if self._cumulative_every and self._unacked:
            self._consumer.acknowledge_cumulative(pulsar.MessageId(-1, *_id_parts(self._unacked[-1])))
            for key in self._unacked:
                self._acked(key, time.monotonic())
            self._unacked.clear()

    def connected(self) -> bool:
        return bool(self._consumer.is_connected())

    def close(self) -> None:
        self._consumer.close()


class ReceiptConsuming(threading.Thread):
    """Acknowledges entry by entry and counts as done only what the server has confirmed (ACK_RESPONSE)."""

    def __init__(self, port: int, topic: str, subscription: str) -> None:
        super().__init__(name=subscription, daemon=True)
        self._port = port
        self._topic = topic
        self.subscription = subscription
        self._over = threading.Event()
        self.received: Counter[tuple[int, int]] = Counter()
        self.confirmed: set[tuple[int, int]] = set()
        self.undone: list[tuple[int, int]] = []
        self.refused: list[BaseCommand] = []
        self.waiting: dict[int, tuple[int, int]] = {}
        """Acknowledged on this connection, by request id, and not confirmed yet."""
        self.connections = 0
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._serve()
            except (ClosedByServer, OSError):
                time.sleep(0.02)

    def _serve(self) -> None:
        self.waiting.clear()
        with RawClient(self._port) as client:
            client.connect()
            if client.subscribe(self._topic, self.subscription, kind="Exclusive").type != BaseCommand.SUCCESS:
                return
            self.connections += 1
            client.flow(1000)
            granted = 0
            while not self._over.is_set():
                try:
                    command, _ = client.receive(0.1)
                except TimeoutError:
                    continue
                if command.type == BaseCommand.MESSAGE:
                    self._answer(client, command)
                    granted += 1
                    if granted == 100:
                        client.flow(1000)  # entries may be batches: generous, and saturating on the other side
                        granted = 0
                elif command.type == BaseCommand.ACK_RESPONSE:
                    if command.ackResponse.HasField("error"):
                        self.refused.append(command)
                    self.confirmed.add(self.waiting.pop(command.ackResponse.request_id))
                elif command.type == BaseCommand.CLOSE_CONSUMER:
                    return

    def _answer(self, client: RawClient, command: BaseCommand) -> None:
        identifier = command.message.message_id
        entry = identifier.ledgerId, identifier.entryId
        self.received[entry] += 1
        if entry in self.confirmed:
            self.undone.append(entry)
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id = 1
        ack.ack.ack_type = 0  # type: ignore[assignment]  # Individual
        ack.ack.request_id = client.request_id()
        ack.ack.message_id.add(ledgerId=entry[0], entryId=entry[1])
        self.waiting[ack.ack.request_id] = entry
        client.send(ack)

    def finish(self) -> None:
        self._over.set()
        self.join(10)


@dataclass
class Log:
    """What is stored in a topic, in order."""

    keys: list[MessageKey]
    payloads: list[bytes]

    def of_producer(self, name: str) -> list[int]:
        """Its sequence numbers as stored, repeats included."""
        prefix = f"{name}:".encode()
        return [int(payload[len(prefix) :]) for payload in self.payloads if payload.startswith(prefix)]


def read_log(client: pulsar.Client, topic: str) -> Log:
    """Everything, from the first message on."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    log = Log([], [])
    while reader.has_message_available():
        message = reader.read_next(30_000)
        log.keys.append(key_of(message.message_id()))
        log.payloads.append(message.data())
    reader.close()
    return log


def with_deliveries(log: Log, consumers: Iterable[Consuming]) -> Log:
    """The log with what was consumed and trimmed before it was read: every message, as far as anybody ever saw it."""
    content = dict(zip(log.keys, log.payloads, strict=True))
    for consumer in consumers:
        for key, payload in consumer.payloads.items():
            assert content.setdefault(key, payload) == payload, (
                f"{key} was delivered with other bytes than it is stored with"
            )
    keys = sorted(content)
    if log.keys:
        kept = [key for key in keys if key >= log.keys[0]]
        assert kept == log.keys, "messages were delivered that are not in the log, or the log is not in order"
    return Log(keys, [content[key] for key in keys])


def first_occurrences(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def undone_without_excuse(
    seen: dict[MessageKey, Acked], received_s: list[float], deaths_s: list[float], ready_s: list[float]
) -> list[MessageKey]:
    """Messages that came again although their acknowledgement was older than the unflushed second when the server died.

    Acknowledgements between a death and the consumer's first message afterwards went nowhere: those are excused too.
    """
    windows = []
    for death_s, up_s in zip(deaths_s, ready_s, strict=True):
        back_s = next((moment for moment in received_s if moment > up_s), up_s)
        windows.append((death_s - UNFLUSHED_S, back_s + 0.3, death_s))
    wrong = []
    for key, state in seen.items():
        if state.acked_s is None or state.received_s[-1] <= state.acked_s:
            continue
        excused = any(start <= state.acked_s <= end and state.received_s[-1] > death for start, end, death in windows)
        if not excused:
            wrong.append(key)
    return wrong


def _id_parts(key: MessageKey) -> tuple[int, int, int]:
    return key
