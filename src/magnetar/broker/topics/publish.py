"""One publish under way, from SEND to its receipt. Plain objects and callbacks, nothing awaited."""

from __future__ import annotations

from typing import Protocol

from magnetar.base.errors import MagnetarError

NO_ID = -1
"""Ledger and entry id of a message that was not stored: a duplicate, or one dropped by a non-persistent topic."""


class PublishOwner(Protocol):
    """The producer that waits for the receipt."""

    name: str

    def settle(self) -> None:
        """Answer what is settled at the head of the queue."""
        ...

    @property
    def has_pending(self) -> bool: ...

    def pause(self) -> None:
        """Read no more from its connection until `resume` was called as often."""
        ...

    def resume(self) -> None: ...


class PublishOp:
    """An entry that waits for its place in the ledger.

    `highest_sequence_id` is 0 for a single message, else the last sequence id in the batch. `settled` turns true with the
    storage's answer. `advances` is false for all but the last chunk of a chunked message: only the last one moves the
    deduplication watermark. Receipts leave in the order in which the entries came in, whatever order the answers take.
    """

    marker = False
    """Brokers write it for brokers: it counts nowhere, and is not deduplicated."""

    replicated = False
    """Another cluster sends it: this cluster's limits for its clients do not concern it."""

    __slots__ = (
        "advances",
        "data_bytes",
        "deduplicated",
        "entry_id",
        "error",
        "highest_sequence_id",
        "ledger_id",
        "num_messages",
        "producer",
        "sequence_id",
        "settled",
        "started_s",
    )

    def __init__(
        self,
        producer: PublishOwner,
        sequence_id: int,
        highest_sequence_id: int,
        num_messages: int,
        data_bytes: int,
    ) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.num_messages = num_messages
        self.data_bytes = data_bytes
        self.started_s = 0.0
        self.settled = False
        self.deduplicated = False
        self.advances = True
        self.error: MagnetarError | None = None
        self.ledger_id = NO_ID
        self.entry_id = NO_ID

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id the entry holds."""
        return max(self.sequence_id, self.highest_sequence_id)

    @property
    def sequence_name(self) -> str:
        """Whose sequence ids they are."""
        return self.producer.name

    @property
    def positioned(self) -> bool:
        """True if its sequence id is a position in another cluster's log, and so known for certain."""
        return False

    def refuse(self, error: MagnetarError) -> None:
        """Keep it out of the ledger; the answer waits for its turn in the producer's queue."""
        self.deduplicated = True  # the watermarks do not know of it
        self.done(error, NO_ID, NO_ID)

    def done(self, error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
        """The storage's answer. Called once."""
        self.error = error
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.settled = True
        self.producer.settle()


class MarkerOp(PublishOp):
    """A marker that a replicator brings."""

    marker = True

    __slots__ = ()
