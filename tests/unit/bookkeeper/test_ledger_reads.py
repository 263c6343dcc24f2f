"""Reads: bounds, batches, replicas, damage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import DigestType, pack_entry
from magnetar.bookkeeper.errors import (
    BookieRequestError,
    DigestMismatchError,
    LedgerClosedError,
    LedgerUnauthorizedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from magnetar.bookkeeper.ledger_metadata import Segment
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import append_all, read, read_all

PAYLOADS = [b"%03d" % n * 10 for n in range(50)]


async def filled(cluster: Cluster, **sizes: int) -> LedgerWriter:
    writer = await cluster.client.create_ledger(**sizes)
    await append_all(writer, PAYLOADS)
    return writer


def ensemble(cluster: Cluster, writer: LedgerWriter) -> list[FakeBookie]:
    return [cluster.bookie(bookie_id) for bookie_id in writer.metadata.last_segment.ensemble]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
        {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2},
        {"ensemble_size": 3, "write_quorum": 1, "ack_quorum": 1},
    ],
)
async def test_everything_comes_back_in_order(sizes: dict[str, int]) -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, **sizes)
    assert await read_all(writer) == PAYLOADS
    await writer.close()
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert await read_all(reader) == PAYLOADS
    assert await read(reader, 7, 9) == PAYLOADS[7:10]


@pytest.mark.parametrize("write_quorum", [1, 3])
async def test_a_read_stops_at_its_bytes_but_never_empty(write_quorum: int) -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, ensemble_size=3, write_quorum=write_quorum, ack_quorum=1)
    assert await read(writer, 3, 40, 0) == [PAYLOADS[3]]
    assert await read(writer, 3, 40, 29) == [PAYLOADS[3]]
    some = await read(writer, 3, 40, 300)
    assert some == PAYLOADS[3 : 3 + len(some)]
    assert 1 <= len(some) <= 10


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (0, 50), (5, 4), (60, 70)])
async def test_reads_outside_of_what_is_confirmed_are_refused(first: int, last: int) -> None:
    cluster = Cluster(1)
    writer = await filled(cluster)
    with pytest.raises(InvalidArgumentError):
        await read(writer, first, last)
    await writer.close()
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    with pytest.raises(InvalidArgumentError):
        await read(reader, first, last)


@pytest.mark.parametrize("write_quorum", [2, 3])
@pytest.mark.parametrize("code", [ReturnCode.IO_ERROR, ReturnCode.NO_LEDGER, ReturnCode.UNKNOWN_LEDGER_STATE])
async def test_another_replica_answers_for_a_failing_one(write_quorum: int, code: int) -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, ensemble_size=3, write_quorum=write_quorum, ack_quorum=2)
    ensemble(cluster, writer)[0].read_code = code
    assert await read_all(writer) == PAYLOADS


async def test_no_entry_needs_every_replica_to_say_so() -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, ensemble_size=3, write_quorum=3, ack_quorum=2)
    bookies = ensemble(cluster, writer)
    for bookie in bookies:
        del bookie.entries[writer.ledger_id][4]
    with pytest.raises(NoSuchEntryError):
        await read(writer, 4, 4)
    bookies[1].read_code = ReturnCode.IO_ERROR
    with pytest.raises(BookieRequestError):
        await read(writer, 4, 4)


def damaged(packed: bytes) -> bytes:
    return packed[:-1] + bytes([packed[-1] ^ 1])


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
async def test_damage_is_an_error_and_never_a_missing_entry(write_quorum: int) -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, ensemble_size=3, write_quorum=write_quorum, ack_quorum=1)
    for bookie in cluster.bookies:
        held = bookie.entries[writer.ledger_id]
        if 5 in held:
            held[5] = damaged(held[5])
    assert (await read(writer, 3, 9))[:2] == PAYLOADS[3:5]
    with pytest.raises(DigestMismatchError):
        await read(writer, 5, 9)


@pytest.mark.parametrize("write_quorum", [2, 3])
async def test_a_damaged_copy_is_replaced_by_a_good_one(write_quorum: int) -> None:
    cluster = Cluster(3)
    writer = await filled(cluster, ensemble_size=3, write_quorum=write_quorum, ack_quorum=2)
    held = ensemble(cluster, writer)[0].entries[writer.ledger_id]
    for entry_id in held:
        held[entry_id] = damaged(held[entry_id])
    assert await read_all(writer) == PAYLOADS


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(0, 6), (1, 5)])
async def test_another_entrys_bytes_are_refused(ledger_id: int, entry_id: int) -> None:
    cluster = Cluster(1)
    writer = await filled(cluster)
    foreign = pack_entry(ledger_id, entry_id, 0, 3, b"foreign", writer._digest)
    assert writer.ledger_id == 0
    cluster.bookies[0].entries[0][5] = foreign
    with pytest.raises(DigestMismatchError):
        await read(writer, 5, 5)


async def test_a_bookie_that_answers_too_much_is_not_believed() -> None:
    cluster = Cluster(1)
    writer = await filled(cluster)
    bookie = cluster.bookies[0]
    honest = bookie._collect
    bookie._collect = lambda ledger_id, first, count, size: honest(ledger_id, first, count + 1, size)  # type: ignore[method-assign]  # the fault
    with pytest.raises(BookieRequestError):
        await read(writer, 0, 3)


async def test_segments_are_read_from_their_own_bookies() -> None:
    cluster = Cluster(2)
    writer = await cluster.client.create_ledger()
    await append_all(writer, PAYLOADS)
    manager = cluster.client._manager
    metadata, version = await manager.read(writer.ledger_id)
    first = metadata.last_segment.ensemble[0]
    second = "b1" if first == "b0" else "b0"
    moved = {entry_id: cluster.bookie(first).entries[0].pop(entry_id) for entry_id in range(20, 50)}
    cluster.bookie(second).entries[0] = moved
    metadata = replace(metadata, segments=(*metadata.segments, Segment(20, (second,))))
    await manager.write(writer.ledger_id, metadata.closed(49, 1500), version)
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert await read(reader, 15, 30) == PAYLOADS[15:20]
    assert await read_all(reader) == PAYLOADS


async def test_an_open_ledger_is_read_up_to_what_its_bookies_know() -> None:
    cluster = Cluster(3)
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
    await append_all(writer, PAYLOADS[:10])
    await append_all(writer, PAYLOADS[10:11])
    reader = await cluster.new_client(8).open_ledger(writer.ledger_id, recover=False)
    assert (reader.last_add_confirmed, reader.length) == (9, 300)
    assert await read_all(reader) == PAYLOADS[:10]
    assert all(flags & 1 == 0 for bookie in cluster.bookies for flags in bookie.read_flags), "nobody was fenced"
    await append_all(writer, [b"goes on"])


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest_type_and_a_password(digest_type: DigestType) -> None:
    cluster = Cluster(1)
    writer = await cluster.client.create_ledger(digest_type=digest_type, password=b"secret")
    await append_all(writer, PAYLOADS)
    await writer.close()
    with pytest.raises(LedgerUnauthorizedError):
        await cluster.client.open_ledger(writer.ledger_id, recover=False)
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False, password=b"secret")
    assert await read_all(reader) == PAYLOADS


async def test_a_closed_reader_and_a_missing_ledger() -> None:
    cluster = Cluster(1)
    writer = await filled(cluster)
    await writer.close()
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    await reader.close()
    with pytest.raises(LedgerClosedError):
        await read(reader, 0, 0)
    await cluster.client.delete_ledger(writer.ledger_id)
    await cluster.client.delete_ledger(writer.ledger_id)
    assert not await cluster.client.ledger_exists(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await cluster.client.open_ledger(writer.ledger_id, recover=True)
