"""Where an entry lies: (ledger, entry), ordered as written."""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    """An entry's place. As a mark-delete position it names the last consumed entry, with -1 for "none of this ledger"."""

    ledger_id: int
    entry_id: int


EARLIEST: Final = Position(-1, -1)
"""Before everything that still exists."""

LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""After everything written so far."""
