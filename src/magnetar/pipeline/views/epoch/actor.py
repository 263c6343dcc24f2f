"""What one parallel unit does in one stage of an epoch: read its slices, apply the operator, write runs and changes.

Everything it needs is in the task it is given, all it leaves behind are files that no manifest names yet; the driver commits what it
reports or forgets it. It may therefore run twice, or half.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # units are the threads; must be said before polars is imported

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.aggregate_functions import stands_for
from magnetar.pipeline.operators.changelog import CHANGE, UPDATE_BEFORE
from magnetar.pipeline.operators.changelog import DELETE as CHANGE_DELETE
from magnetar.pipeline.operators.operator import (
    EpochContext,
    Operator,
    OperatorResult,
    keys_to_read,
    rows_to_write,
    vnodes_of_changes,
)
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.state import compaction, vnode_set
from magnetar.pipeline.state.compaction import Merge
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.hot_runs import HotRuns
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import read_slices
from magnetar.pipeline.state.run import RunInfo, write_run
from magnetar.pipeline.state.table import VNODE, StateTable, as_frame
from magnetar.pipeline.views.changelog_files import ChangelogFile, write_changes


@dataclass(frozen=True, slots=True)
class InputColumns:
    """How one input of the operator arrives: its columns, and those that its rows have to be sorted by."""

    schema: pa.Schema
    ordered_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnitTask:
    """One stage of one epoch, the same for all units. `tables`: as of the pinned manifest.

    `vnodes[i]`: the vnodes of the unit `units[i]`, which is the task with the index i. `view`: the table that keeps the output's rows,
    where the operator does not itself. `changes`: whether anybody reads them; `durable`: after the epoch as well.
    """

    root: str
    options: Mapping[str, Any]
    context: EpochContext
    units: tuple[str, ...]
    vnodes: tuple[tuple[int, ...], ...]
    inputs: Mapping[str, InputColumns]
    operator: Operator
    tables: Mapping[int, TableState]
    view: StateTable | None
    changes: bool
    durable: bool
    own: bool = False
    """The unit has read its rows itself: among them may be some of other units' vnodes, which it reports and then does nothing else."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a unit did to a table: a new run with its changes, and a merge of older ones."""

    run: RunInfo | None = None
    merge: Merge | None = None
    merged: RunInfo | None = None


@dataclass(frozen=True, slots=True)
class UnitResult:
    """All that the driver is told. `rows_in`, `rows_changed`: changes taken and given; `seconds` by phase.

    Partial results count as the changes that they stand for. `keys_read`: how many keys those were about, 0 where nobody knows.
    """

    unit: str
    rows_in: int
    rows_changed: int
    tables: Mapping[int, TableChange]
    changelog: ChangelogFile | None
    counters: Mapping[str, int]
    seconds: Mapping[str, float] = field(default_factory=dict)
    keys_read: int = 0
    strangers: int = 0
    """Rows of other units' vnodes that a unit with `own` rows got; nothing else was done then."""
    unread: bool = False
    """Whether a task could not read the unit's rows by itself; nothing else was done then."""


def unread_result(task: UnitTask, index: int) -> UnitResult:
    """Of a unit whose rows a task could not read by itself."""
    return UnitResult(task.units[index], 0, 0, {}, None, {}, unread=True)


_HOT: Final = HotRuns()
"""Of the process, for tasks that come again and again."""


def run_unit(task: UnitTask, index: int, deltas: Mapping[str, pa.Table], *, stays: bool = False) -> UnitResult:
    """`deltas`: the changes of each input with `_vnode` and `_change`. `stays`: the same process has the next epoch as well.

    Raises StateSchemaError for a row of another unit.
    """
    started = perf_counter()
    files = StateFiles(task.root, dict(task.options), _HOT if stays else None)
    held = task.vnodes[index]
    context = replace(task.context, holds_first_vnode=0 in held)
    frames = {name: _delta(task, name, rows) for name, rows in deltas.items()}
    if strangers := sum(_strangers(task, held, rows) for rows in frames.values()):
        return UnitResult(task.units[index], 0, 0, {}, None, {}, strangers=strangers)
    slices, keys_read = {}, 0
    for table_id, keys in task.operator.keys_needed(frames, context).items():
        state = task.tables[table_id]
        keys_read = max(keys_read, 0 if keys is None else keys.height)
        slices[table_id] = read_slices(files, state, held, keys_to_read(state.table, keys))
    read = perf_counter()
    result = task.operator.apply(slices, frames, context)
    writes = dict(result.writes)
    if task.view is not None:
        writes[task.view.table_id] = materialized(task.view, result)
    applied = perf_counter()
    tables = {
        table_id: _written(files, task.tables[table_id], held, rows, task.context.epoch)
        for table_id, rows in writes.items()
    }
    changelog = None
    if task.changes and result.changelog.height:
        schema = task.operator.output_schema
        changelog = write_changes(
            files, task.context.epoch, task.units[index], result.changelog, schema, durable=task.durable
        )
    return UnitResult(
        unit=task.units[index],
        rows_in=sum(stands_for(rows) for rows in frames.values()),
        rows_changed=result.changelog.height,
        tables=tables,
        changelog=changelog,
        counters=dict(result.counters),
        seconds={"read": read - started, "apply": applied - read, "write": perf_counter() - applied},
        keys_read=keys_read,
    )


def materialized(table: StateTable, result: OperatorResult) -> pl.DataFrame:
    """What the table of a view has to be told of an operator's changes: the rows after them."""
    removes = pl.col(CHANGE).is_in([UPDATE_BEFORE, CHANGE_DELETE])
    columns = table.schema.names
    puts, gone = result.changelog.filter(~removes), result.changelog.filter(removes)
    return puts_and_deletes(puts.select(columns), gone.select(columns), table.key)


def _delta(task: UnitTask, name: str, rows: pa.Table) -> pl.DataFrame:
    frame = as_frame(rows)
    if VNODE not in frame.columns:  # as Spark SQL has no function for it
        found = vnodes_of_changes(task.operator.state_tables()[0], frame)
        frame = frame.with_columns(pl.Series(VNODE, found, pl.UInt16))
    order = task.inputs[name].ordered_by
    frame = frame.with_columns(pl.col(VNODE).cast(pl.UInt16))
    return frame if not order else frame.sort(order, nulls_last=False, maintain_order=True)


def _strangers(task: UnitTask, held: tuple[int, ...], rows: pl.DataFrame) -> int:
    """How many rows are of other units' vnodes. StateSchemaError where that cannot be."""
    present = rows[VNODE].unique().to_list()
    strangers = set(present).difference(held)
    if strangers and not task.own:
        raise StateSchemaError(
            f"a row of vnode {min(strangers, key=str)} came to the wrong unit; its vnodes are {held}"
        )
    return rows.filter(pl.col(VNODE).is_in(list(strangers))).height if strangers else 0


def _written(
    files: StateFiles, state: TableState, held: tuple[int, ...], writes: pl.DataFrame, epoch: int
) -> TableChange:
    bits = vnode_set.of(held)
    merge = compaction.plan(state.runs, bits)
    merged = compaction.run_merge(files, state, merge) if merge is not None else None
    run = None
    if writes.height:
        rows = rows_to_write(state.table, writes)
        if not rows[VNODE].is_in(list(held)).all():
            raise StateSchemaError(f"table {state.table.name}: a unit would write rows of another one's vnodes")
        run = write_run(files, state.table, rows, level=0, oldest=epoch, newest=epoch, vnode_bits=bits)
    return TableChange(run, merge, merged)


def apply_changes(state: TableState, changes: list[TableChange]) -> TableState:
    """The table after what its units did; merges first, as their runs are older."""
    runs = state.runs
    for change in changes:
        if change.merge is not None and change.merged is not None:
            runs = compaction.replace_runs(runs, change.merge, change.merged)
    return TableState(state.table, (*runs, *(change.run for change in changes if change.run is not None)))
