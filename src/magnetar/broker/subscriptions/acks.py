"""Acknowledgements: from message ids of the wire to the cursor and to what consumers hold.

Idempotent throughout: clients repeat ids, even within one command. Ids that nobody holds are applied all
the same, as Pulsar does (the client may have got them from an earlier consumer); the cursor ignores what is acknowledged
already or was never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from magnetar.base.errors import MagnetarError
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.receiver import Receiver, messages_left
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor.cursor import ManagedCursor
    from magnetar.managed_ledger.ledger import ManagedLedger

WORD_BITS = 64

AckId = tuple[int, int, Sequence[int] | None, int]
"""Ledger id, entry id, ack set (None = the whole entry), batch size (0 = not told)."""

AckDone = Callable[[MagnetarError | None], None]
"""Runs once an acknowledgement is durable, or with why it was refused."""


class AckType(IntEnum):
    """Wire: CommandAck.AckType."""

    INDIVIDUAL = 0
    CUMULATIVE = 1


class _AllDone:
    """Calls `done` once with the first error, after `parts` parts have ended."""

    __slots__ = ("done", "error", "parts")

    def __init__(self, parts: int, done: AckDone) -> None:
        self.parts = parts
        self.done = done
        self.error: MagnetarError | None = None

    def __call__(self, error: MagnetarError | None) -> None:
        self.error = self.error or error
        self.parts -= 1
        if self.parts == 0:
            self.done(self.error)


def acknowledge_individual(
    cursor: ManagedCursor,
    dispatcher: Dispatcher,
    consumer: Receiver,
    ids: Sequence[AckId],
    batch_index_enabled: bool,
    done: AckDone | None,
) -> None:
    """Apply single acknowledgements."""
    whole = [(ledger_id, entry_id) for ledger_id, entry_id, ack_set, _ in ids if not ack_set]
    partial = [ack_id for ack_id in ids if ack_id[2]] if len(whole) < len(ids) else []
    if whole and dispatcher.holds_entries:
        dispatcher.acknowledged_all(consumer, [ledger_id << 32 | entry_id for ledger_id, entry_id in whole])
    if partial and not batch_index_enabled:
        partial = []
    parts = len(partial) + (1 if whole else 0)
    if parts == 0:
        if done is not None:
            done(None)
        return
    part_done = done if done is None or parts == 1 else _AllDone(parts, done)
    if whole:
        cursor.acknowledge(whole, part_done)
    for ledger_id, entry_id, ack_set, batch_size in partial:
        assert ack_set
        _acknowledge_indexes(
            cursor, dispatcher, consumer, Position(ledger_id, entry_id), ack_set, batch_size, part_done
        )


def _acknowledge_indexes(
    cursor: ManagedCursor,
    dispatcher: Dispatcher,
    consumer: Receiver,
    position: Position,
    ack_set: Sequence[int],
    batch_size: int,
    done: AckDone | None,
) -> None:
    """AND `ack_set` into what is left of the entry, and count what that settled."""
    complete = cursor.acknowledge_batch(position, ack_set, batch_size or len(ack_set) * WORD_BITS, done)
    if not dispatcher.holds_entries:
        return
    key = position.ledger_id << 32 | position.entry_id
    if complete:
        dispatcher.acknowledged(consumer, key)
        return
    left = cursor.ack_set_of(position)
    if left:
        dispatcher.acknowledged(consumer, key, messages_left(left))


def acknowledge_cumulative(
    ledger: ManagedLedger,
    cursor: ManagedCursor,
    ack_id: AckId,
    batch_index_enabled: bool,
    properties: Mapping[str, int] | None,
    done: AckDone | None,
) -> None:
    """Everything up to the id. Inside a batch: everything before its entry, and the indexes up to it."""
    ledger_id, entry_id, ack_set, batch_size = ack_id
    position = Position(ledger_id, entry_id)
    if not 0 <= entry_id < ledger.index.entries_in(ledger_id):
        # Nothing before the first entry of a ledger (a client without batch indexes says entry - 1), nothing not written, nothing
        # of a ledger that is not this topic's: by its order alone a foreign id would acknowledge everything below it.
        if done is not None:
            done(None)
        return
    if not ack_set:
        cursor.acknowledge_cumulative(position, properties, done)
        return
    previous = ledger.index.previous(position)
    if not batch_index_enabled:
        cursor.acknowledge_cumulative(previous, properties, done)
        return
    part_done = None if done is None else _AllDone(2, done)
    cursor.acknowledge_cumulative(previous, properties, part_done)
    cursor.acknowledge_batch(position, ack_set, batch_size or len(ack_set) * WORD_BITS, part_done)
