"""A broker on real bookies and a real ZooKeeper: they are killed, wiped, paused and joined while the official client goes on."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import pulsar
import pytest

from magnetar.metadata import paths
from magnetar.processes.cluster.errors import ClusterError
from magnetar.testing.cluster import ClusterProcesses
from magnetar.testing.plugin import create_namespace
from tests.support.cluster import all_ledgers, in_metadata, ledgers_of
from tests.support.traffic import Producing
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]

SESSION_S = 5

BOOKIE_TIMEOUT = "broker.addEntryTimeoutSec=30"

PAUSE_MAX_S = 20.0
"""Of writers when a bookie is killed: well under 1 s on a machine that does nothing else, 30 s if it waited for the bookie's time-out."""

STOPPED_BOOKIE_MAX_S = 20.0
"""Without a receipt: 0.5 s on an idle machine. Waiting for the bookie's time-out would take 30 s."""

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Four bookies, three to a ledger: one may be lost and replaced."""
    settings = [
        f"broker.metadataStoreSessionTimeoutMillis={SESSION_S * 1000}",
        f"bookie.zkTimeout={SESSION_S * 1000}",
        "flushInterval=500",
        BOOKIE_TIMEOUT,
    ]
    directory = tmp_path_factory.mktemp("cluster") / "c"
    with ClusterProcesses(directory, bookies=4, zookeeper=1, ensemble=(3, 2, 2), settings=settings) as processes:
        yield processes


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_names)}"


def read_all(client: pulsar.Client, topic: str, stop: bytes) -> list[bytes]:
    """Everything from the beginning up to the payload `stop`."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while not found or found[-1] != stop:
        found.append(reader.read_next(30_000).data())
    reader.close()
    return found


def flows(producing: Producing) -> None:
    """Some hundred messages more are stored."""
    before = len(producing.stored)
    wait_until(lambda: len(producing.stored) > before + 200, 60, what="traffic flows")


def assert_nothing_lost(client: pulsar.Client, topic: str, producing: Producing) -> None:
    """Every message with a receipt is there, in order, none twice."""
    client.create_producer(topic).send(b"stop")
    found = read_all(client, topic, b"stop")[:-1]
    numbers = [int(payload.rpartition(b":")[2]) for payload in found]
    assert set(producing.stored) <= set(numbers)
    firsts = list(dict.fromkeys(numbers))
    assert firsts == sorted(firsts)


def test_the_namespace_says_how_many_copies(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    create_namespace(cluster.http_url, "public/two")
    body = json.dumps({"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1})
    request = Request(
        f"{cluster.http_url}/admin/v2/namespaces/public/two/persistence",
        body.encode(),
        {"Content-Type": "application/json"},
        method="POST",
    )
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 204
    client = connect(cluster.service_url)
    for namespace, sizes in (("default", (3, 2, 2)), ("two", (2, 2, 1))):
        name = f"persistent://public/{namespace}/{topic}"
        consumer = client.subscribe(name, "sub")
        client.create_producer(name).send(b"stored")
        consumer.acknowledge(consumer.receive(30_000))
        path = f"public/{namespace}/persistent/{topic}"
        for cursor in ("", "sub"):
            (metadata,) = wait_until(partial(ledgers_of, cluster, path, cursor), what="it is there")
            assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == sizes
            assert len(metadata.segments[0].ensemble) == sizes[0]


def test_a_stopped_bookie_is_replaced_before_its_time_out(
    cluster: ClusterProcesses, connect: Connect, topic: str
) -> None:
    """SIGSTOP keeps its connections: only its silence tells, and an add would time out after 30 s. Late answers change nothing."""
    client = connect(cluster.service_url)
    client.subscribe(topic, "keeps it")
    producing = Producing(client, topic, "p")
    flows(producing)
    names = {bookie_id: name for name, bookie_id in cluster.bookie_ids.items()}
    path = f"public/default/persistent/{topic}"
    stopped = names[ledgers_of(cluster, path)[-1].segments[-1].ensemble[0]]
    producing.longest_pause_s = 0.0
    cluster.pause(stopped)
    try:
        flows(producing)
        assert producing.longest_pause_s < STOPPED_BOOKIE_MAX_S
    finally:
        cluster.resume(stopped)
    flows(producing)
    producing.finish()
    assert producing.failures == []
    assert_nothing_lost(client, topic, producing)
    text = urlopen(f"{cluster.http_url}/metrics", timeout=60).read().decode()
    assert re.search(r"^bookkeeper_client_hedged_ensemble_changes_total\S* [1-9]", text, re.MULTILINE)


def test_every_bookie_is_killed_once_under_traffic(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    client = connect(cluster.service_url)
    client.subscribe(topic, "keeps it")
    producing = Producing(client, topic, "p")
    for name in cluster.bookie_ids:
        flows(producing)
        cluster.kill(name)
        flows(producing)
        cluster.start_again(name)
    producing.finish()
    assert producing.failures == []
    assert producing.longest_pause_s < PAUSE_MAX_S
    assert_nothing_lost(client, topic, producing)
    changed = ledgers_of(cluster, f"public/default/persistent/{topic}")
    segments = [segment for metadata in changed for segment in metadata.segments]
    assert len(segments) > 1, "a lost bookie is replaced"
    for metadata in changed:
        firsts = [segment.first_entry_id for segment in metadata.segments]
        assert firsts == sorted(set(firsts))


def test_all_of_it_dies_at_once(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    client = connect(cluster.service_url)
    client.subscribe(topic, "keeps it")
    producing = Producing(client, topic, "p")
    flows(producing)
    names = [process.name for process in cluster.cluster.plan.processes]
    cluster.kill(*names)
    cluster.start_again(*names)
    flows(producing)
    producing.finish()
    assert_nothing_lost(connect(cluster.service_url), topic, producing)


def test_reads_go_on_with_a_bookie_down(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """The broker is a new one: nothing is in its cache, and the ledgers have to be taken over without that bookie."""
    client = connect(cluster.service_url)
    client.subscribe(topic, "keeps it")
    producing = Producing(client, topic, "p")
    flows(producing)
    producing.finish()
    cluster.kill("bookie2", "broker1")
    cluster.start_again("broker1")
    assert_nothing_lost(connect(cluster.service_url), topic, producing)
    cluster.start_again("bookie2")


def test_a_new_bookie_gets_new_ledgers(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    name = cluster.add_bookie()
    bookie_id = cluster.bookie_ids[name]
    client = connect(cluster.service_url)

    def has_ledgers() -> bool:
        client.create_producer(f"{topic}-{next(_names)}").send(b"x")
        newest = [metadata for _, metadata in sorted(all_ledgers(cluster).items())][-1]
        return bookie_id in newest.segments[-1].ensemble

    wait_until(has_ledgers, 60, what="a new ledger is on the new bookie")


def test_a_wiped_bookie_is_refused_under_its_old_name(cluster: ClusterProcesses) -> None:
    name = list(cluster.bookie_ids)[-1]
    cluster.kill(name)
    data, aside = cluster.directory / name, cluster.directory / "aside"
    data.rename(aside)
    with pytest.raises(ClusterError, match="its directories are empty: its entries are lost here"):
        cluster.start_again(name)
    (aside / "journal" / "current" / "VERSION").rename(aside / "VERSION")
    shutil.rmtree(data)
    aside.rename(data)
    with pytest.raises(ClusterError, match="has no VERSION file but the bookie has data"):
        cluster.start_again(name)
    (data / "VERSION").rename(data / "journal" / "current" / "VERSION")
    cluster.start_again(name)


def test_a_bookie_that_was_given_up_registers_again(cluster: ClusterProcesses) -> None:
    bookie_id = cluster.bookie_ids["bookie1"]

    def is_registered() -> bool:
        path = paths.available_bookie_path(bookie_id)
        return in_metadata(cluster, lambda store: store.exists(path))

    cluster.pause("bookie1")
    wait_until(lambda: not is_registered(), 4 * SESSION_S, what="its session ends")
    cluster.resume("bookie1")
    wait_until(is_registered, 60, what="it registers again")
    assert cluster.status()["bookie1"].state == "running"


def test_a_broker_that_was_given_up_joins_again(cluster: ClusterProcesses, connect: Connect, topic: str) -> None:
    """Somebody else may own its bundles by now, so it begins anew."""
    broker_path = f"{paths.BROKERS_PATH}/{cluster.http_url.removeprefix('http://')}"

    def is_registered() -> bool:
        return in_metadata(cluster, lambda store: store.exists(broker_path))

    cluster.pause("broker1")
    wait_until(lambda: not is_registered(), 4 * SESSION_S, what="its session ends")
    cluster.resume("broker1")
    wait_until(is_registered, 60, what="it joins again")
    assert cluster.status()["broker1"].state == "running"
    connect(cluster.service_url).create_producer(topic).send(b"served again")


def test_with_three_bookies_the_loss_of_one_is_borne(tmp_path: Path, connect: Connect) -> None:
    """Nobody can take its place: new ledgers are on two bookies until it is back, with as many copies as ever."""
    with ClusterProcesses(tmp_path / "three", settings=[BOOKIE_TIMEOUT]) as cluster:
        client = connect(cluster.service_url)
        client.subscribe("t", "keeps it")
        producing = Producing(client, "t", "p")
        flows(producing)
        cluster.kill("bookie2")
        flows(producing)
        cluster.start_again("bookie2")
        flows(producing)
        producing.finish()
        assert producing.failures == []
        assert producing.longest_pause_s < PAUSE_MAX_S
        assert_nothing_lost(client, "t", producing)
        ledgers = ledgers_of(cluster, "public/default/persistent/t")
        assert [(each.ensemble_size, each.write_quorum, each.ack_quorum) for each in ledgers] == [(3, 2, 2), (2, 2, 2)]
