"""The metadata store is lost under a running cluster: nobody goes on with an empty one, and nothing of the old cluster is touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.base.errors import StartupError
from magnetar.base.java import find_java
from magnetar.metadata.zookeeper_process import jars
from magnetar.processes.cluster.errors import ClusterError
from magnetar.processes.cluster.plan import BOOKIE, BROKER
from magnetar.testing.cluster import ClusterProcesses
from tests.support.cluster import in_metadata
from tests.support.waiting import wait_until

TOPIC = "persistent://public/default/kept"
MESSAGES = 20

Connect = Callable[..., pulsar.Client]


def has_zookeeper() -> bool:
    try:
        find_java()
        jars()
    except StartupError:
        return False
    return True


STORES = [
    pytest.param(False, id="own"),
    pytest.param(True, id="zookeeper", marks=pytest.mark.skipif(not has_zookeeper(), reason="no ZooKeeper here")),
]


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[bool], ClusterProcesses]]:
    made: list[ClusterProcesses] = []

    def make(zookeeper: bool) -> ClusterProcesses:
        settings = ["bookie.zkTimeout=4000", "autorecovery.zkTimeout=4000"]
        cluster = ClusterProcesses(
            tmp_path / "cluster", bookies=2, autorecovery=1, zookeeper=zookeeper, settings=settings
        )
        made.append(cluster)
        return cluster.start()

    yield make
    for cluster in made:
        cluster.close()


def fill(connect: Connect, cluster: ClusterProcesses) -> None:
    client = connect(cluster.service_url)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    for number in range(MESSAGES):
        producer.send(b"%d" % number)
    client.close()


@pytest.mark.parametrize("zookeeper", STORES)
def test_an_empty_disk_stops_the_cluster_and_the_old_one_comes_back(
    make_cluster: Callable[[bool], ClusterProcesses], connect: Connect, tmp_path: Path, zookeeper: bool
) -> None:
    cluster = make_cluster(zookeeper)
    fill(connect, cluster)
    server = "zookeeper" if zookeeper else "metadata"
    data, saved = cluster.directory / server, tmp_path / "saved"
    cluster.kill(server)
    shutil.copytree(data, saved)
    shutil.rmtree(data)
    with pytest.raises(ClusterError, match="holds no metadata"):
        cluster.start_again(server)
    # Somebody starts a server on the empty disk all the same.
    started, bookies = cluster.cluster, cluster.directory.glob("bookie*")
    hidden = [(path, tmp_path / f"hidden-{path.name}") for path in bookies if path.is_dir()]
    for path, elsewhere in hidden:
        path.rename(elsewhere)  # running bookies have their files open
    started.start(server)
    for path, elsewhere in hidden:
        elsewhere.rename(path)
    others = [each.name for each in started.plan.processes if each.name != server]
    assert {each.role for each in started.plan.processes} >= {BOOKIE, BROKER}
    wait_until(lambda: all(cluster.status()[name].state == "dead" for name in others), 60.0, "the end of all others")
    for name in others:
        last = [line for line in cluster.log(name).splitlines() if line.startswith("magnetar: ")][-1]
        assert "is not the one that this process has used" in last
        assert "restore it from a copy" in last
        with pytest.raises(ClusterError, match="so it is empty or not a cluster's"):
            cluster.start_again(name)

    async def everything(store: object) -> list[str]:
        return await store.children("/")  # type: ignore[attr-defined, no-any-return]

    assert [name for name in in_metadata(cluster, everything) if name != "zookeeper"] == []
    cluster.kill(server)
    shutil.rmtree(data)
    shutil.copytree(saved, data)
    cluster.start_again(server, *others)
    client = connect(cluster.service_url)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    assert [reader.read_next(30_000).data() for _ in range(MESSAGES)] == [b"%d" % number for number in range(MESSAGES)]
    client.close()
