"""Pipelines and declarative projects as tables of a Spark session: `SHOW TABLES IN magnetar`, `SELECT * FROM magnetar.delays`.

A catalog of Spark (`spark.sql.catalog.NAME`) is a Java class; from Python what can be had is tables in the session's own one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.base.clock import SystemClock
from magnetar.pipeline.declarative.storage import DOCUMENT, Storage, entry_of
from magnetar.pipeline.home import place_of
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.scan.session_catalog import VIEW_PROVIDER, TableEntry, drop, owned, put
from magnetar.pipeline.views.scan.source import spark_schema
from magnetar.pipeline.views.scan.stored_views import open_manifest, shown_columns, table_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE: Final = "magnetar"


def register(spark: SparkSession, pipeline: str, database: str | None = None) -> list[str]:
    """Make the views of a pipeline tables of this session; their names in SQL. `pipeline`: a name or directory, or a project's storage.

    `database`: `magnetar` for a pipeline, for a project's tables their own. A table is the view as it is when it is queried. Views come
    and go, and so do columns: call it again to have the tables follow. Views that have had no epoch yet are left out.

    Raises CatalogError without a pipeline, and where a table of somebody else has the name of a view; then take another database.
    """
    place = place_of(pipeline)
    storage = Path(place.directory)
    if (storage / "magnetar" / DOCUMENT).is_file():
        owner, entries = _of_project(storage, database)
    else:
        owner, entries = place.directory, _of_pipeline(place.directory, database or DATABASE)
    for name in {entry.database for entry in entries} | ({database} if database else set()):
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{name}`")
        there = {entry.name.lower() for entry in entries if entry.database == name}
        for gone in set(owned(spark, name, owner)) - there:
            drop(spark, name, gone, owner)
    for entry in entries:
        put(spark, entry)
    return [f"{entry.database}.{entry.name}" for entry in entries]


def _of_pipeline(directory: str, database: str) -> list[TableEntry]:
    manifest = open_manifest(StateFiles(directory), SystemClock())
    found = []
    for name, table_id in table_ids(manifest).items():
        state = manifest.tables.get(table_id)
        if state is not None:
            schema = spark_schema(state.table, shown_columns(manifest, name)).json()
            options = {"pipeline": directory, "view": name}
            found.append(TableEntry(database, name, VIEW_PROVIDER, schema, directory, None, options))
    return found


def _of_project(root: Path, database: str | None) -> tuple[str, list[TableEntry]]:
    storage = Storage(root)
    entries = [entry_of(storage, stored) for stored in storage.datasets.values()]
    return str(storage.root), [replace(each, database=database or each.database) for each in entries]
