"""LAC and LAP, and how others learn of them: piggybacked, explicit, asked for, waited for (TestPiggybackLAC, ExplicitLacTest)."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import unpack_lac
from magnetar.bookkeeper.errors import AddQuorumTimeoutError, BookieRequestError, LedgerBusyError, LedgerRecoveryError
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read, read_all, settle

STRIPED = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}


def ensemble(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_window_between_lac_and_lap_moves_in_order() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**STRIPED)
    bookies = ensemble(cluster, writer)
    for bookie in bookies:
        bookie.held = []
    outcomes = Outcomes()
    for n in range(4):
        outcomes.append(writer, b"%d" % n)
    assert (writer.last_add_confirmed, writer.last_add_pushed) == (-1, 3)
    bookies[2].release()
    bookies[0].release()
    assert (writer.last_add_confirmed, writer.last_add_pushed) == (-1, 3), (
        "entry 2 is on 2 and 0, and waits for 0 and 1"
    )
    bookies[1].release()
    assert (writer.last_add_confirmed, writer.last_add_pushed) == (3, 3)
    assert outcomes.stored == [b"0", b"1", b"2", b"3"]


async def test_a_reader_lags_by_what_no_entry_has_told_yet() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**STRIPED)
    for n in range(5):
        await append_all(writer, [b"%d" % n])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    assert (writer.last_add_confirmed, reader.last_add_confirmed) == (4, 3)
    await append_all(writer, [b"5"])
    assert await reader.read_last_add_confirmed() == 4
    assert reader.length == 5
    assert await read_all(reader) == [b"%d" % n for n in range(5)]
    await writer.close()
    assert await reader.read_last_add_confirmed() == 5
    assert await read(reader, 5, 5) == [b"5"]
    assert await reader.try_read_last_add_confirmed() == 5


async def test_an_idle_writer_tells_its_lac_when_configured() -> None:
    cluster = Cluster(3, ClientConfig(explicit_lac_interval_s=0.01))
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0", b"1", b"2"])
    bookies = ensemble(cluster, writer)
    await until(lambda: cluster.client.statistics.explicit_lacs == 1)
    told = [bookie for bookie in bookies if writer.ledger_id in bookie.lacs]
    assert told == [bookies[0], bookies[2]], "the write set of entry 2"
    assert unpack_lac(told[0].lacs[writer.ledger_id], writer._digest, writer.ledger_id) == 2
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 2
    assert await read_all(reader) == [b"0", b"1", b"2"]
    assert writer._timers is not None
    await until(lambda: writer._timers._lac_timer is None)
    await append_all(writer, [b"3"])
    await until(lambda: cluster.client.statistics.explicit_lacs == 2)


async def test_try_read_takes_the_first_news() -> None:
    cluster = Cluster(3, ClientConfig(speculative_read_timeout_s=0.01))
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    for n in range(1, 5):
        await append_all(writer, [b"%d" % n])
    bookies = ensemble(cluster, writer)
    bookies[0].hung_reads = True
    cluster_lac = await reader.try_read_last_add_confirmed()
    assert 0 < cluster_lac <= 3
    bookies[0].hung_reads = False
    for bookie in bookies:
        bookie.read_code = ReturnCode.IO_ERROR
    with pytest.raises(LedgerRecoveryError):
        await reader.read_last_add_confirmed()
    assert await reader.try_read_last_add_confirmed() == cluster_lac, "LAC never goes back"


async def test_waiting_ends_with_the_next_entry() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == -1
    waiting = asyncio.ensure_future(reader.wait_last_add_confirmed(30))
    await settle()
    assert not waiting.done()
    await append_all(writer, [b"1"])
    assert await waiting == 0
    assert await read_all(reader) == [b"0"]


async def test_waiting_ends_with_the_close_and_with_its_time() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    assert await reader.wait_last_add_confirmed(0.02) == -1
    await writer.close()
    assert await reader.wait_last_add_confirmed(30) == 0
    assert await read_all(reader) == [b"0"]


async def test_a_tail_follows_the_ledger_to_other_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.reader.POLL_S", 0.02)
    cluster = Cluster(6)
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    first = ensemble(cluster, writer)
    waiting = asyncio.ensure_future(reader.wait_last_add_confirmed(30))
    await settle()
    for bookie in first:
        bookie.add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"1"])
    await append_all(writer, [b"2"])
    assert await waiting >= 0
    assert await reader.read_last_add_confirmed() == 1
    assert await read_all(reader) == [b"0", b"1"]


async def test_an_entry_without_its_quorum_fails_the_writer_in_time() -> None:
    cluster = Cluster(3, ClientConfig(add_quorum_timeout_s=0.05))
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    ensemble(cluster, writer)[1].hung_adds = True
    outcomes = Outcomes()
    for n in range(3):
        outcomes.append(writer, b"%d" % n)
    await until(lambda: outcomes.calls)
    assert {type(error) for error in outcomes.errors} == {AddQuorumTimeoutError}
    assert len(outcomes.calls) == 3
    await writer.close()
    assert writer.metadata.last_entry_id == 0


async def test_a_quorum_in_time_is_no_timeout() -> None:
    cluster = Cluster(3, ClientConfig(add_quorum_timeout_s=0.05))
    writer = await cluster.client.create_ledger(**STRIPED)
    loop = asyncio.get_running_loop()
    start = loop.time()
    while loop.time() - start < 0.2:
        await append_all(writer, [b"x"])
        await asyncio.sleep(0.005)
    assert not writer.closed


async def test_too_many_entries_under_way_are_refused_and_the_writer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.writer.PENDING_ADDS_MAX", 3)
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    cluster.bookies[0].held = []
    outcomes = Outcomes()
    assert [outcomes.append(writer, b"%d" % n) for n in range(5)] == [0, 1, 2, -1, -1]
    assert [type(error) for error in outcomes.errors] == [LedgerBusyError, LedgerBusyError]
    cluster.bookies[0].release()
    assert outcomes.stored == [b"0", b"1", b"2"]
    await append_all(writer, [b"3"])
    assert await read_all(writer) == [b"0", b"1", b"2", b"3"]


async def test_force_needs_every_bookie_of_the_ensemble() -> None:
    cluster = Cluster(4)
    writer = await cluster.client.create_ledger(**STRIPED)
    await append_all(writer, [b"0"])
    await writer.force()
    bookies = ensemble(cluster, writer)
    assert [bookie.forces for bookie in bookies] == [1, 1, 1]
    bookies[2].add_code = ReturnCode.IO_ERROR
    with pytest.raises(BookieRequestError):
        await writer.force()
