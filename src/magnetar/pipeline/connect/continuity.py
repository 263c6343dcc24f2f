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


def replaced_text(topic: str, start: Position, end: Position) -> str:
    """What to say of a topic that ends before the position where reading was to go on."""
    return (
        f"{topic}: reading was to go on at {start.document()}, but the topic ends at {end.document()}: it was deleted and made again, or "
        "its storage was set back, and its messages are others than those that were read. To read it from its start, set "
        "failOnDataLoss=false for a pipeline's source and run it again (what its views hold stays); another query begins with a new "
        "checkpoint. To keep what was read apart from what is new, give the new topic another name"
    )


def loss_text(topic: str, start: Position, first: Position, is_sure: bool, has_admin: bool) -> str:
    """What to say of messages that were deleted before they were read."""
    what = (
        "what lay between was deleted"
        if is_sure
        else "its ledger was deleted, and whether there was more in it cannot be told"
    )
    look = "" if is_sure or has_admin else " (a running query can tell, with admin.url)"
    return (
        f"{topic}: reading was to go on at {start.document()}, but {what}{look}; the first message there is {first.document()}. Keep "
        "ledgers until they are read, with retention or predefinedSubscription, or set failOnDataLoss=false to go on there"
    )
