"""Strangers on a bookie's port: what they ask for must not stand in the way of those whose ledgers the bookie keeps."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path

import pytest

from magnetar.base import network
from magnetar.base.admission import Share
from magnetar.bookkeeper.bookie.server import connection as server_connection
from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import master_key
from magnetar.bookkeeper.shared_secret import BookieSecret, ClientSecret
from magnetar.wire.bookkeeper import v2
from tests.integration.bookkeeper.remote import Served, Wire, answer, served_bookie
from tests.unit.bookkeeper.bookie_helpers import KEY, entry, eventually

SECRET = b"sixteen bytes or more"
STRANGERS_KEY = master_key(b"whatever a stranger comes up with")


async def ask_to_add(served: Served, ledger_id: int, entry_id: int, flags: int = 0) -> int:
    """The bookie's answer to the ledger's owner."""
    wire = await served.wire()
    packed = entry(ledger_id, entry_id)
    wire.send(v2.encode_add_head(flags, KEY, len(packed)) + packed)
    return v2.decode_response(await wire.frame())[1]


async def ask_to_fence(served: Served, ledger_id: int, key: bytes) -> int:
    wire = await served.wire()
    wire.send(v2.encode_read(ledger_id, -1, FLAG_FENCE, key))
    return v2.decode_response(await wire.frame())[1]


async def test_a_strangers_fence_of_ledgers_to_come_keeps_their_owner_out_of_none(tmp_path: Path) -> None:
    async with served_bookie(tmp_path) as served:
        for ledger_id in range(1, 101):
            assert await ask_to_fence(served, ledger_id, STRANGERS_KEY) == ReturnCode.NO_ENTRY
        assert [await ask_to_add(served, ledger_id, 0) for ledger_id in range(1, 101)] == [ReturnCode.OK] * 100
        assert await ask_to_fence(served, 7, STRANGERS_KEY) == ReturnCode.UNAUTHORIZED


async def test_a_recovery_that_is_ahead_of_the_writers_first_entry_still_keeps_the_writer_out(tmp_path: Path) -> None:
    """With a stranger's fence before it and behind it."""
    async with served_bookie(tmp_path) as served:
        for key in (STRANGERS_KEY, KEY, master_key(b"another one")):
            assert await ask_to_fence(served, 7, key) == ReturnCode.NO_ENTRY
        assert await ask_to_add(served, 7, 0) == ReturnCode.FENCED
        assert await ask_to_add(served, 7, 0, FLAG_RECOVERY_ADD) == ReturnCode.OK
        assert await ask_to_add(served, 7, 1) == ReturnCode.FENCED


# ---- Connections that ask for nothing


async def closed(wires: list[Wire], wanted: int = 1) -> int:
    """How many of the connections the bookie has ended, once that are `wanted`, and a moment later."""

    async def ended(wire: Wire) -> None:
        with contextlib.suppress(ConnectionError):
            await wire.reader.read()

    waiting = [asyncio.ensure_future(ended(wire)) for wire in wires]
    with contextlib.suppress(AssertionError):
        await eventually(lambda: sum(each.done() for each in waiting) >= wanted, "they are ended", 30)
    done, pending = await asyncio.wait(waiting, timeout=0.1)
    for each in pending:
        each.cancel()
    return len(done)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize(
    "hello",
    [b"", b"\x00", struct.pack(">I", 1000) + b"\x02\x01\x00\x00half of it"],
    ids=["silent", "a byte", "half a request"],
)
async def test_who_does_not_ask_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: bytes | None, hello: bytes
) -> None:
    monkeypatch.setattr(server_connection, "HANDSHAKE_TIMEOUT_S", 0.3)
    auth, client = (BookieSecret(secret), ClientSecret(secret)) if secret else (None, None)
    async with served_bookie(tmp_path, auth=auth) as served:
        wires = [await served.wire() for _ in range(20)]
        for wire in wires:
            wire.send(hello)
        assert await closed(wires, 20) == 20
        owner = served.channel(auth=client)
        assert await answer(owner.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        await asyncio.sleep(0.6)
        assert await answer(owner.add_entry, 7, 1, entry(7, 1), KEY, 0) == ReturnCode.OK
        assert served.server.connections_count == 1, "who has asked once stays"


async def test_who_asks_without_the_secret_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "HANDSHAKE_TIMEOUT_S", 0.5)
    async with served_bookie(tmp_path, auth=BookieSecret(SECRET)) as served:
        wire = await served.wire()
        refused = 0
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while refused < 600:
                wire.send(v2.encode_read(7, 0, 0, b""))
                assert v2.decode_response(await wire.frame())[1] == ReturnCode.UNAUTHORIZED
                refused += 1
                await asyncio.sleep(0.1)
        assert 0 < refused < 600, "it is told so before it is closed"
        monkeypatch.setattr(server_connection, "HANDSHAKE_TIMEOUT_S", 60.0)
        long = await served.wire()
        long.send(struct.pack(">I", 64 * 1024 + 1))
        assert await closed([long]) == 1, "what is longer than any greeting is not waited for"


async def test_a_crowd_of_strangers_keeps_nobody_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    share = Share("binary", 8, 0, strangers_max=5)
    async with served_bookie(tmp_path, share=share, auth=BookieSecret(SECRET)) as served:
        owner = served.channel(auth=ClientSecret(SECRET))
        assert await answer(owner.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        crowd = [await served.wire() for _ in range(50)]
        assert await closed(crowd, 45) == 45
        assert served.server.connections_count == share.total == 6
        assert (share.strangers_count, share.evicted_total, share.refused_total) == (5, 45, 0)
        assert await answer(owner.add_entry, 7, 1, entry(7, 1), KEY, 0) == ReturnCode.OK
        late = [served.channel(auth=ClientSecret(SECRET)) for _ in range(7)]
        for number, channel in enumerate(late):
            code = await answer(channel.add_entry, 8, number, entry(8, number), KEY, 0)
            assert code == ReturnCode.OK
        assert served.server.connections_count == 8, "all of them known"
        assert await closed([await served.wire()]) == 1, "and none of those goes for a stranger"
        assert share.refused_total == 1
    said = [record.getMessage() for record in caplog.records if record.name == network.__name__]
    assert len(said) == 2, "once in ten seconds of each kind"
    assert said[0].startswith("too many connections, some are closed before their clients have proved who they are: ")
    assert said[0].endswith(f" port={served.port} open=6 waiting=5 closed=1 last_address=127.0.0.1")
    assert said[1].startswith("connection refused address=/127.0.0.1:")


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
async def test_a_full_bookie_takes_those_who_ask_for_those_who_do_not(tmp_path: Path, secret: bytes | None) -> None:
    """Also where the total, of open files perhaps, is below the bound of strangers."""
    auth, client = (BookieSecret(secret), ClientSecret(secret)) if secret else (None, None)
    share = Share("binary", 4, 0)
    async with served_bookie(tmp_path, share=share, auth=auth) as served:
        first = served.channel(auth=client)
        assert await answer(first.add_entry, 7, 0, entry(7, 0), KEY, 0) == ReturnCode.OK
        crowd = [await served.wire() for _ in range(20)]
        assert await closed(crowd, 17) == 17
        for number in range(3):
            asked = answer(served.channel(auth=client).add_entry, 8, number, entry(8, number), KEY, 0)
            assert await asked == ReturnCode.OK
        assert await answer(first.add_entry, 7, 1, entry(7, 1), KEY, 0) == ReturnCode.OK
        share.validate()
        assert share.strangers_count == 0
    await eventually(lambda: share.total == 0, "every ticket was given back")


async def test_a_peer_that_goes_away_in_the_middle_is_closed_and_an_idle_one_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connection, "HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(server_connection, "BOOKIE_PROGRESS_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server_connection, "BOOKIE_IDLE_TIMEOUT_S", 4.0)
    async with served_bookie(tmp_path) as served:
        owner = served.channel()
        for entry_id in range(20):
            packed = entry(7, entry_id, b"x" * 1_000_000)
            assert await answer(owner.add_entry, 7, entry_id, packed, KEY, 0) == ReturnCode.OK
        half, unread = await served.wire(), await served.wire(receive_buffer_bytes=4096)
        half.send(v2.encode_read(7, 100, 0, b""))
        await half.frame()
        half.send(struct.pack(">I", 1000) + b"\x02\x01\x00\x00")
        for entry_id in range(20):
            unread.send(v2.encode_read(7, entry_id, 0, b""))
        assert await closed([half]) == 1
        await eventually(lambda: served.server.connections_count == 1, "the one that does not read is closed")
        assert owner.connected
        await eventually(lambda: served.server.connections_count == 0, "the idle one is closed")
        await eventually(lambda: not owner.connected, "its client has noticed")
        assert await answer(owner.read_entry, 7, 100, 0, b"") == (ReturnCode.NO_ENTRY, None), "at once, without a pause"
