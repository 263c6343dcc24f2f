"""A producer registered on a topic, and the order of its receipts."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from magnetar.base.errors import MagnetarError
from magnetar.broker.rate_limits import Rates
from magnetar.broker.replicators.names import source_of_producer
from magnetar.broker.topics.publish import MarkerOp, PublishOp

if TYPE_CHECKING:
    from magnetar.broker.topics.ports import ProducerChannel
    from magnetar.broker.topics.publish_gate import PublishGate


class AccessMode(IntEnum):
    """PIP-68; numbers as on the wire."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class PublishTarget(Protocol):
    """What a producer needs of its topic. `deduplicates`: producers, by their names in the messages. With that, or with a `gate`, only runs
    of one may be published: each entry has to be looked at by itself."""

    deduplicates: bool
    gate: PublishGate | None

    def publish(self, op: PublishOp, run: list[bytes], is_chunk: bool) -> None:
        """Store the entries; `op.done` answers, possibly before this returns."""
        ...

    def publish_marker(self, op: MarkerOp, data: bytes) -> None:
        """The same for a marker of another cluster."""
        ...

    def published(self, op: PublishOp) -> None:
        """Called for each settled run in receipt order, before its receipts leave."""
        ...

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest stored sequence id of a producer name under deduplication, else -1."""
        ...


class Producer:
    """Counters are read at scrape time. Receipts leave in send order: the official client closes the connection otherwise."""

    __slots__ = (
        "_access_settled",
        "_settled_access",
        "access_mode",
        "bytes_in",
        "channel",
        "closed",
        "connected_since_ms",
        "encrypted",
        "epoch",
        "generated_name",
        "messages_in",
        "metadata",
        "name",
        "owner",
        "pending",
        "producer_id",
        "rates",
        "schema_version",
        "source_cluster",
        "topic",
        "topic_epoch",
    )

    def __init__(
        self,
        *,
        producer_id: int,
        name: str,
        owner: str | None = None,
        generated_name: bool,
        epoch: int,
        access_mode: AccessMode,
        topic_epoch: int | None,
        channel: ProducerChannel,
        topic: PublishTarget,
        metadata: dict[str, str],
        connected_since_ms: int,
        encrypted: bool = False,
    ) -> None:
        self.producer_id = producer_id
        self.name = name
        self.owner = owner
        """The role that opened it; None: one that may touch everybody's."""
        self.generated_name = generated_name
        self.epoch = epoch
        self.access_mode = access_mode
        self.topic_epoch = topic_epoch
        self.channel = channel
        self.topic = topic
        self.metadata = metadata
        self.connected_since_ms = connected_since_ms
        self.schema_version = b""
        self.encrypted = encrypted
        self.source_cluster: str | None = source_of_producer(name)
        """The cluster whose replicator it is; None for a client's."""
        self.pending: deque[PublishOp] = deque()
        self.messages_in = 0
        self.bytes_in = 0
        self.rates = Rates()
        self.closed = False
        self._settled_access = False
        self._access_settled: asyncio.Event | None = None
        """While somebody waits for it."""

    def settle_access(self) -> None:
        """It is known whether the producer gets the access it asked for."""
        self._settled_access = True
        if self._access_settled is not None:
            self._access_settled.set()

    async def access_settled(self) -> None:
        """Wait for that."""
        if not self._settled_access:
            self._access_settled = self._access_settled or asyncio.Event()
            await self._access_settled.wait()

    def publish(self, op: PublishOp, run: list[bytes], is_chunk: bool) -> None:
        """Hand entries to the topic; their receipts follow through the channel."""
        self.pending.append(op)
        self.topic.publish(op, run, is_chunk)

    def refuse(self, op: PublishOp, error: MagnetarError) -> None:
        """Answer an entry with an error, in its turn, without asking the topic."""
        self.pending.append(op)
        op.refuse(error)

    def publish_marker(self, op: MarkerOp, data: bytes) -> None:
        self.pending.append(op)
        self.topic.publish_marker(op, data)

    def replaces(self, former: Producer) -> bool:
        """True if this is the client of `former`, which has come back: it takes the name over without asking whether `former` is alive."""
        if former.channel is self.channel and former.producer_id == self.producer_id:
            return True
        newer = former.generated_name and self.generated_name and former.epoch < self.epoch
        return newer and (self.owner is None or self.owner == former.owner)

    @property
    def has_pending(self) -> bool:
        return bool(self.pending)

    def divided(self, first: PublishOp, rest: PublishOp) -> None:
        """See `PublishOwner.divided`."""
        self.pending.insert(self.pending.index(rest), first)

    def settle(self) -> None:
        """Answer every settled run at the head of the queue."""
        pending = self.pending
        while pending and pending[0].settled:
            op = pending.popleft()
            self.topic.published(op)
            if op.error is None:
                if not op.marker:
                    self.messages_in += op.num_messages
                    self.bytes_in += op.data_bytes
                self.channel.receipt(self.producer_id, op)
            else:
                self._refuse(op, op.error)

    def _refuse(self, op: PublishOp, error: MagnetarError) -> None:
        self.channel.refuse(self.producer_id, op, error)

    def pause(self) -> None:
        self.channel.hold_publishing(1)

    def resume(self) -> None:
        self.channel.hold_publishing(-1)

    def disconnect(self) -> None:
        """Server-side close: the client registers anew and repeats what has no receipt."""
        if not self.closed:
            self.closed = True
            self.channel.close_producer(self.producer_id)
