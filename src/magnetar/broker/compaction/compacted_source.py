"""A cursor that reads what is left of the compacted part of its topic, and behind that the topic (`read_compacted`).

Positions are the topic's own, whether their ledgers still exist or not. Before each read its place is held against the horizon,
so that a reader who lags behind a new compaction goes on in the new compacted ledger, wherever it was.

What compaction removed counts as consumed once a read has passed over it: otherwise a subscription that acknowledges single
messages could never move its mark-delete over the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from magnetar.base.errors import MagnetarError
from magnetar.broker.compaction.compacted_ledger import Compacted, CompactedLedger
from magnetar.broker.dispatch.ports import Kept, ReadDone, Scheduler
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import LATEST, Position


class CompactedTopic(Protocol):
    """The part of a topic's compaction that the source needs."""

    @property
    def current(self) -> CompactedLedger | None:
        """The newest compacted ledger, None before the first compaction."""
        ...


class CompactedSource:
    """Implements `EntrySource` around a subscription's cursor. One read at a time.

    Consumers of a reader are told by the ack set which messages of a rewritten batch are gone: the C++ client knows nothing of
    `compacted_out`. Those of a durable subscription are not: that client acknowledges a batch when all its messages were.
    """

    __slots__ = (
        "_cursor",
        "_floor",
        "_floor_mark",
        "_hidden",
        "_ledger",
        "_position",
        "_request",
        "_scheduler",
        "_topic",
    )

    def __init__(
        self, cursor: ManagedCursor, ledger: ManagedLedger, topic: CompactedTopic, scheduler: Scheduler
    ) -> None:
        self._cursor = cursor
        self._ledger = ledger
        self._topic = topic
        self._scheduler = scheduler
        self._position: Position | None = None
        """The position to read next, None while the cursor says it."""
        self._floor: Position | None = None
        self._floor_mark = cursor.mark_delete_position
        self._hidden: dict[Position, list[int]] = {}
        self._request: tuple[Position, int, int, ReadDone] | None = None
        self.rewind()

    def begin_at(self, position: Position) -> None:
        """Reading begins at `position`, of which the ledger may be gone, until something behind it is acknowledged."""
        self._floor = position
        self._floor_mark = self._cursor.mark_delete_position
        self.rewind()

    # ---- EntrySource

    @property
    def read_position(self) -> Position:
        return self._cursor.read_position if self._position is None else self._position

    @property
    def has_more(self) -> bool:
        current = self._topic.current
        if current is not None and self.read_position <= current.horizon:
            return True  # of the compacted ledger, or behind it: a read tells
        return self._cursor.has_more

    def read(self, max_entries: int, max_bytes: int, done: ReadDone) -> None:
        position = self.read_position
        current = self._topic.current
        if current is None or position > current.horizon:
            if self._position is not None:
                self._position = None
                self._cursor.read_from(position)
            self._cursor.read(max_entries, max_bytes, done)
            return
        assert self._request is None, "one read at a time"
        self._request = (position, max_entries, max_bytes, done)
        current.read_from(
            position, max_entries, max_bytes, lambda error, found: self._found(error, found, current.horizon)
        )

    def replay(self, positions: Sequence[Position], done: ReadDone, kept: Kept | None = None) -> None:
        """Single active consumers replay nothing."""
        self._cursor.replay(positions, done, kept)

    def rewind(self) -> None:
        self._hidden.clear()
        self._cursor.rewind()
        mark_delete = self._cursor.mark_delete_position
        if self._floor is not None and self._floor_counts():
            self._position = self._floor
        else:
            self._floor = None
            self._position = Position(mark_delete.ledger_id, mark_delete.entry_id + 1)

    def is_acknowledged(self, position: Position) -> bool:
        """Acknowledgements of what the topic no longer holds are not kept."""
        return position >= self._ledger.first_position and self._cursor.is_acknowledged(position)

    def ack_set_of(self, position: Position) -> list[int] | None:
        return _both(self._cursor.ack_set_of(position), self._hidden.pop(position, None))

    def acknowledge(
        self, positions: Sequence[Position], done: Callable[[MagnetarError | None], None] | None = None
    ) -> None:
        self._cursor.acknowledge(positions, done)

    # ---- Inside

    def _floor_counts(self) -> bool:
        """Whether there is anything between the floor and what the topic still holds."""
        current, first = self._topic.current, self._ledger.first_position
        return (
            self._floor is not None
            and self._cursor.mark_delete_position == self._floor_mark
            and self._floor < first
            and current is not None
            and current.first is not None
            and current.first < first
        )

    def _found(self, error: MagnetarError | None, found: list[Compacted], horizon: Position) -> None:
        assert self._request is not None
        position, max_entries, max_bytes, done = self._request
        self._request = None
        if error is not None:
            done(error, [])
            return
        if not found:
            self._pass_over(position, self._ledger.next_position(horizon))
            self._position = None
            self._cursor.read_from(self._ledger.next_position(horizon))
            self._cursor.read(max_entries, max_bytes, done)
            return
        wanted: list[Entry] = []
        for entry, left in found:
            place = entry.position
            if position < place:
                self._pass_over(position, place)
            position = Position(place.ledger_id, place.entry_id + 1)
            if self._is_wanted(place, left):
                wanted.append(entry)
        self._position = position
        if wanted:
            done(None, wanted)
        else:
            self._scheduler.call_soon(lambda: self.read(max_entries, max_bytes, done))

    def _is_wanted(self, position: Position, left: list[int] | None) -> bool:
        if self.is_acknowledged(position):
            return False
        if left is not None and not self._cursor.durable:
            remaining = _both(self._cursor.ack_set_of(position), left)
            if not remaining:
                self._cursor.acknowledge([position])
                return False
            self._hidden[position] = left
        return True

    def _pass_over(self, first: Position, upto: Position) -> None:
        """Everything from `first` on and before `upto` was removed. Not while reading below what the topic holds: moving the
        mark-delete then would make a reader who comes back begin behind what it has not seen."""
        if self._floor is None and upto < LATEST:
            self._cursor.pass_over(first, upto)


def _both(acknowledged: list[int] | None, left: list[int] | None) -> list[int] | None:
    """The messages that are left by both; None when that is all of them, [] when none is."""
    if acknowledged is None or left is None:
        return left if acknowledged is None else acknowledged
    words = [one & other for one, other in zip(acknowledged, left, strict=False)]
    while words and not words[-1]:
        words.pop()
    return words
