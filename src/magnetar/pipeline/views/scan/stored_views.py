"""The tables of views and tables in a manifest, by their names in SQL.

A manifest's `views` holds `catalog` (what `Catalog.to_plain` gives), `tables` (table id by view), `stages` (table ids by stage), `columns`
(of each view, those that people see: a key that the query does not show is stored beside them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.base.clock import Clock
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState

COLUMNS: Final = "columns"


def table_ids(manifest: Manifest) -> dict[str, int]:
    """Of everything that has rows of its own, by name, in the order of creation."""
    found: Mapping[str, Any] = manifest.views.get("tables", {})
    return {str(name): int(table_id) for name, table_id in found.items()}


def find_table(manifest: Manifest, view: str) -> TableState:
    """The rows of a view or table; names are compared without case, as Spark does. CatalogError."""
    ids = table_ids(manifest)
    table_id = ids[_name(manifest, view)]
    if table_id not in manifest.tables:
        raise CatalogError(f"view {view} has not had an epoch yet; look again when its pipeline has read something")
    return manifest.tables[table_id]


def shown_columns(manifest: Manifest, view: str) -> tuple[str, ...]:
    """The columns of a view or table that people see, in their order. CatalogError."""
    known: Mapping[str, Any] = manifest.views.get(COLUMNS, {})
    columns = known.get(_name(manifest, view))
    return tuple(find_table(manifest, view).table.schema.names if columns is None else map(str, columns))


def _name(manifest: Manifest, view: str) -> str:
    ids = table_ids(manifest)
    name = next((known for known in ids if known.lower() == view.lower()), None)
    if name is None:
        raise CatalogError(f"no view {view}; there are: {', '.join(ids) or 'none yet'}")
    return name


def open_manifest(files: StateFiles, clock: Clock, epoch: int | None = None) -> Manifest:
    """The newest manifest, or the last one of a kept epoch. CatalogError without a pipeline, UnknownEpochError."""
    store = ManifestStore(files, clock)
    manifest = store.latest() if epoch is None else store.at_epoch(epoch)
    if manifest is None:
        raise CatalogError(
            f"there is no pipeline in {files.root_url}; `magnetar pipeline list` shows those by name, `run` makes one"
        )
    return manifest
