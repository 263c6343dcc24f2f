"""The network between brokers and bookies passes one direction only, nothing, or comes and goes; metadata and clients are reached.

The owner keeps its session, so nobody takes over: it goes to other bookies, or waits for these. Nothing acknowledged is lost, the order
of the producer is kept, nobody needs a restart.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.e2e.cluster.proxied import ProxiedCluster
from tests.support.brokers import STEADY, broker_names, owner_of
from tests.support.cluster import ledgers_of
from tests.support.stalling_proxy import Direction
from tests.support.traffic import Consuming, Producing, first_occurrences, read_log
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

SILENCE_S = 1.0
"""addEntryTimeoutSec: so long a bookie may be silent."""

ONE_AWAY_MAX_S = 5.0
"""Without a receipt when one of three bookies is cut off: two silences, and the change of the ledger."""

BACK_MAX_S = 8.0
"""After bookies without which nothing can be written are back. What asks them pauses for up to 5 s in between."""

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    settings = [f"broker.addEntryTimeoutSec={SILENCE_S}", f"broker.readEntryTimeoutSec={SILENCE_S}", *STEADY]
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ProxiedCluster(
        directory, brokers=2, bookies=3, zookeeper=0, settings=settings, bookies_proxied=True
    ) as processes:
        yield processes


class Traffic:
    """One producer, one consumer, and what must hold at the end."""

    def __init__(self, cluster: ProxiedCluster, connect: Connect) -> None:
        self.cluster = cluster
        self._logged = {name: len(cluster.log(name)) for name in broker_names(cluster)}
        self.client = connect(cluster.service_urls, operation_timeout_seconds=60)
        self.topic = f"topic-{next(_names)}"
        # It never consumes: nothing is trimmed before it is checked.
        self.client.subscribe(self.topic, "keeps it", initial_position=pulsar.InitialPosition.Earliest).close()
        self.producing = Producing(self.client, self.topic, "p", send_timeout_millis=0)
        self.consuming = Consuming(self.client, self.topic, "s")
        self.flows()
        self.owner = owner_of(cluster, self.topic)

    def flows(self, timeout_s: float = 40) -> None:
        before = len(self.producing.stored)
        wait_until(lambda: len(self.producing.stored) > before + 100, timeout_s, what="traffic flows")

    def bookies(self) -> list[str]:
        """Names of the processes that the open ledger is written to."""
        names = {self.cluster.proxied_bookie_id(name): name for name in self.cluster.bookie_ids}
        ledger = ledgers_of(self.cluster, f"public/default/persistent/{self.topic}")[-1]
        return [names[bookie] for bookie in ledger.segments[-1].ensemble]

    def assert_kept(self) -> None:
        self.producing.finish()
        assert not self.producing.failures
        log = read_log(self.client, self.topic)
        assert first_occurrences(log.of_producer("p")) == list(range(self.producing.sent)), "lost or reordered"
        assert set(self.producing.stored.values()) <= set(log.keys), "a receipt names a message that is not there"
        wanted = {payload for payload in log.payloads if payload.startswith(b"p:")}
        wait_until(lambda: set(self.consuming.payloads.values()) >= wanted, 60, what="everything is consumed")
        self.consuming.finish()
        assert owner_of(self.cluster, self.topic) == self.owner, "it never lost its session"
        logs = "".join(self.cluster.log(name)[length:] for name, length in self._logged.items())
        assert "session with the metadata store is lost" not in logs


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_bookie_is_cut_off_in_one_direction(
    cluster: ProxiedCluster, connect: Connect, direction: Direction
) -> None:
    """It hears nothing, or is not heard: the ledger goes on without it, on the third one."""
    traffic = Traffic(cluster, connect)
    away = traffic.bookies()[0]
    traffic.producing.longest_pause_s = 0.0
    cluster.proxies[away].stall(direction)
    try:
        wait_until(lambda: away not in traffic.bookies(), 60, what="the ledger is written to others")
        traffic.flows()
        print(f"{traffic.producing.longest_pause_s:.2f} s without a receipt, one bookie cut off ({direction})")
        assert traffic.producing.longest_pause_s < ONE_AWAY_MAX_S
    finally:
        cluster.proxies[away].heal()
    traffic.assert_kept()


@pytest.mark.parametrize(
    "direction", ["down", *(pytest.param(each, marks=pytest.mark.long) for each in ("up", "both"))]
)
def test_all_bookies_are_cut_off(cluster: ProxiedCluster, connect: Connect, direction: Direction) -> None:
    """Nothing can be stored, so nothing is acknowledged; what bookies heard and could not confirm is there once."""
    traffic = Traffic(cluster, connect)
    for name in cluster.bookie_ids:
        cluster.proxies[name].stall(direction)
    time.sleep(4 * SILENCE_S)  # longer than a silence, and than the attempts that follow it
    acknowledged = len(traffic.producing.stored)
    time.sleep(SILENCE_S)
    assert len(traffic.producing.stored) == acknowledged, "acknowledged without a bookie"
    healed_s = time.monotonic()
    for name in cluster.bookie_ids:
        cluster.proxies[name].heal()
    wait_until(lambda: len(traffic.producing.stored) > acknowledged, 40, what="the first receipt")
    after_s = time.monotonic() - healed_s
    print(f"first receipt {after_s:.2f} s after the bookies were back ({direction})")
    assert after_s < BACK_MAX_S
    traffic.flows()
    traffic.assert_kept()


def test_bookies_come_and_go(cluster: ProxiedCluster, connect: Connect) -> None:
    """One after the other, each cut in another way, shorter and longer than a silence: what flaps costs pauses only."""
    traffic = Traffic(cluster, connect)
    ways: list[tuple[Direction, float]] = [
        ("up", 0.3),
        ("down", 1.5),
        ("both", 0.6),
        ("down", 0.2),
        ("up", 1.5),
        ("both", 1.2),
    ]
    for name, (direction, away_s) in zip(itertools.cycle(cluster.bookie_ids), ways, strict=False):
        proxy = cluster.proxies[name]
        proxy.stall(direction)
        time.sleep(away_s)
        if away_s < SILENCE_S:
            proxy.resume()
        else:
            proxy.heal()
        time.sleep(0.2)
    traffic.flows()
    traffic.assert_kept()
