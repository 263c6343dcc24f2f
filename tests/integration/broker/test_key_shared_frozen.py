"""A Key_Shared consumer that stops acknowledging stalls its own keys alone, at any backlog (PIP-474 is where Pulsar stops)."""

from __future__ import annotations

import threading
import time

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.raw_client import RawConnection, frame, message, send_command
from tests.support.types import Connect

KEYS = 1000
CONSUMERS = 4
RATE_KEPT_MIN = 0.9
IN_FLIGHT = 1000
TURNS = 6
"""A turn takes half a second, in which anything may get in the way."""


class Counter:
    """Counts what a group of consumers handled; remembers when the group had handled `goal` messages."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.count = 0
        self.reached = threading.Event()
        self.reached_s = 0.0
        self._lock = threading.Lock()

    def listen(self, consumer: pulsar.Consumer, received: pulsar.Message) -> None:
        if self.reached.is_set():
            return
        consumer.acknowledge(received)
        with self._lock:
            self.count += 1
            if self.count == self.goal:
                self.reached_s = time.monotonic()
                self.reached.set()


def fill(port: int, topic: str, count: int) -> None:
    """A backlog of `count` single messages over `KEYS` keys."""
    with RawConnection(port, timeout_s=60) as raw:
        raw.producer(topic)
        for first in range(0, count, IN_FLIGHT):
            numbers = range(first, min(first + IN_FLIGHT, count))
            raw.send_bytes(
                b"".join(
                    frame(
                        send_command(number), message(b"x" * 100, sequence_id=number, partition_key=str(number % KEYS))
                    )
                    for number in numbers
                )
            )
            for _ in numbers:
                raw.receipt()


def rate_of_three(server: ServerProcess, connect: Connect, topic: str, count: int, *, frozen: bool) -> float:
    """Messages per second of the three consumers that are never frozen, over half of the backlog.

    All four are there before the first message, so that each holds messages of its own keys only.
    """
    counters = [Counter(count // 2), Counter(count)]
    consumers = []
    for index in range(CONSUMERS):
        listener = counters[index == CONSUMERS - 1].listen
        name = f"c{index}"
        consumer = connect(server.service_url).subscribe(
            topic, "sub", pulsar.ConsumerType.KeyShared, consumer_name=name, message_listener=listener
        )
        consumer.pause_message_listener()
        consumers.append(consumer)
    fill(server.port, topic, count)
    started_s = time.monotonic()
    for consumer in consumers[:-1] if frozen else consumers:
        consumer.resume_message_listener()
    three, fourth = counters
    assert three.reached.wait(120), f"the three handled {three.count} of {three.goal}"
    assert (fourth.count == 0) == frozen
    for consumer in consumers:
        consumer.close()
    return three.goal / (three.reached_s - started_s)


@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [20_000, pytest.param(240_000, marks=pytest.mark.long)])
def test_three_of_four_keep_their_rate(server: ServerProcess, connect: Connect, topic: str, count: int) -> None:
    """In turns, the best of each: what else the machine does in the meantime only ever takes away."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(TURNS):
        for frozen in (False, True):
            rates[frozen].append(rate_of_three(server, connect, f"{topic}-{turn}-{frozen}", count, frozen=frozen))
    assert max(rates[True]) >= RATE_KEPT_MIN * max(rates[False]), f"frozen and normal, messages/s: {rates}"
