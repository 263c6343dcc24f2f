"""Recoveries whose bookies fail while the tail is copied: replaced for this recovery, written together with the close or not at all.

The cases are those of BookKeeper's LedgerRecovery2Test and ParallelLedgerRecoveryTest, told anew.
"""

from __future__ import annotations

import asyncio

import pytest

from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import LAST_ENTRY, ReturnCode
from magnetar.bookkeeper.errors import LedgerRecoveryError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all, settle

THREE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


async def abandoned(cluster: Cluster, unknown: int) -> tuple[LedgerWriter, list[FakeBookie], list[bytes]]:
    """A writer that vanished with `unknown` entries stored that its bookies do not know to be confirmed."""
    writer = await cluster.client.create_ledger(**THREE)
    await append_all(writer, [b"0"])
    bookies = [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]
    payloads = [b"%d" % n for n in range(1 + unknown)]
    outcomes = Outcomes()
    for payload in payloads[1:]:
        outcomes.append(writer, payload)
    await settle()
    assert len(outcomes.stored) == unknown
    return writer, bookies, payloads


async def stored_metadata(cluster: Cluster, writer: LedgerWriter) -> LedgerMetadata:
    return await cluster.client.read_metadata(writer.ledger_id)


async def test_a_bookie_that_cannot_take_the_tail_is_replaced_with_the_close() -> None:
    cluster = Cluster(4)
    writer, bookies, payloads = await abandoned(cluster, 5)
    bookies[1].add_code = ReturnCode.IO_ERROR
    before = await stored_metadata(cluster, writer)
    cluster.metadata.gate = asyncio.Event()
    opening = asyncio.ensure_future(cluster.new_client(8).open_ledger(writer.ledger_id, recover=True))
    await settle()
    cluster.metadata.gate.set()
    cluster.metadata.gate = asyncio.Event()
    await settle()
    during = await stored_metadata(cluster, writer)
    assert during.state is LedgerState.IN_RECOVERY
    assert during.segments == before.segments, "metadata in recovery gets no segment"
    cluster.metadata.gate.set()
    reader = await opening
    metadata = await stored_metadata(cluster, writer)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id == len(payloads) - 1
    assert [segment.first_entry_id for segment in metadata.segments] == [0, 1]
    assert metadata.segments[1].ensemble[1] not in before.last_segment.ensemble
    spare = cluster.bookie(metadata.segments[1].ensemble[1])
    assert sorted(spare.entries[writer.ledger_id]) == [1, 2, 3, 4, 5]
    assert await read_all(reader) == payloads


async def test_two_bookies_that_fail_on_the_same_entry() -> None:
    cluster = Cluster(5)
    writer, bookies, payloads = await abandoned(cluster, 4)
    bookies[0].add_codes[2] = bookies[2].add_codes[2] = ReturnCode.IO_ERROR
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == payloads
    assert len({name for segment in reader.metadata.segments for name in segment.ensemble}) == 5
    reader.metadata.validate()


async def test_two_bookies_that_fail_on_different_entries() -> None:
    cluster = Cluster(5)
    writer, bookies, payloads = await abandoned(cluster, 4)
    bookies[0].add_codes[1] = bookies[2].add_codes[3] = ReturnCode.IO_ERROR
    bookies[1].delay = 2
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == payloads
    reader.metadata.validate()


async def test_a_replacement_that_cannot_take_the_tail_either() -> None:
    cluster = Cluster(5)
    writer, bookies, payloads = await abandoned(cluster, 3)
    bad = next(bookie for bookie in cluster.bookies if bookie not in bookies)
    bad.add_code = bookies[0].add_code = ReturnCode.IO_ERROR
    for seed in range(3):
        reader = await cluster.new_client(seed).open_ledger(writer.ledger_id, recover=True)
        assert await read_all(reader) == payloads


async def test_a_failed_bookie_beyond_the_ack_quorum_needs_no_replacement() -> None:
    cluster = Cluster(3)
    writer, bookies, payloads = await abandoned(cluster, 3)
    bookies[0].add_code = ReturnCode.IO_ERROR
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == payloads
    assert len(reader.metadata.segments) == 1


async def test_without_replacements_the_recovery_fails_and_the_next_one_continues() -> None:
    cluster = Cluster(3)
    writer, bookies, payloads = await abandoned(cluster, 3)
    bookies[0].add_code = bookies[1].add_code = ReturnCode.IO_ERROR
    with pytest.raises(LedgerRecoveryError, match="could not be copied"):
        await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    metadata = await stored_metadata(cluster, writer)
    assert (metadata.state, len(metadata.segments)) == (LedgerState.IN_RECOVERY, 1)
    bookies[0].add_code = bookies[1].add_code = None
    reader = await cluster.new_client(9).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == payloads


async def test_what_was_replaced_is_forgotten_when_another_recovery_was_faster() -> None:
    cluster = Cluster(4)
    writer, bookies, payloads = await abandoned(cluster, 3)
    bookies[1].add_code = ReturnCode.IO_ERROR
    spare = next(bookie for bookie in cluster.bookies if bookie not in bookies)
    spare.held = []
    bookies[0].held = []
    slow = asyncio.ensure_future(cluster.new_client(8).open_ledger(writer.ledger_id, recover=True))
    await settle()
    bookies[1].add_code = None
    bookies[0].release()
    fast = await cluster.new_client(9).open_ledger(writer.ledger_id, recover=True)
    closed = await stored_metadata(cluster, writer)
    assert closed.state is LedgerState.CLOSED
    spare.release()
    late = await slow
    assert late.metadata == fast.metadata == closed
    assert await read_all(late) == await read_all(fast) == payloads


async def test_entries_are_read_ahead_and_what_follows_the_first_missing_one_is_dropped() -> None:
    cluster = Cluster(3)
    writer, bookies, payloads = await abandoned(cluster, 40)
    for bookie in bookies:
        bookie.entries[writer.ledger_id].pop(30)
    asked: list[int] = []
    reads = bookies[0].read_entry

    def counting(ledger_id: int, entry_id: int, *rest: object) -> None:
        asked.append(entry_id)
        reads(ledger_id, entry_id, *rest)  # type: ignore[arg-type]

    bookies[0].read_entry = counting  # type: ignore[method-assign]
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 29
    assert await read_all(reader) == payloads[:30]
    recovery = asked[: asked.index(30) + 16]
    assert recovery[0] == LAST_ENTRY
    assert max(recovery) <= 45
    statistics = cluster.client.statistics
    assert statistics.recoveries == 0, "of that client"


async def test_racing_recoveries_over_failing_bookies_agree() -> None:
    cluster = Cluster(6)
    writer, bookies, payloads = await abandoned(cluster, 10)
    for number, bookie in enumerate(bookies):
        bookie.delay = number
        bookie.add_codes = {2 * number + 1: ReturnCode.IO_ERROR, 7: ReturnCode.READ_ONLY}
    opened: list[LedgerReader] = await asyncio.gather(
        *(cluster.new_client(seed).open_ledger(writer.ledger_id, recover=True) for seed in range(4))
    )
    assert len({(reader.last_add_confirmed, reader.length) for reader in opened}) == 1
    for reader in opened:
        assert await read_all(reader) == payloads
        assert reader.metadata == opened[0].metadata
