"""Whatever a peer sends: the server answers requests, closes on anything else, and never trips over it."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.server import connection as server_connection
from magnetar.bookkeeper.bookie.server.server import BookieServer
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.wire.bookkeeper import BookkeeperProtocol_pb2 as pb
from magnetar.wire.bookkeeper.availability import EntryAvailability

I64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-2, 3)
IDS = SMALL | I64
KEYS = st.just(b"k" * 20) | st.binary(max_size=30)
ENTRIES = st.builds(
    lambda ids, rest: struct.pack(">qqq", *ids) + rest, st.tuples(IDS, IDS, IDS), st.binary(max_size=40)
)

OPTIONAL = {
    "readRequest": st.builds(
        pb.ReadRequest,
        ledgerId=IDS,
        entryId=IDS,
        flag=st.none() | st.sampled_from([1, 2]),
        masterKey=st.none() | KEYS,
        previousLAC=st.none() | IDS,
        timeOut=st.none() | SMALL | I64,
    ),
    "addRequest": st.builds(
        pb.AddRequest, ledgerId=IDS, entryId=IDS, masterKey=KEYS, body=ENTRIES, flag=st.none() | st.just(1)
    ),
    "authRequest": st.builds(pb.AuthMessage, authPluginName=st.text("ab", max_size=5), payload=st.binary(max_size=5)),
    "writeLacRequest": st.builds(
        pb.WriteLacRequest, ledgerId=IDS, lac=IDS, masterKey=KEYS, body=st.binary(max_size=40)
    ),
    "readLacRequest": st.builds(pb.ReadLacRequest, ledgerId=IDS),
    "getBookieInfoRequest": st.builds(pb.GetBookieInfoRequest, requested=st.none() | I64),
    "forceLedgerRequest": st.builds(pb.ForceLedgerRequest, ledgerId=IDS),
    "getListOfEntriesOfLedgerRequest": st.builds(pb.GetListOfEntriesOfLedgerRequest, ledgerId=IDS),
}
V3_REQUESTS = st.builds(
    lambda header, body: pb.Request(header=header, **body).SerializeToString(),
    st.builds(
        pb.BKPacketHeader,
        version=st.sampled_from([1, 2, 3, 3, 3]),
        operation=st.integers(1, 12),
        txnId=st.integers(0, 2**64 - 1),
        priority=st.none() | st.integers(0, 200),
    ),
    st.fixed_dictionaries({}, optional=OPTIONAL),
)
V2_REQUESTS = st.builds(
    lambda version, operation, flags, body: struct.pack(">BBH", version, operation, flags) + body,
    st.integers(0, 4),
    st.integers(0, 8),
    st.integers(0, 7),
    st.binary(max_size=90) | st.builds(lambda key, entry: key + entry, KEYS, ENTRIES),
)


class Echo:
    """A bookie of which every answer is known at once."""

    def add_entry(self, ledger_id: int, entry_id: int, entry: bytes, key: bytes, flags: int, done: Any) -> None:
        done(ReturnCode.OK if ledger_id >= 0 else -99)

    def add_run(self, ledger_id: int, entry_ids: Any, entries: list[bytes], key: bytes, flags: int, done: Any) -> None:
        assert [struct.unpack_from(">qq", entry) for entry in entries] == [(ledger_id, each) for each in entry_ids]
        self.runs.append(len(entries))
        self.add_entry(ledger_id, entry_ids[0], entries[0], key, flags, done)

    def __init__(self) -> None:
        self.runs: list[int] = []

    def read_entry(self, ledger_id: int, entry_id: int, flags: int, key: bytes, done: Any) -> None:
        done(0, struct.pack(">qqq", ledger_id, entry_id, -1)) if ledger_id == 1 else done(ReturnCode.NO_LEDGER, None)

    def read_batch(self, ledger_id: int, first: int, count: int, size: int, done: Any) -> None:
        done(0, [b"one", b"two"]) if ledger_id == 1 else done(ReturnCode.NO_ENTRY, [])

    def write_lac(self, ledger_id: int, body: bytes, key: bytes, done: Any) -> None:
        done(ReturnCode.BAD_REQUEST)

    def read_lac(self, ledger_id: int, done: Any) -> None:
        done(0, b"body", None)

    def last_confirmed(self, ledger_id: int, done: Any) -> None:
        done(ReturnCode.IO_ERROR, -1)

    def wait_lac(self, ledger_id: int, previous: int, timeout_s: float, done: Any) -> Callable[[], None]:
        done(0, 5, None)
        return lambda: None

    def force_ledger(self, ledger_id: int, done: Any) -> None:
        done(0)

    def bookie_info(self, done: Any) -> None:
        done(0, 2**62, 2**61)

    def list_entries(self, ledger_id: int, done: Any) -> None:
        done(0, EntryAvailability.of([1, 2, 4]))


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("peer", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert low < high

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close


async def say(frames: list[bytes]) -> tuple[bytes, bool]:
    """(what the server wrote, whether it closed the connection)."""
    async with TaskScope("test") as scope:
        connection = BookieServer(Echo(), scope)._accept()
        transport: Any = Transport()
        connection.connection_made(transport)
        connection.data_received(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))
        await asyncio.sleep(0)
        connection.connection_lost(None)
        return b"".join(transport.written), transport.closed


def answers(data: bytes) -> int:
    count = 0
    while data:
        (length,) = struct.unpack_from(">I", data)
        assert len(data) >= 4 + length
        data = data[4 + length :]
        count += 1
    return count


@settings(deadline=None, max_examples=60)
@given(st.lists(V3_REQUESTS, max_size=5))
def test_every_request_of_version_three_is_answered(frames: list[bytes]) -> None:
    with mock.patch.object(server_connection, "_logger") as logger:
        written, closed = asyncio.run(say(frames))
    assert not logger.exception.called
    assert not closed
    assert answers(written) == len(frames)


@settings(deadline=None, max_examples=60)
@given(st.lists(V2_REQUESTS | V3_REQUESTS | st.binary(max_size=60), max_size=5))
def test_anything_else_is_answered_or_ends_the_connection(frames: list[bytes]) -> None:
    with mock.patch.object(server_connection, "_logger") as logger:
        written, closed = asyncio.run(say(frames))
    assert not logger.exception.called
    found = answers(written)
    assert found == len(frames) if not closed else found < len(frames)


ADDS = st.lists(
    st.tuples(st.sampled_from([b"k" * 20, b"o" * 20]), st.integers(0, 1), st.integers(0, 12), st.sampled_from([0, 2])),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(adds=ADDS, cuts=st.sets(st.integers(1, 1200), max_size=5))
def test_adds_are_answered_one_by_one_however_they_were_received(
    adds: list[tuple[bytes, int, int, int]], cuts: set[int]
) -> None:
    """Those of one ledger in one read of the socket are one run for the bookie, and the same bytes for the client."""
    frames = [
        struct.pack(">BBH", 2, 1, flags) + key + struct.pack(">qqq", ledger_id, entry_id, -1) + b"payload"
        for key, ledger_id, entry_id, flags in adds
    ]
    stream = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    expected = b"".join(
        struct.pack(">IIiqq", 24, 0x02010000, 0, ledger_id, entry_id) for _, ledger_id, entry_id, _ in adds
    )
    echo = Echo()

    async def feed() -> bytes:
        async with TaskScope("test") as scope:
            connection = BookieServer(echo, scope)._accept()
            transport: Any = Transport()
            connection.connection_made(transport)
            edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
            for start, end in itertools.pairwise(edges):
                if start < end:
                    connection.data_received(stream[start:end])
            await asyncio.sleep(0)
            connection.connection_lost(None)
            return b"".join(transport.written)

    assert asyncio.run(feed()) == expected
