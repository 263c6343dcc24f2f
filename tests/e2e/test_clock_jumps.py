"""Wall clocks of a cluster's processes jump by an hour while clients write: nobody loses a session, a bundle or a message over it.

Messages do not expire by a clock that has jumped, nor are they delivered before or after their time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import STEADY, broker_names, get, live_broker, owner_of, send
from tests.support.traffic import Consuming, Producing, read_log
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

HOUR_NS = 3_600 * 10**9
PAUSE_MAX_S = 15.0
"""What waits by a clock that has jumped waits for an hour; a lost session is in the log, and would cost its time-out (20 s)."""

EXPIRY_ROUND_S = 0.3

DELAY_S = 2.0
MILLISECOND_S = 0.001
"""Clients say in whole milliseconds when a message is due, rounded down."""
LATE_MAX_S = 5.0
"""What a delayed message may take on top on a busy machine."""

SHIFTED = """
import os, time
_name = os.environ.get("MAGNETAR_CLUSTER_PROCESS", "").rpartition(":")[2]
_file, _real = os.path.join(os.environ["SHIFTED_CLOCKS"], _name), time.time_ns
def _shifted():
    try:
        with open(_file) as file:
            return _real() + int(file.read() or 0)
    except FileNotFoundError:
        return _real()
time.time_ns = _shifted
"""
"""What each process imports first: its wall clock goes wrong by what a file of its name says. Nothing of ours reads another wall clock."""


class Clocks:
    """One file for each process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def jump(self, name: str, by_ns: int) -> None:
        file = self._directory / f"{name}.new"
        file.write_text(str(by_ns))
        file.replace(self._directory / name)


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clocks]:
    directory = tmp_path_factory.mktemp("clocks")
    (directory / "sitecustomize.py").write_text(SHIFTED)
    path = f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("SHIFTED_CLOCKS", str(directory))
        yield Clocks(directory)


@pytest.fixture(scope="module")
def cluster(clocks: Clocks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    expiry = f"messageExpiryCheckIntervalInMinutes={EXPIRY_ROUND_S / 60}"
    settings = ["brokerDeduplicationEnabled=true", expiry, *STEADY]
    with ClusterProcesses(
        tmp_path_factory.mktemp("cluster") / "c", bookies=1, brokers=2, settings=settings
    ) as processes:
        yield processes


def test_every_clock_jumps_forth_and_back(cluster: ClusterProcesses, clocks: Clocks, connect: Connect) -> None:
    client = connect(cluster.service_urls)
    producing = Producing(client, "topic", "p")
    consuming = Consuming(client, "topic", "s")
    wait_until(lambda: len(producing.stored) > 100, 60, what="traffic flows")
    owner = owner_of(cluster, "topic")
    for name in [owner, *(name for name in cluster.status() if name != owner)]:
        for by_ns in (HOUR_NS, -HOUR_NS, 0):
            producing.longest_pause_s = 0.0
            clocks.jump(name, by_ns)
            before = len(producing.stored)
            wait_until(lambda before=before: len(producing.stored) > before + 200, 60, what="traffic flows")
            assert producing.longest_pause_s < PAUSE_MAX_S, (name, by_ns)
    assert owner_of(cluster, "topic") == owner
    producing.finish()
    wait_until(lambda: len(consuming.payloads) >= producing.sent, 60, what="everything is consumed")
    consuming.finish()
    assert not producing.failures
    assert read_log(client, "topic").of_producer("p") == list(range(producing.sent))
    logs = "".join(cluster.log(name) for name in broker_names(cluster))
    assert "session with the metadata store is lost" not in logs


@pytest.mark.parametrize("by_ns", [HOUR_NS, -HOUR_NS], ids=["forth", "back"])
def test_ttl_and_delays_go_by_the_time_that_has_passed(
    cluster: ClusterProcesses, clocks: Clocks, connect: Connect, request: pytest.FixtureRequest, by_ns: int
) -> None:
    """What is older than its TTL goes, what is not stays, delayed messages come when due: a wrong clock changes nothing."""
    client = connect(cluster.service_urls)
    name = request.node.callspec.id
    old, young, delayed = (f"public/{kind}-{name}/t" for kind in ("old", "young", "delayed"))
    for topic, ttl_s in ((old, 3), (young, 600), (delayed, 600)):
        namespace = f"{live_broker(cluster)}/admin/v2/namespaces/{topic.rpartition('/')[0]}"
        send("PUT", namespace, {"bundles": {"numBundles": 1}})
        send("POST", f"{namespace}/messageTTL", ttl_s)
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared).close()
    producers = {topic: client.create_producer(topic) for topic in (old, young, delayed)}
    for topic in (old, young):
        for number in range(20):
            producers[topic].send(str(number).encode())
    before_s = time.monotonic()
    producers[delayed].send(b"before", deliver_after=timedelta(seconds=DELAY_S + 1))
    for process in cluster.status():
        clocks.jump(process, by_ns)
    try:
        after_s = time.monotonic()
        producers[delayed].send(b"after", deliver_after=timedelta(seconds=DELAY_S))
        consumer = client.subscribe(delayed, "s", pulsar.ConsumerType.Shared)
        received_s = {consumer.receive(30_000).data(): time.monotonic() for _ in range(2)}
        assert -MILLISECOND_S <= received_s[b"after"] - after_s - DELAY_S < LATE_MAX_S
        assert -MILLISECOND_S <= received_s[b"before"] - before_s - DELAY_S - 1 < LATE_MAX_S
        wait_until(lambda: _backlog(cluster, old) == 0, 60, what="old messages expire")
        assert _backlog(cluster, young) == 20
    finally:
        for process in cluster.status():
            clocks.jump(process, 0)
    assert any("the wall clock has jumped" in cluster.log(broker) for broker in broker_names(cluster))
    producers[young].send(b"all is well again")
    wait_until(lambda: _backlog(cluster, young) == 21, 60, what="the clock is followed again")


def _backlog(cluster: ClusterProcesses, topic: str) -> int:
    stats = get(f"{live_broker(cluster)}/admin/v2/persistent/{topic}/stats")
    return int(stats["subscriptions"]["s"]["msgBacklog"])
