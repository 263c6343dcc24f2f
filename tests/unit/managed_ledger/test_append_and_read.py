"""Entries go in and come out in order, over as many ledgers as it takes."""

from __future__ import annotations

import asyncio

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    Appends,
    LedgerHarness,
    acknowledge,
    append_all,
    numbered,
    read,
    read_all,
    replay,
    until,
)

SMALL = ManagedLedgerConfig(
    min_rollover_age_ms=0, max_entries_per_ledger=10, retention_time_ms=-1, retention_size_bytes=-1
)


async def test_append_completes_in_order_and_is_read_from_memory() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(50))
        assert [position.entry_id for position in positions] == list(range(50))
        assert ledger.last_confirmed == positions[-1]
        assert ledger.pending_add_bytes == 0
        assert ledger.index.total_entries == 50
        assert cursor.backlog_entries == 50
        answers: list[list[bytes]] = []
        cursor.read(20, 1 << 20, lambda error, entries: answers.append([entry.data for entry in entries]))
        assert answers == [numbered(20)], "a cached read answers before it returns"
        assert await read_all(cursor) == numbered(30, 20)
        assert not cursor.has_more
        assert await read(cursor) == []


async def test_reads_stop_at_bytes_but_give_one() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        await append_all(ledger, [b"x" * 100] * 10)
        assert len(await read(cursor, 100, 250)) == 2
        assert len(await read(cursor, 100, 1)) == 1


async def test_rollover_keeps_order_while_appending() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(95))
        assert len({position.ledger_id for position in positions}) == 10
        assert positions == sorted(positions)
        assert await read_all(cursor, 7) == numbered(95)
        assert ledger.index.entries_between(positions[0], positions[-1]) == 94
        assert ledger.next_position(positions[9]) == positions[10]
        assert ledger.index.previous(positions[10]) == positions[9]


async def test_a_restart_reads_everything_from_the_bookies() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        before = await append_all(ledger, numbered(35))
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        assert ledger.last_confirmed == before[-1]
        cursor = ledger.new_non_durable_cursor("reader", EARLIEST)
        assert await read_all(cursor, 8) == numbered(35)
        after = await append_all(ledger, numbered(5, 35))
        assert after[0].ledger_id > before[-1].ledger_id
        assert await read_all(cursor) == numbered(5, 35)


async def test_listeners_wake_once_per_burst_and_without_delay() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        wakes: list[int] = []
        ledger.add_append_listener(lambda: wakes.append(ledger.index.total_entries))
        await append_all(ledger, [b"alone"])
        await until(lambda: wakes == [1])
        bookie = harness.cluster.bookies[0]
        bookie.held = []
        appends = Appends()
        for payload in numbered(20):
            appends.append(ledger, payload)
        bookie.release()
        assert len(appends.stored) == 20
        await until(lambda: len(wakes) == 2)
        await asyncio.sleep(0)
        assert wakes == [1, 21]


async def test_replay_answers_in_the_order_asked_without_the_acknowledged() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(30))
        await acknowledge(cursor, [positions[12]])
        wanted = [positions[25], positions[3], positions[12], positions[4], Position(positions[0].ledger_id, 99)]
        assert [entry.data for entry in await replay(cursor, wanted)] == [b"25", b"3", b"4"]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub")
        assert [entry.data for entry in await replay(cursor, wanted)] == [b"25", b"3", b"4"]


async def test_start_positions_of_readers() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        positions = await append_all(ledger, numbered(25))
        assert await read_all(ledger.new_non_durable_cursor("a", EARLIEST)) == numbered(25)
        assert await read_all(ledger.new_non_durable_cursor("b", LATEST)) == []
        assert await read_all(ledger.new_non_durable_cursor("c", positions[10])) == numbered(15, 10)
        assert await read_all(ledger.new_non_durable_cursor("d", positions[11])) == numbered(14, 11)


async def test_find_last_matching() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        assert await ledger.find_last_matching(lambda entry: True) is None
        positions = await append_all(ledger, numbered(64))
        for wanted in (-1, 0, 9, 10, 31, 62, 63):
            looked_at: list[int] = []

            def matches(entry: object, wanted: int = wanted, looked_at: list[int] = looked_at) -> bool:
                looked_at.append(int(entry.data))  # type: ignore[attr-defined]  # an Entry
                return looked_at[-1] <= wanted

            assert await ledger.find_last_matching(matches) == (positions[wanted] if wanted >= 0 else None)
            assert len(looked_at) <= 7


async def test_who_keeps_up_is_served_from_memory_across_ledgers_and_consumed_entries_leave_it() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=3000))
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        for start in range(0, 10_000, 500):
            await append_all(ledger, numbered(500, start))
            assert await read_all(cursor) == numbered(500, start)
        assert ledger._context.reader.reads == 0
        assert len(ledger._context.caches) <= 2
        held = sum(len(cache.entries) for cache in ledger._context.caches.values())
        assert held <= 5000
        factory.cache.validate()


async def test_the_cache_keeps_its_budget_and_readers_get_the_rest_from_the_bookies() -> None:
    async with LedgerHarness().broker() as factory:
        factory.cache.max_bytes = 50_000
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        payloads = [b"%04d" % number * 250 for number in range(200)]
        await append_all(ledger, payloads)
        factory.cache.validate()
        assert factory.cache.evictions > 0
        assert await read_all(cursor) == payloads
        assert ledger._context.reader.reads > 0


async def test_cursors_reading_the_same_old_entries_share_one_read() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        await append_all(await factory.open(NAME), numbered(50))
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursors = [ledger.new_non_durable_cursor(f"r{number}", EARLIEST) for number in range(5)]
        found = await asyncio.gather(*(read(cursor) for cursor in cursors))
        assert [[entry.data for entry in entries] for entries in found] == [numbered(50)] * 5
        assert ledger._context.reader.reads == 1
        assert ledger._context.reader.merged_reads == 4
