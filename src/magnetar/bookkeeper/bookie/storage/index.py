"""Where entries lie, and what is known of each ledger: the index behind the entry logs. Two implementations, one contract.

`write` is durable when it returns; its parts may be split, so callers must not build on atomicity, only on order: whatever
depends on a write comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from magnetar.bookkeeper.bookie.storage.entry_log_format import RECORD_HEADER_BYTES, Location

RUN_ENTRIES_MAX: Final = 256
"""Ids of one run in the index: whoever looks for one of them reads where all of them lie."""


class IndexedRun(NamedTuple):
    """Entries with ascending ids whose records lie one behind the other in one log; `sizes`: of the entries, without record headers.

    A size of 0 stands for an id that is not here: where entries take turns among bookies (E > Qw) each of them holds some of every few.
    The first and the last one are here.
    """

    ledger_id: int
    first_entry_id: int
    log_id: int
    offset: int
    sizes: list[int]

    @property
    def entries_count(self) -> int:
        """Entries that are here."""
        return len(self.sizes) - self.sizes.count(0)

    def placed(self) -> Iterator[tuple[int, Location]]:
        """(entry id, location) of each entry that is here."""
        sizes = self.sizes
        if 0 not in sizes:
            yield from enumerate(self.locations(), self.first_entry_id)
            return
        at = self.offset
        for entry_id, size in enumerate(sizes, self.first_entry_id):
            if size:
                yield entry_id, Location(self.log_id, at, size)
                at += RECORD_HEADER_BYTES + size

    def locations(self) -> list[Location]:
        """Of each entry of a run without gaps."""
        log_id, offset, sizes = self.log_id, self.offset, self.sizes
        size = sizes[0]
        if sizes.count(size) == len(sizes):
            step = RECORD_HEADER_BYTES + size
            return [Location(log_id, at, size) for at in range(offset, offset + len(sizes) * step, step)]
        offsets = accumulate((RECORD_HEADER_BYTES + size for size in sizes), initial=offset)
        return [Location(log_id, at, size) for at, size in zip(offsets, sizes, strict=False)]

    def part(self, start: int, stop: int) -> IndexedRun:
        """Its entries from number `start` to before number `stop`, of which one is here. Gaps at both ends are left out."""
        while not self.sizes[start]:
            start += 1
        before = self.sizes[:start]
        offset = self.offset + sum(before) + RECORD_HEADER_BYTES * (start - before.count(0))
        sizes = self.sizes[start:stop]
        while not sizes[-1]:
            del sizes[-1]
        return IndexedRun(self.ledger_id, self.first_entry_id + start, self.log_id, offset, sizes)

    def unbroken(self) -> Iterator[IndexedRun]:
        """The same without gaps, in several."""
        sizes = self.sizes
        start, count = 0, len(sizes)
        while start < count:
            stop = sizes.index(0, start) if 0 in sizes[start:] else count
            yield self.part(start, stop)
            start = stop
            while start < count and not sizes[start]:
                start += 1


class Index(Protocol):
    """Used from the storage thread (writes) and the read thread. Raises StorageError, never an answer, when it cannot read."""

    def locations(self, ledger_id: int, first_entry_id: int, count: int) -> list[Location]:
        """Of consecutive entries: stops before the first one that is missing."""
        ...

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest indexed entry, -1 when there is none."""
        ...

    def entry_ids(self, ledger_id: int, first_entry_id: int, count: int) -> list[int]:
        """At most `count` ids of indexed entries from `first_entry_id` on, ascending; gaps are skipped."""
        ...

    def write(
        self,
        runs: Iterable[IndexedRun],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Put locations, in the place of those that are there, packed ledger states, and (log id, offset) below which all indexed
        entries of a log lie; durably. A run has at most RUN_ENTRIES_MAX ids; its gaps change nothing."""
        ...

    def delete_ledger(self, ledger_id: int, tombstone: bytes | None) -> None:
        """Drop all locations of a ledger; put or (None) remove its state. Durable after the next `sync` or `write`."""
        ...

    def states(self) -> list[tuple[int, bytes]]:
        """Every ledger's packed state, by ledger id."""
        ...

    def log_ends(self) -> dict[int, int]:
        """What `write` was told of each log that is not forgotten."""
        ...

    def forget_log(self, log_id: int) -> None:
        """Drop a log's end; durable with the next `sync` or `write`."""
        ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
