"""How long clients of a topic wait when its owner is killed, and when its bundle is unloaded: many times each, as a distribution.

    PYTHONPATH=src python -m tests.e2e.cluster.pauses --kills 10 --unloads 20 [--zookeeper]

One producer of the official client sends some 400 messages a second; a pause is the longest time between two receipts around the event.
Afterwards the topic is read again: nothing acknowledged may be missing, and the order must be kept.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pulsar

from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import broker_names, get, live_broker, owner_of, unload
from tests.support.traffic import Consuming, Producing, first_occurrences, read_log
from tests.support.waiting import wait_until

TOPIC = "paused"
FLOWING = 100
"""Receipts after an event that show that it is over."""


class Pauses:
    """Traffic through one topic of a cluster of real processes."""

    def __init__(self, cluster: ClusterProcesses, log: Path) -> None:
        self.cluster = cluster
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        self._client = pulsar.Client(cluster.service_urls, operation_timeout_seconds=60, logger=logger)
        self._producing = Producing(self._client, TOPIC, "p", send_timeout_millis=0)
        self._consuming = Consuming(self._client, TOPIC, "s")
        self._flows()

    def _flows(self) -> None:
        before = len(self._producing.stored)
        wait_until(lambda: len(self._producing.stored) > before + FLOWING, 60, what="traffic flows")

    def pause_s(self, event: Callable[[], None]) -> float:
        """Around one event."""
        self._producing.longest_pause_s = 0.0
        event()
        self._flows()
        return self._producing.longest_pause_s

    def killed_s(self) -> float:
        """The owner is killed with SIGKILL; it is back before this returns."""
        owner = owner_of(self.cluster, TOPIC)
        pause_s = self.pause_s(lambda: self.cluster.kill(owner))
        self.cluster.start_again(owner)
        names = broker_names(self.cluster)
        wait_until(
            lambda: len(get(f"{live_broker(self.cluster)}/admin/v2/brokers")) == len(names), 30, what="all brokers"
        )
        return pause_s

    def unloaded_s(self) -> float:
        """The bundle goes to another broker."""
        owner = owner_of(self.cluster, TOPIC)
        other = next(name for name in broker_names(self.cluster) if name != owner)
        return self.pause_s(lambda: unload(self.cluster, TOPIC, other))

    def end(self) -> None:
        """Raises AssertionError when a message is missing or out of order."""
        self._producing.finish()
        assert not self._producing.failures, self._producing.failures
        log = read_log(self._client, TOPIC)
        assert first_occurrences(log.of_producer("p")) == list(range(self._producing.sent)), "lost or reordered"
        assert set(self._producing.stored.values()) <= set(log.keys), "a receipt names a message that is not there"
        self._consuming.finish()
        self._client.close()


def row(name: str, pauses_s: Sequence[float]) -> str:
    """One line of a Markdown table, in milliseconds."""
    if not pauses_s:
        return f"| {name} | 0 | | | |"
    ordered = sorted(pauses_s)
    shares = [ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)]
    figures = " | ".join(f"{1000 * figure:.0f}" for figure in (*shares, ordered[-1]))
    return f"| {name} | {len(ordered)} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--unloads", type=int, default=20)
    parser.add_argument("--zookeeper", action="store_true", help="ZooKeeper's own server out of PySpark's jars.")
    parser.add_argument("--set", action="append", default=[], help="As `magnetar cluster up --set`.")
    parser.add_argument("--dir", type=Path, help="For the cluster; otherwise below the temporary directory.")
    arguments = parser.parse_args()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-pauses-")) / "cluster"
    with ClusterProcesses(
        directory, bookies=2, brokers=2, zookeeper=arguments.zookeeper, settings=arguments.set
    ) as cluster:
        pauses = Pauses(cluster, directory.parent / "clients.log")
        unloads = []
        for _ in range(arguments.unloads):
            unloads.append(pauses.unloaded_s())
            time.sleep(0.2)
        kills = [pauses.killed_s() for _ in range(arguments.kills)]
        pauses.end()
    print("milliseconds without a receipt | times | p50 | p95 | max")
    for name, found in (("unload", unloads), ("kill -9 of the owner", kills)):
        print(row(name, found))
        print(f"  {[round(1000 * pause) for pause in found]}")
    print(f"  {directory}")


if __name__ == "__main__":
    main()
