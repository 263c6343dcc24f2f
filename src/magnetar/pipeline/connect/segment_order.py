"""Which segments of a scalable topic may be read: children once their ancestors are read to their end. A decision core.

So the messages of a key come in their order also across splits and merges. Offsets hold a position for each segment that has been begun.
A segment appears there when all of its ancestors are finished, so one that has a descendant there is finished itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from magnetar.client.scalable.layout import RING_MASK, Layout
from magnetar.pipeline.connect.offsets import EARLIEST, Offsets, Position

SCALABLE: Final = "topic://"
SEGMENT: Final = "segment://"
_SEGMENT: Final = re.compile(r"segment://(.+)/([0-9a-f]{4})-([0-9a-f]{4})-(\d+)\Z")
_CLASSIC: Final = re.compile(r"persistent://(.+?)(?:-partition-\d+)?\Z")

End = Callable[[str], Position]
"""Name of a segment's topic -> where it ends now."""


def is_scalable(topic: str) -> bool:
    """Whether a name stands for a topic that is made of segments."""
    return topic.startswith(SCALABLE)


def is_segment(topic: str) -> bool:
    """Whether a name is that of one segment."""
    return topic.startswith(SEGMENT)


def whole_topic(topic: str) -> str:
    """The topic that a partition or a segment is of; itself for one without."""
    found = _SEGMENT.match(topic)
    if found is not None:
        return f"{SCALABLE}{found.group(1)}"
    return topic.rpartition("-partition-")[0] or topic


def segment_id(topic: str) -> int:
    """Of a segment's name. Raises ValueError."""
    found = _SEGMENT.match(topic)
    if found is None:
        raise ValueError(f"{topic} is not the name of a segment")
    return int(found.group(4))


def ring_of(topic: str) -> tuple[int, int]:
    """The first and last place on the ring of keys that a segment has; all of them for a partition of a classic topic."""
    found = _SEGMENT.match(topic)
    return (0, RING_MASK) if found is None else (int(found.group(2), 16), int(found.group(3), 16))


def reading_order(topic: str) -> tuple[str, int]:
    """Sorts segments so that none comes before an ancestor, and leaves partitions in the order of their names."""
    return (whole_topic(topic), segment_id(topic)) if is_segment(topic) else (topic, 0)


def belongs_to(layout: Layout, name: str) -> bool:
    """Whether a name in offsets is, or was, a segment of the topic; those that were partitions of a classic topic once as well."""
    path = layout.topic.removeprefix(SCALABLE)
    found = _SEGMENT.match(name) or _CLASSIC.match(name)
    return found is not None and found.group(1) == path


def begin(layout: Layout, named: Mapping[str, Position], at: End, end: End) -> Offsets:
    """Where reading begins: at `named`, whose ancestors count as read, and in other segments `at` where it may begin now."""
    offsets = {name: position for name, position in named.items() if belongs_to(layout, name)}
    explicit = {each.id for each in layout.segments.values() if each.topic in offsets}
    passed = {each for number in explicit for each in layout.ancestors(number)} - explicit
    unfinished: set[int] = set()
    for number in sorted(layout.segments):
        segment, ancestors = layout.segments[number], layout.ancestors(number)
        if number in passed:
            continue
        if number not in explicit:
            if ancestors & unfinished:
                unfinished.add(number)
                continue
            offsets[segment.topic] = EARLIEST if ancestors & explicit else at(segment.topic)
        if segment.active or offsets[segment.topic] < end(segment.topic):
            unfinished.add(number)
    return offsets


def released(layout: Layout, starts: Mapping[str, Position], end: End) -> Offsets:
    """The ends of the segments that may be read from `starts` on, those that `starts` does not have from their beginning."""
    begun = {each.id for each in layout.segments.values() if each.topic in starts}
    finished = {each for number in begun for each in layout.ancestors(number)}
    found: Offsets = {}
    for number in sorted(layout.segments):
        segment = layout.segments[number]
        if number in finished or not layout.ancestors(number) <= finished:
            continue
        found[segment.topic] = at = end(segment.topic)
        if not segment.active and starts.get(segment.topic, EARLIEST) >= at:
            finished.add(number)
    return found


def with_children(layout: Layout, offsets: Offsets, end: End) -> Offsets:
    """The same offsets and the beginning of every segment whose ancestors are finished by them."""
    return {name: EARLIEST for name in released(layout, offsets, end)} | offsets


def unread(layout: Layout, starts: Offsets) -> Offsets:
    """The same offsets and the beginning of every segment that was not begun, less those that have a descendant there."""
    begun = {each.id for each in layout.segments.values() if each.topic in starts}
    finished = {each for number in begun for each in layout.ancestors(number)}
    there = {each.topic: EARLIEST for each in layout.segments.values()} | starts
    done = {layout.segments[each].topic for each in finished}
    return {name: at for name, at in there.items() if name not in done}


def outside(layout: Layout, starts: Collection[str], ends: Collection[str]) -> set[str]:
    """Names of segments that lie outside of a range: ancestors of those where it begins, descendants of those where it ends."""
    segments = layout.segments.values()
    before = {each for one in segments if one.topic in starts for each in layout.ancestors(one.id)}
    last = {one.id for one in segments if one.topic in ends}
    return {
        each.topic
        for each in segments
        if (each.id in before and each.topic not in starts)
        or (layout.ancestors(each.id) & last and each.topic not in ends)
    }


def unproven(layout: Layout, starts: Mapping[str, Position]) -> list[str]:
    """Names of segments in `starts` that are not in the layout any more and of which `starts` does not show that they are finished."""
    there = {each.topic for each in layout.segments.values()}
    gone = [name for name in starts if belongs_to(layout, name) and name not in there]
    return [name for name in gone if not any(_follows(other, name) for other in starts)]


def without_gone(layout: Layout, offsets: Offsets) -> Offsets:
    """Less the segments that the topic has deleted."""
    there = {each.topic for each in layout.segments.values()}
    return {name: at for name, at in offsets.items() if name in there or not belongs_to(layout, name)}


def _follows(later: str, earlier: str) -> bool:
    """Whether one segment descends from another, by their names: of two over the same hash the one with the higher id is the later one."""
    mine, other = _SEGMENT.match(later), _SEGMENT.match(earlier)
    if mine is None:
        return False
    if other is None:  # a partition of the classic topic that the scalable one was made of
        return True
    low, high, number = int(other.group(2), 16), int(other.group(3), 16), int(other.group(4))
    return (
        mine.group(1) == other.group(1)
        and int(mine.group(4)) > number
        and int(mine.group(2), 16) <= high
        and int(mine.group(3), 16) >= low
    )
