"""Bytes of a bucket of delayed messages. Pure.

Chunk 0 is the header: `magic, segments, count`, the first due time of each segment, then the positions as one bitmap a ledger
(ledger id, first entry id, bytes, bitmap). Chunks 1.. are the segments: messages sorted by due time, `due ms, position key, slot`.
All big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final

from magnetar.base.errors import CorruptionError
from magnetar.broker.dispatch.position_key import ENTRY_BITS, ENTRY_MASK
from magnetar.broker.dispatch.waiting import SLOT_BITS, SLOT_MASK

MAGIC: Final = 0x4D44_4231
SEGMENT_MESSAGES: Final = 5_000
"""Messages loaded at a time when they come due: 90 kB."""

_HEAD: Final = Struct(">IIQ")
_DUE: Final = Struct(">q")
_BITMAP: Final = Struct(">QQI")
_ITEM: Final = Struct(">qQH")

Item = tuple[int, int]
"""Due time in ms, position key << 16 | slot."""


class Positions:
    """A set of position keys, a bit for each entry between a ledger's first and last."""

    __slots__ = ("by_ledger",)

    def __init__(self) -> None:
        self.by_ledger: dict[int, tuple[int, bytearray]] = {}
        """Ledger id -> first entry id (a multiple of 8), bitmap from there."""

    @classmethod
    def of(cls, items: Sequence[Item]) -> Positions:
        positions = cls()
        entries: dict[int, list[int]] = {}
        for _, packed in items:
            key = packed >> SLOT_BITS
            entries.setdefault(key >> ENTRY_BITS, []).append(key & ENTRY_MASK)
        for ledger_id in sorted(entries):
            first = min(entries[ledger_id]) & ~7
            bits = bytearray((max(entries[ledger_id]) - first >> 3) + 1)
            for entry_id in entries[ledger_id]:
                bits[entry_id - first >> 3] |= 1 << (entry_id - first & 7)
            positions.by_ledger[ledger_id] = (first, bits)
        return positions

    def __contains__(self, key: int) -> bool:
        found = self.by_ledger.get(key >> ENTRY_BITS)
        if found is None:
            return False
        place = (key & ENTRY_MASK) - found[0]
        return 0 <= place < len(found[1]) * 8 and bool(found[1][place >> 3] >> (place & 7) & 1)


@dataclass(frozen=True, slots=True)
class BucketHeader:
    """The part of a bucket that is kept in memory."""

    count: int
    first_due_ms: list[int]
    """First due time of each segment."""
    positions: Positions


def encode(items: Sequence[Item]) -> tuple[BucketHeader, list[bytes]]:
    """The chunks of a bucket. `items` sorted, at least one."""
    segments = [items[start : start + SEGMENT_MESSAGES] for start in range(0, len(items), SEGMENT_MESSAGES)]
    header = BucketHeader(len(items), [segment[0][0] for segment in segments], Positions.of(items))
    parts = [_HEAD.pack(MAGIC, len(segments), len(items))]
    parts += [_DUE.pack(due_ms) for due_ms in header.first_due_ms]
    for ledger_id, (first, bits) in header.positions.by_ledger.items():
        parts += [_BITMAP.pack(ledger_id, first, len(bits)), bytes(bits)]
    pack = _ITEM.pack
    chunks = [b"".join(parts)]
    chunks += [b"".join([pack(due, p >> SLOT_BITS, p & SLOT_MASK) for due, p in segment]) for segment in segments]
    return header, chunks


def decode_header(data: bytes) -> BucketHeader:
    """Raises CorruptionError."""
    try:
        magic, segments, count = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise CorruptionError(f"a bucket of delayed messages begins with {magic:#x}, not {MAGIC:#x}")
        offset = _HEAD.size
        first_due_ms = [_DUE.unpack_from(data, offset + index * _DUE.size)[0] for index in range(segments)]
        offset += segments * _DUE.size
        positions = Positions()
        while offset < len(data):
            ledger_id, first, size = _BITMAP.unpack_from(data, offset)
            offset += _BITMAP.size
            positions.by_ledger[ledger_id] = (first, bytearray(data[offset : offset + size]))
            offset += size
    except StructError as error:
        raise CorruptionError(f"a bucket of delayed messages has a cut header: {error}") from error
    return BucketHeader(count, first_due_ms, positions)


def decode_segment(data: bytes) -> list[Item]:
    """Raises CorruptionError."""
    if len(data) % _ITEM.size:
        raise CorruptionError(f"a segment of delayed messages has {len(data)} bytes, no multiple of {_ITEM.size}")
    return [(due_ms, key << SLOT_BITS | slot) for due_ms, key, slot in _ITEM.iter_unpack(data)]
