"""`magnetar demo flights`, act by act: serve, subscribe, send, kill one and add one half way, judge; then views of the same topic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from magnetar.cli.demo import server, views
from magnetar.cli.demo.consumers import Consumers
from magnetar.cli.demo.producer import Producer
from magnetar.cli.demo.screen import Screen
from magnetar.cli.demo.source import Flights
from magnetar.cli.demo.verdict import Log, Verdict, judge
from magnetar.cli.demo.views import ViewsOutcome
from magnetar.cli.errors import CommandError

TOPIC = "persistent://public/default/flights"
PARTITIONS = 4
CONSUMERS = 4
VICTIM = 1
"""Which consumer is killed half way."""

STALL_S = 30.0
"""Without any progress for so long the demo ends, and its table says what is missing."""

TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened, for the table and for --json."""

    verdict: Verdict
    logs: list[Log]
    key_ids: NDArray[np.int64]
    """The key of each message, as a number."""
    start_s: float
    produce_s: float
    consume_s: float
    views: ViewsOutcome | None
    """Of the second half; None when it was left out."""

    @property
    def problems(self) -> list[str]:
        return self.verdict.problems + (self.views.problems if self.views is not None else [])


def run(flights: Flights, folder: Path, screen: Screen, with_views: bool, picture: Path | None) -> Outcome:
    """The whole demo in `folder`. Raises CommandError when server, producer or a consumer fails."""
    settings = ("allowAutoTopicCreationType=partitioned", f"defaultNumPartitions={PARTITIONS}")
    with server.running(folder, *settings) as serving:
        screen.say(
            f"server ready at {serving.url} after {serving.start_s:.2f} s (process {serving.process.pid}, data in {folder})"
        )
        with Consumers(serving.url, TOPIC, folder) as consumers:
            consumers.add(CONSUMERS)
            screen.say(
                f"{CONSUMERS} Key_Shared consumers subscribed to {PARTITIONS} partitions, each a process of its own"
            )
            started = time.monotonic()
            with Producer(serving.url, TOPIC, flights) as producer:
                producer.start()
                act(flights, serving, consumers, producer, screen)
            consume_s = time.monotonic() - started
            consumers.stop()
            logs = consumers.logs()
        outcome = views.run(flights, serving, TOPIC, folder, picture, screen) if with_views else None
    return Outcome(judge(flights, logs), logs, flights.key_ids, serving.start_s, producer.seconds, consume_s, outcome)


def act(flights: Flights, serving: server.Server, consumers: Consumers, producer: Producer, screen: Screen) -> None:
    """From the first message until every one has arrived, or nothing moves any more."""
    changed = False
    for _ in ticks(consumers, producer):
        consumed = min(consumers.count, len(flights))
        # a message may be consumed before its receipt was looked at
        counts = {"produced": max(producer.stored, consumed), "consumed": consumed}
        screen.update(counts | {consumer.name: consumer.count for consumer in consumers.all})
        serving.check()
        if producer.error is not None:
            raise producer.error
        if died := consumers.died():
            raise CommandError(f"{', '.join(died)} ended unexpectedly")
        if not changed and consumers.count >= len(flights) / 2:
            victim = consumers.all[VICTIM]
            victim.kill()
            screen.say(f"kill -9 {victim.name} after its {victim.count:,} messages")
            consumers.add()
            screen.say(f"{consumers.all[-1].name} joined")
            changed = True
        if producer.done and complete(flights, consumers):
            screen.update(counts | {"consumed": len(flights)})
            return


def complete(flights: Flights, consumers: Consumers) -> bool:
    """Whether every message was seen; looks into the files only when their sizes allow it."""
    return consumers.count >= len(flights) and judge(flights, consumers.logs()).lost == 0


def ticks(consumers: Consumers, producer: Producer) -> Iterator[None]:
    """Ten times a second, for as long as something moves."""
    last, moved = (0, 0), time.monotonic()
    while time.monotonic() - moved < STALL_S:
        yield
        time.sleep(TICK_S)
        now = (producer.stored, consumers.count)
        if now != last:
            last, moved = now, time.monotonic()
