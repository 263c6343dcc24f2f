"""The channel to a remote bookie: requests, losses, timeouts, order. Against the real server, and against peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest

from magnetar.base.clock import SystemClock
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.codes import BOOKIE_TIMEOUT, BOOKIE_UNAVAILABLE, EXPLICIT_NEGATIVES, FLAG_FENCE, ReturnCode
from magnetar.bookkeeper.entry_format import DigestType, pack_lac
from magnetar.metadata.memory import MemoryMetadataStore
from magnetar.wire.bookkeeper import v2
from tests.integration.bookkeeper.remote import Wire, answer, peer, serve, served_bookie
from tests.support.scopes import LoopScope
from tests.unit.bookkeeper.bookie_helpers import DIGEST, KEY, entry, eventually, open_bookie
from tests.unit.bookkeeper.fake_bookies import FakeBookie


def ok(operation: int, ledger_id: int, entry_id: int, code: int = 0) -> bytes:
    return v2.encode_response(v2.RESPONSE_HEAD_BYTES, 2 << 24 | operation << 16, code, ledger_id, entry_id)


async def test_a_remote_bookie_is_a_bookie(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        assert not channel.connected
        for entry_id in range(5):
            assert await answer(channel.add_entry, 7, entry_id, entry(7, entry_id), KEY, 0) == ReturnCode.OK
        assert channel.connected
        assert await answer(channel.read_entry, 7, 3, 0, b"") == (ReturnCode.OK, entry(7, 3))
        assert await answer(channel.read_entry, 7, 5, 0, b"") == (ReturnCode.NO_ENTRY, None)
        assert await answer(channel.read_entry, 8, 0, 0, b"") == (ReturnCode.NO_LEDGER, None)
        assert await answer(channel.read_batch, 7, 1, 3, 1 << 20) == (ReturnCode.OK, [entry(7, it) for it in (1, 2, 3)])
        assert await answer(channel.read_batch, 7, 9, 3, 1 << 20) == (ReturnCode.NO_ENTRY, [])
        assert await answer(channel.read_entry, 7, -1, FLAG_FENCE, KEY) == (ReturnCode.OK, entry(7, 4))
        assert await answer(channel.add_entry, 7, 5, entry(7, 5), KEY, 0) == ReturnCode.FENCED
        assert await answer(channel.add_entry, 7, 5, entry(7, 5), b"short", 0) == ReturnCode.UNAUTHORIZED
        assert served.server.connections_count == 1


async def test_what_version_two_has_no_form_for(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        assert (await answer(channel.read_lac, 7))[0] in EXPLICIT_NEGATIVES
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        assert await answer(channel.last_confirmed, 7) == (ReturnCode.OK, -1)
        waiting = asyncio.ensure_future(answer(channel.wait_lac, 7, -1, 60.0))
        body = pack_lac(7, 0, DIGEST)
        assert await answer(channel.write_lac, 7, body, b"k" * 20) == ReturnCode.UNAUTHORIZED
        assert await answer(channel.write_lac, 7, body, KEY) == ReturnCode.OK
        assert await waiting == (ReturnCode.OK, 0, entry(7, 0))
        assert await answer(channel.read_lac, 7) == (ReturnCode.OK, body, entry(7, 0))
        assert await answer(channel.last_confirmed, 7) == (ReturnCode.OK, 0)
        assert await answer(channel.wait_lac, 7, 0, 0.01) == (ReturnCode.OK, 0, None)
        assert await answer(channel.force_ledger, 7) == ReturnCode.OK
        code, total, free = await answer(channel.bookie_info)
        assert (code, 0 < free < total) == (ReturnCode.OK, True)
        code, entries = await answer(channel.list_entries, 7)
        assert (code, entries.entries_count, entries.last_entry_id) == (ReturnCode.OK, 1, 0)
        assert (await answer(channel.list_entries, 8))[0] == ReturnCode.NO_LEDGER
        assert served.server.connections_count == 2
        channel.close()
        for call in (channel.force_ledger, channel.read_lac, channel.list_entries, channel.last_confirmed):
            code = await answer(call, 7)
            assert (code if isinstance(code, int) else code[0]) == BOOKIE_UNAVAILABLE


async def test_a_request_of_version_three_that_is_not_answered_is_a_timeout() -> None:
    async def silent(wire: Wire) -> None:
        while True:
            await wire.frame()

    async with peer(silent) as channel:
        assert await answer(channel.list_entries, 7) == (BOOKIE_TIMEOUT, None)
        channel.announce()
        assert await answer(channel.read_lac, 7) == (BOOKIE_TIMEOUT, None, None)


async def test_adds_are_answered_after_the_call_and_in_order(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        order: list[int] = []
        for entry_id in range(500):
            channel.add_entry(7, entry_id, entry(7, entry_id), KEY, 0, lambda code, it=entry_id: order.append(it))
        assert order == []
        await eventually(lambda: len(order) == 500, "all adds answered")
        assert order == list(range(500))


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_ledgers_over_the_network(tmp_path: Path, digest_type: DigestType) -> None:
    """Three bookies, every digest: write, close, read, and take over an open ledger."""
    async with contextlib.AsyncExitStack() as stack:
        directory = BookieDirectory()
        for number in range(3):
            served = await stack.enter_async_context(served_bookie(tmp_path / str(number)))
            directory.register(f"b{number}", served.channel())
        client = BookKeeperClient(MemoryMetadataStore(), directory, SystemClock(), random.Random(1), LoopScope())
        quorums = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
        writer = await client.create_ledger(**quorums, digest_type=digest_type, password=b"secret")
        confirmed = [answer(writer.append, b"%d" % number) for number in range(50)]
        assert set(await asyncio.gather(*confirmed)) == {None}
        reader = await client.open_ledger(writer.ledger_id, recover=True, password=b"secret")
        error, payloads = await answer(reader.read, 0, 49, 1 << 20)
        assert error is None
        assert payloads == [b"%d" % number for number in range(50)]
        assert await answer(writer.append, b"late") is not None, "the writer is fenced"


async def test_a_dead_bookie_says_nothing_about_entries_and_comes_back(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        await served.server.close()
        await eventually(lambda: not channel.connected, "the loss is noticed")
        assert await answer(channel.add_entry, 7, 1, entry(7, 1), KEY, 0) == BOOKIE_UNAVAILABLE
        assert await answer(channel.read_entry, 7, 0, 0, b"") == (BOOKIE_UNAVAILABLE, None)
        assert await answer(channel.read_batch, 7, 0, 1, 100) == (BOOKIE_UNAVAILABLE, [])
        async with serve(served.bookie, served.port):
            codes: list[int] = []
            while not codes or codes[-1] == BOOKIE_UNAVAILABLE:
                codes.append(await answer(channel.add_entry, 7, 1, entry(7, 1), KEY, 0))
                await asyncio.sleep(0.001)
            assert codes[-1] == ReturnCode.OK


async def test_what_is_under_way_when_the_connection_breaks_is_unknown() -> None:
    async def hang_up(wire: Wire) -> None:
        await wire.frame()
        wire.writer.close()

    async with peer(hang_up) as channel:
        answers = [
            answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0),
            answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 2),
            answer(channel.read_entry, 7, 0, 0, b""),
            answer(channel.read_batch, 7, 0, 9, 100),
        ]
        codes = [it if isinstance(it, int) else it[0] for it in await asyncio.gather(*answers)]
        assert codes == [BOOKIE_UNAVAILABLE] * 4


async def test_an_answer_that_does_not_come_is_a_timeout_and_may_come_late() -> None:
    """The late answer belongs to the request it is for, not to the next one for the same entry."""
    silent, reads = 0, 0

    async def late(wire: Wire) -> None:
        """Answers all but the first read of ledger 7, and that one before it answers the second."""
        nonlocal silent, reads
        while True:
            request = v2.decode_read(await wire.frame())
            if request.ledger_id == 9:
                wire.send(ok(v2.READ, 9, request.entry_id, ReturnCode.NO_ENTRY))
                reads += 1
                if reads == 155:
                    wire.send(ok(v2.READ, 7, -1, ReturnCode.NO_ENTRY))
            elif silent:
                wire.send(ok(v2.READ, 7, -1, ReturnCode.UNAUTHORIZED))
            else:
                silent += 1

    async with peer(late) as channel:
        plain = asyncio.ensure_future(answer(channel.read_entry, 7, -1, 0, b""))
        for entry_id in range(160):
            await asyncio.sleep(0.001)
            if entry_id == 150:
                assert await plain == (BOOKIE_TIMEOUT, None)
                fence = asyncio.ensure_future(answer(channel.read_entry, 7, -1, FLAG_FENCE, KEY))
            assert (await answer(channel.read_entry, 9, entry_id, 0, b""))[0] == ReturnCode.NO_ENTRY
        assert (await fence)[0] == ReturnCode.UNAUTHORIZED


async def test_a_silent_bookie_is_given_up_and_asked_anew() -> None:
    connections = 0

    async def silent(wire: Wire) -> None:
        nonlocal connections
        connections += 1
        while True:
            await wire.frame()

    async with peer(silent) as channel:
        codes = await asyncio.gather(
            *(answer(channel.add_entry, 7, entry_id, entry(7, entry_id), KEY, 0) for entry_id in range(3))
        )
        assert codes == [BOOKIE_TIMEOUT] * 3
        await eventually(lambda: not channel.connected, "the connection is dropped")
        channel.announce()
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_TIMEOUT
        assert connections == 2


async def test_a_fence_never_takes_the_answer_of_a_plain_read() -> None:
    """Answers name the entry only, and may overtake each other: the fence is not even sent while the read is under way."""
    bookie = FakeBookie()
    bookie.held = []
    async with serve(bookie) as served:
        channel = served.channel()
        plain = asyncio.ensure_future(answer(channel.read_entry, 7, -1, 0, b""))
        fence = asyncio.ensure_future(answer(channel.read_entry, 7, -1, FLAG_FENCE, KEY))
        await eventually(lambda: bookie.read_flags == [0], "the plain read arrives")
        bookie.release()
        await asyncio.gather(plain, fence)
        assert bookie.read_flags == [0, FLAG_FENCE]


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\x04abcd", b"\x7f\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_a_peer_that_is_no_bookie_is_left(garbage: bytes) -> None:
    async def talk(wire: Wire) -> None:
        await wire.frame()
        wire.writer.write(garbage)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await wire.frame()

    async with peer(talk) as channel:
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE


async def test_answers_to_nothing_end_the_connection() -> None:
    async def talk(wire: Wire) -> None:
        await wire.frame()
        wire.send(ok(v2.ADD, 7, 99))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await wire.frame()

    async with peer(talk) as channel:
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE


async def test_too_many_requests_are_refused_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.client.channel.v2.BOOKIE_CLIENT_REQUESTS_MAX", 3)
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        codes = await asyncio.gather(
            *(answer(channel.add_entry, 7, entry_id, entry(7, entry_id), KEY, 0) for entry_id in range(5))
        )
        assert codes == [0, 0, 0, ReturnCode.TOO_MANY_REQUESTS, ReturnCode.TOO_MANY_REQUESTS]
        assert await answer(channel.add_entry, 7, 5, entry(7, 5), KEY, 0) == ReturnCode.OK


async def test_a_closed_channel_refuses(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        first = asyncio.ensure_future(answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0))
        await asyncio.sleep(0)
        channel.close()
        assert await first == BOOKIE_UNAVAILABLE
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE


async def test_a_callback_may_close_the_channel(tmp_path: Path) -> None:
    """Answers of one burst: those behind it are answered as lost, and once."""
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        codes: list[int] = []

        def done(code: int) -> None:
            codes.append(code)
            if len(codes) == 3:
                channel.close()

        for entry_id in range(100):
            channel.add_entry(7, entry_id, entry(7, entry_id), KEY, 0, done)
        await eventually(lambda: len(codes) >= 100, "all answered")
        await asyncio.sleep(0)
        assert codes == [ReturnCode.OK] * 3 + [BOOKIE_UNAVAILABLE] * 97


async def test_nobody_listens_there(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        channel = served.channel()
        await served.server.close()
        assert await answer(channel.add_entry, 7, 0, entry(7, 0), KEY, 0) == BOOKIE_UNAVAILABLE


async def test_reads_for_a_closed_connection_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that wait for their turn are never started."""
    monkeypatch.setattr("magnetar.bookkeeper.bookie.server.reads.BOOKIE_READ_BYTES_UNDER_WAY_MAX", 1)
    bookie: Any = FakeBookie()
    bookie.held = []
    async with serve(bookie) as served:
        wire = await served.wire()
        wire.send(*(v2.encode_read(7, entry_id, 0, b"") for entry_id in range(10)))
        await eventually(lambda: len(bookie.read_flags) == 1, "the first read")
        wire.writer.close()
        await eventually(lambda: served.server.connections_count == 0, "the server notices")
        bookie.release()
        assert len(bookie.read_flags) == 1


async def test_reads_beyond_the_queue_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.bookie.server.reads.BOOKIE_READ_BYTES_UNDER_WAY_MAX", 1)
    monkeypatch.setattr("magnetar.bookkeeper.bookie.server.reads.BOOKIE_READS_WAITING_MAX", 2)
    bookie: Any = FakeBookie()
    bookie.held = []
    async with serve(bookie) as served:
        wire = await served.wire()
        wire.send(*(v2.encode_read(7, entry_id, 0, b"") for entry_id in range(5)))
        refused = [v2.decode_response(await wire.frame()) for _ in range(2)]
        assert [(code, entry_id) for _, code, _, entry_id in refused] == [(106, 3), (106, 4)]
        wire.send(v2.encode_read(7, -1, FLAG_FENCE, KEY))
        await eventually(lambda: bookie.read_flags == [0, FLAG_FENCE], "a fence does not queue")


async def test_many_connections_at_once(tmp_path: Path) -> None:
    async with open_bookie(tmp_path) as bookie, serve(bookie) as served:
        channels = [served.channel() for _ in range(20)]
        codes = await asyncio.gather(
            *(
                answer(channel.add_entry, number, entry_id, entry(number, entry_id), KEY, 0)
                for number, channel in enumerate(channels)
                for entry_id in range(50)
            )
        )
        assert codes == [0] * 1000
