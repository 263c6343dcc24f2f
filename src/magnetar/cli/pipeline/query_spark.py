"""`magnetar pipeline query --engine spark`: what only Spark SQL can say, at the price of starting it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.cli.errors import CommandError
from magnetar.pipeline.errors import CatalogError, PipelineError
from magnetar.pipeline.home import Place
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.scan.stored_views import find_table, open_manifest, shown_columns, table_ids

DIRECT_ROWS_MAX: Final = 200_000
"""A view with more stored rows is scanned by Spark's tasks; a smaller one is read here, which spares the start of five processes."""


def selected(
    place: Place, sql: str, epoch: int | None, limit: int, master: str
) -> tuple[list[dict[str, object]], bool]:
    """The rows, and whether there are more than the limit."""
    from magnetar.pipeline.session import build_session

    files = StateFiles(place.directory)
    manifest = open_manifest(files, SystemClock(), epoch)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it repeats each error with a page of Java
    with _pinned(files, manifest):
        spark = build_session(master, app_name=f"magnetar query {place.name}", log_path=place.local / "query.log")
        try:
            _register(spark, files, manifest, sql)
            frame = spark.sql(sql)
            rows = (frame.limit(limit + 1) if limit else frame).toArrow().to_pylist()
        except Exception as error:
            raise _plain(error, manifest) from error
        finally:
            spark.stop()
    cut = bool(limit) and len(rows) > limit
    return (rows[:limit] if cut else rows), cut


@contextmanager
def _pinned(files: StateFiles, manifest: Manifest) -> Iterator[None]:
    name = gc.pin(files, SystemClock(), manifest)
    try:
        yield
    finally:
        gc.unpin(files, name)


def _register(spark: Any, files: StateFiles, manifest: Manifest, sql: str) -> None:
    """The views that the text names, as Spark's temporary views at this manifest's epoch."""
    from magnetar.pipeline.views.scan.source import spark_schema

    for name in table_ids(manifest):
        if re.search(rf"\b{re.escape(name)}\b", sql, re.IGNORECASE) is None:
            continue
        state = find_table(manifest, name)
        columns = shown_columns(manifest, name)
        schema = spark_schema(state.table, columns)
        if sum(run.rows for run in state.runs) <= DIRECT_ROWS_MAX:
            frame = spark.createDataFrame(_rows(files, state, columns), schema)
        else:
            options = {"pipeline": files.root_url, "view": name, "epoch": str(manifest.epoch), "pushdown": "true"}
            # With a schema Spark need not start a process to ask for it.
            frame = spark.read.format("magnetar.view").schema(schema).options(**options, pin="false").load()
        frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")


def _rows(files: StateFiles, state: TableState, columns: Sequence[str]) -> pa.Table:
    return read_arrow(files, state, range(state.table.vnode_count)).select(list(columns))


def _plain(error: Exception, manifest: Manifest) -> Exception:
    """What a person can do something about, in one line."""
    if isinstance(error, PipelineError):
        return error
    text = str(error).split("== SQL", 1)[0].split("JVM stacktrace", 1)[0].strip().splitlines()
    if "TABLE_OR_VIEW_NOT_FOUND" in str(error):
        return CatalogError(
            f"{text[0] if text else error}; the views are: {', '.join(table_ids(manifest)) or 'none yet'}"
        )
    return CommandError(text[0] if text else repr(error))
