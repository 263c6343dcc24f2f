"""A cursor's state as bytes: entries of the cursor ledger (PositionInfo) and the znode (ManagedCursorInfo). Pure.

Few holes are written as ranges (field 3), many as bitmaps (field 6); both are always read, and merged. Nothing is ever left out:
a state that does not fit one entry is written as several (an extension). Each part is a PositionInfo of its own with the same
mark-delete and the properties `magnetar.part` (from 0) and `magnetar.parts`; parts are consecutive entries and their union is the
state. A reader that knows nothing of parts sees a subset of the acknowledgements, so it redelivers but loses nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.managed_ledger.ack_ranges import AckRanges, LedgerSpace
from magnetar.managed_ledger.errors import CursorStateError
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.MLDataFormats_pb2 import (
    BatchedEntryDeletionIndexInfo,
    LongProperty,
    ManagedCursorInfo,
    MessageRange,
    PositionInfo,
    StringProperty,
)

STATE_ENTRY_BYTES_MAX = 4 * 1024 * 1024
"""One entry of a cursor ledger: a larger state is written in parts. Below the bookies' frame limit of 5 MiB."""

RANGES_AS_LIST_MAX = 256
"""More acknowledged ranges are written as bitmaps: a word holds 64 entries where a range takes about 20 bytes."""

_LEADING_WORDS_MAX = 500_000
"""Words of a ledger's bitmap before a part's share, written as zeros. Acknowledgements further out are written as ranges."""

_WORD_BYTES = 11
_ZERO_WORD_BYTES = 2
_PIECE_WORDS = 65_536
_RANGE_BYTES = 64
_PART, _PARTS = "magnetar.part", "magnetar.parts"


@dataclass(slots=True)
class CursorState:
    """What is stored of a cursor, decoded; `ledger_id` is the cursor ledger, -1 when the znode holds everything."""

    mark_delete: Position
    properties: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[Position, Position]] = field(default_factory=list)
    words: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    batches: list[tuple[Position, Sequence[int]]] = field(default_factory=list)


# ---- Cursor ledger


def encode_entries(
    acks: AckRanges, properties: Mapping[str, int], max_bytes: int = STATE_ENTRY_BYTES_MAX
) -> list[bytes]:
    """The complete state as one entry, or as several parts of at most `max_bytes` each."""
    info = PositionInfo(ledgerId=acks.mark_ledger, entryId=acks.mark_entry)
    add_properties(info.properties, properties)
    if acks.acked_count:
        if acks.range_count() <= RANGES_AS_LIST_MAX:
            add_ranges(info.individualDeletedMessages, acks.ranges())
        else:
            for ledger_id, floor, bits in acks.ledger_bitmaps():
                start, words = bits.words(floor)
                if start + len(words) > _LEADING_WORDS_MAX:
                    return _encode_parts(acks, properties, max_bytes)
                entry = info.individualDeletedMessageRanges.add(key=ledger_id)
                entry.values.extend(bytes(start))
                entry.values.extend(words)
    add_batches(info.batchedEntryDeletionIndexInfo, acks.partial_batches())
    if info.ByteSize() <= max_bytes:
        return [info.SerializeToString()]
    return _encode_parts(acks, properties, max_bytes)


def parts_of(entry: PositionInfo) -> tuple[int, int]:
    """(part, parts) of an entry; (0, 1) for one that is complete by itself."""
    part, parts = 0, 1
    for item in entry.properties:
        if item.name == _PART:
            part = item.value
        elif item.name == _PARTS:
            parts = item.value
    if not 0 <= part < parts:
        raise CursorStateError(f"cursor entry says it is part {part} of {parts}")
    return part, parts


def parse_entry(data: bytes) -> PositionInfo:
    try:
        return PositionInfo.FromString(data)
    except DecodeError as error:
        raise CursorStateError(f"a cursor ledger's entry is not a PositionInfo: {error}") from error


def decode_entries(entries: Sequence[PositionInfo]) -> CursorState:
    """The state of one complete group of parts."""
    state = CursorState(Position(entries[0].ledgerId, entries[0].entryId))
    for number, entry in enumerate(entries):
        if parts_of(entry) != (number, len(entries)) or (entry.ledgerId, entry.entryId) != state.mark_delete:
            raise CursorStateError(f"cursor entry {number} of {len(entries)} belongs to another state")
        state.properties.update(_properties_of(entry.properties))
        state.ranges.extend(_ranges_of(entry.individualDeletedMessages))
        state.words.extend((item.key, item.values) for item in entry.individualDeletedMessageRanges)
        state.batches.extend(_batches_of(entry.batchedEntryDeletionIndexInfo))
    return state


# ---- Znode


def parse_node(value: bytes) -> ManagedCursorInfo:
    try:
        return ManagedCursorInfo.FromString(value)
    except DecodeError as error:
        raise CursorStateError(f"a cursor's znode is not a ManagedCursorInfo: {error}") from error


def decode_node(info: ManagedCursorInfo) -> CursorState | None:
    """The state in the znode; None when it names no position (written by a very old broker)."""
    if not info.HasField("markDeleteLedgerId"):
        return None
    return CursorState(
        Position(info.markDeleteLedgerId, info.markDeleteEntryId),
        _properties_of(info.properties),
        list(_ranges_of(info.individualDeletedMessages)),
        [],
        list(_batches_of(info.batchedEntryDeletionIndexInfo)),
    )


def write_node(
    info: ManagedCursorInfo,
    ledger_id: int,
    acks: AckRanges,
    properties: Mapping[str, int],
    cursor_properties: Mapping[str, str],
    last_active_ms: int,
    *,
    complete: bool,
) -> bytes:
    """Update `info` (fields unknown here stay) and answer its bytes. `complete` stores the acknowledgements too."""
    for name in ("individualDeletedMessages", "properties", "batchedEntryDeletionIndexInfo", "cursorProperties"):
        info.ClearField(name)
    info.cursorsLedgerId = ledger_id
    info.markDeleteLedgerId, info.markDeleteEntryId = acks.mark_ledger, acks.mark_entry
    info.lastActive = last_active_ms
    for name in sorted(cursor_properties):
        info.cursorProperties.append(StringProperty(name=name, value=cursor_properties[name]))
    add_properties(info.properties, properties)
    if complete:
        add_ranges(info.individualDeletedMessages, acks.ranges())
        add_batches(info.batchedEntryDeletionIndexInfo, acks.partial_batches())
    return info.SerializeToString()


# ---- Restoring


def restore(state: CursorState, space: LedgerSpace, ledger_ids: Sequence[int]) -> AckRanges:
    """The acknowledgements of a decoded state against the ledgers that exist (`ledger_ids`, ascending)."""
    acks = AckRanges(space, state.mark_delete)
    for lower, upper in state.ranges:
        for ledger_id in ledger_ids[
            bisect_left(ledger_ids, lower.ledger_id) : bisect_right(ledger_ids, upper.ledger_id)
        ]:
            first = lower.entry_id + 1 if ledger_id == lower.ledger_id else 0
            last = upper.entry_id if ledger_id == upper.ledger_id else space.entries_in(ledger_id) - 1
            acks.add_range(ledger_id, first, last)
    for ledger_id, words in state.words:
        acks.restore_words(ledger_id, words)
    for position, words in state.batches:
        acks.restore_batch(*position, words)
    acks.settle()
    return acks


# ---- Pieces


def add_properties(target: Any, properties: Mapping[str, int]) -> None:
    for name in sorted(properties):
        target.append(LongProperty(name=name, value=properties[name]))


def add_ranges(target: Any, ranges: Iterable[tuple[Position, Position]]) -> None:
    for lower, upper in ranges:
        item: MessageRange = target.add()
        item.lowerEndpoint.ledgerId, item.lowerEndpoint.entryId = lower
        item.upperEndpoint.ledgerId, item.upperEndpoint.entryId = upper


def add_batches(target: Any, batches: Iterable[tuple[Position, list[int]]]) -> None:
    for position, words in batches:
        item: BatchedEntryDeletionIndexInfo = target.add()
        item.position.ledgerId, item.position.entryId = position
        item.deleteSet.extend(words)


def _properties_of(items: Iterable[LongProperty]) -> dict[str, int]:
    return {item.name: item.value for item in items if item.name not in (_PART, _PARTS)}


def _ranges_of(items: Iterable[MessageRange]) -> Iterable[tuple[Position, Position]]:
    for item in items:
        lower, upper = item.lowerEndpoint, item.upperEndpoint
        yield Position(lower.ledgerId, lower.entryId), Position(upper.ledgerId, upper.entryId)


def _batches_of(items: Iterable[BatchedEntryDeletionIndexInfo]) -> Iterable[tuple[Position, Sequence[int]]]:
    for item in items:
        yield Position(item.position.ledgerId, item.position.entryId), item.deleteSet


class _Parts:
    """Collects pieces and starts another part when one is full."""

    def __init__(self, mark_delete: Position, max_bytes: int) -> None:
        self._mark_delete = mark_delete
        self._max_bytes = max_bytes - 256  # room for the part's own fields
        self._size_bytes = 0
        self.parts: list[PositionInfo] = []

    def room_for(self, size_bytes: int) -> PositionInfo:
        if not self.parts or self._size_bytes + size_bytes > self._max_bytes:
            self.parts.append(PositionInfo(ledgerId=self._mark_delete[0], entryId=self._mark_delete[1]))
            self._size_bytes = 0
        self._size_bytes += size_bytes
        return self.parts[-1]

    def finish(self) -> list[bytes]:
        for number, part in enumerate(self.parts):
            part.properties.append(LongProperty(name=_PART, value=number))
            part.properties.append(LongProperty(name=_PARTS, value=len(self.parts)))
        return [part.SerializeToString() for part in self.parts]


def _encode_parts(acks: AckRanges, properties: Mapping[str, int], max_bytes: int) -> list[bytes]:
    parts = _Parts(acks.mark_delete, max_bytes)
    for name in sorted(properties):
        parts.room_for(len(name.encode()) + 32).properties.append(LongProperty(name=name, value=properties[name]))
    for ledger_id, floor, bits in acks.ledger_bitmaps():
        start, words = bits.words(floor)
        step = max(1, min(_PIECE_WORDS, max_bytes // (4 * _WORD_BYTES)))
        near = min(len(words), max(0, min(_LEADING_WORDS_MAX, max_bytes // (2 * _ZERO_WORD_BYTES)) - start))
        for offset in range(0, near, step):
            piece = words[offset : min(offset + step, near)]
            size_bytes = _ZERO_WORD_BYTES * (start + offset) + _WORD_BYTES * len(piece) + 32
            entry = parts.room_for(size_bytes).individualDeletedMessageRanges.add(key=ledger_id)
            entry.values.extend(bytes(start + offset))
            entry.values.extend(piece)
        if near < len(words):
            for first, last in bits.runs(max(floor, (start + near) * 64)):
                lower, upper = Position(ledger_id, first - 1), Position(ledger_id, last)
                add_ranges(parts.room_for(_RANGE_BYTES).individualDeletedMessages, [(lower, upper)])
    for position, remaining in acks.partial_batches():
        target = parts.room_for(_WORD_BYTES * len(remaining) + _RANGE_BYTES)
        add_batches(target.batchedEntryDeletionIndexInfo, [(position, remaining)])
    return parts.finish()
