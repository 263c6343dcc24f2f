"""A reset, and what is said of a cursor, is stored before anybody sees it: what was seen is what a crash leaves."""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import REPLICATED_PROPERTY, ManagedCursor
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    LedgerHarness,
    acknowledge,
    append_all,
    numbered,
    read_all,
    until,
)

CONFIG = ManagedLedgerConfig(
    min_rollover_age_ms=0, max_entries_per_ledger=10, retention_time_ms=-1, retention_size_bytes=-1
)
TRIMMED = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=10)


async def consumed(
    harness: LedgerHarness, ledger: ManagedLedger, count: int = 30
) -> tuple[ManagedCursor, list[Position]]:
    """A cursor that has consumed all but the last entry, with its cursor ledger open."""
    cursor = await ledger.open_cursor("sub", initial=EARLIEST)
    positions = await append_all(ledger, numbered(count))
    await acknowledge(cursor, positions[:-1])
    return cursor, positions


async def after_a_crash(harness: LedgerHarness) -> Position:
    harness.cluster.bookies[0].held = None
    harness.cluster.bookies[0].add_code = None
    harness.metadata.failures.clear()
    async with harness.broker() as factory:
        return (await factory.open(NAME, CONFIG)).cursors["sub"].mark_delete_position


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_reset_is_seen_when_it_is_stored() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        moves: list[Position] = []
        cursor.moved = lambda: moves.append(cursor.mark_delete_position)
        bookie.held = []
        first = asyncio.create_task(cursor.reset(positions[10]))
        second = asyncio.create_task(cursor.reset(positions[20]))
        await some_turns()
        assert cursor.mark_delete_position == positions[28]
        assert cursor.stored_mark_delete == positions[9], "a crash may come back there"
        assert await read_all(cursor) == [b"29"]
        bookie.release()
        await first
        assert moves[0] == positions[9]
        await second
        assert moves == [positions[9], positions[19]]
        assert cursor.stored_mark_delete == cursor.mark_delete_position == positions[19]
        assert await read_all(cursor) == numbered(10, 20)
    assert await after_a_crash(harness) == positions[19]


async def test_what_is_acknowledged_while_a_reset_is_stored_counts_as_before_it() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        bookie.held = []
        reset = asyncio.create_task(cursor.reset(positions[10]))
        await some_turns()
        acknowledged = asyncio.create_task(acknowledge(cursor, [positions[29]]))
        await some_turns()
        assert cursor.mark_delete_position == positions[29]
        assert not acknowledged.done()
        bookie.release()
        await reset
        await acknowledged
        assert await read_all(cursor) == numbered(20, 10)
    assert await after_a_crash(harness) == positions[9]


async def test_a_reset_that_cannot_be_stored_moves_nothing() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        harness.cluster.bookies[0].add_code = ReturnCode.IO_ERROR
        harness.metadata.failures += [MetadataError("no answer")] * 9
        with pytest.raises(MagnetarError):
            await cursor.reset(positions[10])
        assert cursor.mark_delete_position == positions[28]
        assert cursor.stored_mark_delete == positions[9], "nobody knows whether it is stored"
        harness.cluster.bookies[0].add_code = None
        harness.metadata.failures.clear()
        harness.clock.ms += 2000
        await acknowledge(
            cursor, [positions[28]]
        )  # changes nothing: its receipt waits for the state to be stored again
        assert cursor.stored_mark_delete == positions[28]
    assert await after_a_crash(harness) == positions[28]


async def test_a_reset_whose_caller_is_gone_is_seen_all_the_same() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        harness.cluster.bookies[0].held = []
        reset = asyncio.create_task(cursor.reset(positions[10]))
        await some_turns()
        reset.cancel()
        await some_turns()
        harness.cluster.bookies[0].release()
        await until(lambda: cursor.mark_delete_position == positions[9])
    assert await after_a_crash(harness) == positions[9]


async def test_a_reset_keeps_the_ledgers_behind_it_while_it_is_stored() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, CONFIG)
        cursor, positions = await consumed(harness, ledger)
        ledger.set_config(TRIMMED)
        harness.cluster.bookies[0].held = []
        reset = asyncio.create_task(cursor.reset(positions[5]))
        await some_turns()
        trim = asyncio.create_task(ledger.trim())
        await some_turns()
        harness.cluster.bookies[0].release()
        await reset
        await trim
        assert await read_all(cursor) == numbered(25, 5)


async def test_a_reset_that_waits_is_refused_when_the_cursor_closes() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        harness.cluster.bookies[0].held = []
        first = asyncio.create_task(cursor.reset(positions[10]))
        second = asyncio.create_task(cursor.reset(positions[20]))
        await some_turns()
        close = asyncio.create_task(cursor.close())
        await some_turns()
        harness.cluster.bookies[0].release()
        await first
        with pytest.raises(CursorClosedError):
            await second
        await close
    assert await after_a_crash(harness) == positions[9]


async def test_properties_are_seen_when_they_are_stored() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        cursor, _ = await consumed(harness, await factory.open(NAME, CONFIG))
        harness.metadata.gate = asyncio.Event()
        changes = [
            asyncio.create_task(
                cursor.change_cursor_properties(lambda held, name=name: {**held, name: "1"})  # type: ignore[misc]
            )
            for name in ("a", "b")
        ]
        await some_turns()
        assert cursor.cursor_properties == {}
        harness.metadata.gate.set()
        await asyncio.gather(*changes)
        assert cursor.cursor_properties == {"a": "1", "b": "1"}, "none of them undoes another"
        harness.metadata.failures += [MetadataError("no answer")] * 9
        with pytest.raises(MetadataError):
            await cursor.change_cursor_properties(lambda held: {})
        harness.metadata.failures.clear()
        assert cursor.cursor_properties == {"a": "1", "b": "1"}
    async with harness.broker() as factory:
        assert (await factory.open(NAME, CONFIG)).cursors["sub"].cursor_properties == {"a": "1", "b": "1"}


async def test_a_kept_property_is_seen_when_it_is_stored() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        cursor, positions = await consumed(harness, await factory.open(NAME, CONFIG))
        bookie.held = []
        kept = asyncio.create_task(cursor.keep_property(REPLICATED_PROPERTY, 1))
        await some_turns()
        cursor.acknowledge_cumulative(positions[29], {"n": 7})
        assert cursor.properties == {"n": 7}
        bookie.release()
        await kept
        assert cursor.properties == {"n": 7, REPLICATED_PROPERTY: 1}
        await cursor.flush()
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME, CONFIG)).cursors["sub"]
        assert cursor.properties == {"n": 7, REPLICATED_PROPERTY: 1}
        assert cursor.mark_delete_position == positions[29]


@pytest.mark.parametrize("seed", range(40))
async def test_a_cursor_is_a_register(seed: int) -> None:
    """Resets, acknowledgements and failures in seeded disorder, cut off at a random turn: nothing that was seen comes undone.

    Each reset goes to a place of its own, so a position says which of them was last. After a crash it is the last one that was
    seen or answered, or one that began afterwards.
    """
    rng = random.Random(seed)
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        positions = await append_all(await factory.open(NAME, CONFIG), numbered(60))
    order = list(range(1, 60))
    rng.shuffle(order)
    for _ in range(3):
        begun: list[Position] = []
        async with harness.broker(last_turns=0) as factory:
            ledger = await factory.open(NAME, CONFIG)
            cursor = await ledger.open_cursor("sub", initial=EARLIEST)
            tasks = []
            for _ in range(rng.randrange(2, 100)):
                dice = rng.random()
                bookie.add_code = ReturnCode.IO_ERROR if dice > 0.95 else None
                if dice < 0.1 and order:
                    target = positions[order.pop()]
                    begun.append(ledger.index.previous(target))
                    tasks.append(asyncio.create_task(cursor.reset(target)))
                seen = cursor.mark_delete_position
                if seen in begun:
                    del begun[: begun.index(seen)]
                await asyncio.sleep(0)
            seen = cursor.mark_delete_position
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        bookie.add_code = None
        async with harness.broker() as factory:
            found = (await factory.open(NAME, CONFIG)).cursors["sub"].mark_delete_position
            assert found == seen or found in begun
