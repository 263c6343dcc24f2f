"""Equality join of two changing tables, inner or left.

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
    and both keys. A left join's right keys may not be NULL, as they are where nothing matches.
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
        if how not in ("inner", "left"):
            raise StateSchemaError(f"join {name}: {how} joins are not supported; inner and left are")
        self.output_schema = joined_schema(name, left, right, on)
        self._on = list(on)
        self._left = StoredRows(table_ids[0], f"{name}.left", left, on, left_key, vnode_count)
        self._right = StoredRows(table_ids[1], f"{name}.right", right, on, right_key, vnode_count)
        self._outer = how == "left"
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
        self._check_right_keys(right.added)
        gone = [self._joined(left.removed, right.old), self._joined(left.kept, right.removed)]
        come = [self._joined(left.added, right.new), self._joined(left.kept, right.added)]
        if self._outer:
            # rows that match nothing before and after are in both and cancel
            gone.append(self._alone(left.old, right.old))
            come.append(self._alone(left.new, right.new))
        changelog = difference(pl.concat(gone), pl.concat(come), self.output_key)
        return OperatorResult(self._writes(left, right), changelog)

    def _writes(self, left: Applied, right: Applied) -> dict[int, pl.DataFrame]:
        return {
            self._left.table.table_id: self._left.writes(left),
            self._right.table.table_id: self._right.writes(right),
        }

    def _deltas(self, deltas: Deltas) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Without the rows that can never be seen: a NULL in `on`, but on the left of a left join."""
        left = checked(deltas.get(LEFT), self._left.schema)
        right = checked(deltas.get(RIGHT), self._right.schema)
        if not self._outer:
            left = left.drop_nulls(self._on)
        return left, right.drop_nulls(self._on)

    def _join_keys(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([left.select(self._on), right.select(self._on)]).unique(maintain_order=True)

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return equal_join(left, right, self._on).select(self.output_schema.names)

    def _alone(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        """Left rows without a match, NULL on the right."""
        found = left.join(right.select(self._on), on=self._on, how="anti")
        return pl.concat([empty(self.output_schema), found], how="diagonal")

    def _check_right_keys(self, added: pl.DataFrame) -> None:
        if (
            self._outer
            and self._right_key
            and added.select(pl.all_horizontal(pl.col(self._right_key).is_null()).any()).item()
        ):
            raise ChangelogError(f"a left join's right rows need a key ({', '.join(self._right_key)}) that is not NULL")


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
    # nullable, as the right side of a left join is
    return pa.schema([*(left.field(column) for column in on), *(pa.field(other.name, other.type) for other in others)])


def _is_operator(join: Join) -> Operator:
    """For the type checker."""
    return join
