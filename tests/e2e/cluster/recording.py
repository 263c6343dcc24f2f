"""Official clients that write down what they ask for and what they are told."""

from __future__ import annotations

import threading
import time
from typing import Any

import pulsar

from tests.e2e.cluster.history import Append, Consumed, Place, Read
from tests.support.traffic import key_of

PAUSE_S = 0.02
"""Between two sends of a producer."""

WINDOW = 500
"""Sends of a producer without a receipt; then it waits."""


def stream_of(topic: str, partition: int) -> str:
    return topic if partition < 0 else f"{topic}-partition-{partition}"


class Appending(threading.Thread):
    """Sends `name:0`, `name:1`, ... until `finish`, for ever if need be."""

    def __init__(self, client: pulsar.Client, topic: str, name: str, *, keys: int = 0, **options: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.topic = topic
        self._producer = client.create_producer(
            topic,
            producer_name=name,
            block_if_queue_full=True,
            max_pending_messages=WINDOW,
            send_timeout_millis=0,
            **options,
        )
        self._keys = keys
        self._over = threading.Event()
        self.appends: list[Append] = []
        self.newest_called_s = 0.0
        """When the newest acknowledged message was sent."""
        self.start()

    def run(self) -> None:
        while not self._over.wait(PAUSE_S):
            self._send(len(self.appends))

    def _send(self, number: int) -> None:
        append = Append((self.name, number), time.monotonic())
        self.appends.append(append)

        def done(result: pulsar.Result, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                place = key_of(message_id)
                append.stream = stream_of(self.topic, message_id.partition())
                append.place = place if 0 <= place[0] < 2**63 and 0 <= place[1] < 2**63 else None
                self.newest_called_s = max(self.newest_called_s, append.called_s)
            else:
                append.error = str(result)
            append.answered_s = time.monotonic()

        key = {"partition_key": f"key-{number % self._keys}"} if self._keys else {}
        self._producer.send_async(f"{self.name}:{number}".encode(), done, **key)

    @property
    def open(self) -> int:
        return sum(append.answered_s is None for append in self.appends)

    def finish(self, timeout_s: float) -> None:
        """No more; waits for the receipts that are missing."""
        self._over.set()
        self.join(timeout_s)
        deadline = time.monotonic() + timeout_s
        while self.open and time.monotonic() < deadline:
            time.sleep(0.02)


class Reading(threading.Thread):
    """Receives and acknowledges until `finish`. `skip`: every so many numbers one is never acknowledged."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        subscription: str,
        kind: pulsar.ConsumerType,
        name: str,
        *,
        skip: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.topic, self.subscription, self.kind, self.skip = topic, subscription, kind, skip
        self._options = options
        self._consumer = client.subscribe(
            topic, subscription, kind, consumer_name=name, initial_position=pulsar.InitialPosition.Earliest, **options
        )
        self._over = threading.Event()
        self.reads: list[Read] = []
        self.consumed: list[Consumed] = []
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                message = self._consumer.receive(100)
            except pulsar.Timeout:
                continue
            self._take(message)

    def _take(self, message: Any) -> None:
        stream, place = where(message)
        read = Read(
            self.subscription,
            self.name,
            self.kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Failover),
            stream,
            place,
            parse(message.data()),
            time.monotonic(),
        )
        self.reads.append(read)
        if not self.skip or read.message[1] % self.skip:
            self._consumer.acknowledge(message)
            self.consumed.append(Consumed(self.subscription, stream, place, time.monotonic()))

    def finish(self) -> None:
        """Acknowledges nothing more; what it had acknowledged is on its way."""
        self._over.set()
        self.join(10)

    def close(self) -> None:
        self._consumer.close()

    def left(self, client: pulsar.Client, expected: int) -> list[tuple[str, Place]]:
        """What the subscription still gives when this consumer and its fellows are closed."""
        consumer = client.subscribe(self.topic, self.subscription, self.kind, **self._options)
        found: set[tuple[str, Place]] = set()
        while True:
            try:
                found.add(where(consumer.receive(5000 if len(found) < expected else 500)))
            except pulsar.Timeout:
                consumer.close()
                return sorted(found)


def where(message: Any) -> tuple[str, Place]:
    return message.topic_name().rpartition("/")[2], key_of(message.message_id())


def parse(payload: bytes) -> tuple[str, int]:
    name, _, number = payload.decode().rpartition(":")
    return name, int(number)
