"""What `magnetar pipeline query` answers from the catalog: SHOW, DESCRIBE, EXPLAIN; and ALTER ... SET PARALLELISM."""

from __future__ import annotations

from typing import Final

import click

from magnetar.cli.errors import CommandError
from magnetar.cli.pipeline.access import meant
from magnetar.cli.pipeline.explain import catalog_of, explained
from magnetar.cli.pipeline.rescale import adapted, quiet, rescaled
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import Describe, Explain, SetParallelism, Show, ShowCreate
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.scan.stored_views import find_table, shown_columns

ALTER_TIMEOUT_S: Final = 60.0


def answered(pipeline: str | None, sql: str, *, as_json: bool) -> list[dict[str, object]]:
    """The rows of the answer. SqlError, CatalogError, CommandError."""
    found = meant(pipeline)
    statement = parse_one(sql)
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
        return described(found.manifest, statement.name)
    if isinstance(statement, Explain):
        return [{"plan": line} for line in explained(catalog, statement.statement)]
    raise CommandError("that changes a pipeline: write it into its file, then `magnetar pipeline run FILE` again")


def described(manifest: Manifest, name: str) -> list[dict[str, object]]:
    """The columns of a view that people see. CatalogError."""
    table = find_table(manifest, name).table
    shown = [table.schema.field(column) for column in shown_columns(manifest, name)]
    return [{"column": field.name, "type": str(field.type), "key": field.name in table.key} for field in shown]
