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

    def divided(self, first: PublishOp, rest: PublishOp) -> None:
        """`first` has been taken off the run `rest`, which is in the queue: it comes in front of it."""
        ...

    @property
    def has_pending(self) -> bool: ...

    def pause(self) -> None:
        """Read no more from its connection until `resume` was called as often."""
        ...

    def resume(self) -> None: ...


class PublishOp:
    """Entries that wait for their places in the ledger: a run of consecutive SENDs of one producer that came in one read of its socket.

    Often it is one entry. The lists have an item for each: sequence id; highest sequence id, which is 0 for a single message, else
    the last one in the batch; messages; bytes. `settled` turns true with the storage's answer, which is one for all of them:
    `ledger_id` and `entry_id` are the place of the first. `advances` is false for all but the last chunk of a chunked message: only
    the last one moves the deduplication watermark. Receipts leave in the order in which the entries came in, whatever order the
    answers take.
    """

    marker = False
    """Brokers write it for brokers: it counts nowhere, and is not deduplicated."""

    replicated = False
    """Another cluster sends it: this cluster's limits for its clients do not concern it."""

    __slots__ = (
        "advances",
        "data_bytes",
        "deduplicated",
        "entries",
        "entry_id",
        "error",
        "highest_sequence_ids",
        "ledger_id",
        "messages",
        "num_messages",
        "producer",
        "sequence_ids",
        "settled",
        "sizes",
        "started_s",
    )

    def __init__(
        self,
        producer: PublishOwner,
        sequence_ids: list[int],
        highest_sequence_ids: list[int],
        messages: list[int],
        sizes: list[int],
    ) -> None:
        self.producer = producer
        self.sequence_ids = sequence_ids
        self.highest_sequence_ids = highest_sequence_ids
        self.messages = messages
        self.sizes = sizes
        self._count()
        self.started_s = 0.0
        self.settled = False
        self.deduplicated = False
        self.advances = True
        self.error: MagnetarError | None = None
        self.ledger_id = NO_ID
        self.entry_id = NO_ID

    @classmethod
    def single(
        cls, producer: PublishOwner, sequence_id: int, highest_sequence_id: int, num_messages: int, data_bytes: int
    ) -> PublishOp:
        """A run of one entry."""
        return PublishOp(producer, [sequence_id], [highest_sequence_id], [num_messages], [data_bytes])

    def _count(self) -> None:
        self.entries = len(self.sizes)
        self.data_bytes = sum(self.sizes)
        self.num_messages = sum(self.messages)

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id the entries hold."""
        return max(*self.sequence_ids, *self.highest_sequence_ids)

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
        self.done(error, NO_ID, NO_ID, self.entries)

    def done(self, error: MagnetarError | None, ledger_id: int, entry_id: int, count: int) -> None:
        """The storage's answer to the next `count` entries. A run that is answered in pieces is divided into as many."""
        answered = self if count == self.entries else self._divide(count)
        answered.error = error
        answered.ledger_id = ledger_id
        answered.entry_id = entry_id
        answered.settled = True
        self.producer.settle()

    def _divide(self, count: int) -> PublishOp:
        """Take the first `count` entries off as a run of their own."""
        first = PublishOp(
            self.producer,
            self.sequence_ids[:count],
            self.highest_sequence_ids[:count],
            self.messages[:count],
            self.sizes[:count],
        )
        first.started_s, first.advances = self.started_s, self.advances
        for column in (self.sequence_ids, self.highest_sequence_ids, self.messages, self.sizes):
            del column[:count]
        self._count()
        self.producer.divided(first, self)
        return first


class MarkerOp(PublishOp):
    """A marker that a replicator brings."""

    marker = True

    __slots__ = ()
