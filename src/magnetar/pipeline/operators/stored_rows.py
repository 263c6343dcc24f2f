"""Input rows kept as state, by group and row key: what operators that look at whole groups share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES, VnodeHash
from magnetar.pipeline.operators.changelog import added_to, empty, keyed, matching, net, without
from magnetar.pipeline.state import table as state
from magnetar.pipeline.state.table import OP, PUT, StateTable

__all__ = ["Applied", "StoredRows", "puts_and_deletes"]


@dataclass(frozen=True, slots=True)
class Applied:
    """The rows of some groups before and after a delta. `old` = `kept` + `removed`, `new` = `kept` + `added`."""

    old: pl.DataFrame
    kept: pl.DataFrame
    removed: pl.DataFrame
    added: pl.DataFrame

    @property
    def new(self) -> pl.DataFrame:
        return pl.concat([self.kept, self.added])


class StoredRows:
    """A state table of rows that lie together by `group`; `row_key` tells those of one group apart."""

    def __init__(
        self,
        table_id: int,
        name: str,
        schema: pa.Schema,
        group: Sequence[str],
        row_key: Sequence[str],
        vnode_count: int = DEFAULT_VNODES,
        vnode_hash: VnodeHash = "crc32",
    ) -> None:
        key = (*group, *(column for column in row_key if column not in group))
        self.group = tuple(group)
        self.key = key
        self.schema = schema
        self.table = StateTable(table_id, name, schema, key, vnode_count, self.group, vnode_hash)

    def groups(self, delta: pl.DataFrame) -> pl.DataFrame:
        """The groups that the delta touches, each once."""
        return delta.select(keyed(delta, self.group)).unique(maintain_order=True)

    def read(self, slices: pl.DataFrame | None) -> pl.DataFrame:
        """State rows with the table's columns."""
        return empty(self.schema) if slices is None else slices.select(self.schema.names)

    def apply(self, slices: pl.DataFrame | None, delta: pl.DataFrame, groups: pl.DataFrame) -> Applied:
        """Change the rows of these groups, among which are all of the delta's. ChangelogError when the delta does not fit them."""
        old = matching(self.read(slices), groups)
        removed, added = net(delta, self.key)
        kept = without(old, removed, self.key)
        return Applied(old, kept, removed, added_to(kept, added, self.key))

    def writes(self, applied: Applied) -> pl.DataFrame:
        """What the table must be told."""
        return puts_and_deletes(applied.added, applied.removed, self.key)


def puts_and_deletes(puts: pl.DataFrame, gone: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Rows with `_op`: these put, and those deleted whose key is not among them."""
    if puts.height and gone.height:
        gone = gone.filter(~_among(gone, puts, key))
    return pl.concat(
        [
            puts.with_columns(pl.lit(PUT, pl.Int8).alias(OP)),
            gone.select(puts.columns).with_columns(pl.lit(state.DELETE, pl.Int8).alias(OP)),
        ]
    )


def _among(rows: pl.DataFrame, others: pl.DataFrame, key: Sequence[str]) -> pl.Series:
    if not key:
        return pl.repeat(others.height > 0, rows.height, eager=True)
    numbered = rows.select(key).with_row_index("_row")
    there = numbered.join(others.select(key), on=list(key), how="semi", nulls_equal=True)
    return numbered["_row"].is_in(there["_row"].implode())
