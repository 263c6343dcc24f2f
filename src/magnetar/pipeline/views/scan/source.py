"""The data source that Spark finds under the name `magnetar.view`: a view as a DataFrame, read in parallel at one manifest.

Spark asks for the schema, plans and reads in processes of their own; what joins them is the number of the manifest, which is chosen
when Spark plans and pinned until every task has read its part.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
    IsNull,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from magnetar.base.clock import SystemClock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.errors import DamagedStateError, UnknownEpochError
from magnetar.pipeline.state import gc, vnode_set
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.state.reader import read_slices
from magnetar.pipeline.state.table import VNODE, StateTable
from magnetar.pipeline.views.scan.batch import cut, pieces, rows_of_vnodes
from magnetar.pipeline.views.scan.keys import both, key_rows, pushed_values, vnode_bits, wanted_values
from magnetar.pipeline.views.scan.options import ViewOptions, view_options
from magnetar.pipeline.views.scan.stored_views import find_table, open_manifest, shown_columns

_NOT_WRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a full, read-only or foreign directory says of a pin: reading needs none."""
BATCH_ROWS: Final = 10_000


class ViewDataSource(DataSource):
    """`spark.read.format("magnetar.view").option("pipeline", ...).option("view", ...)`."""

    @classmethod
    def name(cls) -> str:
        return "magnetar.view"

    def schema(self) -> StructType:
        options = view_options(self.options)
        manifest = open_manifest(_files(options), SystemClock(), options.epoch)
        return spark_schema(find_table(manifest, options.view).table, shown_columns(manifest, options.view))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = view_options(self.options)
        # Spark refuses a reader that has `pushFilters` while its own setting for that is off.
        return PrunedViewReader(options, schema) if options.pushdown else ViewReader(options, schema)


@dataclass
class VnodesPartition(InputPartition):
    """A task: its vnodes in pieces, at this manifest."""

    manifest: int
    pieces: tuple[tuple[int, ...], ...]
    pin: str | None


class ViewReader(DataSourceReader):
    """Picks the manifest when Spark plans; `read` runs in the tasks."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed: list[tuple[str, tuple[Any, ...]]] = []

    def partitions(self) -> Sequence[InputPartition]:
        options, clock = self._options, SystemClock()
        files = _files(options)
        manifest = open_manifest(files, clock, options.epoch)
        state = find_table(manifest, options.view)
        _check_columns(state.table, self._schema)
        rows = rows_of_vnodes(state.runs, state.table.vnode_count)
        wanted = list(vnode_set.members(vnode_bits(state.table, self._keys(state.table))))
        groups = cut(wanted, rows, options.groups or len(VnodeMapping.from_json(manifest.mapping).units))
        return [
            VnodesPartition(manifest.number, tuple(pieces(group, rows)), self._pin(files, manifest)) for group in groups
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, VnodesPartition):
            return  # without partitions Spark runs one task, with None
        files = _files(self._options)
        try:
            yield from self._read(files, partition)
        except (DamagedStateError, UnknownEpochError) as error:
            _explain(files, partition, error)
            raise
        if partition.pin:
            gc.unpin(files, partition.pin)

    def _read(self, files: StateFiles, partition: VnodesPartition) -> Iterator[pa.RecordBatch]:
        manifest = ManifestStore(files, SystemClock()).read(partition.manifest)
        state = find_table(manifest, self._options.view)
        keys = self._keys(state.table)
        exact = wanted_values(state.table, self._options.key)
        columns = {*self._schema.names, *state.table.key}
        target = to_arrow_schema(self._schema, timezone="UTC")
        for piece in partition.pieces:
            found = read_slices(files, state, piece, keys, columns)
            for name, values in exact.items():
                found = found.filter(pl.col(name).is_in(_series(values).implode(), nulls_equal=True))
            if VNODE in self._schema.names:
                found = found.with_columns(pl.col(VNODE).cast(pl.Int32))
            rows = found.select(self._schema.names).to_arrow().cast(target)
            yield from rows.to_batches(max_chunksize=BATCH_ROWS)

    def _keys(self, table: StateTable) -> pa.Table | None:
        exact = wanted_values(table, self._options.key)
        return key_rows(table, both(exact, pushed_values(table, self._pushed)))

    def _pin(self, files: StateFiles, manifest: Manifest) -> str | None:
        if not self._options.pin:
            return None
        try:
            return gc.pin(files, SystemClock(), manifest, self._options.pin_timeout_s)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            return None  # reading goes on; an epoch that is collected meanwhile is an error that says so


class PrunedViewReader(ViewReader):
    """With equality and IN on the key pushed down: only the vnodes that can have such rows are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for condition in filters:
            name = ".".join(getattr(condition, "attribute", ()))
            if isinstance(condition, EqualTo | EqualNullSafe):
                self._pushed.append((name, (condition.value,)))
            elif isinstance(condition, In):
                self._pushed.append((name, tuple(condition.value)))
            elif isinstance(condition, IsNull):
                self._pushed.append((name, (None,)))
        return filters  # Spark checks them again: what equality means is its business


def spark_schema(table: StateTable, columns: Sequence[str] | None = None) -> StructType:
    """The view's columns as Spark has them: these, or all, with those of the key that are not shown."""
    fields = list(table.schema) if columns is None else [table.schema.field(name) for name in columns]
    schema: StructType = from_arrow_schema(pa.schema(fields))
    return schema


def _check_columns(table: StateTable, schema: StructType) -> None:
    known = {field.name: field.dataType for field in spark_schema(table).fields} | {VNODE: IntegerType()}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            there = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise OptionError(
                f"the schema asks for {field.name} {field.dataType.simpleString()}; {table.name} has: {there}"
            )


def _explain(files: StateFiles, partition: VnodesPartition, error: Exception) -> None:
    """Turn a missing file into what is behind it, when that is a manifest collected meanwhile."""
    if partition.manifest not in ManifestStore(files, SystemClock()).numbers():
        raise UnknownEpochError(
            "the epoch was collected before this task read it: read again, or give pinTimeoutS more seconds"
        ) from error


def _series(values: pa.Array) -> pl.Series:
    series = pl.from_arrow(values)
    assert isinstance(series, pl.Series)
    return series


def _files(options: ViewOptions) -> StateFiles:
    return StateFiles(options.directory, dict(options.storage))
