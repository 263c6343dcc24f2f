"""Lists of topics: read and encoded once for all who ask, never older than the question, and in turns with everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.base.executor import ThreadExecutor
from magnetar.broker.connection.context import ListAnswers
from magnetar.broker.namespaces import topic_lists
from magnetar.broker.namespaces.topic_lists import TopicLists
from magnetar.broker.naming import NamespaceName
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

NAMESPACE = NamespaceName("t", "ns")


class CountingStore(SqliteMetadataStore):
    """Counts the lists that are read."""

    lists = 0

    async def children(self, path: str) -> list[str]:
        self.lists += 1
        return await super().children(path)


def node(name: str) -> str:
    return paths.managed_ledger_path("t", "ns", "persistent", name)


def with_store(tmp_path: Path, test: Callable[[CountingStore], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        executor = ThreadExecutor("metadata")
        store = await CountingStore.open(tmp_path / "metadata.db", executor)
        assert isinstance(store, CountingStore)
        try:
            await test(store)
        finally:
            await store.close()
            executor.close()

    asyncio.run(run())


def test_many_questions_are_one_list(tmp_path: Path) -> None:
    async def test(store: CountingStore) -> None:
        lists = TopicLists(store)
        assert await lists.names(NAMESPACE) == ()
        await store.create_missing([node(f"topic-{number:04}") for number in range(3000)])
        found = await asyncio.gather(*(lists.names(NAMESPACE) for _ in range(50)))
        assert all(names is found[0] for names in found)
        assert found[0][0] == "persistent://t/ns/topic-0000"
        assert len(found[0]) == 3000
        assert await lists.names(NAMESPACE) is found[0]
        assert store.lists == 1

    with_store(tmp_path, test)


def test_a_list_is_as_new_as_the_question(tmp_path: Path) -> None:
    """Topics come and go while others are asking; who asks after a change finds it."""

    async def test(store: CountingStore) -> None:
        lists = TopicLists(store)
        over = asyncio.Event()

        async def ask_on() -> None:
            while not over.is_set():
                await lists.names(NAMESPACE)

        others = [asyncio.create_task(ask_on()) for _ in range(10)]
        for number in range(100):
            await store.put(node(f"topic-{number}"), b"")
            assert f"persistent://t/ns/topic-{number}" in await lists.names(NAMESPACE)
            if number % 3 == 0:
                await store.delete(node(f"topic-{number}"))
                assert f"persistent://t/ns/topic-{number}" not in await lists.names(NAMESPACE)
        over.set()
        await asyncio.gather(*others)
        assert len(await lists.names(NAMESPACE)) == 66

    with_store(tmp_path, test)


def test_a_store_that_does_not_number_its_changes_is_always_read() -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        lists = TopicLists(store)
        await store.put(node("one"), b"")
        assert await lists.names(NAMESPACE) == ("persistent://t/ns/one",)
        await store.delete(node("one"))
        await store.put(node("two"), b"")
        assert await lists.names(NAMESPACE) == ("persistent://t/ns/two",)

    asyncio.run(run())


def test_what_is_kept_has_a_bound(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(topic_lists, "NAMES_KEPT_MAX", 25)

    async def test(store: CountingStore) -> None:
        lists = TopicLists(store)
        namespaces = [NamespaceName("t", f"ns-{number}") for number in range(5)]
        for name in namespaces:
            parent = paths.managed_ledgers_path(name.tenant, name.namespace, "persistent")
            await store.create_missing([f"{parent}/{number}" for number in range(10)])
            assert len(await lists.names(name)) == 10
        assert store.lists == 5
        await lists.names(namespaces[-1])
        await lists.names(namespaces[-2])
        assert store.lists == 5
        await lists.names(namespaces[0])
        assert store.lists == 6, "asked for longest ago"

    with_store(tmp_path, test)


def test_a_long_list_is_made_in_turns() -> None:
    """While 20,000 topics are encoded, others run twenty times at least, and the answer is one that protobuf reads."""

    async def run() -> None:
        answers, turns = ListAnswers(), 0
        names = tuple(f"persistent://t/ns/topic-{number:05}" for number in range(20_000))
        asked = [asyncio.create_task(answers.of("t/ns", names, [])) for _ in range(10)]
        while not all(task.done() for task in asked):
            turns += 1
            await asyncio.sleep(0)
        assert turns > 20
        found = [task.result() for task in asked]
        assert all(answer is found[0] for answer in found)
        ((data, rest),) = FrameDecoder(2**31, 2**31).feed(
            commands.topics_of_namespace(7, found[0].topics, found[0].digest, filtered=False, changed=True)
        )
        command = BaseCommand.FromString(data)
        response = command.getTopicsOfNamespaceResponse
        assert (command.type, response.request_id, rest) == (BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, 7, b"")
        assert tuple(response.topics) == names
        assert (response.topics_hash, response.filtered, response.changed) == (found[0].digest, False, True)
        with_own = await answers.of("t/ns", names, ["non-persistent://t/ns/own"])
        assert with_own is not found[0]

    asyncio.run(run())
