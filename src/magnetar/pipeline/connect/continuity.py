"""Whether a position still connects to what a topic holds. A decision core.

Topics lose whole ledgers, the oldest first, and a ledger that is gone does not say how much was in it. Who has seen its number of entries
after it was closed can tell; nobody else can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from magnetar.pipeline.connect.offsets import EARLIEST, Position

Verdict = Literal["whole", "lost", "unknown"]


def verdict(at: Position, ledgers: Sequence[tuple[int, int]], closed_with: int | None) -> Verdict:
    """`ledgers`: (ledger, entries) that are there now, in order. `closed_with`: entries of the position's own one, if they are known.

    `unknown`: the position's ledger is gone, and what was behind the position in it nobody has seen.
    """
    if at <= EARLIEST or not ledgers or ledgers[0][0] <= at.ledger:
        return "whole"
    if closed_with is not None:
        return "whole" if at.entry >= closed_with else "lost"
    return "lost" if at.batch else "unknown"


def closed(ledgers: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Entries of those that get no more: all but the last."""
    return dict(ledgers[:-1])
