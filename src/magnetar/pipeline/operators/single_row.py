"""An aggregate without GROUP BY: one row, also of nothing."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.changelog import CHANGE, INSERT, UPDATE_AFTER, difference, empty
from magnetar.pipeline.operators.operator import Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.state.table import StateTable


class SingleRow:
    """The result of an aggregate whose group has no columns: where it has none, 0 in the columns `counts` and NULL in the others.

    The row is there from the first epoch in which the unit of vnode 0 is asked (`EpochContext.holds_first_vnode`).
    """

    def __init__(
        self, inner: Operator, table_id: int, name: str, counts: Sequence[str], vnode_count: int = DEFAULT_VNODES
    ) -> None:
        if inner.output_key:
            raise StateSchemaError(f"{name} has a row for each {', '.join(inner.output_key)}, not one")
        self._inner = inner
        self._counts = tuple(counts)
        self._table = StateTable(table_id, name, inner.output_schema, (), vnode_count)

    @property
    def inner(self) -> Operator:
        """What computes the row."""
        return self._inner

    @property
    def output_schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def output_key(self) -> tuple[str, ...]:
        return ()

    def state_tables(self) -> list[StateTable]:
        return [*self._inner.state_tables(), self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {**self._inner.keys_needed(deltas, context), self._table.table_id: None}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        result = self._inner.apply(state, deltas, context)
        found = state.get(self._table.table_id)
        old = empty(self._table.schema) if found is None else found.select(self._table.schema.names)
        new = self._new(old, result.changelog, context)
        changelog = difference(old, new, ())
        writes = {**result.writes, self._table.table_id: puts_and_deletes(new, new.clear(), ())}
        return OperatorResult(writes, changelog, result.counters)

    def _new(self, old: pl.DataFrame, changes: pl.DataFrame, context: EpochContext) -> pl.DataFrame:
        comes = changes.filter(pl.col(CHANGE).is_in([INSERT, UPDATE_AFTER])).drop(CHANGE)
        if comes.height:
            return comes.select(self._table.schema.names)
        if old.height and not changes.height:
            return old
        if not changes.height and not context.holds_first_vnode:
            return old
        nothing = pl.DataFrame({name: [0 if name in self._counts else None] for name in old.columns})
        return nothing.select(pl.col(name).cast(dtype) for name, dtype in old.schema.items())


def _is_operator(single: SingleRow) -> Operator:
    """For the type checker."""
    return single
