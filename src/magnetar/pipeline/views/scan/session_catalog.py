"""Tables in the catalog of a Spark session that stand for what lies elsewhere: views of pipelines, files of declarative projects.

Each carries a property that says what it stands for, so that nothing else is ever replaced or dropped. Spark's own catalog keeps them as
it keeps any external table: in memory for a session, in a Hive metastore for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from pyspark.sql.types import StructType

from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.views.scan.source import ViewDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEW_PROVIDER: Final = "magnetar.view"

OWNER: Final = "magnetar.owner"
"""The property: the pipeline or project that a table belongs to, as a directory or URL."""


@dataclass(frozen=True)
class TableEntry:
    """One table. `schema`: Spark's, as JSON; `location`: of files, or None where the provider knows by its options."""

    database: str
    name: str
    provider: str
    schema: str
    owner: str
    location: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None

    @property
    def identifier(self) -> str:
        """In SQL."""
        return identifier(self.database, self.name)

    @property
    def source_name(self) -> str:
        """By which Spark finds what reads the table."""
        if self.provider != VIEW_PROVIDER:
            return self.provider
        label = re.sub(r"[^a-z0-9]+", "_", f"{self.database}_{self.name}".lower())
        return f"magnetar_view_{label}_{crc32(repr(sorted(self.options.items())).encode()):08x}"

    def statement(self, columns: str) -> str:
        """CREATE TABLE. `columns`: the schema in SQL."""
        options = ", ".join(f"{_text(name)} = {_text(value)}" for name, value in self.options.items())
        parts = [f"CREATE TABLE {self.identifier} ({columns}) USING {_quoted(self.source_name)}"]
        parts += [f"OPTIONS ({options})"] if options else []
        parts += [f"LOCATION {_text(self.location)}"] if self.location is not None else []
        parts += [f"COMMENT {_text(self.comment)}"] if self.comment else []
        parts += [f"TBLPROPERTIES ({_text(OWNER)} = {_text(self.owner)})"]
        return " ".join(parts)


def identifier(database: str, name: str) -> str:
    """A table of the session's own catalog, in SQL, whatever the current one is."""
    return f"spark_catalog.{_quoted(database)}.{_quoted(name)}"


def put(spark: SparkSession, entry: TableEntry) -> None:
    """Create the table, in place of one of the same owner. CatalogError where another table has its name."""
    _remove(spark, entry.database, entry.name, entry.owner)
    if entry.provider == VIEW_PROVIDER:
        spark.dataSource.register(_source_of(entry))
    spark.sql(entry.statement(StructType.fromJson(json.loads(entry.schema)).toDDL()))


def drop(spark: SparkSession, database: str, name: str, owner: str) -> None:
    """Drop a table of this owner, if it is there. CatalogError where another table has its name."""
    _remove(spark, database, name, owner)


def owned(spark: SparkSession, database: str, owner: str) -> list[str]:
    """The tables of an owner."""
    rows = spark.sql(f"SHOW TABLES IN spark_catalog.{_quoted(database)}").collect()
    names = [row.tableName for row in rows if not row.isTemporary]
    return [name for name in names if _owner(spark, database, name) == owner]


def _remove(spark: SparkSession, database: str, name: str, owner: str) -> None:
    if not spark.catalog.tableExists(identifier(database, name)):
        return
    found = _owner(spark, database, name)
    if found != owner:
        what = f"belongs to {found}" if found else "was made by somebody else"
        raise CatalogError(
            f"table {database}.{name} is there already and {what}; drop it, or take another name or database"
        )
    spark.sql(f"DROP TABLE {identifier(database, name)}")


def _owner(spark: SparkSession, database: str, name: str) -> str | None:
    """As the catalog tells it: of a table of a Python source SHOW TBLPROPERTIES asks the source, which knows of none."""
    rows = spark.sql(f"SHOW TABLE EXTENDED IN spark_catalog.{_quoted(database)} LIKE {_text(name)}").collect()
    told = "\n".join(str(row.information) for row in rows if row.tableName == name and not row.isTemporary)
    found = re.search(rf"^Table Properties: \[(?:.*, )?{re.escape(OWNER)}=([^,\]]*)", told, re.MULTILINE)
    return found[1] if found is not None else None


def _source_of(entry: TableEntry) -> type[ViewDataSource]:
    """A data source that reads this one view."""
    known, own = dict(entry.options), entry.source_name

    class NamedView(ViewDataSource):
        @classmethod
        def name(cls) -> str:
            return own

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__({**options, **known})

    return NamedView


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    """A literal of Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
