"""Look up each row of a stream in a table as it is in the row's epoch (`FOR SYSTEM_TIME AS OF PROCTIME()`).

Later changes of the table change nothing that was looked up. The table's changes of an epoch come before the stream's rows, so
that the outcome is the same when the epoch is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.changelog import CHANGE, checked, difference, empty, equal_join, require_append_only
from magnetar.pipeline.operators.join import joined_schema
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
from magnetar.pipeline.operators.stored_rows import StoredRows
from magnetar.pipeline.state.table import StateTable

UNMATCHED = "unmatched_rows"
"""Counter: rows of the stream that found nothing; an inner join drops them."""


class TemporalJoin:
    """`left`, inserts only, looks up `right`, any changelog with the key `on`. Only the table is state.

    `left_key` must be unique over the stream's whole life: it is the output's key, and nothing here remembers it.
    """

    def __init__(
        self,
        table_id: int,
        name: str,
        left: pa.Schema,
        right: pa.Schema,
        on: Sequence[str],
        left_key: Sequence[str],
        *,
        how: str = "inner",
        vnode_count: int = DEFAULT_VNODES,
    ) -> None:
        if how not in ("inner", "left"):
            raise StateSchemaError(f"temporal join {name}: {how} joins are not supported; inner and left are")
        self.output_schema = joined_schema(name, left, right, on)
        self.output_key = tuple(left_key)
        self._left = left
        self._on = list(on)
        self._how = how
        self._right = StoredRows(table_id, name, right, on, on, vnode_count)

    def state_tables(self) -> list[StateTable]:
        return [self._right.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {self._right.table.table_id: self._keys(*self._deltas(deltas))}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        left, right = self._deltas(deltas)
        require_append_only(left, f"the stream of the temporal join {self._right.table.name}")
        table_id = self._right.table.table_id
        table = self._right.apply(state.get(table_id), right, self._keys(left, right))
        rows = left.drop(CHANGE)
        found = equal_join(rows, table.new, self._on)
        alone = rows.join(table.new, on=self._on, how="anti")
        parts = [empty(self.output_schema), found.select(self.output_schema.names)]
        if self._how == "left":
            parts.append(alone)
        changelog = difference(empty(self.output_schema), pl.concat(parts, how="diagonal"), self.output_key)
        return OperatorResult({table_id: self._right.writes(table)}, changelog, {UNMATCHED: alone.height})

    def _deltas(self, deltas: Deltas) -> tuple[pl.DataFrame, pl.DataFrame]:
        return checked(deltas.get(LEFT), self._left), checked(deltas.get(RIGHT), self._right.schema)

    def _keys(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([left.select(self._on), right.select(self._on)]).unique(maintain_order=True)


def _is_operator(join: TemporalJoin) -> Operator:
    """For the type checker."""
    return join
