"""Acknowledgements: what is consumed, what comes again after a restart, where it is stored."""

from __future__ import annotations

import pytest

from magnetar.base.errors import InvalidArgumentError, MagnetarError, MetadataError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.codec import parse_node
from magnetar.managed_ledger.errors import CursorClosedError, CursorNotFoundError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.metadata.paths import cursor_path
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

SMALL = ManagedLedgerConfig(
    min_rollover_age_ms=0, max_entries_per_ledger=10, retention_time_ms=-1, retention_size_bytes=-1
)


async def unconsumed(factory: ManagedLedgerFactory, name: str = "sub") -> list[bytes]:
    """What a restarted broker redelivers."""
    ledger = await factory.open(NAME, SMALL)
    return await read_all(ledger.cursors[name])


async def test_in_order_acknowledgements_move_the_mark_delete_across_ledgers() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(35))
        for number, position in enumerate(positions):
            cursor.acknowledge([position])
            assert cursor.mark_delete_position == position
            assert cursor.backlog_entries == 34 - number
        assert not cursor.has_more, "what was acknowledged is not read"
        assert cursor.read_position == ledger.next_position(positions[-1])


async def test_holes_keep_the_mark_delete_and_are_skipped_by_reads() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(30))
        cursor.acknowledge(positions[1:15])
        cursor.acknowledge(positions[1:15])
        assert cursor.mark_delete_position == Position(positions[0].ledger_id, -1)
        assert cursor.backlog_entries == 16
        assert cursor.individual_ranges() == [
            (positions[0], positions[9]),
            (Position(positions[10].ledger_id, -1), positions[14]),
        ]
        assert await read_all(cursor) == [b"0", *numbered(15, 15)]
        cursor.acknowledge([positions[0]])
        assert cursor.mark_delete_position == positions[14]
        assert cursor.individual_ranges() == []


async def test_unknown_past_and_future_positions_are_ignored() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(15))
        cursor.acknowledge([positions[0]])
        before = cursor.mark_delete_position
        end = ledger.last_confirmed
        unknown = [
            positions[0],
            Position(positions[0].ledger_id, -1),
            Position(positions[0].ledger_id, 2**62),
            Position(end.ledger_id, end.entry_id + 1),
            Position(2**40, 0),
            Position(-1, -1),
        ]
        cursor.acknowledge(unknown)
        assert cursor.mark_delete_position == before
        assert cursor.individual_ranges() == []
        assert cursor.backlog_entries == 14
        cursor.acknowledge_cumulative(Position(2**40, 5))
        assert cursor.mark_delete_position == end, "a cumulative acknowledgement reaches what is written at most"


async def test_acknowledged_means_durable() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(30))
        await acknowledge(cursor, positions[:5])
        await acknowledge(cursor, [positions[7], positions[25]])
        assert cursor.acknowledge_batch(positions[9], [-2], 70) is False
        await cursor.flush()
        assert cursor.ack_set_of(positions[9]) == [-2, 0] or cursor.ack_set_of(positions[9]) == [-2]
    async with harness.broker() as factory:
        wanted = [number for number in range(30) if number not in {0, 1, 2, 3, 4, 7, 25}]
        assert await unconsumed(factory) == [b"%d" % number for number in wanted]
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.ack_set_of(positions[9]) == [-2]


async def test_batch_indexes_are_anded_and_idempotent() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        first, second = await append_all(ledger, numbered(2))
        assert not cursor.acknowledge_batch(first, [0b0111], 4)
        assert not cursor.acknowledge_batch(first, [0b0111], 4)
        assert cursor.ack_set_of(first) == [0b0111]
        assert not cursor.is_acknowledged(first)
        assert cursor.acknowledge_batch(first, [0b1000], 4)
        assert cursor.is_acknowledged(first)
        assert cursor.ack_set_of(first) is None
        assert cursor.mark_delete_position == first
        assert not cursor.acknowledge_batch(first, [0b1000], 4), "done before"
        assert cursor.acknowledge_batch(second, [], 3)


async def test_background_persist_is_one_write_for_many_acknowledgements() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(500))
        for position in positions[:499]:
            cursor.acknowledge([position])
        await until(lambda: cursor.stored_mark_delete == positions[498])
        persister = cursor._persister
        assert persister is not None
        assert persister.writes == 1


async def test_close_puts_the_state_into_the_znode_and_deletes_the_cursor_ledger() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST, cursor_properties={"a": "b"})
        positions = await append_all(ledger, numbered(20))
        cursor.acknowledge_cumulative(positions[3], {"seq": 77})
        await acknowledge(cursor, [positions[6]])
        assert not cursor.acknowledge_batch(positions[8], [0b10], 2)
        used = cursor._store.ledger_id if cursor._store is not None else -1
        assert used >= 0
        await factory.close()
        assert not await harness.cluster.client.ledger_exists(used)
    node = await harness.metadata.get(cursor_path(NAME, "sub"))
    assert node is not None
    assert parse_node(node.value).cursorsLedgerId == -1
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = ledger.cursors["sub"]
        assert cursor.mark_delete_position == positions[3]
        assert cursor.properties == {"seq": 77}
        assert cursor.cursor_properties == {"a": "b"}
        assert cursor.ack_set_of(positions[8]) == [0b10], "batch indexes of the znode are read back"
        assert cursor.individual_ranges() == [(positions[5], positions[6])]


async def test_cursor_ledger_switches_and_old_ones_go() -> None:
    harness = LedgerHarness()
    config = ManagedLedgerConfig(cursor_ledger_max_entries=3)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(20))
        seen: list[int] = []
        for position in positions[:12]:
            await acknowledge(cursor, [position])
            assert cursor._store is not None
            if cursor._store.ledger_id not in seen:
                seen.append(cursor._store.ledger_id)
        assert len(seen) == 4
        for ledger_id in seen[:-1]:
            assert not await harness.cluster.client.ledger_exists(ledger_id)
    async with harness.broker() as factory:
        assert (await factory.open(NAME)).cursors["sub"].mark_delete_position == positions[11]


async def test_lost_cursor_ledger_falls_back_on_the_znode_and_skips_nothing() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(20))
        await acknowledge(cursor, positions[:3])
        await acknowledge(cursor, positions[3:9])
        assert cursor._store is not None
        used = cursor._store.ledger_id
    await harness.cluster.client.delete_ledger(used)
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.mark_delete_position == positions[2], "the snapshot of the switch"
        assert await read_all(cursor) == numbered(17, 3)


async def test_reset_makes_the_position_the_next_one_even_after_a_crash() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, SMALL)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(30))
        cursor.acknowledge(positions)
        await cursor.reset(positions[10])
        assert cursor.mark_delete_position == positions[9]
        assert (await read(cursor))[0].position == positions[10]
        await cursor.reset(LATEST)
        assert not cursor.has_more
        await cursor.reset(EARLIEST)
        assert await read_all(cursor) == numbered(30)
        await cursor.reset(positions[29])
    async with harness.broker() as factory:
        assert await unconsumed(factory) == [b"29"]


async def test_latest_subscription_gets_the_message_after_a_crash() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        await append_all(ledger, numbered(3))
        await ledger.open_cursor("sub", initial=LATEST)
        await append_all(ledger, [b"new"])
    async with harness.broker() as factory:
        assert await unconsumed(factory) == [b"new"]


async def test_rewind_reads_the_unacknowledged_again_and_drops_a_read_under_way() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        await append_all(await factory.open(NAME), numbered(10))
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        answers: list[tuple[MagnetarError | None, int]] = []
        cursor.read(5, 1 << 20, lambda error, entries: answers.append((error, len(entries))))
        assert not answers
        refused: list[MagnetarError | None] = []
        cursor.read(5, 1 << 20, lambda error, entries: refused.append(error))
        assert isinstance(refused[0], InvalidArgumentError), "one read at a time"
        cursor.rewind()
        await until(lambda: bool(answers))
        assert answers == [(None, 0)]
        assert len(await read(cursor)) == 10
        cursor.acknowledge([entry.position for entry in await _again(cursor)][::2])
        cursor.rewind()
        assert await read_all(cursor) == [b"1", b"3", b"5", b"7", b"9"]


async def _again(cursor: object) -> list:  # type: ignore[type-arg]  # entries
    cursor.rewind()  # type: ignore[attr-defined]  # a ManagedCursor
    return await read(cursor)  # type: ignore[arg-type]  # a ManagedCursor


async def test_deleted_cursor_is_gone_everywhere() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("a/b c", initial=EARLIEST)
        positions = await append_all(ledger, numbered(4))
        await acknowledge(cursor, positions[:2])
        await ledger.delete_cursor("a/b c")
        assert await harness.metadata.children(f"/managed-ledgers/{NAME}") == []
        answers: list[MagnetarError | None] = []
        cursor.acknowledge([positions[2]], answers.append)
        assert isinstance(answers[0], CursorClosedError)
        with pytest.raises(CursorNotFoundError):
            await ledger.delete_cursor("a/b c")
        again = await ledger.open_cursor("a/b c", initial=EARLIEST)
        assert again.backlog_entries == 4


async def test_dones_are_called_when_the_cursor_closes() -> None:
    async with LedgerHarness().broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(3))
        answers: list[MagnetarError | None] = []
        cursor.acknowledge(positions, answers.append)
        await cursor.close()
        assert answers == [None]


async def test_without_a_writable_bookie_the_znode_takes_the_state() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(10))
        await acknowledge(cursor, positions[:2])
        bookie.add_code = ReturnCode.READ_ONLY
        harness.cluster.directory.register("b0", bookie, writable=False)
        await acknowledge(cursor, positions[2:5])
        assert cursor._store is not None
        assert cursor._store.ledger_id == -1
    async with harness.broker() as factory:
        bookie.add_code = None
        harness.cluster.directory.register("b0", bookie)
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.mark_delete_position == positions[4]
        await acknowledge(cursor, [positions[5]])
        assert cursor._store is not None
        assert cursor._store.ledger_id >= 0


async def test_failing_to_store_is_told_and_tried_again() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(10))
        put = harness.metadata.put

        async def failing(*args: object, **kwargs: object) -> tuple[str, int]:
            raise MetadataError("no quorum")

        harness.metadata.put = failing  # type: ignore[method-assign]  # the fault
        with pytest.raises(MetadataError):
            await acknowledge(cursor, positions[:4])
        assert cursor.stored_mark_delete < positions[0]
        harness.metadata.put = put  # type: ignore[method-assign]  # back again
        harness.clock.ms += 2000
        await acknowledge(cursor, [positions[4]])
        assert cursor.stored_mark_delete == positions[4]


async def test_properties_of_a_cursor_with_more_holes_than_the_znode_takes() -> None:
    harness = LedgerHarness()
    config = ManagedLedgerConfig(max_ranges_in_metadata_store=3, cursor_persist_interval_ms=60_000)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(20))
        cursor.acknowledge(positions[1::2])
        await cursor.change_cursor_properties(lambda held: {**held, "k": "v"})
        assert cursor._store is not None
        assert cursor._store.ledger_id >= 0
        await factory.close()
        assert cursor._store.ledger_id >= 0, "too many holes for the znode at close as well"
    async with harness.broker() as factory:
        cursor = (await factory.open(NAME)).cursors["sub"]
        assert cursor.cursor_properties == {"k": "v"}
        assert cursor.acks.range_count() == 10
        assert cursor.individual_ranges(2) == [(positions[0], positions[1]), (positions[2], positions[3])]


async def test_readers_cursors_are_not_stored_and_can_be_discarded() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        await ledger.open_cursor("sub")
        reader = ledger.new_non_durable_cursor("reader", EARLIEST)
        assert ledger.new_non_durable_cursor("reader", LATEST) is reader
        with pytest.raises(InvalidArgumentError):
            ledger.new_non_durable_cursor("sub", EARLIEST)
        with pytest.raises(InvalidArgumentError):
            await ledger.open_cursor("reader")
        positions = await append_all(ledger, numbered(3))
        await acknowledge(reader, positions[:2])
        assert reader.backlog_entries == 1
        ledger.discard_cursor("reader")
        ledger.discard_cursor("sub")
        assert list(ledger.cursors) == ["sub"]
        with pytest.raises(CursorClosedError):
            await read(reader)
    async with harness.broker() as factory:
        assert list((await factory.open(NAME)).cursors) == ["sub"]


@pytest.mark.parametrize(("ensemble", "write", "ack"), [(3, 2, 2), (3, 3, 2), (4, 2, 1)])
async def test_over_several_bookies(ensemble: int, write: int, ack: int) -> None:
    harness = LedgerHarness(4)
    config = ManagedLedgerConfig(
        ensemble_size=ensemble,
        write_quorum=write,
        ack_quorum=ack,
        min_rollover_age_ms=0,
        max_entries_per_ledger=10,
        retention_time_ms=-1,
        retention_size_bytes=-1,
    )
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(35))
        await acknowledge(cursor, positions[5:8])
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        wanted = numbered(5) + numbered(27, 8)
        assert await read_all(ledger.cursors["sub"], 6) == wanted
        await append_all(ledger, numbered(3, 35))
        assert await read_all(ledger.cursors["sub"]) == numbered(3, 35)
