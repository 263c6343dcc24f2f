"""The bookie's server as a client of version 3 sees it on the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookkeeper.entry_format import pack_lac
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.availability import EntryAvailability
from tests.integration.bookkeeper.remote import Served, Wire, serve, served_bookie
from tests.unit.bookkeeper.bookie_helpers import DIGEST, KEY, entry, open_bookie

OTHER_KEY = b"k" * 20


class Client:
    """Requests by name; `ask` awaits the answer to the one sent, whatever comes in between."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._number = 0
        self._answers: dict[int, pb.Response] = {}

    def send(self, operation: int, priority: int = 0, **body: Any) -> int:
        self._number += 1
        header = pb.BKPacketHeader(version=3, operation=operation, txnId=self._number, priority=priority)
        self.wire.send_body(pb.Request(header=header, **body).SerializeToString())
        return self._number

    async def answer(self, number: int) -> pb.Response:
        while number not in self._answers:
            response = pb.Response.FromString(await self.wire.frame())
            self._answers[response.header.txnId] = response
        return self._answers.pop(number)

    async def ask(self, operation: int, priority: int = 0, **body: Any) -> pb.Response:
        return await self.answer(self.send(operation, priority, **body))

    async def add(
        self, ledger_id: int, entry_id: int, key: bytes = KEY, lac: int | None = None, **more: Any
    ) -> pb.Response:
        body = entry(ledger_id, entry_id, lac=lac)
        add = pb.AddRequest(ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=body, **more)
        return await self.ask(pb.ADD_ENTRY, addRequest=add)

    async def read(self, ledger_id: int, entry_id: int, **more: Any) -> pb.Response:
        return await self.answer(self.start_read(ledger_id, entry_id, **more))

    def start_read(self, ledger_id: int, entry_id: int, **more: Any) -> int:
        return self.send(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=ledger_id, entryId=entry_id, **more))

    def start_long_poll(self, ledger_id: int, previous_lac: int, timeout_ms: int) -> int:
        flag = pb.ReadRequest.ENTRY_PIGGYBACK
        return self.start_read(ledger_id, -1, flag=flag, previousLAC=previous_lac, timeOut=timeout_ms)


async def client_of(served: Served) -> Client:
    return Client(await served.wire())


async def test_add_read_and_fence(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        response = await client.add(7, 0)
        assert (response.status, response.addResponse.status) == (pb.EOK, pb.EOK)
        assert (response.addResponse.ledgerId, response.addResponse.entryId) == (7, 0)
        await client.add(7, 1)
        found = (await client.read(7, -1)).readResponse
        assert (found.status, found.entryId, found.body) == (pb.EOK, -1, entry(7, 1))
        assert found.maxLAC == 0, "reads tell the LAC"
        assert (await client.read(7, 9)).status == pb.ENOENTRY
        assert (await client.read(8, 0)).status == pb.ENOLEDGER
        assert (await client.add(7, 2, OTHER_KEY)).status == pb.EUA
        fence = pb.ReadRequest.FENCE_LEDGER
        assert (await client.read(7, -1, flag=fence)).status == pb.EUA, "a fence needs the key"
        assert (await client.read(7, -1, flag=fence, masterKey=OTHER_KEY)).status == pb.EUA
        fenced = await client.read(7, -1, flag=fence, masterKey=KEY)
        assert fenced.status == pb.EOK
        assert not fenced.readResponse.HasField("maxLAC"), "a fencing read does not"
        refused = await client.add(7, 2)
        assert (refused.status, refused.addResponse.status) == (pb.EFENCED, pb.EFENCED)
        assert (await client.add(7, 2, flag=pb.AddRequest.RECOVERY_ADD)).status == pb.EOK
        assert (await client.add(7, 3, writeFlags=1, flag=pb.AddRequest.RECOVERY_ADD)).status == pb.EOK


@pytest.mark.parametrize("operation", [pb.RANGE_READ_ENTRY, pb.RANGE_ADD_ENTRY, pb.BATCH_READ_ENTRY])
async def test_operations_nobody_serves(tmp_path: Path, operation: int) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        response = await client.ask(operation)
        assert (response.status, response.header.operation) == (pb.EBADREQ, operation)


@pytest.mark.parametrize(
    "operation",
    [
        pb.READ_ENTRY,
        pb.ADD_ENTRY,
        pb.WRITE_LAC,
        pb.READ_LAC,
        pb.FORCE_LEDGER,
        pb.GET_LIST_OF_ENTRIES_OF_LEDGER,
        pb.START_TLS,
    ],
)
async def test_a_request_without_its_body_and_tls_where_there_is_none(tmp_path: Path, operation: int) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        response = await client.ask(operation)
        assert response.status == pb.EBADREQ
        assert not response.HasField("startTLSResponse")
        assert (await client.add(7, 0)).status == pb.EOK, "the connection goes on"


async def test_other_versions_are_refused(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        header = pb.BKPacketHeader(version=pb.VERSION_TWO, operation=pb.READ_LAC, txnId=1)
        request = pb.Request(header=header, readLacRequest=pb.ReadLacRequest(ledgerId=7))
        client.wire.send_body(request.SerializeToString())
        assert (await client.answer(1)).status == pb.EBADVERSION


async def test_version_three_may_turn_into_two_and_not_back(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        assert (await client.add(7, 0)).status == pb.EOK
        client.wire.send(v2.encode_read(7, 0, 0, b""))
        assert v2.decode_response(await client.wire.frame()) == (0x02020000, 0, 7, 0)
        client.start_read(7, 0)
        assert await client.wire.ended()


async def test_explicit_lacs(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        ask = {"readLacRequest": pb.ReadLacRequest(ledgerId=7)}
        assert (await client.ask(pb.READ_LAC, **ask)).status in (pb.ENOLEDGER, pb.ENOENTRY)
        await client.add(7, 0)
        await client.add(7, 1)
        found = (await client.ask(pb.READ_LAC, **ask)).readLacResponse
        assert (found.HasField("lacBody"), found.lastEntryBody) == (False, entry(7, 1))
        for lac, key, status in [(1, OTHER_KEY, pb.EUA), (1, KEY, pb.EOK), (0, KEY, pb.EOK)]:
            write = pb.WriteLacRequest(ledgerId=7, lac=lac, masterKey=key, body=pack_lac(7, lac, DIGEST))
            response = await client.ask(pb.WRITE_LAC, writeLacRequest=write)
            assert (response.status, response.writeLacResponse.ledgerId) == (status, 7)
        found = (await client.ask(pb.READ_LAC, **ask)).readLacResponse
        assert found.lacBody == pack_lac(7, 1, DIGEST), "the highest one stays"
        assert (await client.read(7, 0)).readResponse.maxLAC == 1


async def test_a_long_poll_is_answered_when_the_lac_moves(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client, writer = await client_of(served), await client_of(served)
        await writer.add(7, 0)
        await writer.add(7, 1)  # carries LAC 0
        at_once = (await client.answer(client.start_long_poll(7, -1, 60_000))).readResponse
        assert (at_once.status, at_once.maxLAC, at_once.entryId, at_once.body) == (pb.EOK, 0, 0, entry(7, 0))
        polls = [client.start_long_poll(7, 0, 60_000) for _ in range(2)]
        await client.read(7, 0)  # what was sent before it is waiting now
        assert served.bookie.queries.lacs.waiting_count == 2
        await writer.add(7, 2)  # carries LAC 1
        for poll in polls:
            found = (await client.answer(poll)).readResponse
            assert (found.status, found.maxLAC, found.entryId, found.body) == (pb.EOK, 1, 1, entry(7, 1))
        assert served.bookie.queries.lacs.waiting_count == 0


@pytest.mark.parametrize("what", ["explicit LAC", "fence", "time", "striped"])
async def test_what_else_answers_a_long_poll(tmp_path: Path, what: str) -> None:
    async with served_bookie(tmp_path) as served:
        client, other = await client_of(served), await client_of(served)
        await other.add(7, 0)
        poll = client.start_long_poll(7, -1, 20 if what == "time" else 60_000)
        if what != "time":
            await client.read(7, 0)
            assert served.bookie.queries.lacs.waiting_count == 1
        if what == "explicit LAC":
            write = pb.WriteLacRequest(ledgerId=7, lac=0, masterKey=KEY, body=pack_lac(7, 0, DIGEST))
            await other.ask(pb.WRITE_LAC, writeLacRequest=write)
        elif what == "fence":
            await other.read(7, -1, flag=pb.ReadRequest.FENCE_LEDGER, masterKey=KEY)
        elif what == "striped":
            await other.add(8, 5, lac=4)
            poll_of_8 = client.start_long_poll(8, 2, 60_000)
            found = (await client.answer(poll_of_8)).readResponse
            assert (found.status, found.maxLAC, found.HasField("body")) == (pb.EOK, 4, False), "entry 3 is elsewhere"
            return
        found = (await client.answer(poll)).readResponse
        moved = what == "explicit LAC"
        assert (found.status, found.maxLAC) == (pb.EOK, 0 if moved else -1)
        assert found.HasField("body") == moved


async def test_the_deletion_of_a_ledger_answers_its_long_polls(tmp_path: Path) -> None:
    async def no_ledgers() -> list[int]:
        return []

    async with open_bookie(tmp_path, list_ledgers=no_ledgers) as bookie, serve(bookie) as served:
        client = await client_of(served)
        await client.add(7, 0)
        poll = client.start_long_poll(7, 0, 60_000)
        await client.read(7, 0)
        await bookie.collect_garbage()
        assert (await client.answer(poll)).readResponse.ledgerId == 7
        assert (await client.read(7, 0)).status == pb.ENOLEDGER


async def test_bad_long_polls(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        await client.add(7, 0)
        flag = pb.ReadRequest.ENTRY_PIGGYBACK
        assert (await client.read(7, 0, flag=flag, previousLAC=-1)).status == pb.EBADREQ
        assert (await client.read(7, -1, flag=flag)).status == pb.EBADREQ
        assert (await client.answer(client.start_long_poll(99, -1, 60_000))).status == pb.ENOLEDGER
        without_timeout = await client.read(7, -1, flag=flag, previousLAC=-1)
        assert (without_timeout.status, without_timeout.readResponse.maxLAC) == (pb.EOK, -1)
        plain = await client.read(7, 0, previousLAC=-5)
        assert (plain.status, plain.readResponse.body) == (pb.EOK, entry(7, 0))


async def test_a_long_poll_whose_client_is_gone_is_forgotten(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client, other = await client_of(served), await client_of(served)
        await client.add(7, 0)
        client.start_long_poll(7, -1, 60_000)
        await client.read(7, 0)
        client.wire.writer.close()
        while served.bookie.queries.lacs.waiting_count:
            await other.read(7, 0)


async def test_the_lac_of_a_ledger_that_was_stored_before_the_start(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        for entry_id in range(3):
            await client.add(7, entry_id)
        await served.bookie.checkpoint()
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        assert (await client.read(7, 0)).readResponse.maxLAC == 1
        assert (await client.answer(client.start_long_poll(7, 0, 60_000))).readResponse.maxLAC == 1


async def test_force_waits_for_what_was_added_before(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        force = {"forceLedgerRequest": pb.ForceLedgerRequest(ledgerId=7)}
        assert (await client.ask(pb.FORCE_LEDGER, **force)).status == pb.EOK
        commits = served.bookie.statistics().journal_commits_total
        add = pb.AddRequest(ledgerId=7, entryId=0, masterKey=KEY, body=entry(7, 0))
        client.send(pb.ADD_ENTRY, addRequest=add)
        forced = client.send(pb.FORCE_LEDGER, **force)
        orders = [pb.Response.FromString(await client.wire.frame()).header.txnId for _ in range(2)]
        assert orders == [forced - 1, forced]
        assert served.bookie.statistics().journal_commits_total == commits + 1


async def test_force_alone_writes_nothing_and_survives_a_restart(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        for entry_id in range(20):
            add = pb.AddRequest(ledgerId=7, entryId=entry_id, masterKey=KEY, body=entry(7, entry_id))
            client.send(pb.ADD_ENTRY, addRequest=add)
            last = client.send(pb.FORCE_LEDGER, forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=7))
        assert (await client.answer(last)).status == pb.EOK
    async with open_bookie(tmp_path) as bookie, serve(bookie) as served:
        client = await client_of(served)
        assert (await client.read(7, -1)).readResponse.body == entry(7, 19)


async def test_bookie_info(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        for mask, total, free in [(3, True, True), (1, True, False), (2, False, True), (0, False, False)]:
            request = pb.GetBookieInfoRequest(requested=mask)
            found = (await client.ask(pb.GET_BOOKIE_INFO, getBookieInfoRequest=request)).getBookieInfoResponse
            assert found.status == pb.EOK
            assert (found.HasField("totalDiskCapacity"), found.HasField("freeDiskSpace")) == (total, free)
            assert not (total and free) or found.totalDiskCapacity >= found.freeDiskSpace > 0


async def test_lists_of_entries_from_memory_and_logs(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        client = await client_of(served)
        ids = [0, 1, 3, 4, 6, 7, 100]
        for entry_id in ids:
            await client.add(7, entry_id)
            if entry_id == 4:
                await served.bookie.checkpoint()
        request = pb.GetListOfEntriesOfLedgerRequest(ledgerId=7)
        response = await client.ask(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, getListOfEntriesOfLedgerRequest=request)
        found = response.getListOfEntriesOfLedgerResponse
        assert (found.status, found.ledgerId) == (pb.EOK, 7)
        entries = EntryAvailability.from_bytes(found.availabilityOfEntriesOfLedger)
        assert [it for it in range(200) if entries.holds(it)] == ids
        request = pb.GetListOfEntriesOfLedgerRequest(ledgerId=8)
        response = await client.ask(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, getListOfEntriesOfLedgerRequest=request)
        assert response.status == pb.ENOLEDGER


async def test_garbage_that_looks_like_version_three(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Messages without their required fields parse, and are not requests all the same."""
    without_key = pb.Request(header=pb.BKPacketHeader(version=3, operation=pb.ADD_ENTRY, txnId=1))
    without_key.addRequest.ledgerId = 7
    async with served_bookie(tmp_path) as served:
        bodies = (b"\x0a", b"\x0a\xff\xff", b"\x0a\x02\x08\x03", b"\xff" * 50, b"\t" + bytes(8))
        for body in (*bodies, without_key.SerializePartialToString()):
            wire = await served.wire()
            wire.send_body(body)
            assert await wire.ended()
        await asyncio.sleep(0)
        assert served.server.connections_count == 0
        assert "failed" not in caplog.text
