"""Reading every copy of every entry: what `magnetar ledger verify` reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

from magnetar.bookkeeper.autorecovery.fragments import fragments_of
from magnetar.bookkeeper.autorecovery.probes import Health, LedgerKeys, Probe, probe
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata

ENTRIES_AT_ONCE = 32
"""Entries whose copies are read at a time: times Qw, times the size of an entry, is the memory it takes."""


@dataclass(slots=True)
class CopiesReport:
    """Copies that should be there, by bookie and by what became of them."""

    entries: int = 0
    copies: int = 0
    good: int = 0
    by_bookie: dict[str, dict[Health, list[int]]] = field(default_factory=dict)
    """Bookie id -> what is wrong -> entry ids, ascending."""
    unreadable: list[int] = field(default_factory=list)
    """Entries without any good copy."""

    @property
    def sound(self) -> bool:
        return self.good == self.copies

    def add(self, entry_id: int, copies: dict[str, Health]) -> None:
        self.entries += 1
        self.copies += len(copies)
        for bookie_id, health in copies.items():
            if health is Health.GOOD:
                self.good += 1
            else:
                self.by_bookie.setdefault(bookie_id, {}).setdefault(health, []).append(entry_id)
        if Health.GOOD not in copies.values():
            self.unreadable.append(entry_id)


async def verify_entries(
    bookies: BookieDirectory,
    ledger_id: int,
    metadata: LedgerMetadata,
    last_entry_id: int,
    available: Collection[str],
    *,
    timeout_s: float,
    default_password: bytes = b"",
) -> AsyncIterator[tuple[int, dict[str, Health]]]:
    """(entry, bookie -> health of its copy) for `0..last_entry_id`, in order. Copies of bookies not `available` are GONE unasked."""
    keys = LedgerKeys.of(ledger_id, metadata, default_password)
    for part in fragments_of(ledger_id, metadata):
        end = min(part.last_entry_id, last_entry_id)
        for start in range(part.first_entry_id, end + 1, ENTRIES_AT_ONCE):
            entries = range(start, min(start + ENTRIES_AT_ONCE, end + 1))
            holders = {entry: [part.ensemble[index] for index in part.holders(entry)] for entry in entries}
            wanted = [Probe(name, entry) for entry in entries for name in holders[entry] if name in available]
            answers = await probe(bookies, keys, wanted, timeout_s)
            for entry in entries:
                yield entry, {name: answers.get(Probe(name, entry), Health.GONE) for name in holders[entry]}
