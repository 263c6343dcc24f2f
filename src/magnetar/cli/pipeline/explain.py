"""`magnetar pipeline explain`: what the statements of a file, or one query, become."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import json_option, print_json
from magnetar.cli.pipeline.access import meant
from magnetar.cli.pipeline.files import catalog_of_text, read_text
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.plan import explain
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.statements import (
    CreateSink,
    CreateSource,
    CreateView,
    Explain,
    Select,
)
from magnetar.pipeline.views.control.listing import Overview

Plans: TypeAlias = list[tuple[str, str, list[str]]]
"""Name, kind and lines of what a file creates."""

NO_URL: Final = "pulsar://localhost:6650"
"""Of a source that names no address: its columns are known, so nothing is asked there."""


@click.command("explain")
@click.argument("file_or_sql")
@click.option(
    "-p", "--pipeline", envvar="MAGNETAR_PIPELINE", show_envvar=True, help="Pipeline whose views the query reads."
)
@click.option("--logical", is_flag=True, help="Show only the operators of a file, which does not need Spark.")
@click.option(
    "--service-url",
    envvar="MAGNETAR_URL",
    show_envvar=True,
    help="Service URL of sources and sinks that do not name one.",
)
@json_option
def explain_command(
    file_or_sql: str, pipeline: str | None, logical: bool, service_url: str | None, as_json: bool
) -> None:
    """Show the stages of every view in a FILE.sql, or the plan of a SELECT over a pipeline's views.

    Stages show which rows are shuffled by which columns and what state each operator keeps. They start Spark, which knows the
    types; a plan needs neither Spark nor topics. A query without an exact incremental plan is refused with what to write instead.
    """
    if file_or_sql.endswith((".sql", ".py")) or Path(file_or_sql).is_file():
        path = Path(file_or_sql)
        found = file_plans(path)
        if not logical:
            found = file_stages(path, found, service_url)
    else:
        statement = parse_one(file_or_sql)
        if isinstance(statement, Explain):
            statement = statement.statement
        if not isinstance(statement, CreateSource | CreateView | CreateSink | Select):
            raise CommandError("explain takes a SELECT or CREATE statement, or a file of statements that ends in .sql")
        catalog = Catalog() if pipeline is None and isinstance(statement, CreateSource) else catalog_of(meant(pipeline))
        found = [("query", "SELECT", explained(catalog, statement))]
    if as_json:
        print_json([{"name": name, "kind": kind, "plan": lines} for name, kind, lines in found])
        return
    for name, kind, lines in found:
        click.echo(f"{kind} {name}")
        for line in lines:
            click.echo(f"  {line}")


def file_stages(path: Path, plans: Plans, service_url: str | None) -> Plans:
    """The same with stages in place of plans. Starts Spark and, for sources that leave their columns to the topic, asks the broker."""
    from magnetar.cli.pipeline.files import with_defaults
    from magnetar.cli.pipeline.run import plain_spark_errors
    from magnetar.pipeline.session import build_session
    from magnetar.pipeline.views.pipeline import Pipeline

    text = read_text(path)
    text = with_defaults(text, {"service.url": service_url or NO_URL})
    click.echo("starting Spark, which knows the types (--logical does without)", err=True)
    with TemporaryDirectory(prefix="magnetar-explain-") as directory:
        log_path = Path(directory) / "spark.log"
        with plain_spark_errors(None):
            spark = build_session("local[1]", app_name="magnetar explain", log_path=log_path)
            try:
                pipeline = Pipeline("explain", directory, spark)
                pipeline.sql(text)
                stages = pipeline.explain_views()
            finally:
                spark.stop()
    return [(name, kind, stages.get(name, lines)) for name, kind, lines in plans]


def file_plans(path: Path) -> Plans:
    """(name, kind, lines) of what a file creates. CommandError, SqlError, CatalogError."""
    if path.suffix == ".py":
        raise CommandError("explain reads SQL; in Python, ask the pipeline: print(pipeline.explain())")
    catalog = catalog_of_text(read_text(path))
    return [
        (name, entry.kind, [] if entry.plan is None else explain(entry.plan).splitlines())
        for name, entry in catalog.entries.items()
    ]


def catalog_of(found: Overview) -> Catalog:
    """Of a pipeline that has run. CatalogError before its first manifest."""
    if found.manifest is None:
        return Catalog()
    return Catalog.from_plain(list(found.manifest.views.get("catalog", [])))


def explained(catalog: Catalog, statement: CreateSource | CreateView | CreateSink | Select) -> list[str]:
    """The lines of one statement's plan over what the catalog has. SqlError, CatalogError."""
    if isinstance(statement, Select):
        return explain(plan_query(statement.query, catalog.relations())).splitlines()
    entry = catalog.create(statement).find(statement.name)
    return ["(a source: nothing is stored)"] if entry.plan is None else explain(entry.plan).splitlines()
