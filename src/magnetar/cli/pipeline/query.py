"""`magnetar pipeline query`: SQL over the views of a pipeline, all of them at one epoch.

Queries are answered from the state's files without Spark. What this module imports is what a query from a cold shell waits for.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Final

import click

from magnetar.base.clock import SystemClock
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, output_options
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.home import Place, is_pipeline, names, pipelines_directory, place_of

ROWS: Final = 1000
"""Printed without --limit."""

ENGINES: Final = ("duckdb", "spark")

_NOT_A_QUERY: Final = re.compile(r"\s*(show|describe|explain|alter|create|drop)\b", re.IGNORECASE)

_UNKNOWN: Final = ("42601", "42883", "42000", "42704", "0A000")
"""What a query of Spark's words may fail with where PostgreSQL's are expected."""


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
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="duckdb",
    show_default=True,
    help="What answers; spark knows Spark's SQL and takes views larger than memory, and has to be started.",
)
@click.option(
    "--memory-mb", type=click.IntRange(64), default=4096, show_default=True, help="Memory for rows, without Spark."
)
@click.option("--master", default="local[2]", show_default=True, help="Spark's master, with --engine spark.")
@output_options
def query_command(
    sql: str,
    pipeline: str | None,
    epoch: int | None,
    limit: int,
    engine: str,
    memory_mb: int,
    master: str,
    as_json: bool,
) -> None:
    """Run SQL over the views of a pipeline, which need not run: a SELECT in PostgreSQL's words, all views at one epoch.

    SELECT ... AS OF EPOCH n reads an older epoch, as --epoch does. SHOW, DESCRIBE and EXPLAIN answer from the catalog; ALTER MATERIALIZED
    VIEW v SET PARALLELISM = n rescales.
    """
    if _NOT_A_QUERY.match(sql):
        from magnetar.cli.pipeline.query_catalog import answered

        emit(answered(pipeline, sql, as_json=as_json), as_json=as_json)
        return
    place = place_meant(pipeline)
    sql = sql.strip().rstrip(";")
    if engine == "spark":
        from magnetar.cli.pipeline.query_spark import selected

        found, cut = selected(place, sql, epoch, limit, master)
    else:
        found, cut = _selected(place, sql, epoch, limit, memory_mb)
    emit([{name: shown_value(value) for name, value in row.items()} for row in found], as_json=as_json)
    if cut:
        click.echo(f"(the first {limit} rows; --limit 0 shows all)", err=True)


def place_meant(name: str | None) -> Place:
    """CommandError when none or several could be meant, CatalogError for an unknown one."""
    if name is None:
        known = names()
        if len(known) != 1:
            there = ", ".join(known) or "none"
            raise CommandError(f"which pipeline? Give its name; below {pipelines_directory()} there are: {there}")
        name = known[0]
    place = place_of(name)
    if "://" not in place.directory and not is_pipeline(place.local):
        known_names = ", ".join(names()) or "none yet"
        raise CatalogError(f"no pipeline {name}; those below {pipelines_directory()}: {known_names}")
    return place


def _selected(
    place: Place, sql: str, epoch: int | None, limit: int, memory_mb: int
) -> tuple[list[dict[str, object]], bool]:
    from magnetar.pipeline.serving.engine import Engine
    from magnetar.pipeline.serving.reader import Views
    from magnetar.pipeline.serving.sql.translate import QueryError
    from magnetar.pipeline.state.files import StateFiles

    engine = Engine(Views(StateFiles(place.directory), SystemClock(), memory_mb << 20), place.name, memory_mb)
    try:
        try:
            return _rows(engine, sql, "postgres", epoch, limit)
        except QueryError as error:
            if error.code not in _UNKNOWN:
                raise
            try:
                return _rows(engine, sql, "spark", epoch, limit)
            except QueryError:
                raise error from None
    except QueryError as error:
        hint = f"; {error.hint}" if error.hint else ""
        if error.code in _UNKNOWN:
            hint += "; SQL that only Spark knows runs with --engine spark"
        raise CommandError(f"{error.text}{hint}") from error
    finally:
        engine.close()


def _rows(
    engine: object, sql: str, dialect: str, epoch: int | None, limit: int
) -> tuple[list[dict[str, object]], bool]:
    from magnetar.pipeline.serving.engine import BATCH_ROWS, Engine
    from magnetar.pipeline.serving.sql.translate import Context

    assert isinstance(engine, Engine)
    snapshot = engine.snapshot(epoch)
    query = engine.translate(sql, Context(database=engine.database), dialect=dialect, snapshot=snapshot)
    if query.epoch is not None:
        snapshot = engine.snapshot(query.epoch)
    if query.parameters:
        raise CommandError("the query has parameters ($1); write their values into it")
    result = engine.run(query, {}, snapshot)
    found: list[dict[str, object]] = []
    shown = [column.name for column in result.columns]
    try:
        for batch in result.batches(min(limit + 1, BATCH_ROWS) if limit else BATCH_ROWS):
            columns = [column.to_pylist() for column in batch.columns]
            found += [dict(zip(shown, row, strict=True)) for row in zip(*columns, strict=True)]
            if limit and len(found) > limit:
                return found[:limit], True
    finally:
        result.close()
    return found, False


def shown_value(value: object) -> object:
    """As JSON and tables can show it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)  # sums of whole numbers are exact decimals in DuckDB
    return value
