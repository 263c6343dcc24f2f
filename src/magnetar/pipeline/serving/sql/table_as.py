"""CREATE TABLE ... AS: the definition of a table with the columns of a query, and the INSERT that fills it. A decision core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.pipeline.serving.sql.catalog_rows import sql_name
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.serving.wire.types import PgType

_NAME: Final = r'(?:"(?:[^"]|"")+"|[\w.$]+)'
_STATEMENT: Final = re.compile(
    rf"create\s+table\s+(?P<exists>if\s+not\s+exists\s+)?(?P<name>{_NAME})\s*(?:\((?P<columns>[^()]*)\)\s*)?as\b\s*"
    r"(?P<query>(?:select|with|values|\().*)",
    re.IGNORECASE | re.DOTALL,
)


class ResultColumn(Protocol):
    """Of a query's result."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> PgType: ...


@dataclass(frozen=True, slots=True)
class TableAs:
    """`name` as it is written. `columns`: names that stand in place of the query's."""

    name: str
    columns: tuple[str, ...]
    query: str
    if_not_exists: bool

    def definition(self, found: Sequence[ResultColumn]) -> str:
        """Raises QueryError for more names than columns."""
        if len(self.columns) > len(found):
            raise QueryError("42601", "CREATE TABLE AS specifies too many column names")
        names = [*self.columns, *(_quoted(each.name) for each in found[len(self.columns) :])]
        listed = ", ".join(f"{name} {sql_name(each.kind)}" for name, each in zip(names, found, strict=True))
        return f"CREATE TABLE {'IF NOT EXISTS ' if self.if_not_exists else ''}{self.name} ({listed})"

    def insertion(self) -> str:
        return f"INSERT INTO {self.name} {self.query}"


def table_as(text: str) -> TableAs | None:
    """None for another statement."""
    found = _STATEMENT.fullmatch(text.strip())
    if found is None:
        return None
    columns = tuple(part.strip() for part in (found["columns"] or "").split(",") if part.strip())
    if any(re.fullmatch(_NAME, part) is None for part in columns):
        return None
    return TableAs(found["name"], columns, found["query"], found["exists"] is not None)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
