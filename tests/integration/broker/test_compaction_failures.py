"""Compactions that fail or are asked for twice: what was compacted before stays, and the next one succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.broker.compaction import compactor
from magnetar.broker.compaction.errors import CompactionRunningError
from magnetar.broker.compaction.topic_compaction import Status
from magnetar.broker.naming import TopicName
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.processes.configurations import StandaloneConfig
from magnetar.standalone import Standalone
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

DEADLINE_S = 10


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Standalone]:
    async with Standalone(StandaloneConfig(data_dir=tmp_path / "data", port=0, http_port=0)) as started:
        yield started


@pytest.fixture
async def topic(server: Standalone) -> PersistentTopic:
    topic = await server.broker.topics.get(TopicName.parse("topic"), create=True)
    assert isinstance(topic, PersistentTopic)
    await topic.compaction.hold()
    return topic


async def append(topic: PersistentTopic, keys: int, value: bytes) -> None:
    """One message for each key; durable on return."""
    stored = asyncio.get_running_loop().create_future()
    left = keys

    def done(error: Exception | None, ledger_id: int, entry_id: int) -> None:
        nonlocal left
        assert error is None
        left -= 1
        if not left:
            stored.set_result(None)

    for number in range(keys):
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, partition_key=f"k{number}")
        topic.ledger.append(with_checksum(metadata, value), done)
    await stored


async def ended(topic: PersistentTopic) -> Status:
    async with asyncio.timeout(DEADLINE_S):
        while topic.compaction.status is Status.RUNNING:
            await asyncio.sleep(0.005)
    return topic.compaction.status


async def compacted(topic: PersistentTopic) -> Status:
    topic.compaction.start()
    return await ended(topic)


async def ledgers(topic: PersistentTopic) -> list[int]:
    """Those of the topic's compacted ledgers that are named anywhere and exist."""
    named = topic.compaction.stored_ledgers()
    client = topic.compaction._service.client
    return [ledger_id for ledger_id in dict.fromkeys(named) if await client.ledger_exists(ledger_id)]


async def test_more_keys_than_memory_end_in_an_error(
    server: Standalone, topic: PersistentTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(topic, 10, b"first")
    assert await compacted(topic) is Status.SUCCESS
    before = topic.compaction.current
    await append(topic, 50, b"second")
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "COMPACTION_KEY_MEMORY_BYTES_MAX", 5000)
        assert await compacted(topic) is Status.ERROR
    assert "distinct keys" in topic.compaction.last_error
    assert topic.compaction.current is before
    assert topic.compaction.counters.failed_ms > 0
    assert await compacted(topic) is Status.SUCCESS
    assert topic.compaction.last_error == ""
    assert topic.compaction.current is not None
    assert topic.compaction.current.entries == 50
    assert await ledgers(topic) == [topic.compaction.current.ledger_id]


async def test_a_ledger_that_cannot_be_written_is_not_left(
    server: Standalone, topic: PersistentTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(topic, 10, b"first")
    assert await compacted(topic) is Status.SUCCESS
    before = topic.compaction.current
    assert before is not None
    await append(topic, 10, b"second")

    async def fail(writer: LedgerWriter, payloads: list[bytes]) -> None:
        raise LedgerError("no bookie")

    with monkeypatch.context() as patch:
        patch.setattr(compactor, "append_all", fail)
        assert await compacted(topic) is Status.ERROR
    assert topic.compaction.last_error == "no bookie"
    assert topic.compaction.current is before
    assert await ledgers(topic) == [before.ledger_id]
    assert await compacted(topic) is Status.SUCCESS
    assert topic.compaction.current is not before


async def test_one_at_a_time(server: Standalone, topic: PersistentTopic) -> None:
    await append(topic, 10, b"value")
    topic.compaction.start()
    with pytest.raises(CompactionRunningError):
        topic.compaction.start()
    topic.compaction.start_if_due(1)  # is running already: nothing to do
    assert await ended(topic) is Status.SUCCESS


async def test_topics_wait_for_each_other(server: Standalone, topic: PersistentTopic) -> None:
    other = await server.broker.topics.get(TopicName.parse("other"), create=True)
    assert isinstance(other, PersistentTopic)
    await append(topic, 10, b"value")
    await append(other, 10, b"value")
    service = topic.compaction._service
    async with service.turn:
        topic.compaction.start()
        other.compaction.start()
        await asyncio.sleep(0.05)
        assert {topic.compaction.status, other.compaction.status} == {Status.RUNNING}
        assert topic.compaction.current is None
    assert await ended(topic) is Status.SUCCESS
    assert await ended(other) is Status.SUCCESS


async def test_a_failed_compaction_waits_for_another_threshold(
    server: Standalone, topic: PersistentTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(topic, 50, b"x" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "COMPACTION_KEY_MEMORY_BYTES_MAX", 5000)
        topic.compaction.start_if_due(1000)
        assert await ended(topic) is Status.ERROR
    topic.compaction.start_if_due(1000)
    assert topic.compaction.status is Status.ERROR
    await append(topic, 50, b"x" * 100)
    topic.compaction.start_if_due(1000)
    assert await ended(topic) is Status.SUCCESS
    topic.compaction.start_if_due(1000)
    assert topic.compaction.status is Status.SUCCESS


async def test_a_lost_compacted_ledger_is_made_anew(server: Standalone, topic: PersistentTopic) -> None:
    """Somebody deleted it: what the topic still holds is compacted again."""
    await append(topic, 10, b"value")
    assert await compacted(topic) is Status.SUCCESS
    lost = topic.compaction.current
    assert lost is not None
    await topic.compaction._service.client.delete_ledger(lost.ledger_id)
    await server.broker.topics.unload(topic.name)
    again = await server.broker.topics.get(topic.name, create=False)
    assert isinstance(again, PersistentTopic)
    assert again.compaction.current is None
    assert await compacted(again) is Status.SUCCESS
    assert again.compaction.current is not None
    assert again.compaction.current.entries == 10
