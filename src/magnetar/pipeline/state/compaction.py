"""Which runs to merge, and merging them: tiers of runs above one base, so that reads and space stay bounded.

A unit's vnodes are covered by runs of levels 0, 1, ... and a base. Where a vnode has RUNS_PER_LEVEL runs of a level they are merged into
one of the next; when the rows above the base are more than ROWS_ABOVE_BASE of it, everything is merged into a new base and deletions are
dropped.

Bounds, for one vnode: at most (RUNS_PER_LEVEL - 1) * levels + 1 + what one epoch adds are read, where the levels are at most
log_RUNS_PER_LEVEL of the epochs since the last base; stored rows are at most 1 + ROWS_ABOVE_BASE times the live and deleted keys of the
base, plus one epoch. Merging copies a unit's own vnodes only: a run stays, for fewer vnodes, until all units have merged past it. Another
number of units is not a reason to merge: a unit that has vnodes of several former ones opens the runs of each of them until it merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl

from magnetar.pipeline.state import vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import merge, newest_last
from magnetar.pipeline.state.run import RunInfo, read_run, write_run
from magnetar.pipeline.state.table import DELETE, OP

RUNS_PER_LEVEL: Final = 4
ROWS_ABOVE_BASE: Final = 0.5
BASE_LEVEL: Final = 100
"""Level of runs that hold everything of their vnodes: nothing older lies below them."""

SMALL_ROWS: Final = 4096
"""A unit with fewer rows than this is merged into a base whenever a level is full: tiers would not pay."""


@dataclass(frozen=True, slots=True)
class Merge:
    """`runs`, newest last, become one of `level` for the vnodes `vnode_bits`; a base drops deletions."""

    runs: tuple[RunInfo, ...]
    level: int
    vnode_bits: int

    @property
    def is_base(self) -> bool:
        return self.level == BASE_LEVEL


def plan(runs: Iterable[RunInfo], vnode_bits: int) -> Merge | None:
    """What a unit that serves these vnodes should merge next. Pure: decided from what manifests say."""
    mine = [run for run in newest_last(runs) if run.vnode_bits & vnode_bits]
    upper = [run for run in mine if run.level < BASE_LEVEL]
    if not upper:
        return None
    above, below = _rows(upper, vnode_bits), _rows((run for run in mine if run.level == BASE_LEVEL), vnode_bits)
    full = _full_level(upper, vnode_bits)
    if full is None:
        return None
    if above > ROWS_ABOVE_BASE * below or above + below < SMALL_ROWS:
        return Merge(tuple(mine), BASE_LEVEL, vnode_bits)
    # Everything newer than the oldest run of the full level goes along: epochs of the result must not enclose another run's.
    first = next(place for place, run in enumerate(upper) if run.level == full)
    chosen = upper[first:]
    return Merge(tuple(chosen), max(run.level for run in chosen) + 1, vnode_bits)


def run_merge(files: StateFiles, state: TableState, merge_plan: Merge) -> RunInfo:
    """Write the merged run; durable on return. The manifest then takes it with `replace_runs`. Raises DamagedStateError."""
    table = state.table
    parts = [read_run(files, table, run, merge_plan.vnode_bits) for run in merge_plan.runs]
    merged = merge(table, parts)
    if merge_plan.is_base:
        merged = merged.filter(pl.col(OP) != DELETE)
    return write_run(
        files,
        table,
        merged,
        level=merge_plan.level,
        oldest=min(run.oldest for run in merge_plan.runs),
        newest=max(run.newest for run in merge_plan.runs),
        vnode_bits=merge_plan.vnode_bits,
    )


def replace_runs(runs: Sequence[RunInfo], merged: Merge, result: RunInfo) -> tuple[RunInfo, ...]:
    """The runs of a table after a merge: the inputs no longer count for the merged vnodes, and go when they count for none."""
    inputs = {run.path for run in merged.runs}
    kept = []
    for run in runs:
        if run.path in inputs:
            left = run.vnode_bits & ~merged.vnode_bits
            if not left:
                continue
            run = replace(run, vnodes=vnode_set.to_text(left))
        kept.append(run)
    return (*kept, result)


def _full_level(upper: Sequence[RunInfo], vnode_bits: int) -> int | None:
    """The highest level of which some vnode has as many runs as it may."""
    full = [level for level in {run.level for run in upper} if _is_full(upper, level, vnode_bits)]
    return max(full, default=None)


def _is_full(upper: Sequence[RunInfo], level: int, vnode_bits: int) -> bool:
    at_least = [0] * RUNS_PER_LEVEL  # vnodes with more runs than the index says
    for held in (run.vnode_bits & vnode_bits for run in upper if run.level == level):
        for more in range(RUNS_PER_LEVEL - 1, 0, -1):
            at_least[more] |= at_least[more - 1] & held
        at_least[0] |= held
    return at_least[-1] != 0


def _rows(runs: Iterable[RunInfo], vnode_bits: int) -> float:
    """About how many rows of these vnodes: groups that hold others as well count by their share of vnodes."""
    total = 0.0
    for run in runs:
        held = run.vnode_bits & vnode_bits
        for first, last, rows in run.groups:
            width = last - first + 1
            total += rows * (held >> first & ((1 << width) - 1)).bit_count() / width
    return total
