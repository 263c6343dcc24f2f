"""How long clients of a topic wait when processes are killed or stopped, and when its bundle is unloaded: a distribution for each event.

    PYTHONPATH=src python -m tests.e2e.cluster.pauses --kills 10 --unloads 20 --faults 10 [--zookeeper 3]

One producer of the official client sends some 400 messages a second; a pause is the longest time between two receipts around the event.
Afterwards the topic is read again: nothing acknowledged may be missing, and the order must be kept.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pulsar

from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import broker_names, get, live_broker, owner_of, send, unload
from tests.support.cluster import ledgers_of
from tests.support.traffic import Consuming, Producing, first_occurrences, read_log
from tests.support.waiting import wait_until

TOPIC = "paused"
AVOIDED_S = 10.0
"""A bookie that was silent is avoided for so long."""

ASKED_S = 0.2
"""Who asks within 0.1 s of the owner's last sign of life is still sent to it, and waits for its own connection time-out."""

METADATA_WATCHED_S = 5.0
"""Pauses are looked for so long after the metadata store is back."""

FLOWING = 100
"""Receipts after an event that show that it is over."""


class Pauses:
    """Traffic through one topic of a cluster of real processes."""

    def __init__(self, cluster: ClusterProcesses, log: Path) -> None:
        self.cluster = cluster
        self.survivors_s: list[float] = []
        """From the end of the start of everything until the producer that was there before goes on."""
        self._logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        self._client = pulsar.Client(cluster.service_urls, operation_timeout_seconds=60, logger=self._logger)
        self._producing = Producing(self._client, TOPIC, "p", send_timeout_millis=0)
        self._consuming = Consuming(self._client, TOPIC, "s")
        self._flows()

    def _flows(self, entries: int = FLOWING) -> None:
        before = len(self._producing.stored)
        wait_until(lambda: len(self._producing.stored) > before + entries, 60, what="traffic flows")

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
        self._all_brokers()
        return pause_s

    def _all_brokers(self) -> None:
        names = broker_names(self.cluster)
        wait_until(
            lambda: len(get(f"{live_broker(self.cluster)}/admin/v2/brokers")) == len(names), 30, what="all brokers"
        )

    def unloaded_s(self) -> float:
        """The bundle goes to another broker."""
        owner = owner_of(self.cluster, TOPIC)
        other = next(name for name in broker_names(self.cluster) if name != owner)
        return self.pause_s(lambda: unload(self.cluster, TOPIC, other))

    def stopped_s(self) -> float:
        """The owner is stopped with SIGSTOP: how long a client that connects anew needs until it has published through its successor.

        The producer that was there before waits until its own client notices that the connection is silent (30 to 60 s, a constant of
        the official C++ client), which no server can shorten. The owner goes on before this returns.
        """
        owner = owner_of(self.cluster, TOPIC)
        others = [name for name in broker_names(self.cluster) if name != owner]
        self.cluster.pause(owner)
        try:
            time.sleep(ASKED_S)
            return ASKED_S + self._newcomer_s(self.cluster.broker(others[0])[0])
        finally:
            self.cluster.resume(owner)
            self._all_brokers()
            self._flows()

    def bookie_stopped_s(self) -> float:
        """A bookie of the ledger that is being written is stopped with SIGSTOP; it goes on before this returns."""
        bookie = self._bookie()
        pause_s = self.pause_s(lambda: self.cluster.pause(bookie))
        self.cluster.resume(bookie)
        time.sleep(AVOIDED_S)  # it is preferred for new ledgers again
        return pause_s

    def bookie_killed_s(self) -> float:
        """As `bookie_stopped_s`, with SIGKILL."""
        bookie = self._bookie()
        pause_s = self.pause_s(lambda: self.cluster.kill(bookie))
        self.cluster.start_again(bookie)
        return pause_s

    def metadata_killed_s(self) -> float:
        """Every metadata server is killed and started again at once."""
        stores = self._stores()

        def event() -> None:
            self.cluster.kill(*stores)
            self.cluster.start_again(*stores)
            time.sleep(METADATA_WATCHED_S)  # a broker that lost its session gives its topics up a little later

        return self.pause_s(event)

    def all_killed_s(self) -> float:
        """Every process is killed at the same moment, and all are started again at once: from the end of their start until a client
        that connects then has a receipt.

        The producer that was there before tries again after pauses that its client doubles, so it may wait as long again as
        everything was down.
        """
        names = list(self.cluster.status())
        self.cluster.kill(*names)
        self.cluster.start_again(*names)
        started_s = time.monotonic()
        pause_s = self._newcomer_s(self.cluster.service_url)
        self._flows(1)
        self.survivors_s.append(time.monotonic() - started_s)
        return pause_s

    def _newcomer_s(self, url: str) -> float:
        """How long a client that connects now needs until it has a receipt."""
        started_s = time.monotonic()
        client = pulsar.Client(url, operation_timeout_seconds=60, logger=self._logger)
        try:
            client.create_producer(TOPIC).send(b"other:0")
            return time.monotonic() - started_s
        finally:
            client.close()

    def _stores(self) -> list[str]:
        return [name for name, status in self.cluster.status().items() if status.role in ("metadata", "zookeeper")]

    def _bookie(self) -> str:
        """The first bookie of the ledger that the topic is writing."""
        written = ledgers_of(self.cluster, f"public/default/persistent/{TOPIC}")[-1].segments[-1].ensemble
        return next(name for name, bookie_id in self.cluster.bookie_ids.items() if bookie_id in written)

    def end(self) -> None:
        """Raises AssertionError when a message is missing or out of order."""
        self._producing.finish()
        assert not self._producing.failures, self._producing.failures
        log = read_log(self._client, TOPIC)
        found, sent = first_occurrences(log.of_producer("p")), self._producing.sent
        missing = sorted(set(range(sent)) - set(found))
        reordered = [pair for pair in itertools.pairwise(found) if pair[0] > pair[1]]
        assert not missing, f"of {sent} messages lost: {len(missing)}, {missing[:20]}"
        assert not reordered, f"out of order: {reordered[:20]}"
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


EVENTS: dict[str, Callable[[Pauses], float]] = {
    "unload": Pauses.unloaded_s,
    "kill -9 of the owner": Pauses.killed_s,
    "SIGSTOP of the owner": Pauses.stopped_s,
    "SIGSTOP of a bookie": Pauses.bookie_stopped_s,
    "kill -9 of a bookie": Pauses.bookie_killed_s,
    "kill -9 of the metadata store": Pauses.metadata_killed_s,
    "kill -9 of everything": Pauses.all_killed_s,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--unloads", type=int, default=20)
    parser.add_argument("--faults", type=int, default=0, metavar="TIMES", help="So often each of the other faults.")
    parser.add_argument(
        "--only", action="append", default=[], choices=list(EVENTS), help="May be given more than once."
    )
    parser.add_argument(
        "--zookeeper",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="SERVERS",
        help="Real ZooKeeper servers, 1 or 3; without it the embedded metadata server.",
    )
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="As `magnetar cluster up --set`.")
    parser.add_argument("--dir", type=Path, help="For the cluster; otherwise below the temporary directory.")
    arguments = parser.parse_args()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-pauses-")) / "cluster"
    times = dict.fromkeys(EVENTS, arguments.faults) | {
        "unload": arguments.unloads,
        "kill -9 of the owner": arguments.kills,
    }
    with ClusterProcesses(
        directory,
        bookies=arguments.bookies,
        brokers=2,
        zookeeper=arguments.zookeeper,
        ensemble=(2, 2, 2),
        settings=arguments.set,
    ) as cluster:
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}  # the topic is read again from its start
        send("POST", f"{live_broker(cluster)}/admin/v2/namespaces/public/default/retention", forever)
        pauses = Pauses(cluster, directory.parent / "clients.log")
        print("milliseconds without a receipt | times | p50 | p95 | max", flush=True)
        for name, event in EVENTS.items():
            if arguments.only and name not in arguments.only:
                continue
            found = []
            for _ in range(times[name]):
                found.append(event(pauses))
                time.sleep(0.2)
            print(row(name, found), [round(1000 * pause) for pause in found], flush=True)
        print(row("kill -9 of everything, the producer of before", pauses.survivors_s))
        pauses.end()
    print(f"  {directory}")


if __name__ == "__main__":
    main()
