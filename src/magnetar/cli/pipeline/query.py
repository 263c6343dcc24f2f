"""`magnetar pipeline query`: SQL over the views of a pipeline, all of them at one epoch."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from math import isfinite
from typing import Any, Final

import click
import pyarrow as pa

from magnetar.base.clock import SystemClock
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, json_option
from magnetar.cli.pipeline.access import meant
from magnetar.cli.pipeline.explain import catalog_of, explained
from magnetar.cli.pipeline.rescale import adapted, quiet, rescaled
from magnetar.pipeline.errors import CatalogError, PipelineError, SqlError
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import (
    Describe,
    Explain,
    Select,
    SetParallelism,
    Show,
    ShowCreate,
    Statement,
)
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, TableState
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.views.control.listing import Overview
from magnetar.pipeline.views.scan.stored_views import find_table, open_manifest, shown_columns, table_ids

ROWS: Final = 1000
"""Printed without --limit."""

ALTER_TIMEOUT_S: Final = 60.0

DIRECT_ROWS_MAX: Final = 200_000
"""A view with more stored rows is scanned by Spark's tasks; a smaller one is read here, which spares the start of five processes."""


@click.command("query")
@click.argument("sql")
@click.option(
    "-p",
    "--pipeline",
    envvar="MAGNETAR_PIPELINE",
    show_envvar=True,
    help="Name of the pipeline; may be omitted if there is only one.",
)
@click.option("--epoch", type=click.IntRange(0), help="Read an older epoch; the last 10 are kept.")
@click.option(
    "--limit", type=click.IntRange(0), default=ROWS, show_default=True, help="Maximum number of rows; 0 prints all."
)
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
@json_option
def query_command(sql: str, pipeline: str | None, epoch: int | None, limit: int, master: str, as_json: bool) -> None:
    """Run SQL over the views of a pipeline, which need not run: SELECT in Spark's words, all views at one epoch.

    SHOW, DESCRIBE and EXPLAIN answer from the catalog; ALTER MATERIALIZED VIEW v SET PARALLELISM = n rescales.
    """
    found = meant(pipeline)
    statement = _statement(sql)
    if statement is not None and not isinstance(statement, Select):
        emit(_from_catalog(found, statement, as_json=as_json), as_json=as_json)
        return
    rows, cut = _selected(found, sql.strip().rstrip(";"), epoch, limit, master)
    emit(rows, as_json=as_json)
    if cut:
        click.echo(f"(the first {limit} rows; --limit 0 shows all)", err=True)


def _statement(sql: str) -> Statement | None:
    """None for what only Spark may understand, which is most of what can be asked once."""
    try:
        return parse_one(sql)
    except SqlError:
        if re.match(r"\s*(show|describe|explain|alter|create|drop)\b", sql, re.IGNORECASE):
            raise
        return None


def _from_catalog(found: Overview, statement: Statement, *, as_json: bool) -> list[dict[str, object]]:
    catalog = catalog_of(found)
    if isinstance(statement, SetParallelism):
        catalog.set_parallelism(statement)
        if statement.parallelism is None:
            return [adapted(found, 1, None, ALTER_TIMEOUT_S)]
        outcome = rescaled(found, statement.parallelism, ALTER_TIMEOUT_S, quiet if as_json else click.echo)
        return [outcome] if as_json else []
    if isinstance(statement, Show):
        return [{"name": name} for name in catalog.show(statement)]
    if isinstance(statement, ShowCreate):
        return [{"name": statement.name, "statement": catalog.show_create(statement.name)}]
    if isinstance(statement, Describe):
        assert found.manifest is not None
        return _columns(found.manifest, statement.name)
    if isinstance(statement, Explain):
        return [{"plan": line} for line in explained(catalog, statement.statement)]
    raise CommandError("that changes a pipeline: write it into its file, then `magnetar pipeline run FILE` again")


def _columns(manifest: Manifest, name: str) -> list[dict[str, object]]:
    table = find_table(manifest, name).table
    shown = [table.schema.field(column) for column in shown_columns(manifest, name)]
    return [{"column": field.name, "type": str(field.type), "key": field.name in table.key} for field in shown]


def _selected(
    found: Overview, sql: str, epoch: int | None, limit: int, master: str
) -> tuple[list[dict[str, object]], bool]:
    from magnetar.pipeline.session import build_session

    files = StateFiles(found.place.directory)
    manifest = open_manifest(files, SystemClock(), epoch)
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # it repeats each error with a page of Java
    with _pinned(files, manifest):
        log_path = found.place.local / "query.log"
        spark = build_session(master, app_name=f"magnetar query {found.place.name}", log_path=log_path)
        try:
            _register(spark, files, manifest, sql)
            frame = spark.sql(sql)
            rows = (frame.limit(limit + 1) if limit else frame).toArrow().to_pylist()
        except Exception as error:
            raise _plain(error, manifest) from error
        finally:
            spark.stop()
    cut = bool(limit) and len(rows) > limit
    shown = rows[:limit] if cut else rows
    return [{name: _shown(value) for name, value in row.items()} for row in shown], cut


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


def _shown(value: object) -> object:
    """As JSON and tables can show it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value
