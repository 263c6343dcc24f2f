"""A file of statements, as text and as the catalog that they make."""

from __future__ import annotations

from pathlib import Path

from magnetar.cli.errors import CommandError
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse
from magnetar.pipeline.sql.statements import CreateSink, CreateSource, CreateView, Drop, SetParallelism


def catalog_of_text(text: str) -> Catalog:
    """After all statements of a file. CommandError, SqlError, CatalogError."""
    catalog = Catalog()
    for statement in parse(text):
        if isinstance(statement, CreateSource | CreateView | CreateSink):
            catalog = catalog.create(statement)
        elif isinstance(statement, Drop):
            catalog = catalog.drop(statement)
        elif isinstance(statement, SetParallelism):
            catalog = catalog.set_parallelism(statement)
    if not catalog.entries:
        raise CommandError(
            "there is no CREATE in it that would make a pipeline; ask for rows with `magnetar pipeline query`"
        )
    return catalog


def read_text(path: Path) -> str:
    """CommandError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text: {error}") from error
