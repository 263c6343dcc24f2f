"""kill -9 during traffic, again and again: what was promised before is true afterwards.

P1 nothing acknowledged is lost, P2 order per producer, P3 duplicates only within the window (none with deduplication), P5 no
acknowledgement undone but for what was unflushed, P6 nothing unacknowledged is skipped, P7 service is back by itself.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from tests.support.brokers import get
from tests.support.messages import subscribe_next
from tests.support.traffic import (
    WINDOW,
    Consuming,
    Log,
    MessageKey,
    Producing,
    ReceiptConsuming,
    first_occurrences,
    key_of,
    read_log,
    undone_without_excuse,
    with_deliveries,
)
from tests.support.waiting import wait_until

RESTART_MAX_S = 5.0
"""For a restart on a machine that imports the server's modules in half a second or less; on a slower or busier one ten imports."""
RESUME_MAX_S = 60.0
SKIP = 97

Connect = Callable[..., pulsar.Client]


def import_s() -> float:
    """Seconds that a new interpreter needs for the server's modules, now."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import magnetar.cli.servers.serve"], check=True)
    return time.monotonic() - started


class Harness:
    """One server, its traffic, and a diary of its deaths."""

    def __init__(self, server: ServerProcess, connect: Connect) -> None:
        self.server = server
        # one client, and so one connection, per role: a slow consumer must not hold up a producer's receipts
        producing, consuming = connect(server.service_url), connect(server.service_url)
        kind = pulsar.ConsumerType
        self.plain, self.keyed = "kill-plain", "kill-keyed"
        self.consumers = [
            Consuming(consuming, self.plain, "individual", consumer_type=kind.Exclusive),
            Consuming(consuming, self.plain, "cumulative", consumer_type=kind.Exclusive, cumulative_every=20),
            *(
                Consuming(
                    consuming, self.keyed, "shared", consumer_type=kind.Shared, skip=SKIP, batch_index_ack_enabled=True
                )
                for _ in range(2)
            ),
            *(Consuming(consuming, self.keyed, "key-shared", consumer_type=kind.KeyShared) for _ in range(2)),
        ]
        self.receipts = ReceiptConsuming(server.port, self.plain, "receipts")
        self.producers = {
            self.plain: [
                Producing(producing, self.plain, "single"),
                Producing(producing, self.plain, "batched", batching_enabled=True, batching_max_messages=20),
            ],
            self.keyed: [
                Producing(producing, self.keyed, "keyed", keys=50),
                Producing(
                    producing,
                    self.keyed,
                    "keyed-batched",
                    keys=50,
                    batching_enabled=True,
                    batching_max_messages=20,
                    batching_type=pulsar.BatchingType.KeyBased,
                ),
            ],
        }
        self.deaths_s: list[float] = []
        self.imports_s: list[float] = []
        """After each restart: how fast the machine is at that moment."""
        self.ready_s: list[float] = []
        self.restarts_s: list[float] = []
        self.resumes_s: list[float] = []

    @property
    def all_producers(self) -> list[Producing]:
        return [producer for group in self.producers.values() for producer in group]

    def progress(self) -> None:
        """Every producer gets receipts, every consumer gets messages."""
        started = time.monotonic()
        produced = [(producer, len(producer.stored) + 50) for producer in self.all_producers]
        consumed = [(consumer, len(consumer.received_s) + 20) for consumer in self.consumers]
        confirmed = len(self.receipts.confirmed) + 20
        wait_until(
            lambda: (
                all(len(producer.stored) >= goal for producer, goal in produced)
                and all(len(consumer.received_s) >= goal for consumer, goal in consumed)
                and len(self.receipts.confirmed) >= confirmed
            ),
            RESUME_MAX_S,
            "traffic goes on",
        )
        self.resumes_s.append(time.monotonic() - started)

    def kill_in_a_rush(self, rng: random.Random) -> None:
        """At a random moment, with many messages and acknowledgements under way; every third time the recovery dies twice."""
        time.sleep(rng.uniform(0, 0.5))
        for producer in self.all_producers:
            producer.rush = 300
        time.sleep(rng.uniform(0, 0.08))
        self.kill(again_after_s=(rng.uniform(0.02, 0.1), rng.uniform(0.1, 0.4)) if len(self.deaths_s) % 3 == 1 else ())

    def kill(self, *, again_after_s: tuple[float, ...] = ()) -> None:
        """SIGKILL and start; with `again_after_s` some starts are killed that long after they began."""
        death_s = time.monotonic()
        self.server.kill()
        for delay_s in again_after_s:
            self.server.spawn()
            time.sleep(delay_s)
            self.server.kill()
        started = time.monotonic()
        self.server.start()
        self.restarts_s.append(time.monotonic() - started)
        self.imports_s.append(import_s())
        self.deaths_s.append(death_s)
        self.ready_s.append(time.monotonic())

    def drain(self) -> dict[str, Log]:
        """Stop producing, wait until every subscription has everything; the topics' content."""
        for producer in self.all_producers:
            producer.finish()
        client = pulsar.Client(self.server.service_url)
        logs = {topic: read_log(client, topic) for topic in (self.plain, self.keyed)}
        client.close()
        for name in ("individual", "cumulative", "shared", "key-shared"):
            stored = set(logs[self.topic_of(name)].keys)
            wait_until(
                lambda name=name, stored=stored: stored <= self.delivered(name), 60, f"everything reached {name}"
            )
        entries = {key[:2] for key in logs[self.plain].keys}
        receipts = self.receipts
        wait_until(lambda: entries <= set(receipts.received) and not receipts.waiting, 60, "receipts for every entry")
        for consumer in self.consumers:
            consumer.finish()
        self.receipts.finish()
        return {
            topic: with_deliveries(
                log, [consumer for consumer in self.consumers if self.topic_of(consumer.subscription) == topic]
            )
            for topic, log in logs.items()
        }

    def topic_of(self, subscription: str) -> str:
        return self.plain if subscription in ("individual", "cumulative", "receipts") else self.keyed

    def delivered(self, subscription: str) -> set[MessageKey]:
        return {
            key for consumer in self.consumers if consumer.subscription == subscription for key in list(consumer.seen)
        }

    def report(self) -> str:
        sent = sum(producer.sent for producer in self.all_producers)
        received = sum(len(consumer.received_s) for consumer in self.consumers)
        again = received - sum(len(consumer.seen) for consumer in self.consumers)
        return (
            f"{len(self.deaths_s)} kills, {sent} messages, {again} of {received} deliveries again, "
            f"restart max {max(self.restarts_s):.2f} s, traffic back after max {max(self.resumes_s):.2f} s"
        )


def check_log(harness: Harness, topic: str, log: Log, deduplicated: bool) -> int:
    """P1, P2, P3 for one topic; returns the duplicates."""
    duplicates = 0
    content = dict(zip(log.keys, log.payloads, strict=True))
    for producer in harness.producers[topic]:
        assert not producer.failures
        assert len(producer.stored) == producer.sent
        stored = log.of_producer(producer.name)
        assert first_occurrences(stored) == list(range(producer.sent)), f"{producer.name}: lost or out of order"
        duplicates += len(stored) - producer.sent
        if deduplicated:
            assert len(stored) == producer.sent, f"{producer.name}: duplicates in spite of deduplication"
        else:
            assert len(stored) - producer.sent <= WINDOW * len(harness.deaths_s)
        for number, key in producer.stored.items():
            if key[0] >= 0 and key[1] >= 0 and key[1] < 2**63:  # a repeat under deduplication has no place of its own
                assert content[key] == f"{producer.name}:{number}".encode()
    return duplicates


def check_acknowledgements(harness: Harness) -> None:
    assert harness.receipts.refused == []
    assert harness.receipts.undone == [], "confirmed acknowledgements came undone"
    for consumer in harness.consumers:
        wrong = undone_without_excuse(consumer.seen, consumer.received_s, harness.deaths_s, harness.ready_s)
        assert wrong == [], f"{consumer.subscription}: {len(wrong)} acknowledgements came undone"


def check_what_is_left(harness: Harness, logs: dict[str, Log], connect: Connect) -> None:
    """After one more death: exactly what was never acknowledged comes again, on every subscription."""
    for name in ("individual", "cumulative", "receipts", "key-shared"):
        wait_until(partial(nothing_left, harness, name), what=f"every acknowledgement of {name} has arrived")
    time.sleep(1.2)  # what the clients group and the cursors batch is stored by then: that bound is the promise
    harness.kill()
    for consumer in harness.consumers:
        # A consumer that is closed while it subscribes anew would be there for a moment, and an exclusive one refuses others.
        wait_until(consumer.connected, 60, f"{consumer.subscription} is back")
        consumer.close()
    client = connect(harness.server.service_url)
    for name in ("individual", "cumulative", "receipts", "shared", "key-shared"):
        log = logs[harness.topic_of(name)]
        expected = {
            key for key, payload in zip(log.keys, log.payloads, strict=True) if name == "shared" and is_skipped(payload)
        }
        kind = pulsar.ConsumerType.KeyShared if name == "key-shared" else pulsar.ConsumerType.Shared
        topic = harness.topic_of(name)
        consumer = subscribe_next(client, topic, name, consumer_type=kind, batch_index_ack_enabled=True)
        assert receive_keys(consumer, len(expected)) == expected, name
        consumer.close()


def nothing_left(harness: Harness, subscription: str) -> bool:
    topic = harness.topic_of(subscription)
    stats = get(f"{harness.server.http_url}/admin/v2/persistent/public/default/{topic}/stats")
    return bool(stats["subscriptions"][subscription]["msgBacklog"] == 0)


def is_skipped(payload: bytes) -> bool:
    return int(payload.rpartition(b":")[2]) % SKIP == 0


def receive_keys(consumer: Any, count: int) -> set[MessageKey]:
    """`count` messages, and whatever comes in a moment after them."""
    keys = set()
    while True:
        try:
            keys.add(key_of(consumer.receive(30_000 if len(keys) < count else 300).message_id()))
        except pulsar.Timeout:
            return keys


def run(server: ServerProcess, connect: Connect, kills: int, deduplicated: bool, seed: int) -> str:
    rng = random.Random(seed)
    harness = Harness(server, connect)
    harness.progress()
    for _ in range(kills):
        harness.kill_in_a_rush(rng)
        harness.progress()
    logs = harness.drain()
    duplicates = sum(check_log(harness, topic, log, deduplicated) for topic, log in logs.items())
    check_acknowledgements(harness)
    check_what_is_left(harness, logs, connect)
    for restart_s, imports_s in zip(harness.restarts_s, harness.imports_s, strict=True):
        assert restart_s < max(RESTART_MAX_S, 10 * imports_s)
    assert "Traceback" not in server.log(), server.log()[-4000:]
    return f"{harness.report()}, {duplicates} duplicates"


@pytest.mark.parametrize("deduplicated", [False, True], ids=["plain", "deduplicated"])
def test_five_kills_during_traffic(
    start_server: Callable[..., ServerProcess], connect: Connect, deduplicated: bool
) -> None:
    server = start_server(brokerDeduplicationEnabled=str(deduplicated).lower())
    print("\nkill loop:", run(server, connect, 5, deduplicated, seed=1))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deduplicated", [False, True], ids=["plain", "deduplicated"])
def test_fifty_kills_during_traffic(
    start_server: Callable[..., ServerProcess], connect: Connect, deduplicated: bool, tmp_path: Path
) -> None:
    """With small ledgers, journal files and flush intervals, so that kills meet rollovers, checkpoints and trimming."""
    server = start_server(
        brokerDeduplicationEnabled=str(deduplicated).lower(),
        managedLedgerMaxEntriesPerLedger=500,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        managedLedgerCursorMaxEntriesPerLedger=50,
        journalMaxSizeMB=16,
        flushInterval=500,
    )
    print("\nlong kill loop:", run(server, connect, 50, deduplicated, seed=2))
