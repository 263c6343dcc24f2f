"""Randomized runs of a cluster of brokers: faults while clients write and read, everything recorded, and checked afterwards.

    PYTHONPATH=src python -m tests.e2e.cluster.history_runs --runs 20 --seconds 60 --seed 1

Each run has a new cluster of real processes. Its seed chooses the number of brokers, deduplication, the faults and their moments; it is
printed first. Afterwards every topic is read again from its first message on and compared with what clients were told (`history`):
nothing acknowledged is lost, nothing is stored twice beyond what a producer had to send again, the order of each producer is kept,
nothing is read before it was sent or that does not stay, and cursors stand where their subscriptions left them. A run that fails
prints the line that repeats it and keeps its directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import pulsar

from tests.e2e.cluster.availability import QUIET, distribution, table, unavailability_s
from tests.e2e.cluster.history import Fault, History, Violation, check
from tests.e2e.cluster.nemesis import Nemesis
from tests.e2e.cluster.proxied import ProxiedCluster
from tests.e2e.cluster.recording import Appending, Reading
from tests.support.brokers import broker_names, send
from tests.support.traffic import read_log
from tests.support.waiting import wait_until

SETTLE_S = 90.0
"""After every fault all producers have receipts again within this time, or the run fails."""

SESSION_S = {False: 2.0, True: 4.0}
"""Of brokers with the metadata store, longest: the embedded server's, and a real ZooKeeper's (False, True)."""

PARTITIONS = 3
SKIP = 97

SESSION_LOST = "a session lost without a fault"
"""Nobody did anything to that broker: the machine was too busy for a sign of life in time. It counts as a fault."""


FAULTS_MIN = 2
"""Of a run, also where the first of them takes longer than the run may."""


@dataclass(frozen=True, slots=True)
class Options:
    seed: int
    seconds: float
    zookeeper: int = 0
    """Servers of the ZooKeeper ensemble; 0: the embedded metadata server."""
    faults: tuple[str, ...] = ()
    """Only these kinds; empty: all."""

    def replay(self) -> str:
        words = ["--runs", "1", "--seconds", f"{self.seconds:g}", "--seed", str(self.seed)]
        words += ["--zookeeper", str(self.zookeeper)] if self.zookeeper else []
        words += [word for kind in self.faults for word in ("--fault", kind)]
        return "PYTHONPATH=src python -m tests.e2e.cluster.history_runs " + shlex.join(words)


@dataclass(slots=True)
class Outcome:
    options: Options
    history: History
    violations: list[Violation] = field(default_factory=list)
    waits_s: list[tuple[str, float]] = field(default_factory=list)

    def line(self) -> str:
        history = self.history
        acknowledged = sum(append.acknowledged for append in history.appends)
        stored = sum(len(log) for log in history.logs.values())
        distinct = len({message for log in history.logs.values() for _, message in log})
        return (
            f"{len(history.faults)} faults, {acknowledged} of {len(history.appends)} acknowledged, {stored - distinct} stored "
            f"again{' in spite of deduplication' if history.deduplicated and stored > distinct else ''}, "
            f"{len(history.reads)} deliveries, {len(self.violations)} violations"
        )


class Traffic:
    """The clients of a run: producers alone and together, keyed and not, batched and not; consumers of each kind."""

    def __init__(self, url: str, log: Path) -> None:
        # The first client of a process decides for all that follow where they log.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log))
        self._clients = [pulsar.Client(url, operation_timeout_seconds=60, logger=logger) for _ in range(3)]
        writing, together, reading = self._clients
        self._reading = reading
        kinds = pulsar.ConsumerType
        self.streams = {
            "one": ["one"],
            "two": ["two"],
            "parts": [f"parts-partition-{number}" for number in range(PARTITIONS)],
        }
        for topic in self.streams:
            # It never consumes: nothing is trimmed before it is checked.
            reading.subscribe(topic, "keeps it", initial_position=pulsar.InitialPosition.Earliest).close()
        self.readers = [
            Reading(reading, "one", "exclusive", kinds.Exclusive, "exclusive-1"),
            *(Reading(reading, "two", "failover", kinds.Failover, f"failover-{number}") for number in (1, 2)),
            *(
                Reading(
                    reading,
                    "parts",
                    "shared",
                    kinds.Shared,
                    f"shared-{number}",
                    skip=SKIP,
                    batch_index_ack_enabled=True,
                )
                for number in (1, 2)
            ),
            Reading(reading, "parts", "parts-failover", kinds.Failover, "parts-failover-1"),
        ]
        batched = {"batching_enabled": True, "batching_max_messages": 20, "batching_max_publish_delay_ms": 30}
        self.producers = [
            Appending(writing, "one", "one-a"),
            Appending(together, "one", "one-b"),
            Appending(writing, "two", "two-batched", **batched),
            Appending(writing, "parts", "parts-keyed", keys=30),
            Appending(
                together, "parts", "parts-batched", keys=30, batching_type=pulsar.BatchingType.KeyBased, **batched
            ),
        ]

    def settled(self, since_s: float) -> bool:
        """Every producer has a receipt for something it sent after that moment."""
        return all(producer.newest_called_s > since_s for producer in self.producers)

    def begun(self) -> bool:
        """Every producer has a receipt from each partition.

        Before its first one the official client (4.2) numbers its messages from 0 again when it reconnects. Key-based batching sends the
        batches of one window in the order of these numbers, and deduplication takes the second 0 for a repetition.
        """
        return all(
            {append.stream for append in list(producer.appends) if append.answered_s is not None}
            >= set(self.streams[producer.topic])
            for producer in self.producers
        )

    def end(self, history: History) -> None:
        """No more is sent; all is read again; every subscription gets the rest, then says what is left."""
        for producer in self.producers:
            producer.finish(SETTLE_S)
        for streams in self.streams.values():
            for stream in streams:
                log = read_log(self._reading, stream)
                messages = [payload.decode().rpartition(":") for payload in log.payloads]
                history.logs[stream] = [
                    (place, (name, int(number))) for place, (name, _, number) in zip(log.keys, messages, strict=True)
                ]
        history.subscriptions = {reader.subscription: self.streams[reader.topic] for reader in self.readers}
        self._drain(history)
        time.sleep(
            1.0 + history.slack_s
        )  # the client sends acknowledgements in groups, the broker writes cursors once a second
        for reader in self.readers:
            reader.close()
        for reader in {reader.subscription: reader for reader in self.readers}.values():
            places = {(stream, place) for stream in self.streams[reader.topic] for place, _ in history.logs[stream]}
            done = {(each.stream, each.place) for each in history.consumed if each.subscription == reader.subscription}
            history.left[reader.subscription] = reader.left(self._reading, len(places - done))

    def _drain(self, history: History) -> None:
        def everything() -> bool:
            got = {
                (read.subscription, read.stream, read.place) for reader in self.readers for read in list(reader.reads)
            }
            return all(
                (subscription, stream, place) in got
                for subscription, streams in history.subscriptions.items()
                for stream in streams
                for place, _ in history.logs[stream]
            )

        try:
            wait_until(everything, SETTLE_S, what="every subscription has everything")
        except AssertionError:
            pass  # the checker says what is missing
        for reader in self.readers:
            reader.finish()
        for producer in self.producers:
            history.appends += producer.appends
        for reader in self.readers:
            history.reads += reader.reads
            history.consumed += reader.consumed

    def close(self) -> None:
        for client in self._clients:
            client.close()


def play(options: Options, directory: Path) -> Outcome:
    """One run; the cluster is gone afterwards, its directory stays."""
    rng = random.Random(options.seed)
    brokers = rng.choice([2, 3])
    history = History(deduplicated=rng.random() < 0.5, slack_s=busy_s())
    settings = [f"brokerDeduplicationEnabled={str(history.deduplicated).lower()}"]
    if rng.random() < 0.5:
        # Ledgers change every second or so: faults meet rollovers, and cursors of several ledgers.
        settings += ["managedLedgerMaxEntriesPerLedger=100", "managedLedgerMinLedgerRolloverTimeMinutes=0"]
    directory.mkdir(parents=True)  # a cluster of another run in it would be taken over
    print(f"seed {options.seed}: {brokers} brokers, {' '.join(settings)}", flush=True)
    with ProxiedCluster(
        directory, brokers=brokers, bookies=2, zookeeper=options.zookeeper, settings=settings
    ) as cluster:
        send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/parts/partitions", PARTITIONS)
        traffic = Traffic(cluster.service_urls, directory.parent / "clients.log")
        wait_until(traffic.begun, SETTLE_S, what="traffic flows")
        streams = [stream for group in traffic.streams.values() for stream in group]
        nemesis = Nemesis(cluster, streams, rng, SESSION_S[bool(options.zookeeper)])
        begun_s = time.monotonic()
        for kind, fault, stream in nemesis.schedule(options.faults):
            if time.monotonic() - begun_s > options.seconds and len(history.faults) >= FAULTS_MIN:
                break
            start_s = time.monotonic()
            print(f"  {start_s - begun_s:5.1f} s {kind}", end="", flush=True)
            detail = fault(stream)
            mended_s = time.monotonic()
            wait_until(
                lambda since_s=mended_s: traffic.settled(since_s), SETTLE_S, what=f"receipts after: {kind}, {detail}"
            )
            nemesis.joined(SETTLE_S)
            history.faults.append(Fault(kind, detail, start_s, time.monotonic()))
            print(f": {detail}", flush=True)
            time.sleep(rng.uniform(0.0, 1.5))
        traffic.end(history)
        traffic.close()
        history.faults += sessions_lost(cluster, history.faults)
    outcome = Outcome(options, history, check(history), unavailability_s(history))
    print(f"  {outcome.line()}", flush=True)
    waits = ", ".join(f"{kind} {wait_s:.2f}" for kind, wait_s in outcome.waits_s if kind != QUIET)
    print(f"  longest seconds without a receipt: {waits}", flush=True)
    return outcome


def busy_s() -> float:
    """A second, or more while processes queue for the cores."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2)


def sessions_lost(cluster: ProxiedCluster, faults: Sequence[Fault]) -> list[Fault]:
    """Where brokers say that their session is over although no fault was going on."""
    ahead_s = time.time() - time.monotonic()
    found = []
    for name in broker_names(cluster):
        for line in cluster.log(name).splitlines():
            if "the session with the metadata store is lost" in line:
                at_s = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").timestamp() - ahead_s
                if not any(fault.start_s <= at_s <= fault.settled_s for fault in faults):
                    found.append(Fault(SESSION_LOST, name, at_s - 2.0, at_s + 10.0))
    return found


def run_all(directory: Path, runs: Sequence[Options]) -> list[Outcome]:
    """One after the other. Prints the distribution at the end; raises AssertionError at the end if any failed."""
    outcomes: list[Outcome] = []
    failed: list[str] = []
    for options in runs:
        place = directory / f"seed-{options.seed}{f'-zookeeper-{options.zookeeper}' if options.zookeeper else ''}"
        try:
            outcome = play(options, place)
        except Exception as error:
            failed.append(f"seed {options.seed}: {type(error).__name__}: {error}\n  {place}\n  {options.replay()}")
            print(f"\nFAILED {failed[-1]}", flush=True)
            continue
        outcomes.append(outcome)
        if outcome.violations:
            (place / "history.json").write_text(json.dumps(asdict(outcome.history)))
            texts = "\n  ".join(f"{each.promise}: {each.text}" for each in outcome.violations[:30])
            failed.append(
                f"seed {options.seed}: {len(outcome.violations)} violations\n  {texts}\n  {place}\n  {options.replay()}"
            )
            print(f"FAILED {failed[-1]}", flush=True)
    print(table(distribution(wait for outcome in outcomes for wait in outcome.waits_s)), flush=True)
    assert not failed, "\n".join(failed)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="During which faults begin.")
    parser.add_argument("--seed", type=int, default=1, help="Of the first run; the following ones count on.")
    parser.add_argument(
        "--zookeeper",
        type=int,
        nargs="?",
        const=1,
        default=0,
        metavar="SERVERS",
        help="Real ZooKeeper servers, 1 or 3; without it the embedded metadata server.",
    )
    parser.add_argument("--fault", action="append", default=[], help="Only this kind; may be given more than once.")
    parser.add_argument("--dir", type=Path, help="For the clusters' directories; otherwise below the temporary one.")
    arguments = parser.parse_args()
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="magnetar-history-"))
    runs = [
        Options(seed, arguments.seconds, arguments.zookeeper, tuple(arguments.fault))
        for seed in range(arguments.seed, arguments.seed + arguments.runs)
    ]
    try:
        outcomes = run_all(directory, runs)
    except AssertionError as error:
        sys.exit(f"failed:\n{error}")
    acknowledged = sum(append.acknowledged for outcome in outcomes for append in outcome.history.appends)
    faults = sum(len(outcome.history.faults) for outcome in outcomes)
    print(
        f"{len(outcomes)} runs, {faults} faults, {acknowledged} acknowledged: nothing lost, reordered or stored again without a cause"
    )


if __name__ == "__main__":
    main()
