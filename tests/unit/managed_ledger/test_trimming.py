"""Retention removes what is consumed and not kept, in the order that loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import EntryNotFoundError, LostLedgerError
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.managed_ledger.retention import consumed_before, deletable
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    LedgerHarness,
    acknowledge,
    append_all,
    numbered,
    read,
    read_all,
    until,
)

KEEP = {"retention_time_ms": -1, "retention_size_bytes": -1}


def index_of(*sizes: int) -> LedgerIndex:
    """Ledgers 1, 2, ... of 10 entries with these sizes, closed at 100, 200, ...; the last is open."""
    index = LedgerIndex()
    for number, size in enumerate(sizes, 1):
        index.add(LedgerSummary(number, 10, size, 0 if number == len(sizes) else number * 100))
    return index


@pytest.mark.parametrize(
    ("slowest", "limit"),
    [
        (None, 5),
        (Position(1, -1), 1),
        (Position(1, 8), 1),
        (Position(1, 9), 2),
        (Position(4, 9), 4),
        (Position(3, 9), 4),
    ],
)
def test_consumed_before(slowest: Position | None, limit: int) -> None:
    assert consumed_before(index_of(10, 10, 10, 10), 4, slowest) == limit


@pytest.mark.parametrize(
    ("time_ms", "size_bytes", "gone"),
    [
        (0, 0, [1, 2, 3]),
        (-1, -1, []),
        (250, -1, [1, 2]),
        (-1, 25, [1]),
        (-1, 20, [1, 2]),
        (-1, 1000, []),
        (10_000, 20, [1, 2]),
        (10_000, -1, []),
        (10_000, 0, [1, 2, 3]),
    ],
)
def test_retention_rules(time_ms: int, size_bytes: int, gone: list[int]) -> None:
    config = ManagedLedgerConfig(retention_time_ms=time_ms, retention_size_bytes=size_bytes)
    assert deletable(index_of(10, 10, 10, 10), 4, Position(4, 3), 500, config) == gone


def test_first_kept_ledger_ends_the_trim() -> None:
    index = index_of(10, 10, 10, 10)
    held = index.get(1)
    assert held is not None
    held.timestamp_ms = 450  # closed late, for instance by a recovery
    config = ManagedLedgerConfig(retention_time_ms=100, retention_size_bytes=-1)
    assert deletable(index, 4, None, 500, config) == []


async def test_trim_removes_consumed_ledgers_and_moves_nobody() -> None:
    harness = LedgerHarness()
    config = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10, **KEEP)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        fast = await ledger.open_cursor("fast", initial=EARLIEST)
        slow = await ledger.open_cursor("slow", initial=EARLIEST)
        reader = ledger.new_non_durable_cursor("reader", EARLIEST)
        positions = await append_all(ledger, numbered(45))
        fast.acknowledge_cumulative(positions[44])
        slow.acknowledge_cumulative(positions[24])
        ledger.set_config(ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10))
        harness.clock.ms += 1
        await ledger.trim()
        assert ledger.first_position == positions[20]
        assert slow.stored_mark_delete == positions[24], "stored before anything was deleted"
        for position in (positions[0], positions[10]):
            assert not await harness.cluster.client.ledger_exists(position.ledger_id)
            with pytest.raises(EntryNotFoundError):
                await ledger.read_entry(position)
        assert await read_all(reader) == numbered(25, 20), "a reader goes on with what is left"
        assert slow.backlog_entries == 20
        assert await read_all(slow) == numbered(20, 25)
        slow.acknowledge_cumulative(positions[44])
        await ledger.trim()
        assert ledger.first_position == positions[40], "never the current one"
        await ledger.rollover()
        await until(lambda: ledger.index.total_entries == 0)
        assert len(ledger.index) == 1
        assert ledger.size_bytes == 0
        await append_all(ledger, [b"next"])
        assert await read_all(slow) == [b"next"]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        assert await read_all(ledger.cursors["slow"]) == [b"next"]
        assert await read_all(ledger.cursors["fast"]) == [b"next"]


async def test_nothing_is_deleted_when_the_list_cannot_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10, **KEEP))
        positions = await append_all(ledger, numbered(25))
        ledger.set_config(ManagedLedgerConfig())
        harness.clock.ms += 1
        put = harness.metadata.put

        async def failing(*args: object, **kwargs: object) -> tuple[str, int]:
            raise MetadataError("no quorum")

        monkeypatch.setattr(harness.metadata, "put", failing)
        with pytest.raises(MetadataError):
            await ledger.trim()
        assert ledger.first_position == positions[0]
        assert await harness.cluster.client.ledger_exists(positions[0].ledger_id)
        monkeypatch.setattr(harness.metadata, "put", put)
        await ledger.trim()
        assert ledger.first_position == positions[20]


async def test_cursor_created_during_a_trim_holds_its_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10, **KEEP))
        first = await ledger.open_cursor("first", initial=EARLIEST)
        positions = await append_all(ledger, numbered(25))
        first.acknowledge_cumulative(positions[24])
        ledger.set_config(ManagedLedgerConfig())
        harness.clock.ms += 1
        trim = asyncio.get_running_loop().create_task(ledger.trim())
        await asyncio.sleep(0)
        late = await ledger.open_cursor("late", initial=EARLIEST)
        await trim
        found = await read_all(late)
        assert found in (numbered(25), numbered(5, 20)), "all of it, or what was left: nothing disappears under it"
        assert late.backlog_entries == len(found)


async def test_lost_ledger_is_an_error_or_passed_over() -> None:
    harness = LedgerHarness()
    config = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10, **KEEP)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(35))
        await acknowledge(cursor, [positions[0], positions[15]])
    await harness.cluster.client.delete_ledger(positions[10].ledger_id)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = ledger.cursors["sub"]
        assert len(await read(cursor)) == 9
        with pytest.raises(LostLedgerError):
            await read(cursor)
        ledger.set_config(
            ManagedLedgerConfig(
                min_rollover_age_ms=0, max_entries_per_ledger=10, auto_skip_non_recoverable_data=True, **KEEP
            )
        )
        assert await read_all(cursor) == numbered(15, 20)
        assert ledger.reads.passed_over == 1
        cursor.acknowledge(positions[1:10])
        assert cursor.mark_delete_position == positions[19], "the hole of the lost ledger holds nobody back"
        cursor.acknowledge(positions[20:])
        assert cursor.backlog_entries == 0


async def test_failed_deletion_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10, **KEEP))
        positions = await append_all(ledger, numbered(35))
        client = ledger._context.client
        delete = client.delete_ledger
        refused: list[int] = []

        async def failing(ledger_id: int) -> None:
            refused.append(ledger_id)
            raise MagnetarError("not now")

        monkeypatch.setattr(client, "delete_ledger", failing)
        ledger.set_config(
            ManagedLedgerConfig(
                min_rollover_age_ms=0, max_entries_per_ledger=10, retention_time_ms=-1, retention_size_bytes=20
            )
        )
        await ledger.trim()
        assert refused
        assert await client.read_metadata(positions[0].ledger_id)  # type: ignore[attr-defined]  # the real client
        monkeypatch.setattr(client, "delete_ledger", delete)
        ledger.set_config(ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10))
        harness.clock.ms += 1
        await ledger.trim()
        assert not await harness.cluster.client.ledger_exists(positions[0].ledger_id)
