"""What SHOW and DESCRIBE answer: a session's settings, and what a pipeline has."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from magnetar.pipeline.errors import PipelineError, SqlError
from magnetar.pipeline.serving.engine import Engine, as_query_error, plain_views
from magnetar.pipeline.serving.rows import FixedRows
from magnetar.pipeline.serving.session_settings import SessionSettings
from magnetar.pipeline.serving.sql.catalog_rows import sql_name
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.serving.wire.types import of_arrow
from magnetar.pipeline.sql.catalog import Catalog
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateIndex, Show, ShowCreate

_OF_PIPELINE: Final = re.compile(
    r"(?:materialized\s+views|views|tables|sources|sinks|functions|indexes|create)\b", re.IGNORECASE
)


def shown(rest: str, settings: SessionSettings, engine: Engine) -> FixedRows:
    """`rest`: what stands behind SHOW. Raises QueryError."""
    word = re.sub(r"\s+", " ", rest.strip()).lower()
    if word == "all":
        return FixedRows(["name", "setting", "description"], [[*item, ""] for item in sorted(settings.values.items())])
    if word == "epoch":
        return FixedRows(["epoch"], [[str(engine.snapshot().manifest.epoch)]])
    if _OF_PIPELINE.match(word):
        return _answer(lambda: _of_pipeline(f"SHOW {rest}", engine))
    name = rest.strip().strip('"')
    return FixedRows([re.sub(r"\s+", "_", name.lower())], [[settings.show(name)]])


def described(view: str, engine: Engine) -> FixedRows:
    """The columns of a view. Raises QueryError."""
    titles = ["column", "type", "key"]

    def rows() -> FixedRows:
        snapshot = engine.snapshot()
        plain = plain_views(snapshot.manifest).get(view.lower())
        if plain is not None:
            found = engine.columns_of(plain, snapshot)
            return FixedRows(titles, [[field.name, sql_name(of_arrow(field.type)[0]), "no"] for field in found])
        key = snapshot.state(view).table.key
        fields = [
            [field.name, sql_name(of_arrow(field.type)[0]), "yes" if field.name in key else "no"]
            for field in snapshot.columns(view)
        ]
        return FixedRows(titles, fields)

    return _answer(rows)


def _of_pipeline(text: str, engine: Engine) -> FixedRows:
    catalog = Catalog.from_plain(list(engine.snapshot().manifest.views.get("catalog", [])))
    statement = parse_one(text)
    if isinstance(statement, Show) and statement.kind == "INDEX":
        names = catalog.show(statement)
        found = [catalog.indexes[name.lower()] for name in names]
        return FixedRows(["name", "on", "key"], [[each.name, each.relation, _key(each)] for each in found])
    if isinstance(statement, Show):
        return FixedRows(["name"], [[name] for name in catalog.show(statement)])
    if isinstance(statement, ShowCreate):
        return FixedRows(["name", "statement"], [[statement.name, catalog.show_create(statement.name)]])
    raise QueryError("0A000", f"{text} is not supported")


def _key(index: CreateIndex) -> str:
    return ", ".join(f"{name} {'DESC' if name in index.descending else 'ASC'}" for name in index.columns)


def _answer(make: Callable[[], FixedRows]) -> FixedRows:
    try:
        return make()
    except SqlError as error:
        raise QueryError("42601", str(error)) from error
    except PipelineError as error:
        raise as_query_error(error) from error
