"""The bytes of an entry log. Pure.

File: `magic 8 | version u32 | log id u64 | CRC32C u32`, then records `CRC32C of length and entry u32 | length u32 | packed entry`. A sealed
log ends in its ledgers map, `(ledger id i64 | bytes u64)*`, and a trailer `map offset u64 | ledgers u32 | CRC32C of map, offset and
count u32 | magic 8`. Nothing is ever written over: a log without a valid trailer was not sealed, and its map is found by scanning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

from magnetar.base.checksum import crc32c, crc32c_extend
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX
from magnetar.wire.pulsar.kernel import kernel

MAGIC: Final = b"MGENTLOG"
TRAILER_MAGIC: Final = b"MGELSEAL"
VERSION: Final = 1
LOG_ID_MAX: Final = 2**32 - 1

_HEADER = Struct(">8sIQ")
_RECORD = Struct(">II")
_U32 = Struct(">I")
_MAP_ITEM = Struct(">qQ")
_TRAILER_HEAD = Struct(">QI")
_IDS = Struct(">qq")

HEADER_BYTES: Final = _HEADER.size + 4
RECORD_HEADER_BYTES: Final = _RECORD.size
TRAILER_BYTES: Final = _TRAILER_HEAD.size + 4 + len(TRAILER_MAGIC)

_pack_u32 = _U32.pack
_pack_record = _RECORD.pack
_record_headers: Final[Callable[[list[bytes]], list[bytes]] | None] = kernel and kernel.record_headers


class Location(NamedTuple):
    """Where an entry's record begins, and the entry's length without the record's header."""

    log_id: int
    offset: int
    size_bytes: int


class Trailer(NamedTuple):
    """What the last bytes of a sealed log say."""

    map_offset: int
    ledgers_count: int
    crc: int


def pack_header(log_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, log_id)
    return head + _pack_u32(crc32c(head))


def check_header(data: bytes, log_id: int) -> None:
    """Raises CorruptionError unless `data` begins with the header of this log."""
    if len(data) < HEADER_BYTES or data[:HEADER_BYTES] != pack_header(log_id):
        raise CorruptionError(f"entry log {log_id} has a damaged header")


class RecordHeaders:
    """Headers of many records: entries are often of one length, whose checksum is then computed once."""

    __slots__ = ("_crc_of_size",)

    def __init__(self) -> None:
        self._crc_of_size = _CrcOfSize()

    def pack(self, entries: list[bytes], sizes: Sequence[int]) -> list[bytes]:
        """One for each entry; `sizes`: their lengths."""
        return _record_headers(entries) if _record_headers is not None else self.pack_in_python(entries, sizes)

    def pack_in_python(self, entries: list[bytes], sizes: Sequence[int]) -> list[bytes]:
        """See `pack`."""
        if len(self._crc_of_size) >= _SIZES_REMEMBERED_MAX:
            self._crc_of_size.clear()
        crcs = map(crc32c_extend, map(self._crc_of_size.__getitem__, sizes), entries)
        return list(map(_pack_record, crcs, sizes))


class _CrcOfSize(dict[int, int]):
    """CRC32C of a length field."""

    def __missing__(self, size: int) -> int:
        crc = self[size] = crc32c(_pack_u32(size))
        return crc


_SIZES_REMEMBERED_MAX: Final = 4096


def unpack_entry_record(data: bytes, start: int, location: Location, ledger_id: int, entry_id: int) -> bytes:
    """The packed entry of the record at `start` of `data`. Raises CorruptionError when it is not that of these ids."""
    begin = start + RECORD_HEADER_BYTES
    end = begin + location.size_bytes
    if end > len(data):
        raise CorruptionError(f"ledger {ledger_id} entry {entry_id}: {location} is beyond the end of the entry log")
    crc, size = _RECORD.unpack_from(data, start)
    entry = data[begin:end]
    if size != location.size_bytes or crc != crc32c_extend(crc32c(data[start + 4 : begin]), entry):
        raise CorruptionError(f"ledger {ledger_id} entry {entry_id}: the record at {location} is damaged")
    if size < _IDS.size or _IDS.unpack_from(entry) != (ledger_id, entry_id):
        raise CorruptionError(f"ledger {ledger_id} entry {entry_id}: {location} holds another entry")
    return entry


class ScannedRecord(NamedTuple):
    """One valid record found by a scan."""

    ledger_id: int
    entry_id: int
    offset: int
    entry: bytes


def scan_records(data: bytes, base: int) -> tuple[list[ScannedRecord], int, bool]:
    """(records, bytes consumed, valid so far): stops where `data` ends within a record or at the first damaged record.

    `base` is the offset of `data` in the file. False means damage at `base + consumed`.
    """
    found: list[ScannedRecord] = []
    offset = 0
    end = len(data)
    while offset + RECORD_HEADER_BYTES <= end:
        crc, size = _RECORD.unpack_from(data, offset)
        if size < _IDS.size or size > ENTRY_BYTES_MAX:
            return found, offset, False
        begin = offset + RECORD_HEADER_BYTES
        if begin + size > end:
            break
        entry = data[begin : begin + size]
        if crc != crc32c_extend(crc32c(data[offset + 4 : begin]), entry):
            return found, offset, False
        ledger_id, entry_id = _IDS.unpack_from(entry)
        found.append(ScannedRecord(ledger_id, entry_id, base + offset, entry))
        offset = begin + size
    return found, offset, True


def pack_seal(map_offset: int, ledgers: Mapping[int, int]) -> bytes:
    """Ledgers map and trailer, to be written at `map_offset`."""
    items = b"".join(_MAP_ITEM.pack(ledger_id, size) for ledger_id, size in sorted(ledgers.items()))
    head = _TRAILER_HEAD.pack(map_offset, len(ledgers))
    return b"".join((items, head, _pack_u32(crc32c_extend(crc32c(items), head)), TRAILER_MAGIC))


def unpack_trailer(data: bytes, file_bytes: int) -> Trailer | None:
    """The trailer in the file's last `TRAILER_BYTES`; None when there is none that fits the file."""
    if len(data) != TRAILER_BYTES or data[-8:] != TRAILER_MAGIC:
        return None
    map_offset, count = _TRAILER_HEAD.unpack_from(data)
    (crc,) = _U32.unpack_from(data, _TRAILER_HEAD.size)
    if map_offset < HEADER_BYTES or map_offset + count * _MAP_ITEM.size + TRAILER_BYTES != file_bytes:
        return None
    return Trailer(map_offset, count, crc)


def unpack_map(data: bytes, trailer: Trailer) -> dict[int, int] | None:
    """Bytes by ledger; None when the checksum does not match."""
    head = _TRAILER_HEAD.pack(trailer.map_offset, trailer.ledgers_count)
    if trailer.crc != crc32c_extend(crc32c(data), head):
        return None
    return dict(_MAP_ITEM.iter_unpack(data))
