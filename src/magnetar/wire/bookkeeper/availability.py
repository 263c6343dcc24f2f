"""The entries of a ledger that a bookie holds, in a few bytes (BookKeeper's AvailabilityOfEntriesOfLedger). Pure.

    header:  version i32 | number of groups i32 | zeros up to 64 bytes
    group:   first start i64 | last start i64 | sequence size i32 | period i32

A group is a row of equally long sequences of consecutive entries whose starts are `period` apart (0 when there is only one): that is what
striping leaves on each bookie.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from magnetar.wire.bookkeeper.frames import BookieFrameError

VERSION: Final = 0

_HEADER_BYTES: Final = 64
_HEADER = Struct(">ii")
_GROUP = Struct(">qqii")
_I32_MAX: Final = 2**31 - 1


class Group(NamedTuple):
    """Sequences of `size` entries that start at `first`, `first + period`, ..., `last`."""

    first: int
    last: int
    size: int
    period: int

    @property
    def entries_count(self) -> int:
        return self.size * (1 + ((self.last - self.first) // self.period if self.period else 0))

    @property
    def last_entry_id(self) -> int:
        return self.last + self.size - 1

    def holds(self, entry_id: int) -> bool:
        """True if the entry is in one of the sequences."""
        if not self.first <= entry_id <= self.last_entry_id:
            return False
        offset = entry_id - self.first
        return (offset % self.period if self.period else offset) < self.size


class EntryAvailability:
    """Groups in ascending order, which do not overlap."""

    __slots__ = ("_firsts", "groups")

    def __init__(self, groups: Iterable[Group]) -> None:
        self.groups = tuple(groups)
        self._firsts = [group.first for group in self.groups]

    @classmethod
    def of(cls, entry_ids: Iterable[int]) -> EntryAvailability:
        """The availability of ascending, distinct entry ids."""
        return cls(_groups(_sequences(entry_ids)))

    @property
    def entries_count(self) -> int:
        return sum(group.entries_count for group in self.groups)

    @property
    def last_entry_id(self) -> int:
        """-1 when there is none."""
        return self.groups[-1].last_entry_id if self.groups else -1

    def holds(self, entry_id: int) -> bool:
        """True if the bookie holds this entry."""
        index = bisect_right(self._firsts, entry_id) - 1
        return index >= 0 and self.groups[index].holds(entry_id)

    def to_bytes(self) -> bytes:
        """The bytes of the protocol."""
        header = _HEADER.pack(VERSION, len(self.groups)).ljust(_HEADER_BYTES, b"\0")
        return header + b"".join(_GROUP.pack(*group) for group in self.groups)

    @classmethod
    def from_bytes(cls, data: bytes) -> EntryAvailability:
        """Raises BookieFrameError."""
        try:
            version, count = _HEADER.unpack_from(data)
        except struct_error:
            raise BookieFrameError(f"a list of entries of {len(data)} bytes has no header") from None
        if version != VERSION or count < 0 or len(data) != _HEADER_BYTES + count * _GROUP.size:
            raise BookieFrameError(f"a list of entries of version {version}, {count} groups and {len(data)} bytes")
        groups = [Group(*values) for values in _GROUP.iter_unpack(data[_HEADER_BYTES:])]
        end = -1
        for group in groups:
            if not _is_sound(group) or group.first <= end:
                raise BookieFrameError(f"a list of entries with an impossible group {tuple(group)}")
            end = group.last_entry_id
        return cls(groups)


def _is_sound(group: Group) -> bool:
    if group.first < 0 or group.size < 1 or group.last < group.first:
        return False
    if group.first == group.last:
        return group.period == 0
    return group.period > group.size and (group.last - group.first) % group.period == 0


def _sequences(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(start, size) of each row of consecutive ids."""
    start = size = 0
    for entry_id in entry_ids:
        if size and entry_id == start + size and size < _I32_MAX:
            size += 1
            continue
        if size:
            yield start, size
        start, size = entry_id, 1
    if size:
        yield start, size


def _groups(sequences: Iterable[tuple[int, int]]) -> Iterator[Group]:
    group: Group | None = None
    for start, size in sequences:
        if group is not None:
            period = start - group.last
            joins = size == group.size and period <= _I32_MAX and period > size
            if joins and (group.period == period or group.period == 0):
                group = Group(group.first, start, size, period)
                continue
            yield group
        group = Group(start, start, size, 0)
    if group is not None:
        yield group
