"""Randomized runs of failovers among three regions: cuts, crashes and unloads while everybody publishes.

    PYTHONPATH=src python -m tests.e2e.geo.failover_runs --runs 30 --seed 1

A run prints its seed first. It fails when a message that some producer has a receipt for is never given to the consumer (a skip),
or when a failover repeats what was acknowledged so long before the end of a quiet stretch that the other regions must have heard
of it (a repeat beyond the bound).
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulsar

from tests.support.geo import NAMESPACE, Region
from tests.support.geo_links import Links, far_regions
from tests.support.waiting import wait_until

INTERVAL_S = 0.25
DELAY_S = 0.05
SETTINGS = {"replicatedSubscriptionsSnapshotFrequencyMillis": int(INTERVAL_S * 1000)}
ROUNDS_S = 5 * DELAY_S
ACK_GROUPING_S = 0.1
BOUND_S = 2 * INTERVAL_S + ROUNDS_S + ACK_GROUPING_S
"""Of a quiet stretch all but the last so long was heard of everywhere: the next snapshot is due, takes two rounds, and is passed. On a
machine with more to do than it can, `busy_s` comes on top."""

QUIET_S = 1.0
"""How much of it was heard of."""

PUBLISH_PAUSE_S = 0.015
FAILOVERS = 2


def busy_s() -> float:
    """A second, or more while processes queue for the cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Publisher:
    """Publishes until `stop`; `stored`: what it has receipts for."""

    def __init__(self, region: Region, topic: str) -> None:
        self.stored: set[bytes] = set()
        self._region = region
        self._producer = region.client.create_producer(topic, batching_enabled=False, send_timeout_millis=0)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set():
            data = f"{self._region.name}{number}".encode()
            self._producer.send_async(data, lambda result, _, data=data: self._answered(result, data))
            number += 1
            time.sleep(PUBLISH_PAUSE_S)

    def _answered(self, result: pulsar.Result, data: bytes) -> None:
        if result == pulsar.Result.Ok:
            self.stored.add(data)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()


class Consumption:
    """The application: one consumer at a time, which leaves a few messages unacknowledged for a while when it may."""

    def __init__(self, topic: str, shared: bool, rng: random.Random) -> None:
        self.acknowledged: dict[bytes, float] = {}
        """When each was first acknowledged."""
        self.repeated: list[bytes] = []
        """Since the last failover, of what was acknowledged before it."""
        self._topic = topic
        self._shared = shared
        self._rng = rng
        self._before: frozenset[bytes] = frozenset()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, region: Region) -> None:
        self._before = frozenset(self.acknowledged)
        self.repeated = []
        self._ending = threading.Event()
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{region.server.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(
            self._topic,
            "sub",
            pulsar.ConsumerType.Shared if self._shared else pulsar.ConsumerType.Exclusive,
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )
        self._thread = threading.Thread(target=self._run, args=(client, consumer, self._ending), daemon=True)
        self._thread.start()

    def _run(self, client: pulsar.Client, consumer: pulsar.Consumer, ending: threading.Event) -> None:
        held: list[tuple[float, Any]] = []
        while not ending.is_set():
            while held and held[0][0] <= time.monotonic():
                self._acknowledge(consumer, held.pop(0)[1])
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            if message.data() in self._before:
                self.repeated.append(message.data())
            if self._shared and self._rng.random() < 0.02:
                held.append((time.monotonic() + 1.0, message))
            else:
                self._acknowledge(consumer, message)
        threading.Thread(target=client.close, daemon=True).start()  # of a region that is gone it takes a while

    def _acknowledge(self, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        self.acknowledged.setdefault(message.data(), time.monotonic())

    def end(self) -> None:
        self._ending.set()
        assert self._thread is not None
        self._thread.join()


class Run:
    def __init__(self, seed: int, links: Links, regions: Sequence[Region]) -> None:
        self.rng = random.Random(seed)
        self.links = links
        self.regions = list(regions)
        self.name = f"{NAMESPACE}/run-{seed}"
        self.topic = f"persistent://{self.name}"
        self.shared = self.rng.random() < 0.5
        self.events: list[str] = []
        self.heard_until = 0.0
        """What was acknowledged before must not be repeated by a failover."""

    def play(self) -> dict[str, object]:
        for region in self.regions:
            region.client.create_producer(self.topic).close()
        self._connected()
        publishers = [Publisher(region, self.topic) for region in self.regions]
        application = Consumption(self.topic, self.shared, self.rng)
        home = self.rng.choice(self.regions)
        application.begin(home)
        repeats: list[int] = []
        for _ in range(FAILOVERS):
            self._quiet()
            for _ in range(self.rng.randrange(3)):
                self._trouble(home)
            if self.rng.random() < 0.4:
                self._connected()
                self._quiet()
            home = self._fail_over(application, home)
            time.sleep(1.0)
            self._connected()
            self._within_bound(application)
            repeats.append(len(application.repeated))
        for publisher in publishers:
            publisher.stop()
        self._connected()
        stored = set().union(*(publisher.stored for publisher in publishers))
        try:
            wait_until(lambda: application.acknowledged.keys() >= stored, 60)
        except AssertionError:
            skipped = sorted(stored - application.acknowledged.keys())
            raise AssertionError(f"{len(skipped)} skipped: {skipped[:20]}; {self.events}") from None
        finally:
            application.end()
        self._within_bound(application)
        return {"messages": len(stored), "repeated": repeats, "shared": self.shared, "events": self.events}

    def _quiet(self) -> None:
        """Nothing happens for a while."""
        heard = time.monotonic() + QUIET_S
        time.sleep(QUIET_S + BOUND_S + busy_s())
        self.heard_until = heard

    def _connected(self) -> None:
        self.links.mend_all()
        for region in self.regions:
            others = [other.name for other in self.regions if other is not region]
            region.wait_connected(self.name, *others, timeout_s=90)

    def _trouble(self, home: Region) -> None:
        source, target = self.rng.sample(self.regions, 2)
        kind = self.rng.choice(["blink", "cut", "isolate", "unload", "crash"])
        self.events.append(f"{kind} {source.name}>{target.name}")
        if kind == "blink":
            self.links.blink(source.name, target.name)
        elif kind == "cut":
            self.links.cut(source.name, target.name)
            time.sleep(self.rng.uniform(0.2, 1.0))
        elif kind == "isolate":
            self.links.isolate(source.name)
            time.sleep(self.rng.uniform(0.2, 1.0))
        elif kind == "unload":
            source.admin("PUT", f"persistent/{self.name}/unload")
        elif source is not home:
            source.server.restart()
        time.sleep(self.rng.uniform(0.0, 0.3))

    def _fail_over(self, application: Consumption, home: Region) -> Region:
        following = self.rng.choice([region for region in self.regions if region is not home])
        crash = self.rng.random() < 0.4
        self.events.append(f"{'crash' if crash else 'leave'} {home.name}, go on in {following.name}")
        (state,) = home.admin("GET", f"persistent/{self.name}/replicatedSubscriptions")
        self.events.append(f"last snapshot {state['lastSnapshotAgeMillis']} ms ago, {state['subscriptions']}")
        if crash:
            home.server.kill()
        application.end()
        if not crash:
            time.sleep(2 * ACK_GROUPING_S)
        application.begin(following)
        if crash:
            home.server.start()
        return following

    def _within_bound(self, application: Consumption) -> None:
        late = [data for data in set(application.repeated) if application.acknowledged[data] < self.heard_until]
        assert not late, f"{len(late)} repeated beyond the bound: {sorted(late)[:20]}; {self.events}"


def run_all(directory: Path, seeds: Sequence[int]) -> list[dict[str, object]]:
    """One after the other, each with a topic of its own."""
    outcomes = []
    with far_regions(directory, "a", "b", "c", delay_s=DELAY_S, settings=SETTINGS) as (links, regions):
        for seed in seeds:
            print(f"seed {seed}", end=" ", flush=True)
            outcome = Run(seed, links, regions).play()
            print(outcome, flush=True)
            outcomes.append(outcome)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="Of the first run; the following ones count on.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-geo-") as folder:
        outcomes = run_all(Path(folder), range(arguments.seed, arguments.seed + arguments.runs))
    print(
        f"{len(outcomes)} runs: nothing was skipped, and no repeat went beyond {BOUND_S:g} s and a busy machine's delay"
    )


if __name__ == "__main__":
    main()
