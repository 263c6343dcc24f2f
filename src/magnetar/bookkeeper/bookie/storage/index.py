"""Where entries lie, and what is known of each ledger: the index behind the entry logs. Two implementations, one contract.

`write` is durable when it returns; its parts may be split, so callers must not build on atomicity, only on order: whatever
depends on a write comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from magnetar.bookkeeper.bookie.storage.entry_log_format import RECORD_HEADER_BYTES, Location

RUN_ENTRIES_MAX: Final = 256
"""Entries of one run in the index: whoever looks for one of them reads where all of them lie."""


class IndexedRun(NamedTuple):
    """Entries with consecutive ids whose records lie one behind the other in one log; `sizes`: of the entries, without record headers."""

    ledger_id: int
    first_entry_id: int
    log_id: int
    offset: int
    sizes: list[int]

    def locations(self) -> list[Location]:
        """Of each entry."""
        log_id, offset, sizes = self.log_id, self.offset, self.sizes
        size = sizes[0]
        if sizes.count(size) == len(sizes):
            step = RECORD_HEADER_BYTES + size
            return [Location(log_id, at, size) for at in range(offset, offset + len(sizes) * step, step)]
        offsets = accumulate((RECORD_HEADER_BYTES + size for size in sizes), initial=offset)
        return [Location(log_id, at, size) for at, size in zip(offsets, sizes, strict=False)]

    def part(self, start: int, stop: int) -> IndexedRun:
        """Its entries from number `start` to before number `stop`."""
        offset = self.offset + sum(self.sizes[:start]) + RECORD_HEADER_BYTES * start
        return IndexedRun(self.ledger_id, self.first_entry_id + start, self.log_id, offset, self.sizes[start:stop])


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
        entries of a log lie; durably. A run has at most RUN_ENTRIES_MAX entries."""
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
