"""A connection that notes what a topic tells it, and producers on it."""

from __future__ import annotations

from magnetar.base.errors import MagnetarError
from magnetar.broker.topics.producer import AccessMode, Producer, PublishTarget
from magnetar.broker.topics.publish import PublishOp


class NoTopic:
    """A `PublishTarget` that is never published to."""

    deduplicates = False
    gate = None

    def publish(self, op: PublishOp, run: list[bytes], is_chunk: bool) -> None:
        raise AssertionError("nothing is published here")

    def published(self, op: PublishOp) -> None:
        raise AssertionError("nothing is published here")

    def last_sequence_id(self, producer_name: str) -> int:
        return -1


class NotingChannel:
    """Implements `ProducerChannel`."""

    address = "/127.0.0.1:1"
    client_version = "test"

    def __init__(self, alive: bool = True) -> None:
        self.alive = alive
        self.probes = 0
        self.receipts: list[tuple[int, int, int]] = []
        """Sequence id, ledger id, entry id."""
        self.refused: list[tuple[int, MagnetarError]] = []
        self.closed: list[int] = []
        self.ignored: list[int] = []

    def receipt(self, producer_id: int, op: PublishOp) -> None:
        for offset, sequence_id in enumerate(op.sequence_ids):
            self.receipts.append((sequence_id, op.ledger_id, op.entry_id + offset))

    def refuse(self, producer_id: int, op: PublishOp, error: MagnetarError) -> None:
        self.refused += [(sequence_id, error) for sequence_id in op.sequence_ids]

    def ignore_producer(self, producer_id: int) -> None:
        self.ignored.append(producer_id)

    def close_producer(self, producer_id: int) -> None:
        self.closed.append(producer_id)

    async def probe(self) -> bool:
        self.probes += 1
        return self.alive


def producer(
    name: str,
    mode: AccessMode = AccessMode.SHARED,
    *,
    topic: PublishTarget | None = None,
    channel: NotingChannel | None = None,
    producer_id: int = 1,
    epoch: int = 0,
    topic_epoch: int | None = None,
    generated: bool = False,
    owner: str | None = None,
) -> Producer:
    return Producer(
        producer_id=producer_id,
        name=name,
        owner=owner,
        generated_name=generated,
        epoch=epoch,
        access_mode=mode,
        topic_epoch=topic_epoch,
        channel=channel or NotingChannel(),
        topic=topic or NoTopic(),
        metadata={},
        connected_since_ms=0,
    )
