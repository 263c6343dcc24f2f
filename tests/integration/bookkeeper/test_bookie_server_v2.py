"""The bookie's server as a client of version 2 sees it on the wire."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.BookkeeperProtocol_pb2 import AuthMessage
from tests.integration.bookkeeper.remote import Wire, served_bookie
from tests.unit.bookkeeper.bookie_helpers import KEY, entry

OTHER_KEY = b"k" * 20


def add_frame(ledger_id: int, entry_id: int, flags: int = 0, key: bytes = KEY, payload: bytes = b"payload") -> bytes:
    packed = entry(ledger_id, entry_id, payload)
    return v2.encode_add_head(flags, key, len(packed)) + packed


async def response(wire: Wire) -> tuple[int, int, int, int]:
    header, code, ledger_id, entry_id = v2.decode_response(await wire.frame())
    return header, code, ledger_id, entry_id


async def test_add_and_read(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        wire.send(add_frame(7, 0), add_frame(7, 1))
        assert await response(wire) == (0x02010000, 0, 7, 0)
        assert await response(wire) == (0x02010000, 0, 7, 1)
        wire.send(v2.encode_read(7, 1, 0, b""))
        frame = await wire.frame()
        assert v2.decode_response(frame) == (0x02020000, 0, 7, 1)
        assert frame[v2.RESPONSE_HEAD_BYTES :] == entry(7, 1)
        wire.send(v2.encode_read(7, -1, 0, b""))
        frame = await wire.frame()
        assert v2.decode_response(frame) == (0x02020000, 0, 7, -1), "the entry id is the one asked for"
        assert frame[v2.RESPONSE_HEAD_BYTES :] == entry(7, 1)
        wire.send(v2.encode_read(7, 2, 0, b""), v2.encode_read(8, 0, 0, b""))
        codes = {(await response(wire))[1:3], (await response(wire))[1:3]}
        assert codes == {(ReturnCode.NO_ENTRY, 7), (ReturnCode.NO_LEDGER, 8)}


async def test_keys_and_fences(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        wire.send(add_frame(7, 0))
        await response(wire)
        wire.send(add_frame(7, 1, key=OTHER_KEY))
        assert (await response(wire))[1] == ReturnCode.UNAUTHORIZED
        wire.send(v2.encode_read(7, -1, FLAG_FENCE, OTHER_KEY))
        assert (await response(wire))[1] == ReturnCode.UNAUTHORIZED
        wire.send(v2.encode_read(7, -1, FLAG_FENCE, KEY))
        frame = await wire.frame()
        assert v2.decode_response(frame)[1] == 0
        wire.send(add_frame(7, 1))
        assert (await response(wire))[1] == ReturnCode.FENCED
        wire.send(add_frame(7, 1, FLAG_RECOVERY_ADD))
        assert (await response(wire))[1] == 0
        wire.send(v2.encode_read(99, -1, FLAG_FENCE, KEY))
        assert (await response(wire))[1] == ReturnCode.NO_ENTRY, "an empty ledger is fenced all the same"
        wire.send(add_frame(99, 0))
        assert (await response(wire))[1] == ReturnCode.FENCED


async def test_batch_reads(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        wire.send(*(add_frame(7, entry_id) for entry_id in (0, 1, 2, 3, 5)))
        for _ in range(5):
            await response(wire)
        size = len(entry(7, 0))
        for count, limit, expected in [
            (100, 1 << 20, [0, 1, 2, 3]),  # until one is missing
            (0, 1 << 20, [0, 1, 2, 3]),
            (2, 1 << 20, [0, 1]),
            (100, 1, [0]),  # at least one
            (100, 36 + 2 * (4 + size), [0, 1]),  # sizes are counted with the heads around the entries
            (100, 36 + 2 * (4 + size) - 1, [0]),
        ]:
            wire.send(v2.encode_batch_read(7, 0, 42, count, limit))
            frame = await wire.frame()
            assert v2.decode_response(frame) == (0x02070000, 0, 7, 0)
            assert v2.decode_batch_response(frame) == (42, [entry(7, it) for it in expected])
        wire.send(v2.encode_batch_read(7, 4, 43, 10, 1000))
        frame = await wire.frame()
        assert (v2.decode_response(frame)[1], v2.decode_batch_response(frame)) == (ReturnCode.NO_ENTRY, (43, []))
        wire.send_body(struct.pack(">Iqqqiq", 0x02070001, 7, 0, 44, 1, 1000) + KEY)
        frame = await wire.frame()
        assert v2.decode_batch_response(frame) == (44, [entry(7, 0)])
        wire.send(add_frame(7, 6))
        assert (await response(wire))[1] == ReturnCode.FENCED, "a batch read may fence as well"


async def test_versions(tmp_path: Path) -> None:
    """0 and 1 are served and answered in kind; 3 in this form does not exist."""
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        packed = entry(7, 0)
        for header, answered, code in [
            (0x00000001, 0x00000001, 0),
            (0x01010000, 0x01010000, 0),
            (0x03010000, 0x03010000, ReturnCode.BAD_VERSION),
        ]:
            wire.send_body(struct.pack(">I", header) + KEY + packed)
            assert await response(wire) == (answered, code, 7, 0)
        wire.send_body(struct.pack(">Iqq", 0x00000002, 7, 0))
        frame = await wire.frame()
        assert v2.decode_response(frame) == (0x00000002, 0, 7, 0)
        wire.send_body(struct.pack(">Iqq", 0x03020000, 7, 0))
        assert (await response(wire))[:2] == (0x03020000, ReturnCode.BAD_VERSION)
        wire.send_body(struct.pack(">Iqqqiq", 0x03070000, 7, 0, 1, 1, 1))
        assert (await response(wire))[:2] == (0x03070000, ReturnCode.BAD_VERSION)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02\x01",
        struct.pack(">Iq", 0x02040000, 7),  # READ_LAC is version 3's
        struct.pack(">Iq", 0x02630000, 7),
        struct.pack(">Iq", 0x02020000, 7),
        struct.pack(">I", 0x02010000) + b"k" * 20 + b"short",
    ],
)
async def test_what_is_no_request_ends_the_connection(tmp_path: Path, body: bytes) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        wire.send_body(body)
        assert await wire.ended()


async def test_an_entry_of_sixteen_bytes_is_a_bad_request(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        for _ in range(2):
            wire.send_body(struct.pack(">I", 0x02010000) + KEY + struct.pack(">qq", 7, 0))
            assert await response(wire) == (0x02010000, ReturnCode.BAD_REQUEST, 7, 0)


async def test_a_frame_that_is_too_long_ends_the_connection(tmp_path: Path) -> None:
    async with served_bookie(tmp_path, frame_bytes_max=1000) as served:
        wire = await served.wire()
        wire.writer.write(struct.pack(">I", 1001))
        assert await wire.ended()
        assert served.server.connections_count == 0


async def test_authentication_nobody_asked_for_is_answered(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        wire = await served.wire()
        message = AuthMessage(authPluginName="some.plugin", payload=b"hello")
        wire.send(v2.encode_auth(v2.request_header(v2.AUTH, 0), message.SerializeToString()))
        frame = await wire.frame()
        assert frame[:4] == b"\x02\x03\x00\x00"
        assert AuthMessage.FromString(frame[4:]) == AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")


async def test_a_peer_that_does_not_read_is_not_served_until_it_does(tmp_path: Path) -> None:
    """Answers fill the sockets' buffers and the server's; then it stops reading, and goes on where it was."""
    async with served_bookie(tmp_path) as served:
        wire = await served.wire(receive_buffer_bytes=64 * 1024)
        payload = b"x" * 100_000
        wire.send(add_frame(7, 0, payload=payload))
        await response(wire)
        before = served.bookie.statistics().reads_total
        asked = 600  # 60 MB of answers
        for _ in range(asked):
            wire.send(v2.encode_read(7, 0, 0, b""))
        await wire.writer.drain()
        served_before_reading = 0
        for _ in range(200):
            await asyncio.sleep(0.001)
            served_before_reading = served.bookie.statistics().reads_total - before
        assert served_before_reading < asked
        for _ in range(asked):
            assert v2.decode_response(await wire.frame())[1] == 0
        assert served.bookie.statistics().reads_total - before == asked
