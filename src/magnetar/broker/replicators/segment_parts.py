"""To which segments of another cluster an entry of a segment goes, and what each of them gets of it. Pure.

Layouts differ between clusters: the keys of one batch may belong to several segments there. Each message has a place on the ring of
hashes: that of its key, or one made of its entry's position, so that it is the same each time the entry is sent. All segments that ever
had a place form a chain, and what goes to a place is sent in order. So a message is stored there if and only if a segment of the chain has
stored its position or a later one; the active segment finds that out itself, the sealed ones are asked (`stored`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar.broker.replicators.names import SOURCE_SEGMENT_PROPERTY, source_position
from magnetar.client.scalable.layout import Layout, hash_of, place_of
from magnetar.wire.pulsar import batches, compression
from magnetar.wire.pulsar.compression import PayloadError
from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A batch that unpacks to more is sent whole, to the segment of its first key: its messages are not looked at."""

Position = tuple[int, int]
"""Ledger and entry."""


class Part(NamedTuple):
    """What one segment gets: headers and payload for SEND."""

    segment_id: int
    data: bytes
    sequence_id: int
    highest_sequence_id: int
    num_messages: int


@dataclass(frozen=True)
class Target:
    """A topic as the other cluster has it now. `stored`: the last position of our segment's log in each of its sealed segments."""

    layout: Layout
    stored: Mapping[int, Position]

    def segment_for(self, place: int, position: Position) -> int | None:
        """The active segment for a place on the ring; None if a sealed one has the message already."""
        for number, last in self.stored.items():
            segment = self.layout.segments[number]
            if segment.start <= place <= segment.end and position <= last:
                return None
        return next(each.id for each in self.layout.active if each.start <= place <= each.end)


def parts_of(data: bytes, source_segment: int, target: Target) -> list[Part]:
    """`data`: an entry as `outgoing` made it, with its position as the last property. Nothing if all of it is stored there."""
    start, end = metadata_bounds(data)
    metadata, payload = MessageMetadata.FromString(data[start:end]), data[end:]
    position = source_position(metadata.properties[-1].value)
    assert position is not None, "it was just added"
    metadata.properties.add(key=SOURCE_SEGMENT_PROPERTY, value=str(source_segment))
    fallback = place_of(hash_of(f"{position[0]}:{position[1]}"))
    singles = _messages(metadata, payload)
    if singles is None:
        key = metadata.partition_key if metadata.HasField("partition_key") else metadata.uuid
        segment_id = target.segment_for(place_of(hash_of(key)) if key else fallback, position)
        return [] if segment_id is None else [_whole(segment_id, metadata, payload)]
    groups: dict[int, list[batches.Single]] = {}
    for single in singles:
        keyed = single[0].HasField("partition_key")
        place = place_of(hash_of(single[0].partition_key)) if keyed else fallback
        segment_id = target.segment_for(place, position)
        if segment_id is not None:
            groups.setdefault(segment_id, []).append(single)
    if len(groups) == 1 and sum(map(len, groups.values())) == len(singles):
        return [_whole(next(iter(groups)), metadata, payload)]
    return [_batch(segment_id, metadata, group) for segment_id, group in groups.items()]


def _messages(metadata: MessageMetadata, payload: bytes) -> list[batches.Single] | None:
    """Those of a batch; None for anything that cannot be divided."""
    if metadata.encryption_keys or not batches.is_batch(metadata):
        return None
    try:
        return batches.unpack(metadata, payload, UNPACKED_BYTES_MAX)
    except PayloadError:
        return None


def _whole(segment_id: int, metadata: MessageMetadata, payload: bytes) -> Part:
    ids = metadata.sequence_id, metadata.highest_sequence_id
    return Part(segment_id, with_checksum(metadata, payload), *ids, metadata.num_messages_in_batch)


def _batch(segment_id: int, whole: MessageMetadata, singles: list[batches.Single]) -> Part:
    metadata = MessageMetadata()
    metadata.CopyFrom(whole)
    metadata.num_messages_in_batch = len(singles)
    payload = batches.join(singles)
    metadata.uncompressed_size = len(payload)
    return _whole(segment_id, metadata, compression.compress(whole.compression, payload))
