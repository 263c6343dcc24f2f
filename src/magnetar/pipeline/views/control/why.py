"""`explain view` over a pipeline's directory: what its manifest says, and of a key the row, the files that have it, and its input.

Needs neither the driver nor Spark nor a broker, so it answers for pipelines that stand still as well.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from magnetar.base.clock import Clock, SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.broker.explain import view as why
from magnetar.broker.explain.answer import Explanation
from magnetar.broker.pipelines.report import PipelineReport
from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, TableState
from magnetar.pipeline.state.reader import newest_last, read_arrow
from magnetar.pipeline.state.run import read_run
from magnetar.pipeline.state.table import DELETE, OP, as_frame
from magnetar.pipeline.views.control.driver_lock import holder
from magnetar.pipeline.views.control.listing import Overview, overview
from magnetar.pipeline.views.control.reports import report_of
from magnetar.pipeline.views.lowering.graph import GRAPH, INPUT_ROWS
from magnetar.pipeline.views.scan.keys import key_rows, wanted_values
from magnetar.pipeline.views.scan.stored_views import find_table

ROWS_MAX: Final = 20
"""Rows of a view that an answer shows for one key, where the key is only a part of theirs."""

INPUTS_MAX: Final = 100
"""Input rows that an answer shows for each state table."""


def explain_view(
    pipeline: str, view: str, key: Sequence[str] = (), units: int = 0, clock: Clock | None = None
) -> Explanation:
    """`pipeline`: its name or directory. `key`: `VALUE`, or `COLUMN=VALUE` for each column that rows are placed by. `units`: what would
    move with so many. Raises CatalogError without such a pipeline, InvalidArgumentError for a view or key that does not fit."""
    clock = clock if clock is not None else SystemClock()
    found = overview(pipeline, clock)
    report = report_of_overview(found)
    name = why.view_named(report, view)
    named = why.key_of(report, name, key)
    assert found.manifest is not None  # there is a report of it
    stored = None
    if named:
        stored = _stored(StateFiles(found.place.directory), found.manifest, name, named)
    return why.explain_view(report, why.Question(name, named, units), clock.now_ms(), stored)


def report_of_overview(found: Overview) -> PipelineReport:
    """CatalogError before the first manifest."""
    if found.manifest is None:
        raise CatalogError(f"pipeline {found.place.name} has not run yet; `magnetar pipeline run` begins it")
    running = holder(found.place.local)
    return report_of(found.status, found.manifest, running.host if running is not None else socket.gethostname())


def _stored(files: StateFiles, manifest: Manifest, view: str, key: Mapping[str, str]) -> why.Stored:
    state = find_table(manifest, view)
    try:
        keys = key_rows(state.table, wanted_values(state.table, {name: [text] for name, text in key.items()}))
    except OptionError as error:
        raise InvalidArgumentError(str(error)) from None
    assert keys is not None, "the key names all columns that say the vnode"
    (vnode,) = {int(each) for each in state.table.vnodes_of(keys)}
    rows = read_arrow(files, state, [vnode], keys)
    shown = [_plain(row) for row in rows.slice(0, ROWS_MAX).to_pylist()]
    return why.Stored(shown, _files(files, state, vnode, keys), _inputs(files, manifest, view, state, keys))


def _files(files: StateFiles, state: TableState, vnode: int, keys: pa.Table) -> list[dict[str, Any]]:
    """Those that speak for the vnode, newest last. `rows`: of the key, those that no later file says otherwise; `deleted` likewise."""
    table, wanted = state.table, as_frame(keys)
    found: list[dict[str, Any]] = []
    seen: pl.DataFrame | None = None
    for run in reversed(newest_last(state.runs)):
        if not run.vnode_bits >> vnode & 1:
            continue
        rows = read_run(files, table, run, 1 << vnode, [*table.key, OP, "_vnode"])
        rows = rows.join(wanted, on=wanted.columns, how="semi", nulls_equal=True) if rows.height else rows
        here = rows.select([*table.key, OP])
        newest = here if seen is None else here.join(seen, on=list(table.key), how="anti", nulls_equal=True)
        names = here.select(table.key)
        seen = names if seen is None else pl.concat([seen, names]).unique()
        gone = newest.filter(pl.col(OP) == DELETE).height
        found.append(
            {
                "path": run.path,
                "level": run.level,
                "epochs": f"{run.oldest} to {run.newest}" if run.oldest != run.newest else str(run.newest),
                "size_bytes": run.size_bytes,
                "rows": newest.height - gone,
                "deleted": gone,
            }
        )
    return found[::-1]


def _inputs(
    files: StateFiles, manifest: Manifest, view: str, state: TableState, keys: pa.Table
) -> list[dict[str, Any]]:
    """What the view's stages keep of the rows that the key's rows were made of, where their tables lie by the same values."""
    found = []
    stages = manifest.views.get(GRAPH, {}).get(view, [])
    for stage in stages:
        for table_id in stage["tables"]:
            kept = manifest.tables.get(table_id)
            if kept is None or table_id == state.table.table_id:
                continue
            told = {"stage": stage["stage"], "table": kept.table.name, "keeps": stage["keeps"]}
            lookup = _same_place(state, kept, keys, last=stage is stages[-1])
            if lookup is None:
                found.append({**told, "note": "kept by other columns than the view's key"})
                continue
            rows = read_arrow(files, kept, range(kept.table.vnode_count), lookup)
            shown = [_plain(row) for row in rows.slice(0, INPUTS_MAX).to_pylist()]
            note = None if stage["keeps"] == INPUT_ROWS else "the rows themselves are not kept"
            found.append({**told, "count": rows.num_rows, "rows": shown, **({"note": note} if note else {})})
    return found


def _same_place(view: TableState, kept: TableState, keys: pa.Table, *, last: bool) -> pa.Table | None:
    """The key in the columns by which the other table lies; a last stage that stores the view itself lies by the same values in the same
    order, whatever they are called there."""
    ours, theirs = view.table.distributed_by, kept.table.distributed_by
    if not theirs:
        return None
    if set(theirs) <= set(keys.column_names):
        pairs = {name: name for name in theirs}
    elif last and len(ours) == len(theirs):
        pairs = dict(zip(theirs, ours, strict=True))
    else:
        return None
    types = {name: kept.table.schema.field(name).type for name in theirs}
    if any(keys.schema.field(pairs[name]).type != kind for name, kind in types.items()):
        return None
    return pa.table({name: keys.column(pairs[name]) for name in theirs})


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: numbers, texts and booleans as they are, everything else as its text."""
    return {
        name: value if isinstance(value, str | int | float | bool | None) else str(value) for name, value in row.items()
    }
