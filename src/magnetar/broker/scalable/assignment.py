"""Which consumer of a subscription reads which segments: pure functions of layout, drained segments and consumers.

Stream consumers get messages in the order of their keys, so a segment is withheld until the subscription has acknowledged everything in all
its ancestors; a sealed one that is drained leaves the assignment. Checkpoint consumers read every segment and wait for none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from magnetar.broker.scalable.layout import Segment, SegmentLayout

Assignment = dict[str, tuple[int, ...]]
"""Segment ids by consumer, in the order of their ranges."""


def readable(layout: SegmentLayout, drained: Collection[int]) -> list[Segment]:
    """The segments of a stream subscription that are to be read now, in the order of their ranges.

    `drained`: sealed segments in which it has acknowledged everything.
    """
    found = [
        each
        for each in layout.segments.values()
        if not (each.id in drained and not each.active) and layout.ancestors(each.id) <= set(drained)
    ]
    return sorted(found, key=lambda each: (each.start, each.end, each.id))


def withheld(layout: SegmentLayout, drained: Collection[int]) -> dict[int, list[int]]:
    """The segments that wait, each with the ancestors that it waits for."""
    left = {each.id: sorted(layout.ancestors(each.id) - set(drained)) for each in layout.segments.values()}
    return {segment_id: ancestors for segment_id, ancestors in sorted(left.items()) if ancestors}


def assign(segments: Iterable[Segment], consumers: Iterable[str], before: Mapping[str, Iterable[int]]) -> Assignment:
    """Each segment to one consumer, none with two more than another; what a consumer has `before` stays with it where that allows.

    Without `before` it is a round over the segments by range and the consumers by name.
    """
    ids = [each.id for each in segments]
    names = sorted(consumers)
    if not names:
        return {}
    share, larger = divmod(len(ids), len(names))
    held: dict[str, list[int]] = {name: [] for name in names}
    owner = {segment_id: name for name, some in before.items() if name in held for segment_id in some}
    for segment_id in ids:
        name = owner.get(segment_id)
        if name is not None and len(held[name]) < share + (1 if larger else 0):
            if len(held[name]) == share:
                larger -= 1
            held[name].append(segment_id)
    left = [segment_id for segment_id in ids if not any(segment_id in some for some in held.values())]
    for segment_id in left:
        name = min(names, key=lambda each: len(held[each]))
        held[name].append(segment_id)
    return {name: tuple(segment_id for segment_id in ids if segment_id in held[name]) for name in names}
