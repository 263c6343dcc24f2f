"""What may be read of a managed ledger through a cursor, when that is not everything (topics with transactions)."""

from __future__ import annotations

from typing import Protocol

from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position


class ReadGate(Protocol):
    """A cursor without one reads everything, and pays one look at an attribute for each read."""

    @property
    def stop(self) -> Position | None:
        """The first position that may not be read yet; it never goes back. None: all may be."""
        ...

    def held_back(self, after: Position) -> int:
        """Entries behind `after` of which nobody knows yet whether they will be read: no backlog."""
        ...

    def admit(self, entries: list[Entry]) -> list[Entry]:
        """Those of entries before `stop` that are handed out."""
        ...

    def remaining(self, position: Position, words: list[int] | None) -> list[int] | None:
        """`words`: what is left of a batch, None for all of it; less what may not be handed out now."""
        ...
