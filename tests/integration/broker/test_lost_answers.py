"""Answers of the metadata store get lost, one after the other: what was asked for has been done, and whoever asked does not know.

Every write of an operation loses its answer once. Then the operation is repeated, as a client repeats it, until it is answered; the
answer is a success or that it is there already, nothing is half done, nothing is done twice, and no ledger is left that nobody names.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pulsar
import pytest

from magnetar import standalone
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.managed_ledger.cursor.codec import parse_node
from magnetar.metadata.errors import MetadataConnectionError
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedLedgerInfo
from tests.support.in_process import InProcessServer

Connect = Callable[..., pulsar.Client]

WRITES_MAX = 60
"""Of one operation; it must have fewer, or some were not tried."""


class LosingStore:
    """A store whose write number `lose` (from now on, 1: the next one) is done and not answered."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, path: str, value: bytes, expected_version: int | None = None, **kind: bool) -> tuple[str, int]:
        answer = await self._store.put(path, value, expected_version, **kind)
        self._answered(path)
        return answer

    async def create_missing(self, paths: Sequence[str], value: bytes = b"") -> int:
        answer = await self._store.create_missing(paths, value)
        self._answered(paths[0])
        return answer

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        await self._store.delete(path, expected_version)
        self._answered(path)

    def _answered(self, path: str) -> None:
        if self.lose:
            self.lose -= 1
            if not self.lose:
                raise MetadataConnectionError(f"{path}: the answer got lost")


class Server(InProcessServer):
    """`store`: what the server writes through; `http_url`: its admin API."""

    store: LosingStore

    def ask(self, work: Callable[[], Any]) -> Any:
        """The result of a coroutine function, run on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(20)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """In memory where there is such a place: none of this is about disks, and several thousand fsyncs take their time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Server]:
    opened = SqliteMetadataStore.open

    async def losing(*arguments: Any, **options: Any) -> LosingStore:
        made.store = LosingStore(await opened(*arguments, **options))
        return made.store

    made = Server(directory / "server", broker_deduplication_enabled=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standalone.SqliteMetadataStore, "open", losing)
        with made:
            yield made


def call(server: Server, method: str, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{server.http_url}/admin/v2/{path}", data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def repeated(server: Server, lose: int, method: str, path: str, body: object = None) -> tuple[list[int], bool]:
    """What was answered until the operation was through; whether a write lost its answer."""
    server.store.lose = lose
    answers = [call(server, method, path, body)[0]]
    lost, server.store.lose = server.store.lose == 0, 0
    while answers[-1] >= 500 and len(answers) < 5:
        answers.append(call(server, method, path, body)[0])
    return answers, lost


def each_write(operation: Callable[[int], bool]) -> int:
    """`operation(n)` with the n-th write's answer lost, until it has fewer writes than that; how many it has."""
    for number in range(1, WRITES_MAX):
        if not operation(number):
            return number - 1
    raise AssertionError(f"more than {WRITES_MAX} writes")


def orphans(server: Server) -> list[tuple[int, Any]]:
    """Ledgers that no topic, no subscription and no schema names, of those that say whose they are."""

    async def find() -> list[tuple[int, Any]]:
        store = server.store
        manager = LedgerManager(cast("MetadataStore", store))
        named: set[int] = set()

        async def below(path: str, depth: int) -> None:
            for name in await store.children(path):
                node = await store.get(f"{path}/{name}")
                if depth == 4 and node.value:
                    named.update(held.ledgerId for held in ManagedLedgerInfo.FromString(node.value).ledgerInfo)
                elif depth == 5:
                    named.add(parse_node(node.value).cursorsLedgerId)
                await below(f"{path}/{name}", depth + 1)

        await below("/managed-ledgers", 1)
        found = []
        for ledger_id in await manager.list_ids():
            metadata, _ = await manager.read(ledger_id)
            if "pulsar/managed-ledger" in metadata.custom_metadata and ledger_id not in named:
                found.append((ledger_id, metadata.custom_metadata))
        return found

    return cast("list[tuple[int, Any]]", server.ask(find))


def test_a_namespace(server: Server) -> None:
    def create(number: int) -> bool:
        path = f"namespaces/public/n{number}"
        answers, lost = repeated(server, number, "PUT", path, {"bundles": {"numBundles": 8}})
        assert answers[-1] in (204, 409), answers
        assert call(server, "GET", f"{path}/bundles")[1]["numBundles"] == 8
        assert call(server, "PUT", f"persistent/public/n{number}/t")[0] == 204
        return lost

    assert each_write(create) == 2


def test_a_topic(server: Server) -> None:
    def create(number: int) -> bool:
        answers, lost = repeated(server, number, "PUT", f"persistent/public/default/t{number}")
        assert answers[-1] in (204, 409), answers
        names = call(server, "GET", "persistent/public/default")[1]
        assert names.count(f"persistent://public/default/t{number}") == 1
        return lost

    assert each_write(create) == 1


def test_a_partitioned_topic(server: Server) -> None:
    def create(number: int) -> bool:
        path = f"persistent/public/default/p{number}/partitions"
        answers, lost = repeated(server, number, "PUT", path, 3)
        assert answers[-1] in (204, 409), answers
        assert call(server, "GET", path)[1]["partitions"] == 3
        names = call(server, "GET", "persistent/public/default")[1]
        parts = [f"persistent://public/default/p{number}-partition-{index}" for index in range(3)]
        assert [name for name in names if f"/p{number}-" in name] == parts
        return lost

    assert each_write(create) == 2


def test_a_subscription(server: Server, connect: Connect) -> None:
    client = connect(server.service_url)

    def create(number: int) -> bool:
        topic = f"persistent/public/default/s{number}"
        client.create_producer(f"s{number}").send(b"before")
        answers, lost = repeated(server, number, "PUT", f"{topic}/subscription/sub", {"ledgerId": -1, "entryId": -1})
        assert answers[-1] in (204, 409), answers
        assert call(server, "GET", f"{topic}/subscriptions")[1] == ["sub"]
        consumer = client.subscribe(f"s{number}", "sub")
        message = consumer.receive(30_000)
        assert message.data() == b"before"
        consumer.acknowledge(message)
        consumer.close()
        return lost

    each_write(create)


def test_loading_a_topic_publishing_and_consuming(server: Server, connect: Connect) -> None:
    """Bundle, list of ledgers, ledger, cursors: whatever write of it is not answered, the client repeats and nothing is stored twice."""
    client = connect(server.service_url)

    def use(number: int) -> bool:
        topic = f"u{number}"
        call(server, "PUT", f"namespaces/public/{topic}", {"bundles": {"numBundles": 1}})
        server.store.lose = number
        producer = client.create_producer(f"public/{topic}/t", producer_name="p", send_timeout_millis=0)
        consumer = client.subscribe(f"public/{topic}/t", "sub", initial_position=pulsar.InitialPosition.Earliest)
        for text in (b"0", b"1", b"2"):
            producer.send(text)
        for text in (b"0", b"1", b"2"):
            message = consumer.receive(30_000)
            assert message.data() == text
            consumer.acknowledge(message)
        consumer.close()
        lost = server.store.lose == 0
        server.store.lose = 0
        producer.close()
        reader = client.create_reader(f"public/{topic}/t", pulsar.MessageId.earliest)
        read = []
        while reader.has_message_available():
            read.append(reader.read_next(30_000).data())
        reader.close()
        assert read == [b"0", b"1", b"2"][len(read) - 3 :] or not read  # what is consumed may be gone
        return lost

    assert each_write(use) > 4
    assert orphans(server) == []


def test_unloading_a_topic_and_taking_it_up_again(server: Server, connect: Connect) -> None:
    """Close of the ledger, list, cursors, next ledger: nothing acknowledged comes back, nothing stored goes."""
    client = connect(server.service_url)

    def move(number: int) -> bool:
        topic, path = f"m{number}", f"persistent/public/default/m{number}"
        producer = client.create_producer(topic, producer_name="p", send_timeout_millis=0)
        consumer = client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
        for text in range(6):
            producer.send(str(text).encode())
        for _ in range(3):
            consumer.acknowledge(consumer.receive(30_000))
        consumer.close()
        answers, lost = repeated(server, number, "PUT", f"{path}/unload")
        assert answers[-1] in (204, 404), answers
        producer.send(b"6")
        again = client.subscribe(topic, "sub")
        assert [again.receive(30_000).data() for _ in range(4)] == [b"3", b"4", b"5", b"6"]
        again.close()
        producer.close()
        return lost

    each_write(move)
    assert orphans(server) == []


def test_deleting_a_topic(server: Server, connect: Connect) -> None:
    client = connect(server.service_url)

    def delete(number: int) -> bool:
        topic = f"d{number}"
        producer = client.create_producer(topic)
        producer.send(b"x")
        producer.close()
        client.subscribe(topic, "sub").close()
        answers, lost = repeated(server, number, "DELETE", f"persistent/public/default/{topic}?force=true")
        assert answers[-1] in (204, 404), answers
        assert f"persistent://public/default/{topic}" not in call(server, "GET", "persistent/public/default")[1]
        return lost

    each_write(delete)
    assert orphans(server) == []


def test_splitting_and_unloading_a_bundle(server: Server, connect: Connect) -> None:
    client = connect(server.service_url)

    def split(number: int) -> bool:
        namespace = f"namespaces/public/b{number}"
        call(server, "PUT", namespace, {"bundles": {"numBundles": 1}})
        producer = client.create_producer(f"public/b{number}/t", send_timeout_millis=0)
        producer.send(b"before")
        answers, lost = repeated(server, number, "PUT", f"{namespace}/0x00000000_0xffffffff/split?unload=true")
        assert answers[-1] in (204, 404, 409, 412), answers
        producer.send(b"after")
        producer.close()
        assert call(server, "GET", f"{namespace}/bundles")[1]["numBundles"] == 2
        return lost

    each_write(split)
