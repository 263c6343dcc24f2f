"""Failed adds, fencing by another owner, ends: no order is broken, nothing acknowledged is lost, nobody is left without an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.managed_ledger import append_pipeline, appender
from magnetar.managed_ledger.append_pipeline import State
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import (
    EntryNotFoundError,
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerNotFoundError,
    ManagedLedgerTerminatedError,
    WriteFailedError,
)
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.paths import cursor_path, named_managed_ledger_path
from magnetar.metadata.store import MUST_NOT_EXIST
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    Appends,
    LedgerHarness,
    acknowledge,
    append_all,
    numbered,
    read_all,
    until,
)

KEEP = ManagedLedgerConfig(retention_time_ms=-1, retention_size_bytes=-1)


async def test_failed_adds_go_to_the_next_ledger_in_order() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        first = await append_all(ledger, numbered(5))
        bookie.add_code = ReturnCode.IO_ERROR
        appends = Appends()
        for payload in numbered(10, 5):
            appends.append(ledger, payload)
        await until(lambda: ledger.state is State.SWITCHING)
        bookie.add_code = None
        for payload in numbered(5, 15):
            appends.append(ledger, payload)
        assert ledger.pending_add_bytes == sum(map(len, numbered(15, 5)))
        positions = await appends.wait(15)
        assert appends.stored == numbered(15, 5)
        assert positions[0] == Position(positions[0].ledger_id, 0)
        assert positions[0].ledger_id > first[0].ledger_id
        assert ledger.pending_add_bytes == 0
        assert await read_all(cursor) == numbered(20)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        assert await read_all(ledger.cursors["sub"]) == numbered(20)


async def test_no_bookie_fails_everything_in_order_and_holds_writes_until_resumed() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        await append_all(ledger, numbered(2))
        harness.cluster.directory.register("b0", bookie, writable=False)
        bookie.add_code = ReturnCode.READ_ONLY
        appends = Appends()
        for payload in numbered(3, 2):
            appends.append(ledger, payload)
        await appends.wait(3)
        assert [data for data, _, _ in appends.answers] == numbered(3, 2)
        assert all(isinstance(error, WriteFailedError) for error in appends.errors)
        assert ledger.state is State.WRITE_FAILED
        assert ledger.pending_add_bytes == 0
        harness.cluster.directory.register("b0", bookie, writable=True)
        bookie.add_code = None
        appends.append(ledger, b"behind the failed ones")
        assert isinstance(appends.errors[-1], WriteFailedError), "held back, producers have not heard yet"
        ledger.resume_writes()
        await append_all(ledger, numbered(3, 2))
        assert await read_all(ledger.new_non_durable_cursor("r", EARLIEST)) == numbered(5)


async def test_second_owner_fences_the_first() -> None:
    harness = LedgerHarness()
    async with harness.broker() as one, harness.broker() as two:
        mine = await one.open(NAME)
        cursor = await mine.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(mine, numbered(10))
        await acknowledge(cursor, positions[:3])
        told: list[MagnetarError] = []
        mine.add_fence_listener(told.append)
        theirs = await two.open(NAME)
        assert await read_all(theirs.cursors["sub"]) == numbered(7, 3)
        appends = Appends()
        for payload in numbered(3, 10):
            appends.append(mine, payload)
        await appends.wait(3)
        assert all(isinstance(error, ManagedLedgerFencedError) for error in appends.errors)
        assert mine.state is State.FENCED
        assert len(told) == 1
        with pytest.raises(ManagedLedgerFencedError):
            await mine.open_cursor("another")
        with pytest.raises(ManagedLedgerFencedError):
            await acknowledge(cursor, [positions[5]])
        await append_all(theirs, numbered(2, 10))
        await mine.close()
        assert await read_all(theirs.cursors["sub"]) == numbered(2, 10)
        assert (await one.open(NAME)) is not mine


async def test_fenced_cursor_does_not_overwrite_its_new_owner() -> None:
    harness = LedgerHarness()
    async with harness.broker() as one, harness.broker() as two:
        mine = await one.open(NAME)
        cursor = await mine.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(mine, numbered(10))
        await acknowledge(cursor, positions[:3])
        theirs = (await two.open(NAME)).cursors["sub"]
        with pytest.raises(ManagedLedgerFencedError):
            await acknowledge(cursor, positions[:9])
        assert mine.state is State.FENCED
        await acknowledge(theirs, [positions[3]])
    async with harness.broker() as three:
        assert (await three.open(NAME)).cursors["sub"].mark_delete_position == positions[3]


async def test_recovered_by_somebody_else_but_still_owned_goes_on() -> None:
    """Auto-recovery may close the ledger under its owner: entries under way that it found stored count as appended."""
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        first = await append_all(ledger, numbered(3))
        bookie.lost_add_answers = True
        appends = Appends()
        for payload in numbered(2, 3):
            appends.append(ledger, payload)
        bookie.lost_add_answers = False
        await harness.cluster.new_client(5).open_ledger(first[0].ledger_id, recover=True)
        appends.append(ledger, b"5")
        positions = await appends.wait(3)
        assert appends.stored == numbered(3, 3)
        assert [position.ledger_id == first[0].ledger_id for position in positions] == [True, True, False]
        assert await read_all(cursor) == numbered(6)


async def test_unanswered_add_was_stored_and_is_found_by_the_next_owner() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        await ledger.open_cursor("sub", initial=EARLIEST)
        await append_all(ledger, numbered(3))
        harness.cluster.bookies[0].lost_add_answers = True
        Appends().append(ledger, b"3")
    harness.cluster.bookies[0].lost_add_answers = False
    async with harness.broker() as factory:
        assert await read_all((await factory.open(NAME)).cursors["sub"]) == numbered(4)


async def test_terminate_is_for_good() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        positions = await append_all(ledger, numbered(4))
        appends = Appends()
        appends.append(ledger, b"4")
        end = await ledger.terminate()
        assert appends.stored == [b"4"], "what was under way is stored"
        assert end == Position(positions[0].ledger_id, 4) == ledger.last_confirmed
        assert ledger.terminated
        appends.append(ledger, b"5")
        assert isinstance(appends.errors[0], ManagedLedgerTerminatedError)
        assert await ledger.terminate() == end
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        assert ledger.terminated
        assert ledger.last_confirmed == end
        assert await read_all(ledger.new_non_durable_cursor("r", EARLIEST)) == numbered(5)
        appends.append(ledger, b"6")
        assert isinstance(appends.errors[1], ManagedLedgerTerminatedError)


async def test_terminate_an_empty_one() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        end = await ledger.terminate()
        assert end.entry_id == -1
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        assert ledger.last_confirmed == end
        assert ledger.terminated


async def test_close_completes_pending_appends_and_refuses_later_ones() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        appends = Appends()
        for payload in numbered(5):
            appends.append(ledger, payload)
        await ledger.close()
        assert appends.stored == numbered(5)
        appends.append(ledger, b"late")
        assert isinstance(appends.errors[0], ManagedLedgerClosedError)
        assert factory.cache.size_bytes == 0
        again = await factory.open(NAME)
        assert again is not ledger
        assert again.index.total_entries == 5


async def test_concurrent_opens_share_one_and_a_failed_one_can_be_repeated() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        strict = ManagedLedgerConfig(create_if_missing=False)
        with pytest.raises(ManagedLedgerNotFoundError):
            await factory.open(NAME, strict)
        assert not await factory.exists(NAME)
        opened = await asyncio.gather(*(factory.open(NAME) for _ in range(5)))
        assert len({id(ledger) for ledger in opened}) == 1
        assert await factory.exists(NAME)


async def test_delete_leaves_nothing() -> None:
    harness = LedgerHarness()
    config = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=5)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, numbered(12))
        await acknowledge(cursor, positions[:2])
        ids = [held.ledger_id for held in ledger.index]
        assert cursor._store is not None
        ids.append(cursor._store.ledger_id)
        await factory.delete(NAME)
        assert not await factory.exists(NAME)
        for ledger_id in ids:
            assert not await harness.cluster.client.ledger_exists(ledger_id)
        with pytest.raises(ManagedLedgerNotFoundError):
            await factory.delete(NAME)
        assert (await factory.open(NAME)).index.total_entries == 0


async def test_empty_ledgers_do_not_pile_up_over_restarts() -> None:
    harness = LedgerHarness()
    for _ in range(4):
        async with harness.broker() as factory:
            await factory.open(NAME)
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        assert len(ledger.index) == 1
        with pytest.raises(EntryNotFoundError):
            await ledger.read_entry(Position(ledger.current_ledger_id, 0))


async def test_age_rolls_a_ledger_that_gets_no_appends() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(max_rollover_age_ms=20))
        positions = await append_all(ledger, numbered(2))
        harness.clock.ms += 100
        await until(lambda: ledger.current_ledger_id > positions[0].ledger_id)
        empty = ledger.current_ledger_id
        harness.clock.ms += 100
        await ledger.rollover()
        assert ledger.current_ledger_id == empty, "an empty ledger is not rolled"


async def test_a_cursor_that_cannot_be_loaded_now_fails_the_open_and_the_next_one_works() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        cursors = [await ledger.open_cursor(f"sub{number}", initial=EARLIEST) for number in range(3)]
        positions = await append_all(ledger, numbered(4))
        for cursor in cursors:
            await acknowledge(cursor, positions[:2])
        first_id = positions[0].ledger_id
    async with harness.broker() as factory:
        client = factory._client
        opening = client.open_ledger

        async def failing(ledger_id: int, *, recover: bool) -> object:
            if ledger_id != first_id:
                raise BookieUnavailableError("not now")
            return await opening(ledger_id, recover=recover)

        client.open_ledger = failing  # type: ignore[assignment,method-assign]  # the fault
        with pytest.raises(BookieUnavailableError):
            await factory.open(NAME)
        client.open_ledger = opening  # type: ignore[method-assign]  # back again
        ledger = await factory.open(NAME)
        assert [cursor.mark_delete_position for cursor in ledger.cursors.values()] == [positions[1]] * 3


async def test_closed_and_opened_again_while_it_was_being_trimmed() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        for round_ in range(5):
            ledger = await factory.open(NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=3))
            cursor = await ledger.open_cursor("sub", initial=EARLIEST)
            positions = await append_all(ledger, numbered(10))
            cursor.acknowledge(positions)
            harness.clock.ms += 1
            trim = asyncio.get_running_loop().create_task(ledger.trim())
            for _ in range(round_):
                await asyncio.sleep(0)
            await ledger.close()
            await factory.open(NAME)
            await trim
            await (await factory.open(NAME)).close()


async def test_hung_appends_move_to_a_new_ledger_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_pipeline, "CHECK_INTERVAL_S", 0.005)
    monkeypatch.setattr(appender, "DRAIN_TIMEOUT_S", 0.01)
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME)
        await append_all(ledger, numbered(2))
        bookie.hung_adds = True
        appends = Appends()
        for payload in numbered(3, 2):
            appends.append(ledger, payload)
        await asyncio.sleep(0.02)
        assert not appends.answers
        bookie.hung_adds = False
        harness.clock.ms += 121_000
        await appends.wait(3)
        assert appends.stored == numbered(3, 2)


async def test_bookies_that_refuse_everything_are_not_answered_with_ledger_after_ledger() -> None:
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        first = ledger.current_ledger_id
        bookie.add_code = ReturnCode.IO_ERROR
        appends = Appends()
        for payload in numbered(5):
            appends.append(ledger, payload)
        await appends.wait(5)
        assert [data for data, _, _ in appends.answers] == numbered(5)
        assert all(isinstance(error, WriteFailedError) for error in appends.errors)
        assert ledger.state is State.WRITE_FAILED
        assert ledger.current_ledger_id - first < append_pipeline.BARREN_LEDGERS_MAX
        bookie.add_code = None
        ledger.resume_writes()
        assert len(await append_all(ledger, numbered(5))) == 5


async def test_producers_that_come_back_at_once_do_not_cost_ledgers_each_time() -> None:
    """A client reconnects five times a second, and each time lifts the hold of the refused entries; the pause it does not lift."""
    harness = LedgerHarness()
    bookie = harness.cluster.bookies[0]
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, KEEP)
        first = ledger.current_ledger_id
        bookie.add_code = ReturnCode.IO_ERROR
        for _ in range(150):
            appends = Appends()
            appends.append(ledger, b"x")
            await appends.wait(1)
            harness.clock.ms += 200
            ledger.resume_writes()
        assert ledger.current_ledger_id - first < 45, "thirty seconds: tries after 0.2, 0.4, ... 2 s, two ledgers each"
        bookie.add_code = None
        harness.clock.ms += round(append_pipeline.WRITE_FAILED_PAUSE_MAX_S * 1000)
        assert len(await append_all(ledger, numbered(5))) == 5
        bookie.add_code = ReturnCode.IO_ERROR
        appends = Appends()
        appends.append(ledger, b"y")
        await appends.wait(1)
        bookie.add_code = None
        ledger.resume_writes()
        assert len(await append_all(ledger, numbered(5))) == 5, "the first failure after a success costs no pause"


async def test_registered_by_another_broker_while_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty node says that the topic exists and nothing else: whoever opens it first has it."""
    harness = LedgerHarness()
    path = named_managed_ledger_path(NAME)
    async with harness.broker() as factory:
        put = harness.metadata.put

        async def registered_first(at: str, *args: Any, **kwargs: Any) -> Any:
            if at == path and await harness.metadata.get(path) is None:
                await put(path, b"", MUST_NOT_EXIST)
            return await put(at, *args, **kwargs)

        monkeypatch.setattr(harness.metadata, "put", registered_first)
        ledger = await factory.open(NAME)
        assert len(await append_all(ledger, numbered(3))) == 3


async def test_opened_by_another_broker_while_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = LedgerHarness()
    path = named_managed_ledger_path(NAME)
    async with harness.broker() as factory, harness.broker() as other:
        put = harness.metadata.put
        opened: list[object] = []

        async def opened_first(at: str, *args: Any, **kwargs: Any) -> Any:
            if at == path and not opened:
                opened.append(None)
                opened[0] = await other.open(NAME)
            return await put(at, *args, **kwargs)

        monkeypatch.setattr(harness.metadata, "put", opened_first)
        with pytest.raises(ManagedLedgerFencedError):
            await factory.open(NAME)


async def test_a_former_owner_that_closes_deletes_nothing_that_the_new_one_is_about_to_read() -> None:
    """The new owner has read the cursor's znode and not yet the cursor ledger that it names (found by the simulator)."""
    harness = LedgerHarness()
    async with harness.broker() as one, harness.broker() as two:
        mine = await one.open(NAME)
        cursor = await mine.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(mine, numbered(10))
        await acknowledge(cursor, [positions[0], positions[2], positions[4]])
        node_read, closed = asyncio.Event(), asyncio.Event()
        get = harness.metadata.get

        async def get_and_wait(path: str) -> Any:
            node = await get(path)
            if path == cursor_path(NAME, "sub") and not closed.is_set():
                node_read.set()
                await closed.wait()
            return node

        harness.metadata.get = get_and_wait  # type: ignore[method-assign]
        opening = asyncio.ensure_future(two.open(NAME))
        await node_read.wait()
        closed.set()
        await mine.close()
        theirs = (await opening).cursors["sub"]
        assert [theirs.is_acknowledged(position) for position in positions[:5]] == [True, False, True, False, True]


async def test_a_former_owner_confirms_no_acknowledgement_that_the_new_one_has_not_read() -> None:
    """Its first write of the cursor meets the version that it knows: the new owner has only read the cursor so far."""
    harness = LedgerHarness()
    async with harness.broker() as one, harness.broker() as two:
        mine = await one.open(NAME)
        cursor = await mine.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(mine, numbered(10))
        verified, taken_over = asyncio.Event(), asyncio.Event()
        put = harness.metadata.put

        async def wait_and_put(path: str, *args: Any, **more: Any) -> Any:
            if path == cursor_path(NAME, "sub") and not taken_over.is_set():
                verified.set()
                await taken_over.wait()
            return await put(path, *args, **more)

        harness.metadata.put = wait_and_put  # type: ignore[method-assign]
        acknowledging = asyncio.ensure_future(acknowledge(cursor, [positions[0]]))
        await verified.wait()
        theirs = (await two.open(NAME)).cursors["sub"]
        assert not theirs.is_acknowledged(positions[0])
        taken_over.set()
        with pytest.raises(ManagedLedgerFencedError):
            await acknowledging
        await acknowledge(theirs, [positions[1]])
    async with harness.broker() as three:
        stored = (await three.open(NAME)).cursors["sub"]
        assert not stored.is_acknowledged(positions[0])
        assert stored.is_acknowledged(positions[1])


async def test_what_is_behind_a_refused_entry_of_a_run_is_refused_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger fails while it takes a run that is longer than its room, and no other ledger can be opened."""
    harness = LedgerHarness()
    original = LedgerWriter.append_run
    calls: list[int] = []

    def append_run(self: LedgerWriter, entries: list[bytes], done: Any) -> None:
        calls.append(len(entries))
        if len(calls) in (1, 3):
            raise BookieUnavailableError("a bookie of the ensemble cannot be reached")
        original(self, entries, done)

    async with harness.broker() as factory:
        ledger = await factory.open(NAME, ManagedLedgerConfig(max_entries_per_ledger=3, min_rollover_age_ms=0))
        answers: list[tuple[str, int]] = []
        monkeypatch.setattr(LedgerWriter, "append_run", append_run)

        def told(name: str) -> Any:
            return lambda error, ledger_id, entry_id, count: answers.append((f"{name} {error is None}", count))

        ledger.append_run([b"first"], told("first"))
        assert ledger.state is State.SWITCHING
        ledger.append_run(numbered(10), told("run"))
        await until(lambda: sum(count for _, count in answers) == 11)
        assert {name for name, _ in answers} == {"first False", "run False"}
        assert ledger.pending_add_bytes == 0
        ledger.resume_writes()
        appends = Appends()
        appends.append(ledger, b"again")
        await appends.wait(1)
        assert sum(count for _, count in answers) == 11
