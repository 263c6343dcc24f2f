"""The owner of a topic is killed, paused or cut off from the metadata store: another broker goes on, nothing acknowledged is lost,
no two write, the order of each producer is kept."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pulsar
import pytest

from magnetar.processes.cluster.command_lines import BROKER_SESSION_MS, SECRET_FILE, SECRET_KEYS
from magnetar.testing.cluster import ClusterProcesses
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.support.brokers import broker_names, bundle_of, get, live_broker, owner_of, send, unload
from tests.support.raw import RawClient
from tests.support.stalling_proxy import Direction, StallingProxy
from tests.support.traffic import Consuming, Producing, first_occurrences, read_log
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

FIRST_ACK_MAX_S = 1.9
"""After `kill -9` of the owner: less than its session would last, as others on the machine see its process end."""

CUT_OFF_MAX_S = 8.0
"""After an owner is cut off from the metadata store. It stops after 5/6 of its session, which ends up to 2 s late by ZooKeeper's clock;
then clients come back from a pause of their own, as long at most."""

REFUSED_MAX_S = 20.0
"""By a broker without a session, which still closes the topic meanwhile: that takes as long as the store is silent, and it stays silent."""

TRIES = 4
"""Of a fault whose pause is bounded, the quickest of so many counts: what else the machine does only ever adds to it."""

STORE_BACK_MAX_S = 20.0
"""After the brokers have sessions again, however long the metadata store was away: lookups that waited are answered, bundles taken."""

_names = itertools.count()


@pytest.fixture(scope="module", params=["zookeeper", pytest.param("metadata-server", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ClusterProcesses(directory, bookies=2, brokers=3, zookeeper=request.param == "zookeeper") as processes:
        yield processes


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"


class Traffic:
    """One producer and one consumer of a topic, and what must hold at the end."""

    def __init__(self, connect: Connect, url: str, topic: str) -> None:
        self.client = connect(url, operation_timeout_seconds=60)
        self.topic = topic
        self.producing = Producing(self.client, topic, "p", send_timeout_millis=0)
        self.consuming = Consuming(self.client, topic, "s")
        self.flows()

    def flows(self, what: str = "traffic flows", timeout_s: float = 60) -> None:
        """Some hundred messages more are stored."""
        before = len(self.producing.stored)
        wait_until(lambda: len(self.producing.stored) > before + 100, timeout_s, what=what)

    def pause_s(self, fault: Callable[[], None]) -> float:
        """The longest time without a receipt around a fault."""
        self.producing.longest_pause_s = 0.0
        fault()
        self.flows("traffic flows after the fault")
        return self.producing.longest_pause_s

    def assert_kept(self) -> None:
        """Every acknowledged message is stored where its receipt says, in order; everything is consumed."""
        self.producing.finish()
        assert not self.producing.failures
        log = read_log(self.client, self.topic)
        numbers = log.of_producer("p")
        assert first_occurrences(numbers) == list(range(self.producing.sent)), "lost or reordered"
        stored = set(log.keys)
        assert all(key in stored for key in self.producing.stored.values()), (
            "a receipt names a message that is not there"
        )
        wanted = {payload for payload in log.payloads if payload.startswith(b"p:")}
        wait_until(lambda: set(self.consuming.payloads.values()) >= wanted, 60, what="everything is consumed")
        self.consuming.finish()
        self.client.close()


def test_the_owner_is_killed(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    traffic = Traffic(connect, cluster.service_urls, topic)
    for left in reversed(range(TRIES)):
        owner = owner_of(cluster, topic)
        pause_s = traffic.pause_s(partial(cluster.kill, owner))
        print(f"first acknowledgement {pause_s:.2f} s after kill -9 of the owner")
        assert owner_of(cluster, topic) != owner
        assert any("ended its session" in cluster.log(name) for name in broker_names(cluster))
        cluster.start_again(owner)
        if pause_s < FIRST_ACK_MAX_S:
            break
        assert left, f"clients waited {pause_s:.2f} s"
    traffic.assert_kept()


def test_the_leader_is_killed(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """Whoever it is, another one leads, and bundles that nobody has are placed meanwhile."""
    before = get(f"{live_broker(cluster)}/admin/v2/brokers/leaderBroker")["serviceUrl"]
    leader = next(name for name in broker_names(cluster) if cluster.broker(name)[1] == before)
    traffic = Traffic(connect, cluster.service_urls, topic)
    cluster.kill(leader)
    send("PUT", f"{live_broker(cluster)}/admin/v2/namespaces/public/{topic}", {"bundles": {"numBundles": 4}})
    others = [connect(cluster.service_urls).create_producer(f"public/{topic}/t{number}") for number in range(8)]
    for producer in others:
        producer.send(b"placed without the leader")

    def another() -> bool:
        try:
            return bool(get(f"{live_broker(cluster)}/admin/v2/brokers/leaderBroker")["serviceUrl"] != before)
        except OSError:
            return False  # for a moment there is none

    wait_until(another, 60, what="another broker leads")
    cluster.start_again(leader)
    traffic.flows()
    traffic.assert_kept()


def test_the_owner_is_paused_and_comes_back(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """It does not know that its time is over when it goes on: what clients had sent it by then, the ledgers refuse."""
    owner = owner_of(cluster, topic)
    others = [cluster.broker(name)[0].removeprefix("pulsar://") for name in broker_names(cluster) if name != owner]
    traffic = Traffic(connect, cluster.service_urls, topic)
    cluster.pause(owner)
    paused_s = time.monotonic()
    wait_until(lambda: owner_of(cluster, topic) != owner, 60, what="another broker owns the topic")
    assert time.monotonic() - paused_s > BROKER_SESSION_MS / 1000 / 2, "it was not dead: only its session may end it"
    survivor = connect("pulsar://" + ",".join(others), operation_timeout_seconds=60)
    producer = survivor.create_producer(topic, producer_name="after", send_timeout_millis=0)
    for number in range(20):
        producer.send(f"after:{number}".encode())
    cluster.resume(owner)
    traffic.flows("the client of the paused broker goes on")
    wait_until(lambda: "session with the metadata store is lost" in cluster.log(owner), 60, what="it noticed")
    assert read_log(survivor, topic).of_producer("after") == list(range(20))
    traffic.assert_kept()
    wait_until(lambda: _active(cluster) == len(broker_names(cluster)), 60, what="it has joined again")
    unload(cluster, topic, owner)
    assert owner_of(cluster, topic) == owner


def test_a_client_that_connects_while_the_owner_hangs_is_not_sent_to_it(
    cluster: ClusterProcesses, connect: Connect, topic: str
) -> None:
    """The kernel accepts connections for a stopped process; the official client would wait for an answer for 10 s, then fail."""
    connect(cluster.service_urls).create_producer(topic).send(b"before")
    owner = owner_of(cluster, topic)
    other = next(name for name in broker_names(cluster) if name != owner)
    cluster.pause(owner)
    time.sleep(0.2)  # an answer that the owner has given counts for 0.1 s
    started_s = time.monotonic()
    try:
        connect(cluster.broker(other)[0]).create_producer(topic).send(b"after")
        assert time.monotonic() - started_s < BROKER_SESSION_MS / 1000 + 25
    finally:
        cluster.resume(owner)
    wait_until(lambda: _active(cluster) == len(broker_names(cluster)), 60, what="it has joined again")


def _active(cluster: ClusterProcesses) -> int:
    return len(get(f"{live_broker(cluster)}/admin/v2/brokers"))


@contextmanager
def broker_behind(proxy: StallingProxy, cluster: ClusterProcesses) -> Iterator[tuple[str, str]]:
    """One more broker that reaches the metadata store through a proxy: its service URL and admin URL."""
    command = [sys.executable, "-m", "magnetar", "broker", "--metadata-url", f"zk:127.0.0.1:{proxy.port}"]
    secret = (cluster.directory / SECRET_FILE).as_uri()
    settings = ["metadataStoreSessionTimeoutMillis=2000", "clusterName=cluster"]
    settings += [f"{key}={secret}" for key in SECRET_KEYS]
    command += ["--port", "0", "--http-port", "0", *[word for each in settings for word in ("--set", each)]]
    with (cluster.directory / "cut-off.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:2] == ["magnetar", "ready"], words
        yield words[2], words[3]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("direction", [pytest.param("both", marks=pytest.mark.long), "up", "down"])
def test_the_owner_is_cut_off_from_the_metadata(
    cluster: ClusterProcesses, connect: Connect, topic: str, direction: Direction
) -> None:
    """Clients and bookies still reach it: it must stop by itself, before anybody else begins.

    One-way: the store does not hear it, or hears it and cannot answer. Neither may keep its bundles for it.
    """
    proxy = StallingProxy(int(cluster.metadata_url.rpartition(":")[2]))
    with broker_behind(proxy, cluster) as (service_url, http_url):
        wait_until(lambda: _active(cluster) == len(broker_names(cluster)) + 1, 60, what="it is there")
        urls = f"{service_url},{cluster.service_urls.removeprefix('pulsar://')}"
        traffic = Traffic(connect, urls, topic)
        bundle = bundle_of(cluster, topic)
        destination = http_url.removeprefix("http://")
        unloaded = f"namespaces/public/default/{bundle}/unload?destinationBroker={destination}"

        def cut() -> None:
            proxy.stall(direction)
            wait_until(lambda: _owner_url(cluster, topic) != service_url, 60, what="another broker owns the topic")
            # Another one may own it by now; the one that is cut off has refused its clients before that.
            log = cluster.directory / "cut-off.log"
            wait_until(lambda: "session with the metadata store is lost" in log.read_text(), what="it has stopped")
            lookup = "/lookup/v2/topic/persistent/public/default/"
            assert get(f"{http_url}{lookup}{topic}")["brokerUrl"] != service_url, "it sends on whoever asks it"
            with RawClient(int(service_url.rpartition(":")[2])) as raw:
                raw.connect()
                raw.send(producer_command(f"persistent://public/default/{topic}"))
                assert raw.receive(REFUSED_MAX_S)[0].error.error == ServerError.ServiceNotReady
            connect(service_url).create_producer(f"{topic}-other").send(
                b"led on by the only one it knows, which is cut off"
            )

        for left in reversed(range(TRIES)):
            send("PUT", f"{live_broker(cluster)}/admin/v2/{unloaded}")
            wait_until(lambda: _owner_url(cluster, topic) == service_url, 60, what="it owns the topic")
            traffic.flows()
            pause_s = traffic.pause_s(cut)
            print(f"first acknowledgement {pause_s:.2f} s after the owner was cut off from the metadata ({direction})")
            proxy.heal()
            wait_until(lambda: _active(cluster) == len(broker_names(cluster)) + 1, 60, what="it has joined again")
            if pause_s < CUT_OFF_MAX_S:
                break
            assert left, f"clients waited {pause_s:.2f} s"
        traffic.assert_kept()
    proxy.close()


def producer_command(topic: str) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, 1, 1
    return command


def _owner_url(cluster: ClusterProcesses, topic: str) -> str:
    return str(get(f"{live_broker(cluster)}/lookup/v2/topic/persistent/public/default/{topic}")["brokerUrl"])


def test_the_metadata_store_is_killed_and_returns(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """Shorter than a session nobody notices; longer than one, everybody stops, and goes on when it is back."""
    store = next(name for name, status in cluster.status().items() if status.role in ("metadata", "zookeeper"))
    traffic = Traffic(connect, cluster.service_urls, topic)
    cluster.kill(store)
    traffic.flows("traffic flows without metadata")
    time.sleep(9)  # longer than a session, and long enough for a client that is refused to pause for seconds
    cluster.start_again(store)

    def joined() -> bool:
        try:
            return _active(cluster) == len(broker_names(cluster))
        except OSError:
            return False  # the one that was asked has no session yet

    wait_until(joined, 60, what="all brokers have joined again")
    traffic.flows("traffic flows again at once", STORE_BACK_MAX_S)
    traffic.assert_kept()


def test_every_broker_is_restarted_under_traffic(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """One after the other, by SIGTERM: each hands its bundles over before it goes."""
    topics = [f"{topic}-{number}" for number in range(4)]
    traffic = [Traffic(connect, cluster.service_urls, each) for each in topics]
    pauses = []
    for name in broker_names(cluster):
        for each in traffic:
            each.producing.longest_pause_s = 0.0
        cluster.stop(name)
        assert {owner_of(cluster, each) for each in topics} <= set(broker_names(cluster)) - {name}
        for each in traffic:
            each.flows(f"traffic flows without {name}")
            pauses.append(each.producing.longest_pause_s)
        cluster.start_again(name)
    print(f"publish gaps of a rolling restart: {[round(pause * 1000) for pause in sorted(pauses)]} ms")
    for each in traffic:
        each.assert_kept()
