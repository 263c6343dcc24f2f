"""Message deduplication by producer name and sequence id (Pulsar's PIP-6): each sequence id is stored once.

Two watermarks per producer: *pushed* (handed to the ledger) and *persisted* (the ledger answered). A repeat below *persisted* is
a duplicate; one between the two waits for the original's fate, so that a failed write can be repeated (Pulsar#5218). A batch
that begins below the watermark and ends above it is stored whole: its old part may appear twice, its new part is not lost
(Pulsar#6273).

The persisted watermarks are snapshots in the mark-delete properties of the cursor `pulsar.dedup`; entries behind the snapshot
are replayed when the topic is loaded.

Another cluster's replicator has no sequence ids of its own: the place of an entry in the other cluster's log serves, `packed` into one
number. It is kept whether deduplication is enabled or not, and never forgotten in favour of producers.
"""

from __future__ import annotations

from enum import Enum, auto

from magnetar.broker.replicators.names import REPLICATOR_PREFIX

CURSOR_NAME = "pulsar.dedup"

SEQUENCE_ID_MAX = 2**63 - 1
"""Clients and the properties of the cursor keep sequence ids as signed 64-bit numbers."""

LEDGER_SUFFIX = "_LID"
ENTRY_SUFFIX = "_EID"
"""Of the two properties that store one place: each is a signed 64-bit number (Pulsar's names)."""

_ENTRY_BITS = 64
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1


PLACES_AHEAD_MAX = 1 << 33
"""How far a place in another cluster's log may lie ahead of the last one, in ledgers, and its entry from the beginning of its ledger: more
than a cluster makes between two entries of a topic (all of the 32-bit ledger ids, and where Pulsar goes on behind them). An entry that
claims more is refused, or everything after it would count as a repeat."""


def packed(ledger_id: int, entry_id: int) -> int:
    """A place in another cluster's log as one number, in the order of that log."""
    return ledger_id << _ENTRY_BITS | entry_id


class DuplicateStatus(Enum):
    """Whether an entry is a repeat (Pulsar's MessageDupStatus)."""

    NEW = auto()
    DUPLICATE = auto()
    PENDING = auto()


class Deduplicator:
    """The watermarks of one topic. Pure: the caller stores, answers and takes snapshots."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._pushed: dict[str, int] = {}
        self._persisted: dict[str, int] = {}
        self._places: set[str] = set()

    def check(self, producer: str, last_sequence_id: int) -> DuplicateStatus:
        """Judge an entry whose highest sequence id is `last_sequence_id`."""
        if last_sequence_id > self._pushed.get(producer, -1):
            return DuplicateStatus.NEW
        return (
            DuplicateStatus.DUPLICATE
            if last_sequence_id <= self._persisted.get(producer, -1)
            else DuplicateStatus.PENDING
        )

    def is_plausible(self, name: str, place: int) -> bool:
        """False for a packed place too far ahead of what is known of that cluster to be one of its log."""
        ahead = (place >> _ENTRY_BITS) - (max(0, self._pushed.get(name, 0)) >> _ENTRY_BITS)
        return ahead <= PLACES_AHEAD_MAX and place & _ENTRY_MASK <= PLACES_AHEAD_MAX

    def is_behind(self, name: str, end: tuple[int, int]) -> bool:
        """True if the stored place of another cluster lies behind the end of its log. `end`: ledger and entry, -1 for none."""
        place = self._pushed.get(name, -1)
        return place >= 0 and (place >> _ENTRY_BITS, place & _ENTRY_MASK) > end

    def push(self, producer: str, last_sequence_id: int) -> None:
        """The entry is on its way to the ledger."""
        self._pushed[producer] = last_sequence_id

    def persist(self, producer: str, last_sequence_id: int) -> None:
        """The ledger has the entry."""
        known = self._persisted.pop(producer, -1)
        self._persisted[producer] = max(known, last_sequence_id)  # at the end: the snapshot forgets from the front
        if last_sequence_id > self._pushed.get(producer, -1):
            self._pushed[producer] = last_sequence_id

    def failed(self, producer: str) -> None:
        """A write failed: everything above the persisted watermark may be repeated."""
        if producer in self._persisted:
            self._pushed[producer] = self._persisted[producer]
        else:
            self._pushed.pop(producer, None)

    def is_persisted(self, producer: str, last_sequence_id: int) -> bool:
        return last_sequence_id <= self._persisted.get(producer, -1)

    def last_sequence_id(self, producer: str) -> int:
        """The highest stored sequence id, -1 for an unknown producer."""
        return self._persisted.get(producer, -1)

    def place_of(self, name: str) -> tuple[int, int] | None:
        """Ledger and entry that are stored of another cluster's log, None if nothing is."""
        place = self._persisted.get(name, -1)
        return (place >> _ENTRY_BITS, place & _ENTRY_MASK) if place >= 0 else None

    def snapshot(self) -> dict[str, int]:
        """The persisted watermarks; past the limit the producers heard of longest ago are forgotten."""
        producers = [name for name in self._persisted if name not in self._places]
        for name in producers[: max(0, len(producers) - self._producers_max)]:
            self.forget(name)
        stored: dict[str, int] = {}
        for name, number in self._persisted.items():
            if name in self._places:
                stored[name + LEDGER_SUFFIX] = number >> _ENTRY_BITS
                stored[name + ENTRY_SUFFIX] = number & _ENTRY_MASK
            else:
                stored[name] = number
        return stored

    def restore(self, watermarks: dict[str, int]) -> None:
        self._places = {
            name[: -len(LEDGER_SUFFIX)]
            for name in watermarks
            if name.startswith(REPLICATOR_PREFIX)  # which no producer's name does
            and name.endswith(LEDGER_SUFFIX)
            and name[: -len(LEDGER_SUFFIX)] + ENTRY_SUFFIX in watermarks
        }
        halves = {name + suffix for name in self._places for suffix in (LEDGER_SUFFIX, ENTRY_SUFFIX)}
        self._persisted = {name: number for name, number in watermarks.items() if name not in halves}
        for name in sorted(self._places):
            self._persisted[name] = packed(watermarks[name + LEDGER_SUFFIX], watermarks[name + ENTRY_SUFFIX])
        self._pushed = dict(self._persisted)

    def keep_place(self, name: str) -> None:
        """`name` is another cluster: its numbers are packed places."""
        self._places.add(name)

    def forget(self, name: str) -> None:
        """Forget a producer: whatever comes under that name is new from now on."""
        self._persisted.pop(name, None)
        self._pushed.pop(name, None)

    def forget_producers(self) -> None:
        """All but other clusters' places: deduplication was disabled."""
        for name in [*self._persisted, *self._pushed]:
            if name not in self._places:
                self.forget(name)

    def validate(self) -> None:
        """Nothing is persisted that was not pushed."""
        for name, sequence_id in self._persisted.items():
            assert self._pushed.get(name, -1) >= sequence_id, name
