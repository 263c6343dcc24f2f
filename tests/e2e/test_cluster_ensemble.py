"""`magnetar cluster up --metadata zookeeper:3`: members of a real ZooKeeper ensemble are killed and lose their disks."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from functools import partial

import pulsar
import pytest

from magnetar.metadata.zookeeper_process import four_letters
from magnetar.processes.cluster.errors import ClusterError
from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import send
from tests.support.waiting import wait_until

MEMBERS = ("zookeeper1", "zookeeper2", "zookeeper3")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("ensemble") / "c", bookies=2, zookeeper=3) as processes:
        yield processes


def mode(cluster: ClusterProcesses, member: str) -> str:
    """`leader`, `follower`, or empty while the member does not serve."""
    answer = four_letters("127.0.0.1", cluster.cluster.plan.find(member).ports["zk"], "srvr")
    return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), "")


def all_serve(cluster: ClusterProcesses) -> bool:
    return sorted(mode(cluster, member) for member in MEMBERS) == ["follower", "follower", "leader"]


def create(cluster: ClusterProcesses, topic: str) -> None:
    """Once the broker's session has gone on at another member, the metadata store takes writes.

    One whose answer was lost with a member may have been taken nevertheless: the next attempt is told of a conflict then.
    """
    attempts = itertools.count()

    def created() -> bool:
        attempt = next(attempts)
        try:
            send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/{topic}")
        except AssertionError as error:
            return attempt > 0 and ": 409 " in str(error)
        return True

    wait_until(created, 60, what=f"{topic} is created")


def test_the_leader_is_killed_and_its_disk_is_lost(cluster: ClusterProcesses) -> None:
    """Two of three serve on; the third takes everything from them and is then one of the two that suffice."""
    wait_until(partial(all_serve, cluster), what="all members serve, one of them as the leader")
    create(cluster, "before")
    with_client = pulsar.Client(cluster.service_url)
    try:
        producer = with_client.create_producer("before")
        producer.send(b"one")
        leader = next(member for member in MEMBERS if mode(cluster, member) == "leader")
        cluster.kill(leader)
        producer.send(b"two")
        create(cluster, "without-leader")
        shutil.rmtree(cluster.directory / leader)
        cluster.start_again(leader)
        wait_until(lambda: mode(cluster, leader) == "follower", what="it serves with an empty disk")

        others = [member for member in MEMBERS if member != leader]
        cluster.kill(others[0])
        create(cluster, "with-the-new-disk")
        cluster.start_again(others[0])
        reader = with_client.create_reader("before", pulsar.MessageId.earliest)
        assert [reader.read_next(30_000).data() for _ in range(2)] == [b"one", b"two"]
    finally:
        with_client.close()


def test_without_a_majority_nothing_changes_and_with_one_it_goes_on(cluster: ClusterProcesses) -> None:
    create(cluster, "kept")
    cluster.kill(*MEMBERS[1:])
    wait_until(lambda: mode(cluster, MEMBERS[0]) == "", 60, what="the last member stops serving")
    with pytest.raises(AssertionError, match=r"503 .*metadata store does not answer"):
        send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/refused")
    cluster.start_again(MEMBERS[1])
    create(cluster, "again")
    cluster.start_again(MEMBERS[2])
    wait_until(partial(all_serve, cluster), what="all members serve, one of them as the leader")


def test_all_members_are_killed_and_started_again(cluster: ClusterProcesses) -> None:
    """The first of them has no majority yet: its start does not wait for one."""
    create(cluster, "survives")
    cluster.kill(*MEMBERS)
    cluster.start_again(*MEMBERS)
    create(cluster, "after-all")
    with pytest.raises(AssertionError, match="409"):
        send("PUT", f"{cluster.http_url}/admin/v2/persistent/public/default/survives")


def test_members_without_data_cannot_be_a_majority(cluster: ClusterProcesses) -> None:
    """They could elect one of themselves: an empty store beside bookies that hold ledgers. This cluster is of no use afterwards."""
    cluster.kill(*MEMBERS)
    for member in MEMBERS[1:]:
        shutil.rmtree(cluster.directory / member)
    with pytest.raises(ClusterError, match="holds no metadata"):
        cluster.start_again(MEMBERS[1])
