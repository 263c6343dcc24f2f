"""A state table: named columns, some of which are the key, and a number of vnodes that never changes.

The storage key is `table_id | vnode | key`: the table is the directory, rows are ordered by vnode and then by the key's columns in
memcomparable order (NULL first, numbers by value, texts and bytes by their bytes). Which unit serves a vnode is none of its business.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.hashing.vnode import DEFAULT_VNODES, VnodeHash, check_vnode_count
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.state.ordering import by_key

VNODE: Final = "_vnode"
OP: Final = "_op"
PUT: Final = 0
DELETE: Final = 1

TABLE_ID_MAX: Final = 2**32 - 1


@dataclass(frozen=True)
class StateTable:
    """`schema`: key and value columns; `key`: their names that make a row unique (none: one row, vnode 0).

    `distribution`: the first columns of the key, whose values decide the vnode, where that is not the whole key: rows of one group
    lie together. Empty: all rows in vnode 0. `vnode_hash`: the function that gives it; who places or
    looks up rows takes it from here.
    """

    table_id: int
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    vnode_count: int = DEFAULT_VNODES
    distribution: tuple[str, ...] | None = None
    vnode_hash: VnodeHash = "crc32"

    def __post_init__(self) -> None:
        check_vnode_count(self.vnode_count)
        if not 0 <= self.table_id <= TABLE_ID_MAX:
            raise StateSchemaError(f"table id {self.table_id} is outside 0 to {TABLE_ID_MAX}")
        missing = [name for name in self.key if name not in self.schema.names]
        if missing:
            raise StateSchemaError(f"table {self.name}: key column {missing[0]!r} is not among {self.schema.names}")
        if self.distributed_by != self.key[: len(self.distributed_by)]:
            raise StateSchemaError(
                f"table {self.name}: rows lie by the first columns of the key {list(self.key)}, not by {list(self.distributed_by)}"
            )
        for name in (VNODE, OP):
            if name in self.schema.names:
                raise StateSchemaError(f"table {self.name}: {name} is the storage's own column; rename it")

    @property
    def directory(self) -> str:
        """Of its runs, below the pipeline's directory."""
        return f"tables/{self.table_id:08x}"

    @property
    def distributed_by(self) -> tuple[str, ...]:
        """The columns whose values decide the vnode."""
        return self.key if self.distribution is None else self.distribution

    @property
    def stored_schema(self) -> pa.Schema:
        """What a run holds: the vnode, the columns, and whether the row is there or gone."""
        return pa.schema([pa.field(VNODE, pa.uint16(), False), *self.schema, pa.field(OP, pa.int8(), False)])

    def vnodes_of(self, rows: pa.Table) -> Any:
        """The vnode of every row (numpy uint16) by the columns it is distributed by."""
        if not self.distributed_by:
            return pl.zeros(rows.num_rows, pl.UInt16, eager=True).to_numpy()
        columns = [rows.column(name).combine_chunks() for name in self.distributed_by]
        return vnodes(columns, count=self.vnode_count, hash=self.vnode_hash)

    def with_vnodes(self, rows: pa.Table, op: int | None = None) -> pl.DataFrame:
        """Rows as a run stores them, in storage order. `op` for all of them, or None when they carry `_op` themselves.

        Rows that carry `_vnode` as well are taken at their word.
        Raises StateSchemaError when columns are missing or have other types.
        """
        wanted = self.stored_schema
        if op is not None:
            rows = rows.append_column(
                pa.field(OP, pa.int8(), False), pa.array([op], pa.int8()).take(_zeros(rows.num_rows))
            )
        if VNODE not in rows.column_names:
            rows = rows.add_column(0, pa.field(VNODE, pa.uint16(), False), pa.array(self.vnodes_of(rows), pa.uint16()))
        try:
            rows = rows.select(wanted.names).cast(wanted)
        except (KeyError, ValueError) as error:  # pyarrow's own errors are ValueErrors
            raise StateSchemaError(f"table {self.name} takes {wanted.names}, not these rows: {error}") from error
        return ordered(self, as_frame(rows))

    def describe(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return {
            "table_id": self.table_id,
            "name": self.name,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            "key": list(self.key),
            "vnode_count": self.vnode_count,
            "distribution": None if self.distribution is None else list(self.distribution),
            "vnode_hash": self.vnode_hash,
        }

    @staticmethod
    def from_description(description: dict[str, Any]) -> StateTable:
        """The table of `describe`."""
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(description["schema"])))
        distribution = description.get("distribution")
        return StateTable(
            description["table_id"],
            description["name"],
            schema,
            tuple(description["key"]),
            description["vnode_count"],
            None if distribution is None else tuple(distribution),
            description.get("vnode_hash", "crc32"),
        )


def as_frame(rows: pa.Table) -> pl.DataFrame:
    """Without copying; Arrow metadata of columns, which may be no text, stays behind."""
    frame = pl.from_arrow(rows.replace_schema_metadata())
    assert isinstance(frame, pl.DataFrame)
    return frame


def as_arrow(table: StateTable, frame: pl.DataFrame, schema: pa.Schema | None = None) -> pa.Table:
    """The table's own column types again; polars knows fewer."""
    wanted = schema if schema is not None else table.schema
    return frame.select(wanted.names).to_arrow().cast(wanted)


def ordered(table: StateTable, frame: pl.DataFrame) -> pl.DataFrame:
    """By vnode, then key."""
    if not table.key:
        return frame.sort(VNODE, maintain_order=True)
    return by_key(frame, table.key, VNODE)


def _zeros(rows: int) -> pa.Array:
    return pa.array(pl.zeros(rows, pl.Int32, eager=True).to_numpy(), pa.int32())
