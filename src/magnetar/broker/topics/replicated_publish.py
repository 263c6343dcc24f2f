"""An entry that another cluster sends. It is recognised by its place in that cluster's log, whatever its producer's sequence ids say:
a producer may come back under its name and count from zero, and its messages are not repeats.
"""

from __future__ import annotations

from magnetar.broker.replicators.names import (
    SOURCE_POSITION_PROPERTY,
    SOURCE_SEGMENT_PROPERTY,
    sequence_name,
    source_name,
    source_position,
)
from magnetar.broker.topics.deduplication import packed
from magnetar.broker.topics.publish import PublishOp, PublishOwner
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata


class ReplicatedOp(PublishOp):
    """`place`: packed ledger and entry in the other cluster, -1 when the entry does not say (Pulsar before 4.1): its producer's
    sequence ids serve, where deduplication is enabled."""

    replicated = True

    __slots__ = ("_last_sequence_id", "_sequence_name", "place")

    def __init__(
        self,
        producer: PublishOwner,
        source: str,
        metadata: MessageMetadata,
        position: tuple[int, int] | None,
        size_bytes: int,
        answer_places: bool,
    ) -> None:
        """`position` is its `place_of`. `answer_places`: the sender expects the place in the receipt, not the sequence ids."""
        ids = metadata.sequence_id, metadata.highest_sequence_id
        sequence_id, highest = position if position and answer_places else ids
        super().__init__(producer, [sequence_id], [highest], [metadata.num_messages_in_batch], [size_bytes])
        if position is None:
            self.place = -1
            self._sequence_name, self._last_sequence_id = sequence_name(source, metadata.producer_name), max(ids)
        else:
            self.place = packed(*position)
            self._sequence_name, self._last_sequence_id = sequence_name(source), self.place

    @property
    def last_sequence_id(self) -> int:
        return self._last_sequence_id

    @property
    def sequence_name(self) -> str:
        return self._sequence_name

    @property
    def positioned(self) -> bool:
        return self.place >= 0


def place_of(metadata: MessageMetadata) -> tuple[int, int] | None:
    """Ledger and entry in the cluster that it came from, None when it does not say. The last one that says so counts."""
    for pair in reversed(metadata.properties):
        if pair.key == SOURCE_POSITION_PROPERTY:
            return source_position(pair.value)
    return None


def source_of(metadata: MessageMetadata) -> str:
    """Whose log its place is in, as `names.source_name`."""
    for pair in reversed(metadata.properties):
        if pair.key == SOURCE_SEGMENT_PROPERTY:
            return source_name(metadata.replicated_from, pair.value)
    return metadata.replicated_from
