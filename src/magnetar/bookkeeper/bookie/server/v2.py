"""Requests of versions 0 to 2 of the bookie protocol: what `wire.bookkeeper.v2` decodes, done by the bookie, answered in its form."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from magnetar.base.limits import RUN_BYTES_MAX
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX
from magnetar.bookkeeper.bookie.server.auth import ConnectionAuth
from magnetar.bookkeeper.bookie.server.connection import FrameConnection
from magnetar.bookkeeper.bookie.server.reads import ReadGate
from magnetar.bookkeeper.codes import FLAG_FENCE, FLAG_HIGH_PRIORITY, ReturnCode
from magnetar.bookkeeper.entry_format import ENTRY_BYTES_MIN
from magnetar.bookkeeper.ports import BookieChannel
from magnetar.wire.bookkeeper import v2
from magnetar.wire.bookkeeper.BookkeeperProtocol_pb2 import AuthMessage
from magnetar.wire.bookkeeper.frames import BookieFrameError

_VERSION_BYTE_MAX: Final = 3
"""A header of version 3 is answered BAD_VERSION; what is above is not a header."""

_ADD: Final = v2.ADD
_ADD_HEAD_BYTES: Final = v2.ADD_HEAD_BYTES
_PLAIN_ADD: Final = b"\x02\x01"
"""How an add of version 2 begins."""
_PLAIN_ADD_HEADER: Final = 0x02010000
_FRAME_BYTES_MIN: Final = v2.ADD_HEAD_BYTES + ENTRY_BYTES_MIN
_FRAME_BYTES_MAX: Final = v2.ADD_HEAD_BYTES + ENTRY_BYTES_MAX
"""Shorter and longer entries are refused, which is not said of a run."""
_HEAD_BYTES: Final = v2.RESPONSE_HEAD_BYTES
_WIRE_CODES: Final = frozenset(int(code) for code in ReturnCode)
_IO_ERROR: Final = int(ReturnCode.IO_ERROR)
_TOO_MANY_REQUESTS: Final = int(ReturnCode.TOO_MANY_REQUESTS)
_UNAUTHORIZED: Final = int(ReturnCode.UNAUTHORIZED)
_BAD_VERSION: Final = int(ReturnCode.BAD_VERSION)

_decode_add = v2.decode_add
_encode_response = v2.encode_response


class V2Requests:
    """Of one connection. `receive(frame)` raises BookieFrameError or struct.error for what no answer fits: the connection ends."""

    __slots__ = ("_auth", "_batch_bytes_max", "_bookie", "_connection", "_reads", "_write")

    def __init__(
        self, bookie: BookieChannel, connection: FrameConnection, reads: ReadGate, auth: ConnectionAuth
    ) -> None:
        self._bookie = bookie
        self._connection = connection
        self._write = connection.write
        self._reads = reads
        self._auth = auth

    def receive(self, frame: bytes) -> None:
        """Handle one request."""
        if frame[:2] == _PLAIN_ADD and self._auth.passed:
            header, key, ledger_id, entry_id = _decode_add(frame)
            done = partial(self._added, _PLAIN_ADD_HEADER, ledger_id, entry_id)
            self._bookie.add_entry(ledger_id, entry_id, frame[_ADD_HEAD_BYTES:], key, header & 0xFFFF, done)
            return
        header = v2.decode_header(frame)
        if header >> 24 > _VERSION_BYTE_MAX:
            raise BookieFrameError("version 3 after version 2")
        operation = v2.operation_of(header)
        if operation == v2.AUTH:
            self._authenticate(header, frame)
            return
        code = _BAD_VERSION if header >> 24 > v2.VERSION else 0 if self._auth.passed else _UNAUTHORIZED
        if operation == v2.READ:
            self._read(v2.decode_read(frame), code)
        elif operation == v2.BATCH_READ:
            self._read_batch(v2.decode_batch_read(frame), code)
        elif operation == _ADD:
            self._add(frame, code)
        else:
            raise BookieFrameError(f"operation {operation} is not one of this protocol version's")

    # ---- Adds

    def take_run(self, data: bytes, position: int, entries_max: int) -> tuple[int, int]:
        """Hand the adds of one ledger that stand at `position` of what was received to the bookie as a run, without cutting it into frames;
        answers the position behind them, and how many there were: 0 as `take_adds`."""
        if not self._auth.passed:
            return position, 0
        found = v2.cut_adds(data, position, entries_max, RUN_BYTES_MAX, ENTRY_BYTES_MIN, ENTRY_BYTES_MAX)
        if found is None:
            return position, 0
        flags, key, ledger_id, entry_ids, entries, position = found
        self._bookie.add_run(ledger_id, entry_ids, entries, key, flags, partial(self._added_run, ledger_id, entry_ids))
        return position, len(entry_ids)

    def take_adds(self, frames: deque[bytes], frames_max: int) -> int:
        """Hand the adds of one ledger that stand at the front to the bookie as a run; answers how many were taken. 0: what is there is
        something else, or has to be looked at by itself."""
        if not self._auth.passed:
            return 0
        entry_ids: list[int] = []
        entries: list[bytes] = []
        size, first = 0, (0, b"", 0)
        while frames and len(entries) < frames_max and size < RUN_BYTES_MAX:
            frame = frames[0]
            if frame[:2] != _PLAIN_ADD or not _FRAME_BYTES_MIN <= len(frame) <= _FRAME_BYTES_MAX:
                break
            header, key, ledger_id, entry_id = _decode_add(frame)
            if not entries:
                first = (header, key, ledger_id)
                if ledger_id < 0 or entry_id < 0:
                    break
            elif (header, key, ledger_id) != first or entry_id <= entry_ids[-1]:
                break
            frames.popleft()
            entry_ids.append(entry_id)
            entries.append(frame[_ADD_HEAD_BYTES:])
            size += len(frame)
        if entries:
            header, key, ledger_id = first
            done = partial(self._added_run, ledger_id, entry_ids)
            self._bookie.add_run(ledger_id, entry_ids, entries, key, header & 0xFFFF, done)
        return len(entry_ids)

    def _added_run(self, ledger_id: int, entry_ids: list[int], code: int) -> None:
        """The answers of a run, in one piece."""
        if code and code not in _WIRE_CODES:
            code = _IO_ERROR
        self._write(v2.stored_answers(ledger_id, entry_ids, code))

    def _add(self, frame: bytes, code: int) -> None:
        header, key, ledger_id, entry_id = _decode_add(frame)
        done = partial(self._added, v2.response_header(header), ledger_id, entry_id)
        if code:
            done(code)
        else:
            self._bookie.add_entry(ledger_id, entry_id, frame[_ADD_HEAD_BYTES:], key, v2.flags_of(header), done)

    def _added(self, header: int, ledger_id: int, entry_id: int, code: int) -> None:
        if code and code not in _WIRE_CODES:
            code = _IO_ERROR
        self._write(_encode_response(_HEAD_BYTES, header, code, ledger_id, entry_id))

    # ---- Reads

    def _read(self, request: v2.ReadRequest, code: int) -> None:
        if code:
            self._read_done(request, 0, code, None)
            return
        if v2.flags_of(request.header) & (FLAG_FENCE | FLAG_HIGH_PRIORITY):
            self._start_read(request, 0)
        elif not self._reads.submit(0, partial(self._start_read, request)):
            self._read_done(request, 0, _TOO_MANY_REQUESTS, None)

    def _start_read(self, request: v2.ReadRequest, size: int) -> None:
        flags = v2.flags_of(request.header)
        done = partial(self._read_done, request, size)
        self._bookie.read_entry(request.ledger_id, request.entry_id, flags, request.master_key, done)

    def _read_done(self, request: v2.ReadRequest, size: int, code: int, entry: bytes | None) -> None:
        header = v2.response_header(request.header)
        if code == 0 and entry is not None:
            self._connection.write_data(v2.encode_read_response(header, request.ledger_id, request.entry_id, entry))
        else:
            code = code if code in _WIRE_CODES and code else _IO_ERROR
            self._write(_encode_response(_HEAD_BYTES, header, code, request.ledger_id, request.entry_id))
        if size:
            self._reads.ended(size, entry)

    def _read_batch(self, request: v2.BatchReadRequest, code: int) -> None:
        # The whole answer has to fit the frame that a client takes: entries are asked for by what they take up there.
        size = min(max(request.max_bytes, 1), BATCH_ANSWER_BYTES_MAX)
        if code:
            self._batch_done(request, 0, code, [])
            return
        flags = v2.flags_of(request.header)
        if flags & FLAG_FENCE:
            self._fence_first(request, size)
        elif flags & FLAG_HIGH_PRIORITY:
            self._start_batch(request, size, 0)
        elif not self._reads.submit(size, partial(self._start_batch, request, size)):
            self._batch_done(request, 0, _TOO_MANY_REQUESTS, [])

    def _fence_first(self, request: v2.BatchReadRequest, size: int) -> None:
        def fenced(code: int, entry: bytes | None) -> None:
            if code in _FENCED_CODES:
                self._start_batch(request, size, 0)
            else:
                self._batch_done(request, 0, code, [])

        flags = v2.flags_of(request.header)
        self._bookie.read_entry(request.ledger_id, request.first_entry_id, flags, request.master_key, fenced)

    def _start_batch(self, request: v2.BatchReadRequest, size: int, charged: int) -> None:
        done = partial(self._batch_done, request, charged)
        self._bookie.read_batch(request.ledger_id, request.first_entry_id, request.max_count, size, done)

    def _batch_done(self, request: v2.BatchReadRequest, charged: int, code: int, entries: list[bytes]) -> None:
        if code not in _WIRE_CODES:
            code = _IO_ERROR
        header = v2.response_header(request.header)
        pieces = v2.encode_batch_response(
            header, code, request.ledger_id, request.first_entry_id, request.request_id, _fitting(entries, request)
        )
        self._connection.write_data(pieces)
        if charged:
            self._reads.ended(charged)

    # ---- Authentication

    def _authenticate(self, header: int, frame: bytes) -> None:
        answer = self._auth.answer(AuthMessage.FromString(v2.auth_message(frame)))
        self._write(v2.encode_auth(v2.response_header(header), answer.SerializeToString()))


BATCH_ANSWER_BYTES_MAX: Final = 5 * 1024 * 1024
"""One batch read returns no more, as BookKeeper's maxBatchReadSize, unless its first entry alone is longer."""

_FENCED_CODES: Final = frozenset({int(ReturnCode.OK), int(ReturnCode.NO_ENTRY)})


def _fitting(entries: list[bytes], request: v2.BatchReadRequest) -> list[bytes]:
    """At least the first entry, then those that fit the size asked for, counted as BookKeeper does: with all lengths and heads."""
    limit = min(max(request.max_bytes, 0), BATCH_ANSWER_BYTES_MAX)
    size = v2.BATCH_HEAD_BYTES + 4
    for count, entry in enumerate(entries):
        size += v2.BATCH_ENTRY_HEAD_BYTES + len(entry)
        if size > limit and count:
            return entries[:count]
    return entries
