"""The messages of a unit's own vnodes, for views whose vnode is that of the message's key (`vnode.hash = 'segment'`).

Each unit reads the segments in which its vnodes lie and leaves out what is another unit's, so that every message comes to one unit, and to
the right one. A message in a segment whose range does not have its key (it has none, or its producer took the low bits of the hash, as
5.0.0-M1 does) comes to the unit that has the segment's first vnode, once; who applies the rows finds that it is a stranger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from magnetar.hashing.mapping import VnodeMapping
from magnetar.hashing.vectorized.vnode import segment_vnodes_of
from magnetar.hashing.vnode import segment_vnodes
from magnetar.pipeline.connect.offsets import Range
from magnetar.pipeline.connect.reading.columns import Columns
from magnetar.pipeline.connect.reading.range_reader import read_range
from magnetar.pipeline.connect.segment_order import reading_order, ring_of

if TYPE_CHECKING:
    from magnetar.pipeline.connect.options import ReadOptions
    from magnetar.pipeline.connect.raw.entries import Entry


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What a unit reads of a range: the messages with `vnodes`, all where that is None; with `strangers` also those whose key does not
    belong into `segment`, the vnodes of the range's segment."""

    part: Range
    vnodes: frozenset[int] | None
    segment: range
    strangers: bool


def own_parts(parts: Sequence[Range], mapping: VnodeMapping) -> list[list[OwnPart]]:
    """By unit, in the order of `mapping.units`. Together they have every message of the ranges once."""
    found: list[list[OwnPart]] = [[] for _ in mapping.units]
    for part in sorted(parts, key=lambda part: reading_order(part.topic)):
        segment = segment_vnodes(*ring_of(part.topic), mapping.vnodes)
        by_unit: dict[int, list[int]] = {}
        for vnode in segment:
            by_unit.setdefault(mapping.owners[vnode], []).append(vnode)
        for unit, vnodes in by_unit.items():
            all_of_it = len(vnodes) == len(segment)
            own = None if all_of_it else frozenset(vnodes)
            found[unit].append(OwnPart(part, own, segment, mapping.owners[segment[0]] == unit))
    return found


def read_own(options: ReadOptions, own: OwnPart, columns: Columns, count: int) -> Iterator[pa.RecordBatch]:
    """As `read_range`. `count`: of all vnodes."""
    return read_range(options, own.part, columns, taken_of(own, count))


def taken_of(own: OwnPart, count: int) -> Callable[[Entry], Entry] | None:
    """What leaves of an entry the messages that the unit takes; None where that is all of them."""
    if own.vnodes is None:
        return None
    wanted = np.full(count, own.strangers)
    wanted[own.segment.start : own.segment.stop] = False
    wanted[list(own.vnodes)] = True

    def taken(entry: Entry) -> Entry:
        messages = entry.messages
        keys = pa.array(messages.keys or [None] * len(messages), pa.string())
        mine = wanted[segment_vnodes_of(keys, count)]
        return entry if mine.all() else entry._replace(messages=messages.at(np.flatnonzero(mine).tolist()))

    return taken
