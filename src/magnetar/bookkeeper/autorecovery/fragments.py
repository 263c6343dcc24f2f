"""Fragments of a ledger: which entries a segment of the metadata spans, and which of them each bookie has to hold. Pure.

A fragment is closed when nobody will add to it any more: it is followed by another segment (everything before a segment's first
entry was confirmed when the ensemble was changed), or its ledger is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment

Sample = Callable[[Sequence[int], int], list[int]]
"""`random.Random.sample`: so many different ones out of a range."""

UNBOUNDED: Final = 2**63 - 1
"""Last entry of a fragment that is still written to."""


class Fragment(NamedTuple):
    """Entries `first..last` (none when last < first) on `ensemble`; entry e is on the indexes e, e+1, ... e+Qw-1 modulo E."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]
    write_quorum: int
    closed: bool

    def holders(self, entry_id: int) -> tuple[int, ...]:
        """Indexes of the bookies that hold the entry."""
        size = len(self.ensemble)
        return tuple((entry_id + i) % size for i in range(self.write_quorum))

    def holds(self, index: int, entry_id: int) -> bool:
        """Whether the bookie at `index` has to hold the entry."""
        return (index - entry_id) % len(self.ensemble) < self.write_quorum

    def first_stored(self, index: int) -> int | None:
        """The first entry the bookie at `index` has to hold; None when it has to hold none."""
        for entry_id in range(self.first_entry_id, self.first_entry_id + len(self.ensemble)):
            if entry_id > self.last_entry_id:
                return None
            if self.holds(index, entry_id):
                return entry_id
        return None

    def last_stored(self, index: int) -> int | None:
        """The last entry the bookie at `index` has to hold; None when it has to hold none. Of closed fragments."""
        assert self.closed
        for entry_id in range(self.last_entry_id, self.last_entry_id - len(self.ensemble), -1):
            if entry_id < self.first_entry_id:
                return None
            if self.holds(index, entry_id):
                return entry_id
        return None

    def stored(self, index: int) -> Iterator[int]:
        """All entries the bookie at `index` has to hold, ascending. Of closed fragments."""
        assert self.closed
        return (entry for entry in range(self.first_entry_id, self.last_entry_id + 1) if self.holds(index, entry))

    def entries_of(self, indexes: Collection[int]) -> Iterator[int]:
        """All entries that at least one of the bookies at `indexes` has to hold, ascending. Of closed fragments."""
        assert self.closed
        entries = range(self.first_entry_id, self.last_entry_id + 1)
        return (entry for entry in entries if any(self.holds(index, entry) for index in indexes))

    def probes(self, index: int, percentage: float, sample: Sample) -> list[int]:
        """Entries whose presence stands for that of all: the first and the last, and `percentage` of those between them."""
        first, last = self.first_stored(index), self.last_stored(index)
        if first is None or last is None:
            return []
        chosen = {first, last}
        between = last - first - 1
        if percentage > 0 and between > 0:
            for entry_id in sample(range(first + 1, last), min(between, max(1, int(between * percentage / 100)))):
                if self.holds(index, entry_id):
                    chosen.add(entry_id)
        return sorted(chosen)


def fragments_of(ledger_id: int, metadata: LedgerMetadata) -> list[Fragment]:
    """All fragments, in entry order. The last one of a ledger that is not closed is open."""
    closed = metadata.state is LedgerState.CLOSED
    segments = metadata.segments
    found = []
    for number, segment in enumerate(segments):
        followed = number + 1 < len(segments)
        end = metadata.last_entry_id if closed else UNBOUNDED
        last = segments[number + 1].first_entry_id - 1 if followed else end
        found.append(
            Fragment(
                ledger_id,
                segment.first_entry_id,
                last,
                segment.ensemble,
                metadata.write_quorum,
                closed=closed or followed,
            )
        )
    return found


def bookies_of(metadata: LedgerMetadata) -> set[str]:
    """All bookies that the metadata names."""
    return {bookie_id for segment in metadata.segments for bookie_id in segment.ensemble}


def replace_in_fragment(
    metadata: LedgerMetadata, fragment: Fragment, replacements: Mapping[int, str]
) -> LedgerMetadata | None:
    """The metadata with new bookies at some indexes of the fragment's segment; None when the segment has changed since."""
    before = Segment(fragment.first_entry_id, fragment.ensemble)
    if before not in metadata.segments:
        return None
    ensemble = tuple(replacements.get(index, bookie_id) for index, bookie_id in enumerate(fragment.ensemble))
    assert len(set(ensemble)) == len(ensemble), "a bookie stands once in an ensemble"
    segments = list(metadata.segments)
    segments[segments.index(before)] = Segment(fragment.first_entry_id, ensemble)
    return replace(metadata, segments=tuple(segments), c_token=0)
