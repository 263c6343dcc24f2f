"""Recovery: nothing confirmed is lost, nothing is added afterwards, and no error counts as "does not exist"."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.bookkeeper.client import client
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.errors import (
    LedgerFencedError,
    LedgerRecoveryError,
    LedgerUnauthorizedError,
    NoSuchLedgerError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerState, Segment
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all, settle

THREE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


def ensemble(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]


@pytest.mark.parametrize("sizes", [{}, THREE, {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}])
async def test_what_a_vanished_writer_confirmed_is_there(sizes: dict[str, int]) -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**sizes)
    payloads = [b"%d" % n for n in range(200)]
    await append_all(writer, payloads)
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == payloads
    assert reader.length == sum(map(len, payloads))
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 199, reader.length)


async def test_the_old_writer_is_fenced() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"a"])
    await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    outcomes = Outcomes()
    outcomes.append(writer, b"late")
    await settle()
    assert [type(error) for error in outcomes.errors] == [LedgerFencedError]
    assert writer.closed


async def test_every_recovery_read_fences_and_every_add_says_that_it_is_one() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"a", b"b"])
    for bookie in cluster.bookies:
        bookie.add_flags.clear()
    await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    for bookie in cluster.bookies:
        assert set(bookie.read_flags) == {FLAG_FENCE | FLAG_HIGH_PRIORITY}
        assert set(bookie.add_flags) == {FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY}


async def test_an_add_that_arrives_after_its_absence_was_counted_is_refused() -> None:
    """The first fence to one bookie is lost; its "no" still counts, so the read that asked must have fenced it."""
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"a"])
    holder, without, late = ensemble(cluster, writer)
    without.hung_adds = True
    late.travelling = []
    outcomes = Outcomes()
    outcomes.append(writer, b"in flight")
    await settle()
    holder.delay = 10
    late.lost_fence = True
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 0
    for arrive in late.travelling:
        arrive()
    await settle()
    assert outcomes.stored == [], "the ledger is closed below this entry"
    assert [type(error) for error in outcomes.errors] == [LedgerFencedError]


async def test_a_closed_ledger_is_not_fenced() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    await writer.close()
    await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert cluster.bookies[0].read_flags == []


async def test_an_empty_ledger_is_fenced_and_closed_empty() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)
    assert all(writer.ledger_id in bookie.fenced for bookie in cluster.bookies)


async def test_an_entry_on_one_bookie_only_is_copied_to_the_ack_quorum() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"a"])
    first, second, third = ensemble(cluster, writer)
    second.hung_adds = third.hung_adds = True
    outcomes = Outcomes()
    outcomes.append(writer, b"unconfirmed")
    await settle()
    assert outcomes.calls == []
    second.hung_adds = False
    third.hung_reads = True  # with its "no" there would be proof that nobody was told of the entry
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (1, len(b"a" + b"unconfirmed"))
    assert 1 in first.entries[writer.ledger_id]
    assert 1 in second.entries[writer.ledger_id]


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_one_hung_bookie_does_not_stop_a_recovery(index: int) -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    payloads = [b"%d" % n for n in range(20)]
    await append_all(writer, payloads)
    hung = ensemble(cluster, writer)[index]
    hung.hung_adds = hung.hung_reads = True
    async with asyncio.timeout(60):
        reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 19


@pytest.mark.parametrize("code", [ReturnCode.IO_ERROR, ReturnCode.UNKNOWN_LEDGER_STATE, -8, -23])
async def test_errors_are_not_negatives_and_a_retry_continues(code: int) -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"a", b"b"])
    bookies = ensemble(cluster, writer)
    for bookie in bookies[:2]:
        bookie.read_code = code
    other = cluster.new_client(8)
    with pytest.raises(LedgerRecoveryError):
        await other.open_ledger(writer.ledger_id, recover=True)
    assert (await other.read_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    for bookie in bookies[:2]:
        bookie.read_code = None
    reader = await other.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == [b"a", b"b"]


async def test_an_entry_that_only_an_erring_bookie_may_hold_leaves_the_end_undecided() -> None:
    """Qa = 1: the one holder answers with an error, the others say no. Closing before it would lose a confirmed entry."""
    cluster = Cluster(2)
    writer = await cluster.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=1)
    first, second = ensemble(cluster, writer)
    await append_all(writer, [b"on both"])
    second.hung_adds = True
    await append_all(writer, [b"on the first"])
    second.hung_adds = False
    first.read_code = ReturnCode.IO_ERROR
    other = cluster.new_client(8)
    with pytest.raises(LedgerRecoveryError):
        await other.open_ledger(writer.ledger_id, recover=True)
    first.read_code = None
    reader = await other.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == [b"on both", b"on the first"]


async def test_an_error_and_one_negative_do_not_outvote_a_slow_copy() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    failing, without, slow = ensemble(cluster, writer)
    without.hung_adds = True
    await append_all(writer, [b"confirmed"])
    without.hung_adds = False
    failing.read_code = ReturnCode.IO_ERROR
    slow.delay = 5
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == [b"confirmed"]


async def test_a_damaged_copy_proves_nothing() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a", b"b"])
    held = cluster.bookies[0].entries[writer.ledger_id]
    good, held[1] = held[1], held[1][:-1] + b"?"
    other = cluster.new_client(8)
    with pytest.raises(LedgerRecoveryError):
        await other.open_ledger(writer.ledger_id, recover=True)
    held[1] = good
    assert (await other.open_ledger(writer.ledger_id, recover=True)).last_add_confirmed == 1


async def test_a_hole_ends_the_ledger_and_the_length_is_that_of_what_remains() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"aa"])
    await append_all(writer, [b"bb"])
    bookies = ensemble(cluster, writer)
    outcomes = Outcomes()
    for bookie in bookies:
        bookie.hung_adds = True
    outcomes.append(writer, b"never arrives anywhere")
    bookies[0].hung_adds = False
    outcomes.append(writer, b"arrives on one")
    await settle()
    for bookie in bookies:
        bookie.hung_adds = False
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (1, 4)
    assert await read_all(reader) == [b"aa", b"bb"]
    assert outcomes.stored == []


async def test_an_empty_last_segment_keeps_end_and_length_of_the_one_before() -> None:
    cluster = Cluster(2)
    writer = await cluster.client.create_ledger()
    payloads = [b"x" * 10] * 5
    await append_all(writer, payloads)
    manager = cluster.client._manager
    metadata, version = await manager.read(writer.ledger_id)
    empty = "b1" if metadata.last_segment.ensemble == ("b0",) else "b0"
    metadata = replace(metadata, segments=(*metadata.segments, Segment(5, (empty,))))
    await manager.write(writer.ledger_id, metadata, version)
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (4, 50)
    assert await read_all(reader) == payloads
    assert len(reader.metadata.segments) == 2


async def test_racing_recoveries_agree() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"%d" % n for n in range(50)])
    readers = await asyncio.gather(
        *(cluster.new_client(seed).open_ledger(writer.ledger_id, recover=True) for seed in range(5))
    )
    assert {(reader.last_add_confirmed, reader.length) for reader in readers} == {(49, 90)}


async def test_a_recovery_adopts_what_the_writer_closed_meanwhile() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    cluster.bookies[0].lost_add_answers = True
    writer.append(b"unconfirmed", lambda error: None)
    cluster.bookies[0].lost_add_answers = False
    cluster.bookies[0].held = []
    opening = asyncio.get_running_loop().create_task(cluster.new_client(8).open_ledger(writer.ledger_id, recover=True))
    await settle()
    await writer.close()
    cluster.bookies[0].release()
    reader = await opening
    assert (reader.last_add_confirmed, reader.length) == (0, 1)


async def test_a_failing_copy_fails_the_recovery() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    cluster.bookies[0].add_code = ReturnCode.IO_ERROR
    other = cluster.new_client(8)
    with pytest.raises(LedgerRecoveryError, match="could not be copied"):
        await other.open_ledger(writer.ledger_id, recover=True)
    assert (await other.read_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


@pytest.mark.parametrize("recover", [True, False])
async def test_an_open_that_nobody_answers_ends(recover: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "OPEN_TIMEOUT_S", 0.05)
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    cluster.bookies[0].hung_reads = True
    with pytest.raises(LedgerRecoveryError, match="did not answer"):
        await cluster.new_client(8).open_ledger(writer.ledger_id, recover=recover)


async def test_a_wrong_key_fails_at_once() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(**THREE)
    cluster.bookies[1].read_code = ReturnCode.UNAUTHORIZED
    cluster.bookies[0].hung_reads = cluster.bookies[2].hung_reads = True
    with pytest.raises(LedgerUnauthorizedError):
        await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)


async def test_a_ledger_deleted_under_its_recovery() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    cluster.bookies[0].held = []
    opening = asyncio.get_running_loop().create_task(cluster.new_client(8).open_ledger(writer.ledger_id, recover=True))
    await settle()
    await cluster.client.delete_ledger(writer.ledger_id)
    cluster.bookies[0].release()
    with pytest.raises(NoSuchLedgerError):
        await opening
