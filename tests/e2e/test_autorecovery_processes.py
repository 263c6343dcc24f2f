"""Real processes: a bookie is killed under the official client's traffic, and its copies come back elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.cluster import ClusterProcesses
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

SETTINGS = ["autorecovery.openLedgerRereplicationGracePeriod=2000", "zkTimeout=4000"]


@pytest.fixture(params=[False, True], ids=["embedded", "zookeeper"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterProcesses]:
    directory = tmp_path / "cluster"
    with ClusterProcesses(
        directory, bookies=4, autorecovery=2, zookeeper=request.param, ensemble=(3, 2, 2), settings=SETTINGS
    ) as started:
        yield started


def magnetar(cluster: ClusterProcesses, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "magnetar", *words, "--json", "--dir", str(cluster.directory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def ledgers_of(cluster: ClusterProcesses, bookie: str) -> list[dict[str, Any]]:
    finished = magnetar(cluster, "ledger", "list", "--bookie", bookie)
    assert finished.returncode == 0, finished.stderr
    found: list[dict[str, Any]] = json.loads(finished.stdout)
    return found


class Traffic(threading.Thread):
    """Sends until told to stop; `sent` are the messages that were acknowledged, `pause_s` the longest time between two of them."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = client.create_producer(topic, block_if_queue_full=True, send_timeout_millis=60_000)
        self._over = threading.Event()
        self.sent: list[int] = []
        self.failed: list[object] = []
        self.pause_s = 0.0
        self._last_s = time.monotonic()

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            self._producer.send_async(b"%d" % number, lambda result, _, number=number: self._sent(result, number))
            number += 1
            time.sleep(0.002)
        self._producer.flush()

    def _sent(self, result: pulsar.Result, number: int) -> None:
        now_s = time.monotonic()
        self.pause_s, self._last_s = max(self.pause_s, now_s - self._last_s), now_s
        if result == pulsar.Result.Ok:
            self.sent.append(number)
        else:
            self.failed.append(result)

    def stop(self) -> None:
        self._over.set()
        self.join(60)


def test_copies_come_back_while_clients_write(cluster: ClusterProcesses) -> None:
    client = pulsar.Client(cluster.service_url)
    for topic in ("idle", "busy"):
        client.subscribe(topic, "keeps").close()  # or what nobody has subscribed to goes with its ledger
    idle = client.create_producer("idle", send_timeout_millis=60_000)
    for number in range(10):
        idle.send(b"%d" % number)
    traffic = Traffic(client, "busy")
    traffic.start()
    wait_until(lambda: len(traffic.sent) > 500, 60, "messages are stored")
    name, bookie = next((name, bookie) for name, bookie in cluster.bookie_ids.items() if ledgers_of(cluster, bookie))
    cluster.kill(name)
    killed_s = time.monotonic()
    wait_until(lambda: not ledgers_of(cluster, bookie), 90, "no ledger names the killed bookie")
    print(
        f"no ledger names the bookie {time.monotonic() - killed_s:.1f} s after its kill; pause {traffic.pause_s:.2f} s"
    )
    before = len(traffic.sent)
    wait_until(lambda: len(traffic.sent) > before + 200, 60, "messages are stored still")
    # the idle topic's ledger may have been taken over: its next message goes into another one
    idle.send(b"10")
    traffic.stop()
    assert traffic.failed == []
    verified = magnetar(cluster, "ledger", "verify", "--all")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for topic, count in (("idle", 11), ("busy", len(traffic.sent))):
        consumer = client.subscribe(topic, "keeps")
        assert [int(consumer.receive(30_000).data()) for _ in range(count)] == list(range(count))
    client.close()
    # gone for good: nothing names it, so its name is free for an empty bookie
    taken_out = magnetar(cluster, "bookies", "decommission", bookie)
    assert taken_out.returncode == 0, taken_out.stderr
    states = {row["bookie"]: row["state"] for row in json.loads(magnetar(cluster, "bookies", "list").stdout)}
    assert bookie not in states
    assert set(states.values()) == {"writable"}
