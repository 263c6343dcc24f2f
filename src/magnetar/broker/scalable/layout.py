"""The layout of a scalable topic: which segments it is made of, as an immutable value.

A segment serves a range of the 16-bit key hash. Active segments tile the whole range; sealed ones take no more messages and point to the
children that took over. A change makes a new layout with a higher epoch, and never gives an id twice. The JSON is that of Pulsar's metadata
(`ScalableTopicMetadata`, PIP-468).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final

HASH_MAX: Final = 0xFFFF
"""The last hash; the first one is 0."""

SEGMENTS_PER_TOPIC_MAX: Final = 1024
"""Active segments; more are refused when a topic is created or split."""

NEVER: Final = -1
"""Epoch and time at which an active segment was sealed."""


class LayoutError(ValueError):
    """The change does not fit the layout. The text says why."""


class SegmentState(Enum):
    ACTIVE = "ACTIVE"
    SEALED = "SEALED"


@dataclass(frozen=True, slots=True)
class Segment:
    """`start` and `end` are inclusive hashes. `bucket_splits`: first hashes of its entry buckets but the first (PIP-486)."""

    id: int
    start: int
    end: int
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    created_epoch: int = 0
    sealed_epoch: int = NEVER
    created_ms: int = 0
    sealed_ms: int = NEVER
    legacy_topic: str | None = None
    bucket_splits: tuple[int, ...] = ()

    @property
    def active(self) -> bool:
        return self.state is SegmentState.ACTIVE

    @property
    def descriptor(self) -> str:
        """The last part of its topic's name: `0000-7fff-1`."""
        return f"{self.start:04x}-{self.end:04x}-{self.id}"

    @property
    def buckets(self) -> int:
        return len(self.bucket_splits) + 1

    def as_json(self) -> dict[str, Any]:
        """With the derived booleans that Pulsar stores, too."""
        document: dict[str, Any] = {
            "segmentId": self.id,
            "hashRange": {"start": self.start, "end": self.end},
            "state": self.state.value,
            "parentIds": list(self.parents),
            "childIds": list(self.children),
            "createdAtEpoch": self.created_epoch,
            "sealedAtEpoch": self.sealed_epoch,
            "createdAtMs": self.created_ms,
            "sealedAtMs": self.sealed_ms,
            "sealed": not self.active,
            "active": self.active,
            "root": not self.parents,
            "leaf": not self.children,
            "legacy": self.legacy_topic is not None,
        }
        if self.legacy_topic is not None:
            document["legacyTopicName"] = self.legacy_topic
        if self.bucket_splits:
            document["entryBucketSplits"] = list(self.bucket_splits)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Segment:
        hashes = document["hashRange"]
        return cls(
            id=int(document["segmentId"]),
            start=int(hashes["start"]),
            end=int(hashes["end"]),
            state=SegmentState(document["state"]),
            parents=tuple(map(int, document.get("parentIds") or ())),
            children=tuple(map(int, document.get("childIds") or ())),
            created_epoch=int(document.get("createdAtEpoch", 0)),
            sealed_epoch=int(document.get("sealedAtEpoch", NEVER)),
            created_ms=int(document.get("createdAtMs", 0)),
            sealed_ms=int(document.get("sealedAtMs", NEVER)),
            legacy_topic=document.get("legacyTopicName"),
            bucket_splits=tuple(map(int, document.get("entryBucketSplits") or ())),
        )


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Raises LayoutError where its segments contradict each other: such a layout is never stored and never served."""

    epoch: int
    next_id: int
    segments: Mapping[int, Segment]

    def __post_init__(self) -> None:
        self._check_tiling()
        for segment in self.segments.values():
            self._check_segment(segment)

    @classmethod
    def of_classic(cls, topics: Sequence[str], now_ms: int = 0) -> SegmentLayout:
        """A classic topic as clients of scalable ones see it: a segment for each partition, which they choose by its number; its range
        says nothing. `topics`: complete names of the partitions, or of the topic."""
        segments = {
            index: Segment(index, start, end, created_ms=now_ms, legacy_topic=name)
            for index, (name, (start, end)) in enumerate(zip(topics, even_ranges(len(topics)), strict=True))
        }
        return cls(0, len(topics), segments)

    @classmethod
    def create(cls, count: int, now_ms: int, buckets: int = 1) -> SegmentLayout:
        """Equal ranges. Raises LayoutError."""
        if not 1 <= count <= SEGMENTS_PER_TOPIC_MAX:
            raise LayoutError(f"a scalable topic begins with 1 to {SEGMENTS_PER_TOPIC_MAX} segments, not {count}")
        made = [
            Segment(number, start, end, created_ms=now_ms, bucket_splits=even_splits(buckets))
            for number, (start, end) in enumerate(even_ranges(count))
        ]
        return cls(0, count, {segment.id: segment for segment in made})

    # ---- Questions

    @property
    def active(self) -> list[Segment]:
        """In the order of their ranges."""
        return sorted((each for each in self.segments.values() if each.active), key=_by_range)

    @property
    def sealed(self) -> list[Segment]:
        """The oldest first."""
        return sorted((each for each in self.segments.values() if not each.active), key=lambda each: each.id)

    def segment(self, segment_id: int) -> Segment:
        """Raises LayoutError."""
        found = self.segments.get(segment_id)
        if found is None:
            raise LayoutError(
                f"segment {segment_id} does not exist; the segments are {', '.join(map(str, sorted(self.segments)))}"
            )
        return found

    def at(self, key_hash: int) -> Segment:
        """The active segment that a 16-bit hash belongs to."""
        return next(each for each in self.active if each.start <= key_hash <= each.end)

    def ancestors(self, segment_id: int) -> frozenset[int]:
        """All that it descends from and that are still here, without itself."""
        found: set[int] = set()
        left = list(self.segment(segment_id).parents)
        while left:
            parent = left.pop()
            if parent in self.segments and parent not in found:
                found.add(parent)
                left.extend(self.segments[parent].parents)
        return frozenset(found)

    def removable(self, done: Collection[int]) -> list[Segment]:
        """Of the sealed segments that nobody needs any more, those that may go now, the oldest first: with all of their ancestors, and with
        all other parents of their children.

        Who reads without a subscription, and waits with a child until its other parents are read, finds what it has read to the end still
        there, and so knows that nothing was lost.
        """
        going = {each.id for each in self.sealed if each.id in done}
        while True:
            held = {each for each in going if any(other not in going for other in self._goes_with(each))}
            if not held:
                return [self.segments[each] for each in sorted(going)]
            going -= held

    def _goes_with(self, segment_id: int) -> set[int]:
        """Its parents, and those of its children, as far as they are still here."""
        segment = self.segments[segment_id]
        found = {*segment.parents, *(each for child in segment.children for each in self.segments[child].parents)}
        return found & set(self.segments)

    def merge_depth(self, segment_id: int) -> int:
        """Merges among its ancestors and itself."""
        return sum(len(self.segments[each].parents) >= 2 for each in {*self.ancestors(segment_id), segment_id})

    # ---- Changes

    def split(self, segment_id: int, now_ms: int) -> SegmentLayout:
        """Two children, each with half of the range. Raises LayoutError."""
        parent = self._active_one(segment_id)
        if parent.end == parent.start:
            raise LayoutError(f"segment {segment_id} covers one hash only and cannot be split")
        if len(self.active) >= SEGMENTS_PER_TOPIC_MAX:
            raise LayoutError(f"the topic has {SEGMENTS_PER_TOPIC_MAX} active segments already, which is the most")
        middle = parent.start + (parent.end - parent.start) // 2
        splits = even_splits(max(1, parent.buckets // 2))
        ranges = ((parent.start, middle), (middle + 1, parent.end))
        return self._replaced([parent], [(*each, splits) for each in ranges], now_ms)

    def merge(self, first_id: int, second_id: int, now_ms: int, buckets_max: int = 1024) -> SegmentLayout:
        """One child in place of two neighbours. Raises LayoutError."""
        low, high = sorted((self._active_one(first_id), self._active_one(second_id)), key=_by_range)
        if low.end + 1 != high.start:
            raise LayoutError(f"segments {first_id} and {second_id} are not adjacent: only neighbours can be merged")
        splits = even_splits(min(low.buckets + high.buckets, buckets_max))
        return self._replaced([low, high], [(low.start, high.end, splits)], now_ms)

    def rebucket(self, segment_id: int, buckets: int, now_ms: int, buckets_max: int = 1024) -> SegmentLayout:
        """A child with the same range and another number of entry buckets. Raises LayoutError."""
        parent = self._active_one(segment_id)
        if not 1 <= buckets <= buckets_max or buckets == parent.buckets:
            raise LayoutError(f"a segment has 1 to {buckets_max} entry buckets; {segment_id} has {parent.buckets} now")
        return self._replaced([parent], [(parent.start, parent.end, even_splits(buckets))], now_ms)

    def migrated(self, now_ms: int) -> SegmentLayout:
        """The partitions of a classic topic become sealed, as many new segments take over by ranges (PIP-475).

        A partition may hold any key, so each serves the whole range, and is a parent of every new segment. Raises LayoutError.
        """
        partitions = sorted(self.segments.values(), key=lambda each: each.id)
        if not all(each.active and each.legacy_topic is not None for each in partitions):
            raise LayoutError("the topic is a scalable one already: only partitions of a classic topic can be migrated")
        if len(partitions) > SEGMENTS_PER_TOPIC_MAX:
            raise LayoutError(f"a scalable topic has at most {SEGMENTS_PER_TOPIC_MAX} active segments")
        whole = [replace(each, start=0, end=HASH_MAX) for each in partitions]
        return self._replaced(whole, [(*each, ()) for each in even_ranges(len(whole))], now_ms)

    def without(self, segment_ids: Iterable[int]) -> SegmentLayout:
        """Forget sealed segments. One whose parent is still here stays, so that nothing overtakes the parent. Raises LayoutError."""
        left, epoch = dict(self.segments), self.epoch
        for segment_id in sorted(segment_ids):
            gone = left.get(segment_id)
            if gone is None:
                raise LayoutError(f"segment {segment_id} does not exist")
            if gone.active or any(parent in left for parent in gone.parents):
                raise LayoutError(
                    f"segment {segment_id} is active, or has a parent; only the oldest sealed ones can go"
                )
            del left[segment_id]
            for child in gone.children:
                heir = left[child]
                left[child] = replace(heir, parents=tuple(each for each in heir.parents if each != segment_id))
            epoch += 1
        return SegmentLayout(epoch, self.next_id, left)

    def _active_one(self, segment_id: int) -> Segment:
        segment = self.segment(segment_id)
        if not segment.active:
            raise LayoutError(
                f"segment {segment_id} is sealed: its children {list(segment.children)} took its range over"
            )
        return segment

    def _replaced(
        self, parents: list[Segment], ranges: list[tuple[int, int, tuple[int, ...]]], now_ms: int
    ) -> SegmentLayout:
        epoch = self.epoch + 1
        heirs = [
            Segment(
                self.next_id + number,
                start,
                end,
                parents=tuple(parent.id for parent in parents),
                created_epoch=epoch,
                created_ms=now_ms,
                bucket_splits=splits,
            )
            for number, (start, end, splits) in enumerate(ranges)
        ]
        children = tuple(each.id for each in heirs)
        sealed = [
            replace(each, state=SegmentState.SEALED, children=children, sealed_epoch=epoch, sealed_ms=now_ms)
            for each in parents
        ]
        segments = {**self.segments, **{each.id: each for each in (*sealed, *heirs)}}
        return SegmentLayout(epoch, self.next_id + len(heirs), segments)

    # ---- JSON

    def as_json(self) -> dict[str, Any]:
        segments = {str(number): self.segments[number].as_json() for number in sorted(self.segments)}
        return {"epoch": self.epoch, "nextSegmentId": self.next_id, "segments": segments}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SegmentLayout:
        """Raises LayoutError."""
        try:
            found = [Segment.from_json(each) for each in (document.get("segments") or {}).values()]
            epoch, next_id = int(document["epoch"]), int(document["nextSegmentId"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LayoutError(f"not the record of a scalable topic: {type(error).__name__} {error}") from None
        return cls(epoch, next_id, {segment.id: segment for segment in found})

    # ---- Checks

    def _check_tiling(self) -> None:
        active = self.active
        if not active or active[0].start != 0 or active[-1].end != HASH_MAX:
            raise LayoutError("the active segments do not reach from hash 0000 to ffff")
        for low, high in pairwise(active):
            if low.end + 1 != high.start:
                raise LayoutError(f"between the active segments {low.id} and {high.id} is a gap or an overlap")

    def _check_segment(self, segment: Segment) -> None:
        if not 0 <= segment.start <= segment.end <= HASH_MAX:
            raise LayoutError(f"segment {segment.id} has no valid range")
        if segment.id >= self.next_id or segment.created_epoch > self.epoch:
            raise LayoutError(f"segment {segment.id} is newer than the layout")
        if segment.active == bool(segment.children):
            raise LayoutError(f"segment {segment.id} must be sealed if and only if it has children")
        if any(parent >= segment.id for parent in segment.parents):
            raise LayoutError(f"segment {segment.id} has a parent that is younger")
        if any(segment.id not in self.segments[child].parents for child in segment.children if child in self.segments):
            raise LayoutError(f"segment {segment.id} has a child that does not know it")
        splits = segment.bucket_splits
        if any(low >= high for low, high in pairwise((0, *splits, HASH_MAX + 1))):
            raise LayoutError(f"the entry buckets of segment {segment.id} are not in ascending order")


def even_ranges(count: int) -> list[tuple[int, int]]:
    """The hashes in so many inclusive ranges of equal width; the last one takes the rest."""
    width = (HASH_MAX + 1) // count
    ends = [width * (number + 1) - 1 for number in range(count - 1)] + [HASH_MAX]
    return [(number * width, end) for number, end in enumerate(ends)]


def even_splits(buckets: int) -> tuple[int, ...]:
    """First hashes of entry buckets 1 to N-1 when N have the same width."""
    return tuple(number * (HASH_MAX + 1) // buckets for number in range(1, buckets))


def _by_range(segment: Segment) -> tuple[int, int, int]:
    return segment.start, segment.end, segment.id
