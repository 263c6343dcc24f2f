"""Equality join of two changing tables: inner, left or full.

Both sides are kept by join key. What an epoch changes is (rows taken from the left) x (old right) and (rows added on the left) x (new
right), and the same of the right side with the left rows that stay; so it costs the changed rows and their matches. NULL joins nothing;
NaN is equal to itself, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import ChangelogError, StateSchemaError
from magnetar.pipeline.operators.changelog import checked, difference, empty, equal_join
from magnetar.pipeline.operators.operator import (
    LEFT,
    RIGHT,
    Deltas,
    EpochContext,
    Keys,
    Operator,
    OperatorResult,
    Slices,
)
from magnetar.pipeline.operators.stored_rows import Applied, StoredRows
from magnetar.pipeline.state.table import StateTable


class Join:
    """`left` and `right` joined by the columns `on`, which both have by the same names; no other name may be on both sides.

    A side's key tells its rows with one join key apart. The output's columns are `on`, the left's, the right's; its key is `on`
    and both keys. A left join's right keys may not be NULL, as they are where nothing matches; a full join's left keys neither.
    """

    def __init__(
        self,
        table_ids: tuple[int, int],
        name: str,
        left: pa.Schema,
        right: pa.Schema,
        on: Sequence[str],
        left_key: Sequence[str],
        right_key: Sequence[str],
        *,
        how: str = "inner",
        vnode_count: int = DEFAULT_VNODES,
    ) -> None:
        if how not in ("inner", "left", "full"):
            raise StateSchemaError(f"join {name}: {how} joins are not supported; inner, left and full are")
        self.output_schema = joined_schema(name, left, right, on)
        self._on = list(on)
        self._left = StoredRows(table_ids[0], f"{name}.left", left, on, left_key, vnode_count)
        self._right = StoredRows(table_ids[1], f"{name}.right", right, on, right_key, vnode_count)
        self._outer = how != "inner"
        self._full = how == "full"
        self._left_key = [column for column in left_key if column not in on]
        self._right_key = [column for column in right_key if column not in on]
        self.output_key = (*self._left.key, *self._right_key)

    def state_tables(self) -> list[StateTable]:
        return [self._left.table, self._right.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        keys = self._join_keys(*self._deltas(deltas))
        return {self._left.table.table_id: keys, self._right.table.table_id: keys}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        left_delta, right_delta = self._deltas(deltas)
        keys = self._join_keys(left_delta, right_delta)
        left = self._left.apply(state.get(self._left.table.table_id), left_delta, keys)
        right = self._right.apply(state.get(self._right.table.table_id), right_delta, keys)
        if self._outer:
            _check_keys("left" if not self._full else "full", "right", right.added, self._right_key)
        if self._full:
            _check_keys("full", "left", left.added, self._left_key)
        gone = [self._joined(left.removed, right.old), self._joined(left.kept, right.removed)]
        come = [self._joined(left.added, right.new), self._joined(left.kept, right.added)]
        if self._outer:
            # rows that match nothing before and after are in both and cancel
            gone.append(self._alone(left.old, right.old))
            come.append(self._alone(left.new, right.new))
        if self._full:
            gone.append(self._alone(right.old, left.old))
            come.append(self._alone(right.new, left.new))
        changelog = difference(pl.concat(gone), pl.concat(come), self.output_key)
        return OperatorResult(self._writes(left, right), changelog)

    def _writes(self, left: Applied, right: Applied) -> dict[int, pl.DataFrame]:
        return {
            self._left.table.table_id: self._left.writes(left),
            self._right.table.table_id: self._right.writes(right),
        }

    def _deltas(self, deltas: Deltas) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Without the rows that can never be seen: a NULL in `on`, but on the side of which all rows are kept."""
        left = checked(deltas.get(LEFT), self._left.schema)
        right = checked(deltas.get(RIGHT), self._right.schema)
        if not self._outer:
            left = left.drop_nulls(self._on)
        return left, right if self._full else right.drop_nulls(self._on)

    def _join_keys(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([left.select(self._on), right.select(self._on)]).unique(maintain_order=True)

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return equal_join(left, right, self._on).select(self.output_schema.names)

    def _alone(self, rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        """Rows of one side without a match, NULL on the other."""
        found = rows.join(others.select(self._on), on=self._on, how="anti")
        return pl.concat([empty(self.output_schema), found], how="diagonal")


def _check_keys(how: str, side: str, added: pl.DataFrame, key: Sequence[str]) -> None:
    if key and added.select(pl.all_horizontal(pl.col(key).is_null()).any()).item():
        raise ChangelogError(f"a {how} join's {side} rows need a key ({', '.join(key)}) that is not NULL")


def joined_schema(name: str, left: pa.Schema, right: pa.Schema, on: Sequence[str]) -> pa.Schema:
    """`on`, the other left columns, the other right columns. StateSchemaError when they do not fit."""
    if not on:
        raise StateSchemaError(f"join {name} needs at least one column that is equal on both sides")
    for column in on:
        if column not in left.names or column not in right.names:
            raise StateSchemaError(f"join {name}: {column!r} is not on both sides; rename one of the columns to it")
        if left.field(column).type != right.field(column).type:
            kinds = f"{left.field(column).type} and {right.field(column).type}"
            raise StateSchemaError(f"join {name}: {column!r} is {kinds}; cast one side")
    others = [side.field(column) for side in (left, right) for column in side.names if column not in on]
    names = [field.name for field in others]
    doubled = [column for column in names if names.count(column) > 1]
    if doubled:
        raise StateSchemaError(f"join {name}: {doubled[0]!r} is on both sides; rename one")
    # nullable, as the other side of an outer join is
    return pa.schema([*(left.field(column) for column in on), *(pa.field(other.name, other.type) for other in others)])


def _is_operator(join: Join) -> Operator:
    """For the type checker."""
    return join
