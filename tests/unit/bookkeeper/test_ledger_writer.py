"""The writer: order, quorum, failures and close, on bookies that misbehave on demand."""

from __future__ import annotations

import pytest

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import unpack_entry
from magnetar.bookkeeper.errors import (
    BookieReadOnlyError,
    BookieRequestError,
    BookieUnavailableError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerState
from tests.unit.bookkeeper.fake_bookies import Cluster
from tests.unit.bookkeeper.ledger_helpers import Outcomes, append_all, read_all, settle


async def test_ids_length_and_lac_of_a_single_copy() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger(custom_metadata={"application": b"test"})
    outcomes = Outcomes()
    assert [outcomes.append(writer, payload) for payload in (b"a", b"bb", b"ccc")] == [0, 1, 2]
    assert (writer.last_add_pushed, writer.last_add_confirmed, writer.length, writer.pending_count) == (2, -1, 6, 3)
    await settle()
    assert outcomes.stored == [b"a", b"bb", b"ccc"]
    assert (writer.last_add_confirmed, writer.pending_count) == (2, 0)
    stored = cluster.bookies[0].entries[writer.ledger_id]
    packed = unpack_entry(stored[2], writer._digest, writer.ledger_id, 2)
    assert (packed.lac, packed.length, packed.payload) == (-1, 6, b"ccc")
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert metadata.custom_metadata == {"application": b"test"}
    assert metadata.state is LedgerState.OPEN


async def test_each_entry_carries_the_lac_of_its_sending() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"0", b"1"])
    await append_all(writer, [b"2"])
    stored = cluster.bookies[0].entries[writer.ledger_id]
    assert unpack_entry(stored[2], writer._digest, writer.ledger_id, 2).lac == 1


async def test_entries_complete_in_order_whatever_the_order_of_answers() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    for bookie in cluster.bookies:
        bookie.held = []
    outcomes = Outcomes()
    for payload in (b"0", b"1", b"2"):
        outcomes.append(writer, payload)
    ensemble = [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]
    ensemble[2].release()
    ensemble[1].release()
    assert outcomes.calls == [], "entry 1 is on both of its bookies, but entry 0 is not"
    ensemble[0].release()
    assert outcomes.stored == [b"0", b"1", b"2"]


async def test_a_hung_bookie_beyond_the_ack_quorum_holds_nothing_up() -> None:
    cluster = Cluster(3)
    cluster.bookies[1].hung_adds = True
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await append_all(writer, [b"%d" % n for n in range(10)])
    assert writer.last_add_confirmed == 9


async def test_failures_within_qw_minus_qa_are_borne_and_more_fail_the_writer() -> None:
    cluster = Cluster(3)
    cluster.bookies[0].add_code = ReturnCode.READ_ONLY
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await append_all(writer, [b"ok"])
    cluster.bookies[1].add_code = ReturnCode.READ_ONLY
    outcomes = Outcomes()
    outcomes.append(writer, b"x")
    outcomes.append(writer, b"y")
    await settle()
    assert [type(error) for error in outcomes.errors] == [BookieReadOnlyError, BookieReadOnlyError]
    assert [payload for payload, _ in outcomes.calls] == [b"x", b"y"]
    assert (writer.closed, writer.length, writer.last_add_pushed, writer.last_add_confirmed) == (True, 2, 0, 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [(ReturnCode.FENCED, LedgerFencedError), (ReturnCode.IO_ERROR, BookieRequestError), (-8, BookieUnavailableError)],
)
async def test_a_failed_writer_takes_no_more_and_can_be_closed(code: int, error: type[Exception]) -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"kept"])
    cluster.bookies[0].add_code = code
    outcomes = Outcomes()
    outcomes.append(writer, b"lost")
    outcomes.append(writer, b"too")
    await settle()
    assert outcomes.append(writer, b"late") == -1
    assert [type(e) for e in outcomes.errors] == [error] * 3
    await writer.close()
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 0, 4)


async def test_fenced_is_fatal_even_when_the_quorum_is_reachable() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    cluster.bookies[0].fenced.add(writer.ledger_id)
    outcomes = Outcomes()
    outcomes.append(writer, b"x")
    await settle()
    assert writer.closed
    with pytest.raises(LedgerFencedError):
        raise outcomes.errors[0]


async def test_late_answers_after_a_failure_complete_nothing() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    cluster.bookies[0].held = []
    outcomes = Outcomes()
    outcomes.append(writer, b"x")
    await writer.close()
    assert [type(error) for error in outcomes.errors] == [LedgerClosedError]
    cluster.bookies[0].release()
    await settle()
    assert len(outcomes.calls) == 1
    assert writer.last_add_confirmed == -1


async def test_a_completion_may_append_and_close() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    seen: list[int] = []

    def again(error: Exception | None) -> None:
        assert error is None
        seen.append(writer.last_add_confirmed)
        if len(seen) < 5:
            writer.append(b"more", again)

    writer.append(b"first", again)
    writer.append(b"second", again)
    await settle()
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_close_is_idempotent_and_reads_go_on() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a", b"b"])
    await writer.close()
    await writer.close()
    assert writer.metadata.state is LedgerState.CLOSED
    assert await read_all(writer) == [b"a", b"b"]
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.length) == (1, 2)
    assert reader.ctime_ms > 0


async def test_an_empty_ledger_closes_at_minus_one() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await writer.close()
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, -1, 0)


async def test_close_tells_when_somebody_else_closed_at_another_entry() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    cluster.bookies[0].lost_add_answers = True
    writer.append(b"stored but not known", lambda error: None)
    cluster.bookies[0].lost_add_answers = False
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 1
    with pytest.raises(LedgerFencedError, match="closed at entry 1"):
        await writer.close()


async def test_close_accepts_the_same_end_from_somebody_else() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    await cluster.new_client(8).open_ledger(writer.ledger_id, recover=True)
    await writer.close()
    assert writer.metadata.state is LedgerState.CLOSED


async def test_close_goes_through_a_recovery_under_way() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await append_all(writer, [b"a"])
    manager = cluster.client._manager
    metadata, version = await manager.read(writer.ledger_id)
    await manager.write(writer.ledger_id, metadata.in_recovery(), version)
    await writer.close()
    metadata = await cluster.client.read_metadata(writer.ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)


async def test_close_of_a_deleted_ledger() -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger()
    await cluster.client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await writer.close()


async def test_creation_needs_enough_writable_bookies() -> None:
    cluster = Cluster(2)
    cluster.directory.register("b1", cluster.bookies[1], writable=False)
    with pytest.raises(NotEnoughBookiesError):
        await cluster.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    with pytest.raises(InvalidArgumentError):
        await cluster.client.create_ledger(ensemble_size=1, write_quorum=2)
    writer = await cluster.client.create_ledger()
    assert writer.metadata.last_segment.ensemble == ("b0",)


async def test_an_unregistered_bookie_fails_the_writer_and_not_the_process() -> None:
    cluster = Cluster(1)
    await cluster.client.create_ledger()
    writer = await cluster.client.create_ledger()
    cluster.directory.unregister("b0")
    assert cluster.directory.writable() == []
    reader_error = None
    try:
        await cluster.client.open_ledger(writer.ledger_id, recover=False)
    except Exception as error:
        reader_error = error
    assert reader_error is not None
    assert "cannot be reached" in str(reader_error)
