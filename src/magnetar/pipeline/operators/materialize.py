"""The rows of a view: what a changelog adds is put, what it takes away is deleted. Nothing is read for it."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_AFTER, checked, difference, net
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.state.table import DELETE as TAKEN
from magnetar.pipeline.state.table import OP, PUT, VNODE, StateTable


class Materialize:
    """Stores rows by key and passes their changelog on. The input is a changelog of such rows, each key at most once in each direction."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    @property
    def output_schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def output_key(self) -> tuple[str, ...]:
        return self._table.key

    def state_tables(self) -> list[StateTable]:
        return [self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        removed, added = net(checked(deltas.get(INPUT), self._table.schema), self._table.key)
        changelog = difference(removed, added, self._table.key)
        return OperatorResult({self._table.table_id: stored(changelog, self._table.key)}, changelog)


class Materialized:
    """Another operator, whose output is stored in the same place: renamed by `columns` (the table's column: the operator's).

    The table lies by the columns that the operator's own tables lie by, so one unit writes both.
    """

    def __init__(self, inner: Operator, table: StateTable, columns: Mapping[str, str]) -> None:
        missing = [name for name in columns.values() if name not in inner.output_schema.names]
        if missing or list(columns) != table.schema.names:
            raise StateSchemaError(f"table {table.name} takes {table.schema.names}, not {dict(columns)}")
        self._inner = inner
        self._table = table
        self._columns = dict(columns)

    @property
    def inner(self) -> Operator:
        """What computes the rows."""
        return self._inner

    @property
    def output_schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def output_key(self) -> tuple[str, ...]:
        return self._table.key

    def state_tables(self) -> list[StateTable]:
        return [*self._inner.state_tables(), self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return self._inner.keys_needed(deltas, context)

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        result = self._inner.apply(state, deltas, context)
        renamed = [pl.col(inner).alias(name) for name, inner in self._columns.items()]
        carried = [VNODE] if VNODE in result.changelog.columns else []
        changes = result.changelog.select(CHANGE, *carried, *renamed)
        if {self._columns[name] for name in self._table.key} == set(self._inner.output_key):
            writes = {**result.writes, self._table.table_id: _told(changes)}
            return OperatorResult(writes, changes, result.counters)
        removed, added = net(checked(changes, self._table.schema), self._table.key)
        changelog = difference(removed, added, self._table.key)
        writes = {**result.writes, self._table.table_id: stored(changelog, self._table.key)}
        return OperatorResult(writes, changelog, result.counters)


def _told(changelog: pl.DataFrame) -> pl.DataFrame:
    """A changelog whose updates are pairs of the same key, as writes of the table."""
    puts = changelog.filter(pl.col(CHANGE).is_in([INSERT, UPDATE_AFTER])).drop(CHANGE)
    gone = changelog.filter(pl.col(CHANGE) == DELETE).drop(CHANGE)
    return pl.concat(
        [puts.with_columns(pl.lit(PUT, pl.Int8).alias(OP)), gone.with_columns(pl.lit(TAKEN, pl.Int8).alias(OP))]
    )


def stored(changelog: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    """A changelog with each key at most once in each direction, as writes of the table it is of."""
    comes = pl.col(CHANGE).is_in([0, 2])
    return puts_and_deletes(changelog.filter(comes).drop(CHANGE), changelog.filter(~comes).drop(CHANGE), key)


def _are_operators(one: Materialize, other: Materialized) -> tuple[Operator, Operator]:
    """For the type checker."""
    return one, other
