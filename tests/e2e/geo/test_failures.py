"""Links that are cut and slow, servers that are killed: what one cluster published is in the other once, in order, in the end."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator

import pulsar
import pytest

from tests.support.geo import NAMESPACE, Region, read_all, regions
from tests.support.proxy import CuttingProxy
from tests.support.traffic import SEND_TIMEOUT_MS

PROXY = "127.0.0.2"
STOP_MAX_S = 20.0
"""Without bound it would be half a minute for each topic."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Region]]:
    """Both deduplicate their producers, so that what a client sends again after a kill does not count here."""
    with regions(
        tmp_path_factory.mktemp("pair"), "near", "far", settings={"brokerDeduplicationEnabled": "true"}
    ) as two:
        yield two


class Publishing:
    """Several producers of a cluster that send in the background; batches and single messages."""

    def __init__(self, region: Region, name: str, producers: int, messages: int) -> None:
        self.sent = {f"{region.name}{number}": messages for number in range(producers)}
        self._region = region
        self._topic = f"persistent://{name}"
        self._begun = threading.Barrier(producers + 1)
        self._threads = [threading.Thread(target=self._run, args=(producer,)) for producer in self.sent]
        self.failures: list[str] = []
        for thread in self._threads:
            thread.start()
        self._begun.wait(60)

    def _run(self, name: str) -> None:
        producer = self._region.client.create_producer(
            self._topic,
            producer_name=name,
            batching_enabled=name.endswith("1"),
            block_if_queue_full=True,
            send_timeout_millis=SEND_TIMEOUT_MS,
        )
        # The C++ client counts anew from what the server has, if it is cut off before its first receipt: messages under way are lost.
        producer.send(f"{name} 0".encode())
        self._begun.wait(60)
        for index in range(1, self.sent[name]):
            producer.send_async(f"{name} {index}".encode() + b"." * 200, self._stored)
        producer.flush()
        producer.close()

    def _stored(self, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        if result != pulsar.Result.Ok:
            self.failures.append(str(result))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failures


def check_once_in_order(region: Region, name: str, sent: dict[str, int]) -> None:
    by_producer: dict[str, list[int]] = {name: [] for name in sent}
    for message in read_all(region, f"persistent://{name}"):
        producer, index = message.data().rstrip(b".").decode().split()
        by_producer[producer].append(int(index))
    for producer, count in sent.items():
        assert by_producer[producer] == list(range(count)), f"{producer} in {region.name}"


def test_a_killed_receiver_has_everything_once_when_it_is_back(pair: list[Region]) -> None:
    near, far = pair
    name = f"{NAMESPACE}/receiver"
    publishing = Publishing(near, name, 3, 4000)
    for _ in range(2):
        far.disconnect_client()
        far.server.restart()
    publishing.join()
    near.wait_drained(name, "far")
    check_once_in_order(far, name, publishing.sent)


def test_a_killed_sender_goes_on_where_it_was(pair: list[Region]) -> None:
    near, far = pair
    name = f"{NAMESPACE}/sender"
    publishing = Publishing(near, name, 3, 4000)
    for _ in range(2):
        near.server.restart()
    publishing.join()
    near.wait_drained(name, "far")
    check_once_in_order(near, name, publishing.sent)
    check_once_in_order(far, name, publishing.sent)


def test_a_backlog_is_drained_after_the_other_cluster_is_back_and_blocks_nobody(pair: list[Region]) -> None:
    near, far = pair
    name = f"{NAMESPACE}/backlog"
    consumer = near.client.subscribe(f"persistent://{name}", "sub", initial_position=pulsar.InitialPosition.Earliest)
    far.disconnect_client()
    far.server.kill()
    publishing = Publishing(near, name, 2, 2000)
    publishing.join()
    for _ in range(4000):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    row = near.stats(name)["replication"]["far"]
    assert row["replicationBacklog"] > 0
    assert not row["connected"]
    near.disconnect_client()
    near.server.restart()
    assert near.stats(name)["replication"]["far"]["replicationBacklog"] == row["replicationBacklog"]
    far.server.start()
    near.wait_drained(name, "far")
    check_once_in_order(far, name, publishing.sent)


def test_a_silent_cluster_does_not_keep_a_server_from_stopping(pair: list[Region]) -> None:
    """With producers of several topics there, on one connection."""
    near, far = pair
    topics = [f"{NAMESPACE}/silent{number}" for number in range(3)]
    for topic in topics:
        near.client.create_producer(f"persistent://{topic}").send(b"x")
        near.wait_drained(topic, "far")
    far.server.signal(signal.SIGSTOP)
    try:
        near.server.signal(signal.SIGTERM)
        assert near.server.wait(STOP_MAX_S) == 0
    finally:
        far.server.signal(signal.SIGCONT)
        near.server.start()
    near.wait_connected(topics[0], "far")


def test_cut_and_slow_links_repeat_nothing_and_keep_the_order(pair: list[Region]) -> None:
    near, far = pair
    name = f"{NAMESPACE}/links"
    rng = random.Random(5)
    proxy = CuttingProxy(far.server.port, PROXY, delay_s=0.01)
    near.admin("POST", "clusters/far", far.record() | {"brokerServiceUrl": f"pulsar://{PROXY}:{far.server.port}"})
    try:
        publishing = Publishing(near, name, 3, 4000)
        for _ in range(12):
            proxy.cut_after(rng.choice(("up", "down")), rng.randrange(200, 200_000))
            threading.Event().wait(rng.uniform(0.05, 0.3))
        publishing.join()
        near.wait_drained(name, "far")
        assert proxy.cuts >= 12
        check_once_in_order(far, name, publishing.sent)
    finally:
        near.know(far)
        proxy.close()
