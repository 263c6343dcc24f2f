"""GROUP BY: partial results where they are exact, the groups' rows where they are not.

Partial results (one state row a group) serve append-only input unless something distinct is counted, and retracting input as long as
all calls can be subtracted exactly: counts, sums and averages of whole numbers and decimals. Everything else keeps the input rows and
recomputes the groups that changed. A group without rows has no result; neither has an ungrouped aggregate of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES, VnodeHash
from magnetar.pipeline.errors import ChangelogError, StateSchemaError
from magnetar.pipeline.operators.aggregate_functions import ROWS, Aggregation, Call, NativeColumn
from magnetar.pipeline.operators.changelog import (
    CHANGE,
    checked,
    empty,
    key_of,
    require_append_only,
)
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.paired import OLD, Paired, beside
from magnetar.pipeline.operators.recompute import RecomputeGroups
from magnetar.pipeline.operators.stored_rows import StoredRows
from magnetar.pipeline.state.table import VNODE, StateTable


def aggregate(
    table_id: int,
    name: str,
    schema: pa.Schema,
    group: Sequence[str],
    calls: Sequence[Call],
    *,
    append_only: bool,
    row_key: Sequence[str] = (),
    vnode_count: int = DEFAULT_VNODES,
    vnode_hash: VnodeHash = "crc32",
) -> MergedAggregate | RecomputeGroups:
    """The cheapest exact operator for these calls. `row_key`: what makes an input row unique, needed where rows are kept.

    StateSchemaError for columns and functions that do not exist, or a row key that is missing.
    """
    aggregation = Aggregation(calls, schema)
    functions = aggregation.functions
    outputs = [pa.field(function.call.name, function.value_type) for function in functions]
    missing = [column for column in group if column not in schema.names]
    if missing:
        raise StateSchemaError(f"GROUP BY {missing[0]}: the input has the columns {schema.names}")
    output = pa.schema([*(schema.field(column) for column in group), *outputs])
    if len(set(output.names)) < len(output.names):
        raise StateSchemaError(f"the result's columns {output.names} have a name twice; give aliases")
    if all(function.merges if append_only else function.subtracts for function in functions):
        return MergedAggregate(table_id, name, schema, output, group, aggregation, append_only, vnode_count, vnode_hash)
    if not row_key:
        raise StateSchemaError(f"aggregate {name} keeps its input rows, so the input needs a key")
    rows = StoredRows(table_id, name, schema, group, row_key, vnode_count, vnode_hash)
    return RecomputeGroups(rows, output, group, lambda found: aggregation.over_rows(found, group))


class MergedAggregate:
    """One partial result a group, into which those of each delta are merged.

    A delta may also hold partial results of Spark in place of rows (`spark_partials`); it then has no `_change`.
    """

    def __init__(
        self,
        table_id: int,
        name: str,
        schema: pa.Schema,
        output_schema: pa.Schema,
        group: Sequence[str],
        aggregation: Aggregation,
        append_only: bool,
        vnode_count: int,
        vnode_hash: VnodeHash = "crc32",
    ) -> None:
        self.schema = schema
        self.output_schema = output_schema
        self.output_key = tuple(group)
        self._aggregation = aggregation
        self._append_only = append_only
        partials = aggregation.partial_schema([schema.field(column) for column in group])
        self._table = StateTable(table_id, name, partials, self.output_key, vnode_count, vnode_hash=vnode_hash)

    @property
    def is_exact(self) -> bool:
        """Whether rows and partial results of them come to the same, to the last bit: no sums of floats, and none to group by."""
        floats = [name for name in self.output_key if pa.types.is_floating(self.schema.field(name).type)]
        return not floats and all(function.is_exact for function in self._aggregation.functions)

    def state_tables(self) -> list[StateTable]:
        return [self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        if not self.output_key:
            return {self._table.table_id: None}
        received = self.received(deltas)
        keys = received.select(self.output_key)
        if CHANGE in received.columns:  # partial results have each group once
            keys = keys.unique(maintain_order=True)
        return {self._table.table_id: keys}

    def received(self, deltas: Deltas) -> pl.DataFrame:
        """The delta, checked; its groups have the table's types. With `_vnode` where it has that and there are groups."""
        delta = deltas.get(INPUT)
        if delta is not None and not self.output_key:
            delta = delta.drop(VNODE, strict=False)
        if delta is None or CHANGE in delta.columns:
            rows = checked(delta, self.schema)
            return rows if delta is None or VNODE not in delta.columns else rows.with_columns(delta[VNODE])
        types = empty(self._table.schema).schema
        return delta.with_columns(pl.col(name).cast(types[name]) for name in self.output_key)

    def spark_partials(self) -> list[tuple[str, str]]:
        """Names and Spark SQL of the columns that this aggregate takes for each group in place of rows."""
        return self._aggregation.spark_partials(self._append_only)

    def native_partials(self) -> list[NativeColumn] | None:
        """The same in DuckDB's SQL; None where it would not be the same. Among them may be columns that this aggregate does not take."""
        return self._aggregation.native_partials() if self._append_only else None

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = self.received(deltas)
        group = self.output_key
        if CHANGE not in delta.columns:
            types = empty(self._table.schema).schema
            change = self._aggregation.from_spark(delta, group, types, append_only=self._append_only)
            change = change.with_columns(delta[VNODE]) if VNODE in delta.columns else change
        else:
            if self._append_only:
                require_append_only(delta, f"aggregate {self._table.name}")
            change = self._conform(self._aggregation.partial(delta, [*group, *_carried(delta)]))
        stored = state.get(self._table.table_id)
        old = empty(self._table.schema) if stored is None else stored.select(self._table.schema.names)
        pairs = self._paired(beside(change, old, group))
        results = replace(pairs, old=self.results(pairs.old), new=self.results(pairs.new))
        return OperatorResult({self._table.table_id: pairs.writes()}, results.changelog())

    def _paired(self, found: pl.DataFrame) -> Paired:
        """State rows before and after. `found`: partial results of the delta beside the stored ones."""
        names = [*self._table.schema.names, *_carried(found)]
        group = (*self.output_key, *_carried(found))
        new = self._aggregation.added(found, OLD).select(names)
        self._check(new)
        old = found.select(pl.col(name if name in group else OLD + name).alias(name) for name in names)
        return Paired(self.output_key, old, new, old[ROWS].is_not_null(), new[ROWS] > 0)

    def results(self, stored: pl.DataFrame) -> pl.DataFrame:
        """The output rows of these state rows."""
        group = (*_carried(stored), *self.output_key)
        return self._aggregation.values(stored, group)

    def _conform(self, partials: pl.DataFrame) -> pl.DataFrame:
        return partials.select(*self._table.schema.names, *_carried(partials))

    def _check(self, new: pl.DataFrame) -> None:
        """What is left of a group must be possible: no count below 0, and nothing left of no rows."""
        functions = self._aggregation.functions
        never_negative = [ROWS, *(name for function in functions for name in function.never_negative)]
        wrong = pl.any_horizontal(pl.col(name) < 0 for name in never_negative)
        if not self._append_only:
            zero = [ROWS, *(name for function in functions for name in function.zero_without_rows)]
            wrong |= (pl.col(ROWS) == 0) & pl.any_horizontal(pl.col(name) != 0 for name in zero)
        found = new.filter(wrong)
        if found.height:
            raise ChangelogError(
                f"rows are taken away that were never there, in the group {key_of(found, self.output_key)}"
            )


def _carried(rows: pl.DataFrame) -> list[str]:
    """`_vnode`, where the rows have it."""
    return [VNODE] if VNODE in rows.columns else []


def _is_operator(merged: MergedAggregate, recomputed: RecomputeGroups) -> tuple[Operator, Operator]:
    """For the type checker: both are operators."""
    return merged, recomputed
