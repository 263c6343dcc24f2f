"""The journal's bytes: file header, commits, records. Pure.

File: `magic 8 | version u32 | first sequence u64 | salt u64 | CRC32C u32`, then commits, then whatever was preallocated.
Commit: `magic u32 | body length u32 | sequence u64 | CRC32C of the body u32 | CRC32C of salt and the 20 bytes before u32`, then the
body: records `length u32 | bytes`. One commit is what one fsync made durable, so it is the unit that is whole or torn: commit
n + 1 is written only after commit n is durable, hence a bad commit with a good later one behind it is damage, never a torn
tail. The salt is the file's own: bytes that a recycled file still holds, or that a client put into a payload, cannot look like commits.

A record begins with `ledger id i64 | entry id i64`. Entry id >= 0: the packed entry. Negative: `KEY` (+ master key), `FENCE` (+ master
key: one record, so that a fence on a ledger never seen before survives), `EXPLICIT_LAC` (+ LAC body).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from magnetar.base.checksum import crc32c, crc32c_extend
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX

FILE_MAGIC: Final = b"MGJOURNL"
VERSION: Final = 1
COMMIT_MAGIC: Final = b"MgCm"

KEY: Final = -0x1000
FENCE: Final = -0x2000
EXPLICIT_LAC: Final = -0x8000

COMMIT_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""A longer body length is damage; also what bounds the memory of a replay."""

_FILE_HEADER = Struct(">8sIQQ")
_COMMIT_HEADER = Struct(">4sIQI")
_U32 = Struct(">I")
_IDS = Struct(">qq")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size + 4
COMMIT_HEADER_BYTES: Final = _COMMIT_HEADER.size + 4
IDS_BYTES: Final = _IDS.size
"""A record is at least as long as that."""

_pack_u32 = _U32.pack
_unpack_u32 = _U32.unpack_from


class FileHeader(NamedTuple):
    """`salt` in the form in which it enters checksums."""

    first_sequence: int
    salt: bytes


class CommitHeader(NamedTuple):
    """What a valid commit header says."""

    sequence: int
    body_bytes: int
    body_crc: int


def pack_file_header(first_sequence: int, salt: int) -> bytes:
    """The first bytes of a journal file."""
    head = _FILE_HEADER.pack(FILE_MAGIC, VERSION, first_sequence, salt)
    return head + _pack_u32(crc32c(head))


def unpack_file_header(data: bytes, name: str) -> FileHeader:
    """Raises CorruptionError. Files appear by rename after fsync, so a bad header is damage, never a torn write."""
    if len(data) < FILE_HEADER_BYTES:
        raise CorruptionError(f"journal file {name} has no header")
    magic, version, first_sequence, salt = _FILE_HEADER.unpack_from(data)
    (crc,) = _unpack_u32(data, _FILE_HEADER.size)
    if magic != FILE_MAGIC or crc != crc32c(data[: _FILE_HEADER.size]):
        raise CorruptionError(f"journal file {name} has a damaged header")
    if version != VERSION:
        raise CorruptionError(f"journal file {name} has version {version}; this magnetar reads version {VERSION}")
    return FileHeader(first_sequence, salt.to_bytes(8, "big"))


def pack_commit(sequence: int, salt: bytes, records: list[bytes]) -> tuple[bytes, bytes]:
    """(header, body)."""
    parts: list[bytes] = [b""] * (2 * len(records))
    parts[::2] = [_pack_u32(size) for size in map(len, records)]
    parts[1::2] = records
    body = b"".join(parts)
    head = _COMMIT_HEADER.pack(COMMIT_MAGIC, len(body), sequence, crc32c(body))
    return head + _pack_u32(crc32c_extend(crc32c(salt), head)), body


def unpack_commit_header(data: bytes, offset: int, salt: bytes) -> CommitHeader | None:
    """The header at `offset`, or None when there is no valid one."""
    end = offset + _COMMIT_HEADER.size
    if data[offset : offset + 4] != COMMIT_MAGIC or end + 4 > len(data):
        return None
    (crc,) = _unpack_u32(data, end)
    if crc != crc32c_extend(crc32c(salt), data[offset:end]):
        return None
    _, body_bytes, sequence, body_crc = _COMMIT_HEADER.unpack_from(data, offset)
    if body_bytes > COMMIT_BODY_BYTES_MAX:
        return None
    return CommitHeader(sequence, body_bytes, body_crc)


def unpack_records(body: bytes, what: str) -> list[bytes]:
    """The records of a commit's body whose checksum has been checked. Raises CorruptionError."""
    records = []
    offset = 0
    end = len(body)
    while offset < end:
        if offset + 4 > end:
            raise CorruptionError(f"{what}: a record's length is cut off")
        (size,) = _unpack_u32(body, offset)
        offset += 4
        if size < _IDS.size or size > ENTRY_BYTES_MAX or offset + size > end:
            raise CorruptionError(f"{what}: a record of {size} bytes does not fit")
        records.append(body[offset : offset + size])
        offset += size
    return records


def pack_special(ledger_id: int, kind: int, content: bytes) -> bytes:
    """A record that is not an entry; `kind` is KEY, FENCE or EXPLICIT_LAC."""
    return _IDS.pack(ledger_id, kind) + content


def special_content(record: bytes) -> bytes:
    """What `pack_special` was given."""
    return record[_IDS.size :]
