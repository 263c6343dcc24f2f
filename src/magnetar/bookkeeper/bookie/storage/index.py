"""Where entries lie, and what is known of each ledger: the index behind the entry logs. Two implementations, one contract.

`write` is durable when it returns; its parts may be split, so callers must not build on atomicity, only on order: whatever
depends on a write comes after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from magnetar.bookkeeper.bookie.storage.entry_log_format import Location

IndexedEntry = tuple[int, int, tuple[int, int, int]]
"""(ledger id, entry id, location)"""


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
        entries: Iterable[IndexedEntry],
        states: Sequence[tuple[int, bytes]],
        log_ends: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Put locations, packed ledger states, and (log id, offset) below which all indexed entries of a log lie; durably."""
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
