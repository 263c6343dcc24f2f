"""Short forms for sending and receiving with the official client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pulsar
import pytest

from tests.support.waiting import wait_until

RECEIVE_TIMEOUT_MS = 30_000
QUIET_MS = 150
"""How long nothing may arrive before a test believes that nothing will, on a machine that does nothing else."""

NEGATIVE_CASE_S = 15.0
"""A refused call ends within this time; a wrong error code would let the client retry until its operation timeout."""


def send_all(producer: pulsar.Producer, payloads: Iterable[bytes], **options: Any) -> list[pulsar.MessageId]:
    """Send without waiting for each receipt; the ids in order of sending once all are stored."""
    ids: list[pulsar.MessageId | None] = []
    results: list[pulsar.Result] = []

    def sent(slot: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def done(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            ids[slot] = message_id
            results.append(result)

        return done

    for slot, payload in enumerate(payloads):
        ids.append(None)
        producer.send_async(payload, sent(slot), **options)
    producer.flush()
    wait_until(lambda: len(results) == len(ids), what="every receipt")
    assert set(results) <= {pulsar.Result.Ok}
    return [message_id for message_id in ids if message_id is not None]


def receive_all(consumer: Any, count: int, *, ack: bool = True, timeout_ms: int = RECEIVE_TIMEOUT_MS) -> list[bytes]:
    """Payloads of the next `count` messages."""
    return [message.data() for message in take(consumer, count, ack=ack, timeout_ms=timeout_ms)]


def take(consumer: Any, count: int, *, ack: bool = True, timeout_ms: int = RECEIVE_TIMEOUT_MS) -> list[pulsar.Message]:
    """The next `count` messages, acknowledged one by one."""
    messages = []
    for _ in range(count):
        message = consumer.receive(timeout_ms)
        if ack:
            consumer.acknowledge(message)
        messages.append(message)
    return messages


def patient(quiet_ms: int) -> int:
    """The same on an idle machine, longer on a busy one: by how many processes each of its cores has to serve, ten times at most."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return int(quiet_ms * min(10.0, max(1.0, load)))


def drain(consumer: Any, *, at_least: int = 0, quiet_ms: int = QUIET_MS, ack: bool = True) -> list[pulsar.Message]:
    """Everything that arrives until nothing came for `quiet_ms`; `at_least` so many are waited for as long as for any message."""
    messages: list[pulsar.Message] = []
    while True:
        try:
            message = consumer.receive(RECEIVE_TIMEOUT_MS if len(messages) < at_least else patient(quiet_ms))
        except pulsar.Timeout:
            return messages
        if ack:
            consumer.acknowledge(message)
        messages.append(message)


def subscribe_next(client: Any, topic: str, subscription: str, **options: Any) -> Any:
    """A consumer once the one before it has left: who is closed just as he subscribes anew, after the server was killed, is there for a
    moment still, and an exclusive one refuses others."""

    def subscribed() -> Any:
        try:
            return client.subscribe(topic, subscription, **options)
        except pulsar.ConsumerBusy:
            return None

    return wait_until(subscribed, what=f"the consumer of {subscription} has left")


def shares_of(consumers: Sequence[Any], count: int, *, ack: bool = True) -> list[list[pulsar.Message]]:
    """What each consumer gets of `count` messages that they share, and what comes besides."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]
    deadline_s = time.monotonic() + RECEIVE_TIMEOUT_MS / 1000
    while sum(map(len, found)) < count and time.monotonic() < deadline_s:
        for consumer, mine in zip(consumers, found, strict=True):
            mine += drain(consumer, quiet_ms=1, ack=ack)
    for consumer, mine in zip(consumers, found, strict=True):
        mine += drain(consumer, ack=ack)
    return found


def nothing_arrives(consumer: Any, for_ms: int = QUIET_MS) -> bool:
    return not drain(consumer, quiet_ms=for_ms, ack=False)


def position(message_id: pulsar.MessageId) -> tuple[int, int, int]:
    """Ledger id, entry id, batch index."""
    return (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


@contextmanager
def ends_at_once(*errors: type[pulsar.PulsarException]) -> Iterator[None]:
    """The call fails with one of `errors` (any Pulsar error without), and it does not hang."""
    started_s = time.monotonic()
    with pytest.raises(errors or (pulsar.PulsarException,)) as raised:
        yield
    elapsed_s = time.monotonic() - started_s
    assert elapsed_s < NEGATIVE_CASE_S, f"{raised.type.__name__} came only after {elapsed_s:.1f} s"
