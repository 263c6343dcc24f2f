"""The bookie protocol's packed form, versions 0 to 2 (BookKeeper proto/BookieProtocol). Pure; both sides.

    frame:    u32 length | u32 header | the rest
    header:   version u8 | operation u8 | flags u16     (version 0: the operation alone, as u32)

    ADD         key[20] | packed entry                              -> code | ledger | entry
    READ        ledger | entry [| key[20] when fencing]             -> code | ledger | entry [| packed entry when code is 0]
    AUTH        protobuf AuthMessage                                -> protobuf AuthMessage
    BATCH_READ  ledger | first entry | request | count i32 | bytes [| key[20] when fencing]
                                               -> code | ledger | first entry | request | (i32 length, packed entry) ...

Codes are i32, ids and sizes i64, all big-endian. What the `decode` functions take is a frame without its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from magnetar.wire.bookkeeper.frames import BookieFrameError
from magnetar.wire.pulsar.kernel import kernel

VERSION: Final = 2
"""Version of requests; answers carry the version of the request."""

ADD: Final = 1
READ: Final = 2
AUTH: Final = 3
BATCH_READ: Final = 7

FLAG_FENCE: Final = 1

MASTER_KEY_BYTES: Final = 20

ADD_HEAD_BYTES: Final = 24
"""Bytes of an add request before the packed entry: header and key."""

RESPONSE_HEAD_BYTES: Final = 24
"""Bytes of every answer but AUTH's: header, code, ledger, entry."""

ANSWER_BYTES: Final = 4 + RESPONSE_HEAD_BYTES
"""The same with the frame's length: all of the answer to an add."""

BATCH_HEAD_BYTES: Final = RESPONSE_HEAD_BYTES + 8
BATCH_ENTRY_HEAD_BYTES: Final = 4

_HEADER = Struct(">I")
_ADD_HEAD = Struct(">II20s")
_ADD_REQUEST = Struct(">I20sqq")
_READ_REQUEST = Struct(">IIqq")
_READ_BODY = Struct(">Iqq")
_BATCH_REQUEST = Struct(">IIqqqiq")
_BATCH_BODY = Struct(">Iqqqiq")
_RESPONSE = Struct(">IIiqq")
_RESPONSE_BODY = Struct(">Iiqq")
_ADD_FRAME = Struct(">II20sqq")
_unpack_add_frame = _ADD_FRAME.unpack_from
_PLAIN_ADD: Final = VERSION << 8 | ADD
_BATCH_RESPONSE = Struct(">IIiqqq")
_I64 = Struct(">q")
_pack_id = _I64.pack

decode_add = _ADD_REQUEST.unpack_from
"""(header, master key, ledger, entry) of an add; the packed entry starts at `ADD_HEAD_BYTES`. Raises struct.error."""

decode_response = _RESPONSE_BODY.unpack_from
"""(header, code, ledger, entry) of an answer other than AUTH's. Raises struct.error."""

encode_response = _RESPONSE.pack
"""`encode_response(RESPONSE_HEAD_BYTES, header, code, ledger, entry)`: the whole frame of an answer without data."""


class ReadRequest(NamedTuple):
    """`entry_id` -1: the last one. `master_key` is empty unless the request fences."""

    header: int
    ledger_id: int
    entry_id: int
    master_key: bytes


class BatchReadRequest(NamedTuple):
    """`max_count` <= 0: no limit."""

    header: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    max_count: int
    max_bytes: int
    master_key: bytes


def request_header(operation: int, flags: int) -> int:
    """The header of a request of version 2."""
    return VERSION << 24 | operation << 16 | flags


def response_header(header: int) -> int:
    """The header of the answer to the request with this header: its version and operation, no flags."""
    return header & 0xFFFF0000 if header >> 24 else header


def operation_of(header: int) -> int:
    """The operation that a header of any version names."""
    return header >> 16 & 0xFF if header >> 24 else header


def flags_of(header: int) -> int:
    """Version 0 has none."""
    return header & 0xFFFF if header >> 24 else 0


def decode_header(frame: bytes) -> int:
    """The header of any request. Raises BookieFrameError."""
    if len(frame) < _HEADER.size:
        raise BookieFrameError(f"a request of {len(frame)} bytes has no header")
    (header,) = _HEADER.unpack_from(frame)
    return int(header)


# ---- Requests


def encode_add_head(flags: int, master_key: bytes, entry_bytes: int) -> bytes:
    """The frame of an add up to the packed entry, which has to follow."""
    return _ADD_HEAD.pack(ADD_HEAD_BYTES + entry_bytes, VERSION << 24 | ADD << 16 | flags, master_key)


def encode_read(ledger_id: int, entry_id: int, flags: int, master_key: bytes) -> bytes:
    """The frame of a read; the key goes along only when it fences."""
    header = request_header(READ, flags)
    if not flags & FLAG_FENCE:
        return _READ_REQUEST.pack(20, header, ledger_id, entry_id)
    return _READ_REQUEST.pack(20 + MASTER_KEY_BYTES, header, ledger_id, entry_id) + master_key


def encode_batch_read(ledger_id: int, first_entry_id: int, request_id: int, max_count: int, max_bytes: int) -> bytes:
    """The frame of a batch read, which never fences: recovery reads entry by entry."""
    header = request_header(BATCH_READ, 0)
    size = _BATCH_BODY.size
    return _BATCH_REQUEST.pack(size, header, ledger_id, first_entry_id, request_id, max_count, max_bytes)


def encode_auth(header: int, message: bytes) -> bytes:
    """The frame of an AUTH request or answer around a serialized AuthMessage."""
    return _HEADER.pack(_HEADER.size + len(message)) + _HEADER.pack(header) + message


def auth_message(frame: bytes) -> bytes:
    """The serialized AuthMessage of an AUTH frame."""
    return frame[_HEADER.size :]


PlainAdds = tuple[int, bytes, int, list[int], list[bytes], int]
"""(flags, master key, ledger id, entry ids, packed entries, position behind the last frame)"""


def cut_adds_in_python(
    data: bytes, position: int, entries_max: int, bytes_max: int, entry_bytes_min: int, entry_bytes_max: int
) -> PlainAdds | None:
    """Whole frames of adds of version 2 from `position` on that have header, key and ledger in common, and ascending entry ids.

    None: what stands there is something else, also an id below zero or an entry whose length is out of bounds. Stops behind the
    entry with which there are `entries_max` of them, or `bytes_max` bytes.
    """
    entry_ids: list[int] = []
    entries: list[bytes] = []
    size, last, end = 0, -1, len(data)
    first = (0, b"", 0)
    while len(entries) < entries_max and size < bytes_max and end - position >= _ADD_FRAME.size:
        length, header, key, ledger_id, entry_id = _unpack_add_frame(data, position)
        entry_bytes = length - ADD_HEAD_BYTES
        stop = position + 4 + length
        if header >> 16 != _PLAIN_ADD or not entry_bytes_min <= entry_bytes <= entry_bytes_max or stop > end:
            break
        if entry_id <= last or ledger_id < 0 or (entries and (header, key, ledger_id) != first):
            break
        first = (header, key, ledger_id)
        entry_ids.append(entry_id)
        entries.append(data[position + 4 + ADD_HEAD_BYTES : stop])
        size, last, position = size + entry_bytes, entry_id, stop
    if not entries:
        return None
    header, key, ledger_id = first
    return header & 0xFFFF, key, ledger_id, entry_ids, entries, position


cut_adds: Callable[[bytes, int, int, int, int, int], PlainAdds | None] = (
    kernel.cut_adds if kernel else cut_adds_in_python
)


def decode_read(frame: bytes) -> ReadRequest:
    """Raises BookieFrameError."""
    try:
        header, ledger_id, entry_id = _READ_BODY.unpack_from(frame)
    except struct_error:
        raise BookieFrameError(f"a read request of {len(frame)} bytes is too short") from None
    return ReadRequest(header, ledger_id, entry_id, _key_after(frame, _READ_BODY.size, header))


def decode_batch_read(frame: bytes) -> BatchReadRequest:
    """Raises BookieFrameError."""
    try:
        values = _BATCH_BODY.unpack_from(frame)
    except struct_error:
        raise BookieFrameError(f"a batch read request of {len(frame)} bytes is too short") from None
    header, ledger_id, first_entry_id, request_id, max_count, max_bytes = values
    key = _key_after(frame, _BATCH_BODY.size, header)
    return BatchReadRequest(header, ledger_id, first_entry_id, request_id, max_count, max_bytes, key)


def _key_after(frame: bytes, offset: int, header: int) -> bytes:
    if not flags_of(header) & FLAG_FENCE:
        return b""
    key = frame[offset : offset + MASTER_KEY_BYTES]
    if len(key) < MASTER_KEY_BYTES:
        raise BookieFrameError("a fencing read without a whole master key")
    return key


# ---- Answers


def stored_answers(ledger_id: int, entry_ids: Iterable[int], code: int = 0) -> bytes:
    """The frames of the answers to adds of version 2 of one ledger that ended alike, with their lengths."""
    head = _RESPONSE.pack(RESPONSE_HEAD_BYTES, VERSION << 24 | ADD << 16, code, ledger_id, 0)[:-8]
    return head + head.join(map(_pack_id, entry_ids))


def ledger_of_answer(data: bytes, position: int) -> int:
    """The ledger that the answer at `position` names, if it is one other than AUTH's; ANSWER_BYTES have to be there."""
    return int.from_bytes(data[position + 12 : position + 20], "big", signed=True)


def encode_read_response(header: int, ledger_id: int, entry_id: int, entry: bytes) -> tuple[bytes, bytes]:
    """The frame of a read's entry, in two pieces."""
    return _RESPONSE.pack(RESPONSE_HEAD_BYTES + len(entry), header, 0, ledger_id, entry_id), entry


def encode_batch_response(
    header: int, code: int, ledger_id: int, first_entry_id: int, request_id: int, entries: Iterable[bytes]
) -> list[bytes]:
    """The frame of a batch read's answer, in pieces."""
    pieces = [b""]
    size = BATCH_HEAD_BYTES
    for entry in entries:
        length = len(entry)
        size += BATCH_ENTRY_HEAD_BYTES + length
        pieces.append(_HEADER.pack(length))
        pieces.append(entry)
    pieces[0] = _BATCH_RESPONSE.pack(size, header, code, ledger_id, first_entry_id, request_id)
    return pieces


def decode_batch_response(frame: bytes) -> tuple[int, list[bytes]]:
    """(request id, packed entries) of a batch read's answer. Raises BookieFrameError."""
    if len(frame) < BATCH_HEAD_BYTES:
        raise BookieFrameError(f"the answer to a batch read is {len(frame)} bytes long")
    (request_id,) = _I64.unpack_from(frame, RESPONSE_HEAD_BYTES)
    entries: list[bytes] = []
    position, size = BATCH_HEAD_BYTES, len(frame)
    while position < size:
        if position + BATCH_ENTRY_HEAD_BYTES > size:
            raise BookieFrameError("the last entry of a batch is cut off")
        (length,) = _HEADER.unpack_from(frame, position)
        position += BATCH_ENTRY_HEAD_BYTES
        if position + length > size:
            raise BookieFrameError("the last entry of a batch is cut off")
        entries.append(frame[position : position + length])
        position += length
    return request_id, entries
