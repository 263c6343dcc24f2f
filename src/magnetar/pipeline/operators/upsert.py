"""The last row of each key, and the first: what makes a table of a stream.

Both follow the order of the delta's rows: whoever runs them sorts by the source's position, since a shuffle does not keep it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.changelog import (
    CHANGE,
    UPDATE_BEFORE,
    checked,
    difference,
    empty,
    matching,
    require_append_only,
)
from magnetar.pipeline.operators.changelog import DELETE as CHANGE_DELETE
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.state.table import StateTable

ABSENT_DELETES = "absent_deletes"
"""Counter: deletes of keys that were not there (each delete, also within an epoch)."""

DUPLICATES = "duplicates"
"""Counter: rows of a key that was there already."""


class Upsert:
    """Insert and update_after put a row, delete takes its key away (its other columns do not matter), update_before is passed over.

    Several changes of a key in one epoch: the last one counts. Takes streams that know nothing of what was there before, such
    as a topic with tombstones; gives a changelog with the old values.
    """

    def __init__(
        self, table_id: int, name: str, schema: pa.Schema, key: Sequence[str], vnode_count: int = DEFAULT_VNODES
    ) -> None:
        self.output_schema = schema
        self.output_key = _keys(name, key)
        self._table = StateTable(table_id, name, schema, self.output_key, vnode_count)

    def state_tables(self) -> list[StateTable]:
        return [self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {self._table.table_id: _keys_of(checked(deltas.get(INPUT), self.output_schema), self.output_key)}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        key = self.output_key
        delta = checked(deltas.get(INPUT), self.output_schema).filter(pl.col(CHANGE) != UPDATE_BEFORE)
        old = _stored(self._table, state, _keys_of(delta, key))
        absent = _absent_deletes(delta, old, key)
        last = delta.unique(subset=key, keep="last", maintain_order=True)
        new = last.filter(pl.col(CHANGE) != CHANGE_DELETE).drop(CHANGE)
        changelog = difference(old, new, key)
        return OperatorResult(
            {self._table.table_id: puts_and_deletes(new, old, key)}, changelog, {ABSENT_DELETES: absent}
        )


class Deduplicate:
    """The first row of each key, from inserts only; later ones are counted. The state is the keys, which are never forgotten."""

    def __init__(
        self, table_id: int, name: str, schema: pa.Schema, key: Sequence[str], vnode_count: int = DEFAULT_VNODES
    ) -> None:
        self.output_schema = schema
        self.output_key = _keys(name, key)
        missing = [column for column in self.output_key if column not in schema.names]
        if missing:
            raise StateSchemaError(f"{name}: key column {missing[0]!r} is not among {schema.names}")
        keys = pa.schema([schema.field(column) for column in self.output_key])
        self._table = StateTable(table_id, name, keys, self.output_key, vnode_count)

    def state_tables(self) -> list[StateTable]:
        return [self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {self._table.table_id: _keys_of(checked(deltas.get(INPUT), self.output_schema), self.output_key)}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        key = self.output_key
        delta = checked(deltas.get(INPUT), self.output_schema)
        require_append_only(delta, f"deduplication {self._table.name}")
        rows = delta.drop(CHANGE)
        first = rows.unique(subset=key, keep="first", maintain_order=True)
        seen = _stored(self._table, state, first.select(key))
        fresh = first.join(seen, on=list(key), how="anti", nulls_equal=True, maintain_order="left")
        changelog = difference(empty(self.output_schema), fresh, key)
        keys = fresh.select(key)
        counters = {DUPLICATES: rows.height - fresh.height}
        return OperatorResult({self._table.table_id: puts_and_deletes(keys, keys.clear(), key)}, changelog, counters)


def _keys(name: str, key: Sequence[str]) -> tuple[str, ...]:
    if not key:
        raise StateSchemaError(f"{name} needs a key: PRIMARY KEY (...)")
    return tuple(key)


def _keys_of(delta: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    return delta.select(key).unique(maintain_order=True)


def _stored(table: StateTable, state: Slices, keys: pl.DataFrame) -> pl.DataFrame:
    found = state.get(table.table_id)
    return empty(table.schema) if found is None else matching(found.select(table.schema.names), keys)


def _absent_deletes(delta: pl.DataFrame, old: pl.DataFrame, key: Sequence[str]) -> int:
    """Deletes right after a delete of the same key, or first where the state has no row."""
    change = delta.select(*key, CHANGE)
    before = pl.concat([old.select(*key).with_columns(pl.lit(0, pl.Int8).alias(CHANGE)), change])
    previous = pl.col(CHANGE).shift(1).over(list(key))
    deletes = before.filter((pl.col(CHANGE) == CHANGE_DELETE) & previous.fill_null(CHANGE_DELETE).eq(CHANGE_DELETE))
    return deletes.height


def _are_operators(upsert: Upsert, deduplicate: Deduplicate) -> tuple[Operator, Operator]:
    """For the type checker."""
    return upsert, deduplicate
