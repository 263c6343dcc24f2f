"""kill -9 while topics are compacted: the old compacted ledger or the new one counts, and no other that was written to is left.

What a crash between the creation of a ledger and its naming leaves is an empty ledger's metadata, as elsewhere."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from magnetar.base.executor import ThreadExecutor
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.testing.server import ServerProcess
from tests.support.compaction import admin, compact, drop_consumed, hold, path_of, read_compacted, table_of
from tests.support.messages import receive_all

ROUNDS = 8
KEYS = 3000
COMPACTED_LEDGER = b"compacted-ledger"


def compacted_ledgers(data_dir: Path) -> list[int]:
    """Ids of the compacted ledgers in a stopped server's metadata."""

    async def find() -> list[int]:
        executor = ThreadExecutor("metadata")
        store = await SqliteMetadataStore.open(data_dir / "metadata.sqlite", executor)
        try:
            manager = LedgerManager(store)
            found = [(each, await manager.read(each)) for each in await manager.list_ids()]
        finally:
            await store.close()
            executor.close()
        return [each for each, (held, _) in found if held.custom_metadata.get("component") == COMPACTED_LEDGER]

    return asyncio.run(find())


@pytest.mark.timeout(180)
def test_killed_while_compacting(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    rng = random.Random(23)
    server = start_server(managedLedgerMaxEntriesPerLedger=500, managedLedgerMinLedgerRolloverTimeMinutes=0)
    hold(server)
    table: dict[str, bytes] = {}
    client = connect(server.service_url)
    duration_s = 0.0
    for round_number in range(ROUNDS):
        producer = client.create_producer(topic, batching_enabled=bool(round_number % 2), block_if_queue_full=True)
        for number in range(KEYS):
            key = f"k{rng.randrange(KEYS)}"
            value = b"" if rng.random() < 0.1 else b"%d-%d" % (round_number, number)
            producer.send_async(value, lambda *_: None, partition_key=key)
            table.pop(key, None)
            if value:
                table[key] = value
        producer.flush()
        producer.close()
        if round_number == 0:
            compact(server, topic)
            stats = admin(server, "GET", f"{path_of(topic)}/stats")
            duration_s = stats["compaction"]["lastCompactionDurationTimeInMills"] / 1000
        else:
            admin(server, "PUT", f"{path_of(topic)}/compaction")
            time.sleep(rng.uniform(0, duration_s))  # a moment in the compaction, not a wait for anything
        server.restart()
        client = connect(server.service_url)
        assert table_of(read_compacted(client, topic)) == table
        drop_consumed(server, topic)
        assert table_of(read_compacted(client, topic)) == table
    compact(server, topic)
    left = read_compacted(client, topic)
    assert {message.partition_key(): message.data() for message in left} == table
    assert len(left) == len(table)
    client.close()
    server.stop()
    written = [int(number) for number in re.findall(r"compacting topic=\S+ ledger=(\d+)", server.log())]
    assert [each for each in compacted_ledgers(server.data_dir) if each in written] == written[-1:]


def test_a_restart_keeps_what_was_compacted(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server(managedLedgerMaxEntriesPerLedger=5, managedLedgerMinLedgerRolloverTimeMinutes=0)
    hold(server)
    client = connect(server.service_url)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"k{number % 10}")
    compact(server, topic)
    drop_consumed(server, topic)
    expected = {f"k{number % 10}": b"%d" % number for number in range(30, 40)}
    for stop in (server.kill, server.stop):
        client.close()
        stop()
        assert len(compacted_ledgers(server.data_dir)) == 1
        server.start()
        client = connect(server.service_url)
        assert table_of(read_compacted(client, topic)) == expected
    admin(server, "DELETE", path_of(topic))
    client.close()
    server.stop()
    assert compacted_ledgers(server.data_dir) == []


def test_an_unloaded_topic_gives_its_compaction_up(
    start_server: Callable[..., ServerProcess], connect: Callable[..., pulsar.Client], topic: str
) -> None:
    server = start_server()
    hold(server)
    client = connect(server.service_url)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(5000):
        producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 10}")
    producer.flush()
    admin(server, "PUT", f"{path_of(topic)}/compaction")
    admin(server, "PUT", f"{path_of(topic)}/unload")
    assert admin(server, "GET", f"{path_of(topic)}/compaction") == {"status": "NOT_RUN", "lastError": ""}
    assert len(read_compacted(client, topic)) == 5000
    compact(server, topic)
    assert len(read_compacted(client, topic)) == 10
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest)
    assert receive_all(consumer, 10) == [b"%d" % number for number in range(4990, 5000)]
    client.close()
    server.stop()
    assert len(compacted_ledgers(server.data_dir)) == 1
