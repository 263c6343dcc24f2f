"""`magnetar pipeline explain`: what the statements of a file, or one query, become."""

from __future__ import annotations

from pathlib import Path

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.output import json_option, print_json
from magnetar.cli.pipeline_access import meant
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse, parse_one
from magnetar.pipeline.sql.plan import explain
from magnetar.pipeline.sql.planner import plan_query
from magnetar.pipeline.sql.statements import (
    CreateSink,
    CreateSource,
    CreateView,
    Drop,
    Explain,
    Select,
    SetParallelism,
)
from magnetar.pipeline.views.listing import Overview


@click.command("explain")
@click.argument("file_or_sql")
@click.option("-p", "--pipeline", envvar="MAGNETAR_PIPELINE", show_envvar=True, help="Whose views a query reads.")
@json_option
def explain_command(file_or_sql: str, pipeline: str | None, as_json: bool) -> None:
    """Show the plan of every statement in a FILE.sql, or of a SELECT over a pipeline's views. Needs no Spark and no topics.

    A query without an exact incremental plan is refused with what to write instead.
    """
    if file_or_sql.endswith(".sql") or Path(file_or_sql).is_file():
        found = file_plans(Path(file_or_sql))
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


def file_plans(path: Path) -> list[tuple[str, str, list[str]]]:
    """(name, kind, lines) of what a file creates. CommandError, SqlError, CatalogError."""
    if path.suffix == ".py":
        raise CommandError("explain reads SQL; in Python, ask the pipeline: print(pipeline.explain())")
    catalog = catalog_of_text(read_text(path))
    return [
        (name, entry.kind, [] if entry.plan is None else explain(entry.plan).splitlines())
        for name, entry in catalog.entries.items()
    ]


def catalog_of_text(text: str) -> Catalog:
    """After all statements of a file. SqlError, CatalogError."""
    catalog = Catalog()
    for statement in parse(text):
        if isinstance(statement, CreateSource | CreateView | CreateSink):
            catalog = catalog.create(statement)
        elif isinstance(statement, Drop):
            catalog = catalog.drop(statement)
        elif isinstance(statement, SetParallelism):
            catalog = catalog.set_parallelism(statement)
    return catalog


def read_text(path: Path) -> str:
    """CommandError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is no UTF-8 text: {error}") from error


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
