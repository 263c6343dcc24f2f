"""Randomized failovers of a replicated subscription of a scalable topic between two regions, which split and merge their segments.

    PYTHONPATH=src python -m tests.e2e.geo.scalable_failover_runs --failovers 30 --seed 1

It fails when a message that some producer has a receipt for is never given to the consumer (a skip), or when a failover repeats what the
other region must have heard of (a repeat beyond the bound).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import NotFoundError
from magnetar.base.errors import MagnetarError
from magnetar.client.scalable import Client
from magnetar.client.scalable.consumers import QueueConsumer, StreamConsumer
from tests.support.geo import NAMESPACE, Region, regions
from tests.support.waiting import wait_until

INTERVAL_S = 0.25
SETTINGS = {
    "scalableTopicAutoScaleEnabled": "false",
    "scalableTopicConsumerSessionGracePeriodSeconds": 1,
    "replicatedSubscriptionsSnapshotFrequencyMillis": int(INTERVAL_S * 1000),
}
ROUNDS_S = 0.5
PUBLISH_PAUSE_S = 0.02
SEGMENTS_MAX = 5
CAUGHT_UP_S = 120.0
"""How long a loaded machine may take for what an idle one does in two seconds."""


def busy_s() -> float:
    """A second, or more while processes queue for the cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Outcome(NamedTuple):
    """`repeated`: messages by failover."""

    messages: int
    repeated: list[int]
    events: list[str]


class Publisher:
    """Publishes until `stop`, except while it is paused; `stored`: when it got the receipt of each message."""

    def __init__(self, region: Region, topic: str, rng: random.Random) -> None:
        self.stored: dict[bytes, float] = {}
        self.going = asyncio.Event()
        self.going.set()
        self._region = region
        self._topic = topic
        self._rng = rng
        self._ending = False
        self._sending: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with Client(self._region.server.service_url) as client:
            producer = await client.producer(self._topic, send_timeout_s=300.0)

            async def send(data: bytes, key: str) -> None:
                await producer.send(data, key=key)
                self.stored[data] = time.monotonic()

            number = 0
            while not self._ending:
                await self.going.wait()
                task = asyncio.create_task(
                    send(f"{self._region.name}{number}".encode(), f"key-{self._rng.randrange(64)}")
                )
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
                number += 1
                await asyncio.sleep(PUBLISH_PAUSE_S)
            await self.settled()

    async def settled(self) -> None:
        """Raises what a message met that could not be sent."""
        if self._sending:
            await asyncio.gather(*list(self._sending))

    async def stop(self) -> None:
        self._ending = True
        self.going.set()
        await self._task


class Consumption:
    """The application: one consumer at a time, which acknowledges what it gets, as a queue or as a stream."""

    def __init__(self, topic: str, stream: bool) -> None:
        self._stream = stream
        self.acknowledged: dict[bytes, float] = {}
        """When each was first acknowledged."""
        self.repeated: set[bytes] = set()
        """Since the last failover, of what was acknowledged before it."""
        self._topic = topic
        self._before: frozenset[bytes] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self._acks: set[asyncio.Task[None]] = set()

    def begin(self, region: Region) -> None:
        self._before, self.repeated = frozenset(self.acknowledged), set()
        self._task = asyncio.create_task(self._run(region))

    async def _run(self, region: Region) -> None:
        client = Client(region.server.service_url)
        await client.__aenter__()
        try:
            open_one = client.stream_consumer if self._stream else client.queue_consumer
            consumer: StreamConsumer | QueueConsumer = await open_one(self._topic, "s", earliest=True, replicated=True)
            received: list[bytes] = []
            while True:
                message = await consumer.receive()
                data = message.value or b""
                if data in self._before:
                    self.repeated.add(data)
                received.append(data)
                if isinstance(consumer, QueueConsumer):
                    self._confirmed(asyncio.ensure_future(consumer.acknowledge(message)), [data])
                else:
                    self._confirmed(asyncio.ensure_future(consumer.acknowledge_cumulative(message)), received)
                    received = []
        finally:
            for each in list(self._acks):
                each.cancel()
            with contextlib.suppress(MagnetarError, TimeoutError):
                async with asyncio.timeout(10):  # of a region that is gone it takes a while
                    await client.__aexit__(None, None, None)

    def _confirmed(self, confirmed: asyncio.Future[None], messages: list[bytes]) -> None:
        async def note() -> None:
            await confirmed
            now_s = time.monotonic()
            for each in messages:
                self.acknowledged.setdefault(each, now_s)

        task = asyncio.create_task(note())
        self._acks.add(task)
        task.add_done_callback(self._acks.discard)

    def check(self) -> None:
        """Raises what has ended the consumer."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def end(self) -> None:
        """What it has received and not acknowledged is not done with. Raises what ended the consumer before."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Run:
    def __init__(self, seed: int, both: Sequence[Region], stream: bool) -> None:
        self.rng = random.Random(seed)
        self.regions = list(both)
        self.topic = f"topic://{NAMESPACE}/run-{seed}"
        self.events: list[str] = []
        self.application = Consumption(self.topic, stream)
        self.publishers: list[Publisher] = []
        self.repeats: list[int] = []

    async def play(self, failovers: int) -> Outcome:
        first, second = self.regions
        with AdminClient(first.server.http_url) as admin:
            admin.scalable_topics.create(self.topic, 2)
        await self._wait(lambda: self.topic in _listed(second), "the topic is made in the other region")
        self.publishers = [Publisher(each, self.topic, self.rng) for each in self.regions]
        home = self.rng.choice(self.regions)
        self.application.begin(home)
        for _ in range(failovers):
            heard = await self._heard(home)
            for _ in range(self.rng.randrange(1, 4)):
                await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                await self._reshape(self.rng.choice(self.regions))
            await asyncio.sleep(self.rng.uniform(0.0, 1.5))
            home = await self._fail_over(home, heard)
        await self.application.end()
        for publisher in self.publishers:
            await publisher.stop()
        return Outcome(len(self._stored()), self.repeats, self.events)

    async def _wait(self, holds: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(wait_until, holds, CAUGHT_UP_S, what)

    def _stored(self) -> dict[bytes, float]:
        return {data: at_s for each in self.publishers for data, at_s in each.stored.items()}

    async def _paused(self) -> None:
        """Nobody publishes, and everything that was published is acknowledged: nothing was skipped."""
        for publisher in self.publishers:
            publisher.going.clear()
        for publisher in self.publishers:
            await publisher.settled()
        stored = self._stored().keys()

        def done() -> bool:
            self.application.check()
            return self.application.acknowledged.keys() >= stored

        try:
            await self._wait(done, "everything is acknowledged")
        except AssertionError:
            skipped = sorted(stored - self.application.acknowledged.keys())
            raise AssertionError(f"{len(skipped)} skipped: {skipped[:20]}; {self.events}") from None

    def _go_on(self) -> None:
        for publisher in self.publishers:
            publisher.going.set()

    async def _heard(self, home: Region) -> frozenset[bytes]:
        """What the other region has heard of: everything, while nobody publishes."""
        await self._paused()
        other = next(each for each in self.regions if each is not home)
        await self._wait(lambda: _unsent(home, other, self.topic) == 0, f"{other.name} has everything; {self.events}")
        await self._wait(lambda: backlog(other, self.topic) == 0, f"{other.name} follows; {self.events}")
        heard = frozenset(self.application.acknowledged)
        self._go_on()
        return heard

    async def _reshape(self, region: Region) -> None:
        with AdminClient(region.server.http_url) as admin:
            found = admin.scalable_topics.metadata(self.topic).segments.values()
            active = sorted((each for each in found if each.state == "ACTIVE"), key=lambda each: each.hash_range.start)
            if len(active) == 1 or (len(active) < SEGMENTS_MAX and self.rng.random() < 0.5):
                chosen = self.rng.choice(active).segment_id
                self.events.append(f"split {chosen} in {region.name}")
                await asyncio.to_thread(admin.scalable_topics.split, self.topic, chosen)
            else:
                at = self.rng.randrange(len(active) - 1)
                low, high = active[at].segment_id, active[at + 1].segment_id
                self.events.append(f"merge {low} and {high} in {region.name}")
                await asyncio.to_thread(admin.scalable_topics.merge, self.topic, low, high)

    async def _fail_over(self, home: Region, heard: frozenset[bytes]) -> Region:
        following = next(each for each in self.regions if each is not home)
        crash = self.rng.random() < 0.3
        self.events.append(f"{'crash' if crash else 'leave'} {home.name}, go on in {following.name}")
        if crash:
            home.server.kill()
        ended_s = time.monotonic()
        await self.application.end()
        bound_s = self._bound(ended_s)
        self.application.begin(following)
        if crash:
            await asyncio.to_thread(home.server.start)
            following.know(home)
        await self._paused()
        repeated, stored = self.application.repeated, self._stored()
        self.repeats.append(len(repeated))
        again = sorted(heard & repeated)
        assert not again, f"{len(again)} repeated that {following.name} had heard of: {again[:20]}; {self.events}"
        late = sorted(each for each in repeated if stored.get(each, ended_s) < bound_s)
        assert not late, f"{len(late)} repeated beyond the bound: {late[:20]}; {self.events}"
        self._go_on()
        return following

    def _bound(self, ended_s: float) -> float:
        """What was stored before must not be repeated: the last snapshot that was passed in time is not older.

        It is passed once everything stored before it is acknowledged, and told with the next look at the subscriptions.
        """
        told_s = ended_s - INTERVAL_S - busy_s()
        acknowledged = self.application.acknowledged
        missing = [at_s for data, at_s in self._stored().items() if acknowledged.get(data, ended_s) > told_s]
        return min([told_s, *missing]) - 2 * INTERVAL_S - ROUNDS_S - busy_s()


def _listed(region: Region) -> list[str]:
    with AdminClient(region.server.http_url) as admin:
        return admin.scalable_topics.list(NAMESPACE)


def _unsent(source: Region, target: Region, topic: str) -> int:
    """Entries of all segments that the other region has not got."""
    left = 0
    with AdminClient(source.server.http_url) as admin:
        segments = admin.scalable_topics.metadata(topic).segments.values()
    for each in segments:
        descriptor = f"{each.hash_range.start:04x}-{each.hash_range.end:04x}-{each.segment_id}"
        path = f"segments/{topic.removeprefix('topic://')}/{descriptor}/unsent"
        left += (source.admin("GET", path, expected=(200, 404)) or {}).get(target.name, 0)
    return left


def backlog(region: Region, topic: str) -> int:
    """Entries of all segments that subscription `s` has not acknowledged; -1 if a segment does not have it, or has just gone."""
    with AdminClient(region.server.http_url) as admin:
        try:
            found = [
                admin.scalable_topics.segment_stats(topic, int(each)).backlog.get("s", -1)
                for each in admin.scalable_topics.metadata(topic).segments
            ]
        except NotFoundError:
            return -1
    return -1 if -1 in found else sum(found)


def run(directory: Path, failovers: int, seed: int) -> list[Outcome]:
    """Of a queue and then of a stream, half of the failovers each."""
    outcomes = []
    with regions(directory, "west", "east", settings=SETTINGS) as both:
        for number, stream in enumerate((False, True)):
            outcome = asyncio.run(Run(seed + number, both, stream).play(failovers // 2))
            print("stream" if stream else "queue", outcome, flush=True)
            outcomes.append(outcome)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failovers", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-geo-") as folder:
        outcomes = run(Path(folder), arguments.failovers, arguments.seed)
    count = sum(len(each.repeated) for each in outcomes)
    print(f"{count} failovers: nothing was skipped, and nothing repeated beyond the bound")


if __name__ == "__main__":
    main()
