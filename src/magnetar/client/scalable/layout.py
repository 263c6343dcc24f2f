"""A topic as its clients see it: segments over ranges of the key hash, and which of them takes a key. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from magnetar.hashing.murmur3 import murmur3_32
from magnetar.wire.pulsar.PulsarApi_pb2 import ACTIVE, CommandScalableTopicUpdate

RING_MASK: Final = 0xFFFF
"""Places of a segment range, and of a bucket's within a segment: 0 to 65,535."""

POSITIVE_MASK: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Segment:
    """`start` and `end`: its places on the ring, both included. `topic`: the name under which its messages are sent and read.
    `bucket_starts`: the first place of each bucket but the first (PIP-486)."""

    id: int
    start: int
    end: int
    active: bool
    parents: tuple[int, ...]
    topic: str
    classic: bool = False
    bucket_starts: tuple[int, ...] = ()

    def bucket(self, key_hash: int) -> int:
        """Number of the bucket of a key, by the hash's low 16 bits."""
        return bisect_right(self.bucket_starts, key_hash & RING_MASK)


@dataclass(frozen=True)
class Layout:
    """`topic`: its canonical name. `classic`: partitions of a topic that is not scalable. A URL is empty when there is none."""

    topic: str
    epoch: int
    segments: Mapping[int, Segment]
    controller_url: str = ""
    controller_url_tls: str = ""
    classic: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classic", bool(self.active) and all(each.classic for each in self.active))

    @classmethod
    def of(cls, update: CommandScalableTopicUpdate) -> Layout:
        """What the server told."""
        topic, dag = update.resolved_topic_name, update.dag
        rest = topic.partition("://")[2]
        segments = {}
        for each in dag.segments:
            name = f"segment://{rest}/{each.hash_start:04x}-{each.hash_end:04x}-{each.segment_id}"
            segments[each.segment_id] = Segment(
                each.segment_id,
                each.hash_start,
                each.hash_end,
                each.state == ACTIVE,
                tuple(each.parent_ids),
                each.legacy_topic_name or name,
                bool(each.legacy_topic_name),
                tuple(each.entry_bucket_splits),
            )
        return cls(topic, dag.epoch, segments, dag.controller_broker_url, dag.controller_broker_url_tls)

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """Those that take messages, by their ranges; of a classic topic by their numbers."""
        found = [each for each in self.segments.values() if each.active]
        return tuple(sorted(found, key=lambda each: (each.start, each.id)))

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self.active]

    def at(self, key_hash: int, *, low_bits: bool = False) -> Segment:
        """The segment that takes a key with this `hash_of`. Raises LookupError without an active segment.

        `low_bits`: as clients of 5.0.0-M1 do; later ones use the high half of the hash.
        """
        if not self.active:
            raise LookupError(f"{self.topic} has no segment that takes messages")
        if self.classic:
            return self.segments[(key_hash & POSITIVE_MASK) % len(self.active)]
        return self.active[bisect_right(self._starts, place_of(key_hash, low_bits=low_bits)) - 1]

    def ancestors(self, segment_id: int) -> set[int]:
        """All segments of this layout from which it descends."""
        found: set[int] = set()
        waiting = list(self.segments[segment_id].parents)
        while waiting:
            each = waiting.pop()
            if each in self.segments and each not in found:
                found.add(each)
                waiting += self.segments[each].parents
        return found


def hash_of(key: str) -> int:
    """Murmur3 of the key's UTF-8, unsigned 32 bits."""
    return murmur3_32(key)


def place_of(key_hash: int, *, low_bits: bool = False) -> int:
    """The place on the ring of segments."""
    return key_hash & RING_MASK if low_bits else key_hash >> 16
