"""Message deduplication by producer name and sequence id (Pulsar's PIP-6): each sequence id is stored once.

Two watermarks per producer: *pushed* (handed to the ledger) and *persisted* (the ledger answered). A repeat below *persisted* is
a duplicate; one between the two waits for the original's fate, so that a failed write can be repeated (Pulsar#5218). A batch
that begins below the watermark and ends above it is stored whole: its old part may appear twice, its new part is not lost
(Pulsar#6273).

The persisted watermarks are snapshots in the mark-delete properties of the cursor `pulsar.dedup`; entries behind the snapshot
are replayed when the topic is loaded.
"""

from __future__ import annotations

from enum import Enum, auto

CURSOR_NAME = "pulsar.dedup"


class Verdict(Enum):
    """What to do with an entry."""

    NEW = auto()
    DUPLICATE = auto()
    PENDING = auto()


class Deduplicator:
    """The watermarks of one topic. Pure: the caller stores, answers and takes snapshots."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._pushed: dict[str, int] = {}
        self._persisted: dict[str, int] = {}

    def check(self, producer: str, last_sequence_id: int) -> Verdict:
        """Judge an entry whose highest sequence id is `last_sequence_id`."""
        if last_sequence_id > self._pushed.get(producer, -1):
            return Verdict.NEW
        return Verdict.DUPLICATE if last_sequence_id <= self._persisted.get(producer, -1) else Verdict.PENDING

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

    def snapshot(self) -> dict[str, int]:
        """The persisted watermarks; past the limit the producers heard of longest ago are forgotten."""
        surplus = len(self._persisted) - self._producers_max
        for name in list(self._persisted)[: max(0, surplus)]:
            del self._persisted[name]
            self._pushed.pop(name, None)
        return dict(self._persisted)

    def restore(self, watermarks: dict[str, int]) -> None:
        self._persisted = dict(watermarks)
        self._pushed = dict(watermarks)

    def validate(self) -> None:
        """Nothing is persisted that was not pushed."""
        for name, sequence_id in self._persisted.items():
            assert self._pushed.get(name, -1) >= sequence_id, name
