"""Sends the flights, keyed by tail number, on a thread of its own."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from magnetar.cli.demo.source import Flights
from magnetar.cli.errors import CommandError
from magnetar.cli.messages.pulsar_client import connected

BATCH_MESSAGES = 10_000
"""Messages a partition's producer collects before it sends a batch for each key: fewer, larger entries."""

BATCH_BYTES = 4 * 1024 * 1024
BATCH_DELAY_MS = 200
STOP_TIMEOUT_S = 10.0
"""A producer that is blocked in the client library for longer is left behind."""

PENDING_MESSAGES = 50_000
"""Unanswered messages at which sending waits."""


class Producer:
    """`stored` messages have the server's receipt; `error` holds what went wrong. Plain ints, read by the screen."""

    def __init__(self, url: str, topic: str, flights: Flights) -> None:
        self.stored = 0
        self.seconds = 0.0
        self.error: Exception | None = None
        self._url, self._topic, self._flights = url, topic, flights
        self._stopping = False
        # A daemon: a client that waits for a server which is gone must not keep the process.
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._begun = False
        self._ended = threading.Event()

    def __enter__(self) -> Producer:
        return self

    def start(self) -> None:
        """Begin to send. Not in `__enter__`: an interrupt in there would leave a thread that nobody waits for, and a process that ends
        while the client library works is aborted by it."""
        self._begun = True
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        if self._begun:
            self._ended.wait(STOP_TIMEOUT_S)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            with connected(self._url) as client:
                self._send(client)
        except Exception as error:  # carried to the thread that waits
            self.error = error
        self.seconds = time.monotonic() - started
        self._ended.set()

    def _send(self, client: Any) -> None:
        import pulsar

        producer = client.create_producer(
            self._topic,
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,  # a batch holds one key, as Key_Shared needs it
            batching_max_messages=BATCH_MESSAGES,
            batching_max_allowed_size_in_bytes=BATCH_BYTES,
            batching_max_publish_delay_ms=BATCH_DELAY_MS,
            max_pending_messages=PENDING_MESSAGES,
            max_pending_messages_across_partitions=PENDING_MESSAGES,
            block_if_queue_full=True,
        )
        for payload, key in zip(self._flights.payloads, self._flights.keys, strict=True):
            if self._stopping:
                return
            producer.send_async(payload, self._answered, partition_key=key)
        producer.flush()
        if self.error is None and self.stored < len(self._flights):
            raise CommandError(f"the server stored {self.stored} of {len(self._flights)} messages")

    def _answered(self, result: Any, _message_id: Any) -> None:
        if result.name == "Ok":
            self.stored += 1
        else:
            self.error = CommandError(f"the server refused a message: {result.name}")
