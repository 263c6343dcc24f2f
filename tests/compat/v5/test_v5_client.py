"""Apache Pulsar's unmodified V5 client against our server: classic topics, scalable topics, splits and merges under traffic.

    tests/compat/v5/fetch-jars /tmp/v5-jars
    PULSAR_V5_JARS=/tmp/v5-jars pytest -n0 --run-long tests/compat/v5

PULSAR_V5_JARS is a directory with pulsar-client-v5 5.0.0-M1 and its dependencies, which fetch-jars takes from Maven Central. Java 17
is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.admin.client import AdminClient
from magnetar.base.java import find_java
from magnetar.testing.server import ServerProcess
from tests.compat.bookkeeper.java import Process
from tests.support.waiting import wait_until

JARS = os.environ.get("PULSAR_V5_JARS", "")
KEYS = 16
TIMEOUT_MS = 30_000

pytestmark = [
    pytest.mark.skipif(not JARS, reason="set PULSAR_V5_JARS to a directory with pulsar-client-v5 and its dependencies"),
    pytest.mark.long,
    pytest.mark.timeout(300),
]


class V5Client(Process):
    """`ask("send p 10 4")` -> the words after `ok`."""

    def __init__(self, service_url: str, log: Path) -> None:
        program = Path(__file__).with_name("V5.java")
        super().__init__([str(find_java()), "-Xmx300m", "-cp", f"{JARS}/*", str(program), service_url], log)
        while self.line() != "ready":
            pass

    def ask(self, command: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        while not (line := self.line()).startswith(("ok", "error")):
            pass
        words = line.split()
        assert words[0] == "ok", f"{command}: {line}\n{self.log.read_text()[-3000:]}"
        return words[1:]

    def receive(self, name: str, count: int, timeout_ms: int = TIMEOUT_MS) -> list[str]:
        return self.ask(f"receive {name} {count} {timeout_ms}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Sealed segments that everybody has read go at once."""
    settings = {"scalableTopicAutoScaleIntervalSeconds": "0.5"}
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def client(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[V5Client]:
    started = V5Client(server.service_url, tmp_path_factory.mktemp("v5") / "log")
    yield started
    started.stop()


@pytest.fixture
def admin(server: ServerProcess) -> Iterator[AdminClient]:
    with AdminClient(server.http_url) as connected:
        yield connected


def check(received: list[str], sent: int, *, in_order: bool) -> None:
    """Everything once, and the messages of each key in the order in which they were sent."""
    assert len(received) == sent
    assert len(set(received)) == sent
    numbers: dict[str, list[int]] = {}
    for text in received:
        found = re.fullmatch(r"(k\d+)#(\d+)", text)
        assert found is not None, text
        numbers.setdefault(found[1], []).append(int(found[2]))
    for key, seen in numbers.items():
        assert sorted(seen) == list(range(1, len(seen) + 1)), key
        if in_order:
            assert seen == sorted(seen), key


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("kind", ["queue", "checkpoint"])
def test_classic_topics(client: V5Client, admin: AdminClient, kind: str, partitions: int) -> None:
    """Stream consumers need a controller, which a classic topic has not."""
    topic = f"persistent://public/default/classic-{kind}-{partitions}"
    if partitions:
        admin.topics.create_partitioned(topic, partitions)
    else:
        admin.topics.create(topic)
    name = f"{kind}-{partitions}"
    client.ask(f"producer p-{name} {topic}")
    if kind == "queue":
        client.ask(f"queue {name} {topic} s")
    client.ask(f"send p-{name} 48 {KEYS}")
    if kind == "checkpoint":
        client.ask(f"checkpoint {name} {topic}")
    check(client.receive(name, 48), 48, in_order=kind != "queue")


@pytest.mark.parametrize("kind", ["queue", "stream", "checkpoint"])
def test_split_and_merge_under_traffic(client: V5Client, admin: AdminClient, kind: str) -> None:
    topic = f"topic://public/default/scalable-{kind}"
    admin.scalable_topics.create(topic)
    client.ask(f"producer p-{kind} {topic}")
    client.ask(f"{kind} c-{kind} {topic}" + (" s" if kind != "checkpoint" else ""))
    client.ask(f"flood p-{kind} 1500 {KEYS} 1")
    received = client.receive(f"c-{kind}", 100)
    admin.scalable_topics.split(topic, 0)
    received += client.receive(f"c-{kind}", 300)
    admin.scalable_topics.split(topic, 2)
    received += client.receive(f"c-{kind}", 300)
    admin.scalable_topics.merge(topic, 1, 3)
    assert client.ask(f"flooded p-{kind}") == ["1500"]
    received += client.receive(f"c-{kind}", 1500 - len(received))
    check(received, 1500, in_order=kind == "stream")
    states = [each.state for each in admin.scalable_topics.metadata(topic).segments.values()]
    assert states.count("ACTIVE") == 2
    if kind != "checkpoint":
        wait_until(lambda: len(admin.scalable_topics.metadata(topic).segments) == 2, what="sealed segments go")
    client.ask(f"send p-{kind} 64 {KEYS}")
    assert len(set(client.receive(f"c-{kind}", 64))) == 64


def test_a_segment_for_each_consumer(client: V5Client, admin: AdminClient) -> None:
    """The topic is split by itself, under traffic, when a second consumer comes."""
    topic = "topic://public/default/grows"
    admin.scalable_topics.create(topic)
    client.ask(f"producer p-grows {topic}")
    client.ask(f"stream first {topic} s")
    client.ask(f"flood p-grows 1000 {KEYS} 1")
    received = {"first": client.receive("first", 50), "second": []}
    client.ask(f"stream second {topic} s")

    def everything() -> bool:
        for name, some in received.items():
            some += client.receive(name, 1000, 500)
        return sum(map(len, received.values())) == 1000

    wait_until(everything, 60, "all messages")
    assert client.ask("flooded p-grows") == ["1000"]
    assert received["second"], "the second consumer has a segment"
    check(received["first"] + received["second"], 1000, in_order=False)


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_classic_topic_becomes_a_scalable_one(client: V5Client, admin: AdminClient, partitions: int) -> None:
    """The queue consumer and the producer stay; the others read what the partitions hold, which the stream's subscription keeps."""
    classic, topic = f"persistent://public/default/moves-{partitions}", f"topic://public/default/moves-{partitions}"
    if partitions:
        admin.topics.create_partitioned(classic, partitions)
    else:
        admin.topics.create(classic)
    admin.subscriptions.create(classic, "s")
    client.ask(f"producer p-m{partitions} {classic}")
    client.ask(f"queue q-m{partitions} {classic} q")
    client.ask(f"send p-m{partitions} 48 {KEYS}")
    received = client.receive(f"q-m{partitions}", 10)
    admin.scalable_topics.migrate(topic)
    client.ask(f"send p-m{partitions} 48 {KEYS}")
    received += client.receive(f"q-m{partitions}", 86)
    assert len(received) == 96
    for kind in ("checkpoint", "stream"):
        client.ask(f"{kind} {kind}-m{partitions} {topic}" + (" s" if kind == "stream" else ""))
        assert len(client.receive(f"{kind}-m{partitions}", 96)) == 96, kind


def test_two_stream_consumers_share_a_topic(client: V5Client, admin: AdminClient) -> None:
    topic = "topic://public/default/shared"
    admin.scalable_topics.create(topic, 4)
    client.ask(f"producer p-shared {topic}")
    client.ask(f"stream one {topic} s")
    client.ask(f"stream two {topic} s")
    client.ask(f"send p-shared 160 {KEYS}")
    first = client.receive("one", 160, 5000)
    second = client.receive("two", 160 - len(first))
    assert first
    assert second
    check(first + second, 160, in_order=True)


def test_checkpoint_consumers_in_a_group(client: V5Client, admin: AdminClient) -> None:
    topic = "topic://public/default/grouped"
    admin.scalable_topics.create(topic, 2)
    client.ask(f"producer p-grouped {topic}")
    client.ask(f"send p-grouped 64 {KEYS}")
    client.ask(f"checkpoint grouped {topic} group")
    check(client.receive("grouped", 64), 64, in_order=True)


def test_a_namespace_is_followed(client: V5Client, admin: AdminClient) -> None:
    admin.namespaces.create("public/followed")
    admin.scalable_topics.create("topic://public/followed/a")
    client.ask("namespace all public/followed s")
    client.ask("producer p-a topic://public/followed/a")
    client.ask("send p-a 8 4")
    check(client.receive("all", 8), 8, in_order=False)
    admin.scalable_topics.create("topic://public/followed/b")
    client.ask("producer p-b topic://public/followed/b")
    client.ask("send p-b 8 4")
    check(client.receive("all", 8), 8, in_order=False)
