"""Entries of a segment on their way to a cluster whose segments split and merge meanwhile, with links that fail at any moment: each message
arrives once, and the messages of a key in their order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY
from magnetar.broker.replicators.segment_parts import Target, parts_of
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.topics.replicated_publish import place_of, source_of
from magnetar.client.scalable.layout import Layout, Segment, hash_of
from magnetar.client.scalable.layout import place_of as ring_place
from magnetar.wire.pulsar import batches, compression
from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

KEYS = [f"key-{number}" for number in range(12)]


def as_client(layout: SegmentLayout) -> Layout:
    segments = {
        each.id: Segment(each.id, each.start, each.end, each.active, each.parents, f"segment-{each.id}")
        for each in layout.segments.values()
    }
    return Layout("topic://t/n/x", layout.epoch, segments)


def entry(position: tuple[int, int], messages: list[tuple[str, int]], codec: int = 0, **fields: object) -> bytes:
    """As `outgoing` makes it: a batch of (key, number), or one message that is none."""
    metadata = MessageMetadata(producer_name="p", sequence_id=position[1], publish_time=1, replicated_from="west")
    for name, value in fields.items():
        setattr(metadata, name, value)
    if len(messages) == 1:
        metadata.partition_key, payload = messages[0][0], b"%d" % messages[0][1]
    else:
        metadata.num_messages_in_batch = len(messages)
        singles = []
        for key, number in messages:
            value = b"%d" % number
            singles.append((SingleMessageMetadata(payload_size=len(value), partition_key=key), value))
        payload = batches.join(singles)
    metadata.uncompressed_size, metadata.compression = len(payload), codec  # type: ignore[assignment]
    metadata.properties.add(key=SOURCE_POSITION_PROPERTY, value=f"{position[0]}:{position[1]}")
    return with_checksum(metadata, compression.compress(codec, payload))


def messages_of(data: bytes) -> tuple[MessageMetadata, list[tuple[str, int]]]:
    start, end = metadata_bounds(data)
    metadata = MessageMetadata.FromString(data[start:end])
    if not batches.is_batch(metadata):
        plain = compression.decompress(metadata.compression, data[end:], metadata.uncompressed_size, 1 << 20)
        return metadata, [(metadata.partition_key, int(plain))]
    found = batches.unpack(metadata, data[end:], 1 << 20)
    return metadata, [(single.partition_key, int(value)) for single, value in found]


@dataclass
class Cluster:
    """The receiving one: what each segment stored, and the last position that it knows of our log."""

    layout: SegmentLayout
    logs: dict[int, list[tuple[str, int]]] = field(default_factory=lambda: defaultdict(list))
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def store(self, segment_id: int, data: bytes) -> None:
        metadata, messages = messages_of(data)
        place = place_of(metadata)
        assert place is not None
        assert source_of(metadata) == "west|7"
        assert self.layout.segments[segment_id].active
        if place > self.last.get(segment_id, (-1, -1)):
            self.last[segment_id] = place
            self.logs[segment_id] += messages

    def target(self) -> Target:
        return Target(
            as_client(self.layout), {each.id: self.last[each.id] for each in self.layout.sealed if each.id in self.last}
        )

    def change(self, random: Random) -> None:
        active = self.layout.active
        place = random.randrange(len(active))
        if len(active) > 1 and random.random() < 0.5:
            place = min(place, len(active) - 2)
            self.layout = self.layout.merge(active[place].id, active[place + 1].id, 1)
        elif active[place].end > active[place].start:
            self.layout = self.layout.split(active[place].id, 1)

    def read(self) -> dict[str, list[int]]:
        """Parents before children, as a stream consumer does."""
        found: dict[str, list[int]] = defaultdict(list)
        for segment_id in sorted(self.layout.segments):
            for key, number in self.logs[segment_id]:
                found[key].append(number)
        return found


@pytest.mark.parametrize("seed", range(40))
def test_each_message_once_and_in_the_order_of_its_key(seed: int) -> None:
    random = Random(seed)
    codecs = (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD)
    numbers = dict.fromkeys(KEYS, 0)
    log = []
    for at in range(60):
        messages = []
        for key in random.choices(KEYS, k=random.choice((1, 1, 3, 8))):
            messages.append((key, numbers[key]))
            numbers[key] += 1
        log.append(entry((5 + at // 20, at % 20), messages, random.choice(codecs)))
    cluster, sent = Cluster(SegmentLayout.create(random.randint(1, 3), 0)), 0
    while sent < len(log):
        target = cluster.target()
        lost: set[int] = set()
        for number in range(sent, min(len(log), sent + random.randint(1, 15))):
            parts = parts_of(log[number], 7, target)
            for part in parts:
                if random.random() < 0.05:
                    lost.add(part.segment_id)  # nothing more arrives there over this link
                if part.segment_id not in lost:
                    cluster.store(part.segment_id, part.data)
            if not lost and random.random() < 0.8:
                sent = number + 1  # the receipts came, and the cursor moved
        if random.random() < 0.5:
            cluster.change(random)
    assert cluster.read() == {key: list(range(count)) for key, count in numbers.items() if count}
    for segment in cluster.layout.segments.values():
        places = {ring_place(hash_of(key)) for key, _ in cluster.logs[segment.id]}
        assert all(segment.start <= place <= segment.end for place in places)


def test_what_cannot_be_divided_goes_whole() -> None:
    target = Target(as_client(SegmentLayout.create(4, 0)), {})
    spread = [(key, 1) for key in KEYS]
    assert len(parts_of(entry((1, 1), spread), 7, target)) > 1
    broken = entry((1, 1), spread)[:-1]
    chunk = entry((1, 2), [("", 1)], uuid="the-chunks", num_chunks_from_msg=2, chunk_id=1)
    for data in (broken, chunk):
        first, again = parts_of(data, 7, target), parts_of(data, 7, target)
        assert len(first) == 1
        assert first == again, "the same place each time it is sent"
