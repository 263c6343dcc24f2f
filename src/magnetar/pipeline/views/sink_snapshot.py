"""The rows that a view has when a sink of it is created: as inserts, in changelog files that the sink's first manifest names.

Files rather than a scan: what is delivered must be the same rows in the same order after every crash, whatever epochs come meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from magnetar.pipeline.operators.changelog import CHANGE, INSERT
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.table import as_frame
from magnetar.pipeline.views.batch_scan import pieces, rows_of_vnodes
from magnetar.pipeline.views.changelog_files import write_changes

SNAPSHOT: Final = "snapshot"
"""In a sink's position: its view's first rows are not delivered yet."""

_UNIT: Final = "0"


def changelog_name(sink: str) -> str:
    """Under which name a manifest's `changelogs` holds the snapshot; no view is called so, as names have no spaces in front."""
    return f" {SNAPSHOT} {sink}"


def write_snapshot(files: StateFiles, state: TableState, epoch: int) -> list[dict[str, Any]]:
    """The entry for a manifest's `changelogs`: all rows as of a committed state, some vnodes a file. Raises DamagedStateError."""
    table = state.table
    counted = rows_of_vnodes(state.runs, table.vnode_count)
    written = []
    for vnodes in pieces(range(table.vnode_count), counted):
        rows = as_frame(read_arrow(files, state, vnodes))
        if rows.height:
            inserts = rows.select(pl.lit(INSERT, pl.Int8).alias(CHANGE), pl.all())
            file = write_changes(files, epoch, _UNIT, inserts, table.schema, durable=True)
            written.append(file.describe())
    return [{"epoch": epoch, "files": written}] if written else []
