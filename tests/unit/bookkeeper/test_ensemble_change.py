"""A writer whose bookies fail: what is replaced when, what is sent again, and what other clients see meanwhile.

The interleavings are those of BookKeeper's HandleFailuresTest, TestDelayEnsembleChange and TestMaxEnsembleChangeNum, and of its
issues 1591, 3005, 4261 and 4459.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from magnetar.base.errors import LedgerError, MetadataError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.placement import Candidate, PlacementPolicy
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.errors import (
    BookieOverloadedError,
    BookieReadOnlyError,
    BookieRequestError,
    LedgerClosedError,
    LedgerFencedError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerState
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all, settle


async def open_writer(
    cluster: Cluster, quorums: tuple[int, int, int] = (3, 2, 2)
) -> tuple[LedgerWriter, list[FakeBookie]]:
    """A writer and its bookies, by index."""
    ensemble, write, ack = quorums
    writer = await cluster.client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
    return writer, [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]


async def until_settled(writer: LedgerWriter) -> None:
    async with asyncio.timeout(60):
        while writer.pending_count:
            await asyncio.sleep(0)


async def copies(cluster: Cluster, writer: LedgerWriter) -> None:
    """Every confirmed entry is on its whole ack quorum of the bookies that the stored metadata names."""
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    for entry_id in range(writer.last_add_confirmed + 1):
        ensemble = metadata.segments[metadata.segment_index(entry_id)].ensemble
        holders = [
            index
            for index in ((entry_id + i) % metadata.ensemble_size for i in range(metadata.write_quorum))
            if entry_id in cluster.bookie(ensemble[index]).entries.get(writer.ledger_id, {})
        ]
        assert len(holders) >= metadata.ack_quorum, f"entry {entry_id}"


async def test_a_failed_bookie_is_replaced_behind_the_lac_and_nothing_is_lost() -> None:
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster)
    before = writer.metadata.last_segment.ensemble
    await append_all(writer, [b"%d" % n for n in range(7)])
    bookies[1].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"%d" % n for n in range(7, 15)])
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert [segment.first_entry_id for segment in metadata.segments] == [0, 7]
    after = metadata.last_segment.ensemble
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] not in before
    assert metadata == writer.metadata
    await copies(cluster, writer)
    assert await read_all(writer) == [b"%d" % n for n in range(15)]
    statistics = cluster.client.statistics
    assert (statistics.ensemble_changes, statistics.bookies_replaced) == (1, 1)
    assert 0 < statistics.ensemble_change_s_max == statistics.ensemble_change_s_total < 5


class HighestFirst(PlacementPolicy):
    """The order of the survey's example."""

    def _pick(self, size: int, write_quorum: int, pool: Sequence[Candidate]) -> tuple[str, ...]:
        return tuple(sorted((candidate.bookie_id for candidate in pool), reverse=True)[:size])


async def test_ledger_sixteen_of_the_survey() -> None:
    """E=3, Qw=Qa=2: bookie 3183 goes at LAC 46, 3182 takes over from entry 47."""
    cluster = Cluster(0)
    cluster.directory.policy = HighestFirst()
    bookies = {f"10.13.48.57:{port}": FakeBookie() for port in (3183, 3184, 3185)}
    for bookie_id, bookie in bookies.items():
        cluster.directory.register(bookie_id, bookie)
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    await append_all(writer, [b"%d" % n for n in range(47)])
    cluster.directory.register("10.13.48.57:3182", FakeBookie())
    bookies["10.13.48.57:3183"].add_code = -8
    await append_all(writer, [b"47", b"48", b"49"])
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert metadata.segments == (
        (0, ("10.13.48.57:3185", "10.13.48.57:3184", "10.13.48.57:3183")),
        (47, ("10.13.48.57:3185", "10.13.48.57:3184", "10.13.48.57:3182")),
    )
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.OPEN, -1)


async def test_a_change_before_anything_is_confirmed_replaces_the_only_segment() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    bookies[1].add_code = ReturnCode.TOO_MANY_REQUESTS
    await append_all(writer, [b"0", b"1", b"2"])
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert [segment.first_entry_id for segment in metadata.segments] == [0]
    await copies(cluster, writer)


async def test_nothing_is_sent_to_the_new_bookie_nor_confirmed_before_the_metadata_is_stored() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    spare = next(bookie for bookie in cluster.bookies if bookie not in bookies)
    cluster.metadata.gate = asyncio.Event()
    bookies[0].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    outcomes.append(writer, b"1")
    await settle()
    assert writer.changing_ensemble
    assert outcomes.calls == [], "two acknowledgements are there, but a reader could not find the entry"
    assert spare.entries == {}
    cluster.metadata.gate.set()
    await until_settled(writer)
    assert outcomes.stored == [b"0", b"1"]
    assert sorted(spare.entries[writer.ledger_id]) == [0, 1]


async def test_two_bookies_that_fail_together_are_one_change() -> None:
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster, (3, 3, 3))
    cluster.metadata.gate = asyncio.Event()
    bookies[0].add_code = bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await settle()
    cluster.metadata.gate.set()
    await until_settled(writer)
    assert outcomes.stored == [b"0"]
    assert cluster.client.statistics.ensemble_changes == 1
    assert cluster.client.statistics.bookies_replaced == 2
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert len(metadata.segments) == 1
    await copies(cluster, writer)


async def test_a_failure_during_a_change_is_another_round_of_it() -> None:
    cluster = Cluster(6)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    cluster.metadata.gate = asyncio.Event()
    bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"1")
    await settle()
    bookies[2].add_code = ReturnCode.IO_ERROR
    outcomes.append(writer, b"2")
    await settle()
    assert outcomes.calls == []
    cluster.metadata.gate.set()
    await until_settled(writer)
    assert outcomes.stored == [b"1", b"2"]
    segments = (await cluster.client.read_metadata(writer.ledger_id)).segments
    assert [segment.first_entry_id for segment in segments] == [0, 1]
    assert segments[0].ensemble[0] == segments[1].ensemble[0]
    assert not set(segments[0].ensemble[1:]) & set(segments[1].ensemble)
    await copies(cluster, writer)


async def test_the_new_bookie_fails_as_well() -> None:
    cluster = Cluster(6)
    writer, bookies = await open_writer(cluster)
    for bookie in cluster.bookies:
        if bookie not in bookies:
            bookie.add_code = ReturnCode.IO_ERROR
    well = [bookie for bookie in cluster.bookies if bookie not in bookies][-1]
    well.add_code = None
    bookies[0].add_code = ReturnCode.READ_ONLY
    await append_all(writer, [b"%d" % n for n in range(6)])
    assert well in [cluster.bookie(name) for name in writer.metadata.last_segment.ensemble]
    await copies(cluster, writer)


async def test_an_acknowledgement_of_a_replaced_bookie_counts_no_more() -> None:
    """Its entry is complete, waits behind another one, and is then below its quorum on the new ensemble (issue 3005)."""
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    spare = next(bookie for bookie in cluster.bookies if bookie not in bookies)
    spare.held = []
    bookies[1].add_codes[0] = ReturnCode.IO_ERROR
    cluster.metadata.gate = asyncio.Event()
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    outcomes.append(writer, b"1")
    await settle()
    assert 1 in bookies[1].entries[writer.ledger_id]
    cluster.metadata.gate.set()
    await settle()
    assert outcomes.calls == [], "entry 1 had two acknowledgements, one of them of the bookie that left"
    assert sorted(spare.entries[writer.ledger_id]) == [0, 1]
    spare.release()
    await until_settled(writer)
    assert outcomes.stored == [b"0", b"1"]
    await copies(cluster, writer)


async def test_late_answers_of_a_replaced_bookie_mean_nothing() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    bookies[0].held = []
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await settle()
    answer = bookies[0].held.pop()
    bookies[0].add_code, bookies[0].held = ReturnCode.IO_ERROR, None
    outcomes.append(writer, b"1")
    outcomes.append(writer, b"2")
    await until_settled(writer)
    changes = cluster.client.statistics.ensemble_changes
    answer()
    await settle()
    assert outcomes.stored == [b"0", b"1", b"2"]
    assert (cluster.client.statistics.ensemble_changes, writer.closed) == (changes, False)


async def test_entries_of_other_write_sets_are_not_sent_again() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    for bookie in bookies[1:]:
        bookie.held = []
    bookies[0].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    for n in range(3):
        outcomes.append(writer, b"%d" % n)
    await settle()
    spare = cluster.bookie(writer.metadata.last_segment.ensemble[0])
    assert spare not in bookies
    assert sorted(spare.entries[writer.ledger_id]) == [0, 2], "entry 1 is on the indexes 1 and 2"
    for bookie in bookies[1:]:
        assert bookie.add_flags == [0, 0]
        bookie.release()
    await until_settled(writer)
    assert outcomes.stored == [b"0", b"1", b"2"]


async def test_without_a_replacement_a_writer_lives_on_its_ack_quorum() -> None:
    cluster = Cluster(3)
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    bookies[0].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"%d" % n for n in range(5)])
    assert cluster.client.statistics.ensemble_changes == 0
    bookies.append(FakeBookie())
    cluster.bookies.append(bookies[-1])
    cluster.directory.register("b3", bookies[-1])
    await append_all(writer, [b"5", b"6"])
    assert writer.metadata.last_segment.ensemble[0] == "b3", "as soon as there is one it is taken"
    await copies(cluster, writer)


async def test_without_a_replacement_and_a_quorum_the_writer_fails_with_the_reason() -> None:
    cluster = Cluster(3)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    bookies[1].add_code = ReturnCode.READ_ONLY
    outcomes = Outcomes()
    for payload in (b"x", b"y"):
        outcomes.append(writer, payload)
    await settle()
    assert [type(error) for error in outcomes.errors] == [BookieReadOnlyError, BookieReadOnlyError]
    await writer.close()
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 0, 1)


async def test_one_of_two_failed_bookies_can_be_replaced() -> None:
    """Partial replacement: it is written, and whether the writer lives on depends on the other one."""
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    cluster.metadata.gate = asyncio.Event()
    bookies[0].add_code = bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await settle()
    cluster.metadata.gate.set()
    await until_settled(writer)
    assert outcomes.stored == [b"0"]
    assert cluster.client.statistics.bookies_replaced == 1


async def test_partial_replacement_is_not_enough_for_the_ack_quorum() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster, (3, 3, 3))
    bookies[0].add_code = bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await until_settled(writer)
    assert [type(error) for error in outcomes.errors] == [BookieRequestError]
    await writer.close()
    assert writer.metadata.last_entry_id == -1


async def test_an_overloaded_bookie_nobody_can_replace_is_asked_again() -> None:
    cluster = Cluster(1)
    writer, bookies = await open_writer(cluster, (1, 1, 1))
    bookies[0].add_codes = {0: ReturnCode.TOO_MANY_REQUESTS, 1: ReturnCode.TOO_MANY_REQUESTS}
    await append_all(writer, [b"0", b"1", b"2"])
    assert cluster.client.statistics.add_retries == 2
    assert await read_all(writer) == [b"0", b"1", b"2"]


async def test_an_overload_that_does_not_end_fails_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.writer.OVERLOAD_RETRIES_MAX", 2)
    cluster = Cluster(1)
    writer, bookies = await open_writer(cluster, (1, 1, 1))
    bookies[0].add_code = ReturnCode.TOO_MANY_REQUESTS
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await until_settled(writer)
    assert [type(error) for error in outcomes.errors] == [BookieOverloadedError]


async def test_a_single_copy_moves_to_another_bookie() -> None:
    cluster = Cluster(2)
    writer, bookies = await open_writer(cluster, (1, 1, 1))
    await append_all(writer, [b"0"])
    bookies[0].held = []
    outcomes = Outcomes()
    outcomes.append(writer, b"1")
    late = bookies[0].held.pop()
    bookies[0].held, bookies[0].add_code = None, ReturnCode.IO_ERROR
    outcomes.append(writer, b"2")
    await until_settled(writer)
    late()
    outcomes.append(writer, b"3")
    await until_settled(writer)
    assert outcomes.stored == [b"1", b"2", b"3"]
    assert [segment.first_entry_id for segment in writer.metadata.segments] == [0, 1]
    await copies(cluster, writer)


async def test_a_failure_after_the_confirmation_waits_for_the_next_entry() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    bookies[2].held = []
    bookies[2].add_codes[0] = ReturnCode.IO_ERROR
    await append_all(writer, [b"0"])
    bookies[2].release()
    await settle()
    assert not writer.changing_ensemble
    assert cluster.client.statistics.ensemble_changes == 0
    await append_all(writer, [b"1"])
    assert [segment.first_entry_id for segment in writer.metadata.segments] == [0, 1]
    await copies(cluster, writer)


async def test_delayed_change_waits_until_the_quorum_is_out_of_reach() -> None:
    cluster = Cluster(5, ClientConfig(delay_ensemble_change=True))
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    bookies[0].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"%d" % n for n in range(4)])
    assert cluster.client.statistics.ensemble_changes == 0
    bookies[1].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"4"])
    assert cluster.client.statistics.ensemble_changes == 1
    assert cluster.client.statistics.bookies_replaced == 2, "the one that was borne goes along"
    assert [segment.first_entry_id for segment in writer.metadata.segments] == [0, 4]
    await copies(cluster, writer)


async def test_delayed_change_does_not_wait_for_a_read_only_bookie() -> None:
    cluster = Cluster(5, ClientConfig(delay_ensemble_change=True))
    writer, bookies = await open_writer(cluster, (3, 3, 2))
    bookies[0].held = bookies[1].held = []
    bookies[2].add_code = ReturnCode.READ_ONLY
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await settle()
    assert cluster.client.statistics.ensemble_changes == 1
    for answer in bookies[0].held:
        answer()
    await until_settled(writer)
    assert outcomes.stored == [b"0"]


async def test_no_more_than_the_allowed_number_of_changes() -> None:
    cluster = Cluster(6, ClientConfig(ensemble_changes_max=1))
    writer, bookies = await open_writer(cluster)
    bookies[0].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"0"])
    bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"1")
    await until_settled(writer)
    assert [type(error) for error in outcomes.errors] == [BookieRequestError]
    assert len((await cluster.client.read_metadata(writer.ledger_id)).segments) == 1


@pytest.mark.parametrize(
    ("state", "error"), [(LedgerState.IN_RECOVERY, LedgerFencedError), (LedgerState.CLOSED, LedgerClosedError)]
)
async def test_a_change_that_meets_another_owner_ends_the_writer(state: LedgerState, error: type[LedgerError]) -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    manager = cluster.client._manager
    metadata, version = await manager.read(writer.ledger_id)
    taken = metadata.in_recovery() if state is LedgerState.IN_RECOVERY else metadata.closed(0, 1)
    await manager.write(writer.ledger_id, taken, version)
    bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"1")
    await until_settled(writer)
    assert [type(e) for e in outcomes.errors] == [error]
    assert (await cluster.client.read_metadata(writer.ledger_id)).segments == metadata.segments, "no segment was added"
    assert cluster.client.statistics.ensemble_change_failures == 1


async def test_a_conflict_with_the_failed_bookie_still_there_is_written_again() -> None:
    cluster = Cluster(4)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    manager = cluster.client._manager
    metadata, version = await manager.read(writer.ledger_id)
    await manager.write(writer.ledger_id, metadata, version)
    bookies[1].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"1"])
    assert [segment.first_entry_id for segment in writer.metadata.segments] == [0, 1]
    await writer.close()


async def test_a_lost_answer_of_the_metadata_store_is_found_out() -> None:
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    cluster.metadata.lost_answers = 1
    bookies[1].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"1", b"2"])
    assert cluster.metadata.ledger_writes == 1, "it was stored the first time"
    await copies(cluster, writer)
    await writer.close()


async def test_a_metadata_store_that_is_away_for_a_moment_is_waited_for() -> None:
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster)
    cluster.metadata.failures = [MetadataError("away"), MetadataError("away")]
    bookies[1].add_code = ReturnCode.IO_ERROR
    await append_all(writer, [b"0", b"1"])
    await copies(cluster, writer)


async def test_a_metadata_store_that_stays_away_fails_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.metadata_change.METADATA_PATIENCE_S", 0.0)
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster)
    cluster.metadata.failures = [MetadataError("away")] * 9
    bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await until_settled(writer)
    assert "could not be changed" in str(outcomes.errors[0])


async def test_a_close_during_a_change_closes_at_the_lac() -> None:
    cluster = Cluster(5)
    writer, bookies = await open_writer(cluster)
    await append_all(writer, [b"0"])
    cluster.metadata.gate = asyncio.Event()
    bookies[1].add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"1")
    await settle()
    assert writer.changing_ensemble
    closing = asyncio.ensure_future(writer.close())
    await settle()
    cluster.metadata.gate.set()
    await closing
    await settle()
    assert [type(error) for error in outcomes.errors] == [LedgerClosedError]
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 0, 1)
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == [b"0"]


async def test_a_cluster_that_is_down_is_not_written_around_in_circles() -> None:
    cluster = Cluster(8)
    writer, _ = await open_writer(cluster)
    for bookie in cluster.bookies:
        bookie.add_code = ReturnCode.IO_ERROR
    outcomes = Outcomes()
    outcomes.append(writer, b"0")
    await until_settled(writer)
    assert [type(error) for error in outcomes.errors] == [BookieRequestError]
    assert cluster.metadata.ledger_writes <= len(cluster.bookies)


async def test_a_client_that_ends_leaves_no_append_without_an_answer() -> None:
    cluster = Cluster(4)
    async with TaskScope("client") as scope:
        client = BookKeeperClient(cluster.metadata, cluster.directory, cluster.clock, random.Random(1), scope)
        writer = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        late = await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        cluster.metadata.gate = asyncio.Event()
        for bookie_id in writer.metadata.last_segment.ensemble:
            cluster.bookie(bookie_id).add_code = ReturnCode.IO_ERROR
        outcomes = Outcomes()
        outcomes.append(writer, b"0")
        await settle()
        assert writer.changing_ensemble
    assert [type(error) for error in outcomes.errors] == [LedgerClosedError]
    outcomes.append(late, b"1")
    await settle()
    assert [type(error) for error in outcomes.errors] == [LedgerClosedError] * 2
