"""A parallel read of one table at one manifest: which vnodes a task takes, and in which pieces it reads them. A decision core.

A key hashes to its vnode whatever its order, so groups of vnodes hold about the same number of rows also when keys only ever grow.
Where a few groups of rows are far larger than others (a table may be distributed by less than its key), the cuts follow the rows that
the manifest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.run import RunInfo

PIECE_ROWS_MAX: Final = 500_000
"""Stored rows that a task merges in memory at a time, unless one vnode alone has more."""


def rows_of_vnodes(runs: Iterable[RunInfo], vnode_count: int) -> list[float]:
    """Stored rows of each vnode, as far as the manifest tells: a row group's rows are shared evenly among its vnodes that count."""
    rows = [0.0] * vnode_count
    for run in runs:
        bits = run.vnode_bits
        for first, last, count in run.groups:
            held = bits >> first & (1 << last - first + 1) - 1
            share = count / (last - first + 1)
            for vnode in vnode_set.members(held):
                rows[first + vnode] += share
    return rows


def cut(vnodes: Sequence[int], rows: Sequence[float], parts: int) -> list[tuple[int, ...]]:
    """At most `parts` runs of neighbouring `vnodes`, about equal in rows (and in vnodes where there are no rows); none is empty.

    `rows` goes by vnode. Storage is ordered by vnode, so neighbours share row groups.
    """
    if not vnodes:
        return []
    parts = min(parts, len(vnodes))
    # An empty vnode weighs a little, so that a table without rows is cut evenly too.
    least = sum(rows[vnode] for vnode in vnodes) * 1e-6 / len(vnodes) or 1.0
    ends = list(accumulate(max(rows[vnode], least) for vnode in vnodes))
    groups, start = [], 0
    for part in range(parts):
        stop = start + 1
        target = ends[-1] * (part + 1) / parts
        while stop < len(vnodes) - (parts - part - 1) and _middle(ends, stop) <= target:
            stop += 1
        if part == parts - 1:
            stop = len(vnodes)
        groups.append(tuple(vnodes[start:stop]))
        start = stop
    return groups


def pieces(vnodes: Sequence[int], rows: Sequence[float], rows_max: int = PIECE_ROWS_MAX) -> list[tuple[int, ...]]:
    """The vnodes of a task in order, cut so that each piece has at most `rows_max` stored rows or a single vnode."""
    found: list[tuple[int, ...]] = []
    piece: list[int] = []
    size = 0.0
    for vnode in vnodes:
        if piece and size + rows[vnode] > rows_max:
            found.append(tuple(piece))
            piece, size = [], 0.0
        piece.append(vnode)
        size += rows[vnode]
    return [*found, tuple(piece)] if piece else found


def _middle(ends: Sequence[float], index: int) -> float:
    """Where half of the vnode's weight lies: it belongs to the part that has the larger half."""
    return (ends[index - 1] + ends[index]) / 2
