"""The first rows of each group in some order: Top-N, and `ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= n`.

Where rows may be taken away all are kept, since any of them may move up; the groups that change are sorted anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.changelog import (
    CHANGE,
    INSERT,
    UPDATE_AFTER,
    checked,
    difference,
    require_append_only,
)
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.recompute import RecomputeGroups
from magnetar.pipeline.operators.stored_rows import StoredRows, puts_and_deletes
from magnetar.pipeline.state.table import StateTable


@dataclass(frozen=True)
class Order:
    """One column of ORDER BY. NULL is first ascending and last descending unless said, as in Spark; NaN is the greatest number."""

    column: str
    descending: bool = False
    nulls_first: bool | None = None


def top_n(
    table_id: int,
    name: str,
    schema: pa.Schema,
    group: Sequence[str],
    order: Sequence[Order],
    limit: int,
    *,
    row_key: Sequence[str],
    offset: int = 0,
    rank: str | None = None,
    vnode_count: int = DEFAULT_VNODES,
) -> RecomputeGroups:
    """Rows `offset` + 1 to `offset` + `limit` of each group. Equal rows follow their key, so the choice is always the same one.

    `rank`: the name of a column with the row's number, from 1 and of 32 bits as in Spark. No group columns: one group, in vnode 0.
    StateSchemaError.
    """
    choice = _Choice(name, schema, group, order, limit, offset, rank, row_key)
    rows = StoredRows(table_id, name, schema, group, row_key, vnode_count)
    return RecomputeGroups(rows, choice.output, choice.key, choice.rows)


class AppendOnlyTopN:
    """`top_n` of rows that never go: the state is the first `limit` rows of each group, since no other can become one of them."""

    def __init__(
        self,
        table_id: int,
        name: str,
        schema: pa.Schema,
        group: Sequence[str],
        order: Sequence[Order],
        limit: int,
        *,
        row_key: Sequence[str],
        rank: str | None = None,
        vnode_count: int = DEFAULT_VNODES,
    ) -> None:
        self._choice = _Choice(name, schema, group, order, limit, 0, rank, row_key)
        self._rows = StoredRows(table_id, name, schema, group, row_key, vnode_count)
        self.output_schema = self._choice.output
        self.output_key = self._choice.key

    def state_tables(self) -> list[StateTable]:
        return [self._rows.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        delta = checked(deltas.get(INPUT), self._rows.schema)
        return {self._rows.table.table_id: self._rows.groups(delta) if self._rows.group else None}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = checked(deltas.get(INPUT), self._rows.schema)
        require_append_only(delta, f"top-n {self._rows.table.name}")
        table_id = self._rows.table.table_id
        applied = self._rows.apply(state.get(table_id), delta, self._rows.groups(delta))
        old, new = self._choice.rows(applied.old), self._choice.rows(applied.new)
        columns = self._rows.schema.names
        kept = difference(old.select(columns), new.select(columns), self._rows.key)
        changelog = difference(old, new, self.output_key)
        comes = pl.col(CHANGE).is_in([INSERT, UPDATE_AFTER])
        puts, gone = kept.filter(comes).drop(CHANGE), kept.filter(~comes).drop(CHANGE)
        return OperatorResult({table_id: puts_and_deletes(puts, gone, self._rows.key)}, changelog)


class _Choice:
    """Which rows of whole groups are the first."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        group: Sequence[str],
        order: Sequence[Order],
        limit: int,
        offset: int,
        rank: str | None,
        row_key: Sequence[str],
    ) -> None:
        if limit < 1 or offset < 0:
            raise StateSchemaError(
                f"top-n {name}: a limit of at least 1 and an offset of at least 0, not {limit} and {offset}"
            )
        missing = [by.column for by in order if by.column not in schema.names]
        if missing:
            raise StateSchemaError(f"top-n {name}: ORDER BY {missing[0]}: the input has the columns {schema.names}")
        if rank in schema.names:
            raise StateSchemaError(
                f"top-n {name}: the input has a column {rank!r} already; name the row's number otherwise"
            )
        key = (*group, *(column for column in row_key if column not in group))
        self.output = schema if rank is None else schema.append(pa.field(rank, pa.int32()))
        # one row a group: the group is what makes it unique
        self.key = tuple(group) if limit == 1 else key
        self._group = list(group)
        self._first, self._last = offset + 1, offset + limit
        self._number = "_number" if rank is None else rank
        ties = [Order(column) for column in key if column not in [by.column for by in order]]
        self._sorting = [by for by in (*order, *ties) if by.column not in group]

    def rows(self, found: pl.DataFrame) -> pl.DataFrame:
        sorting = self._sorting
        if sorting:
            found = found.sort(
                [by.column for by in sorting],
                descending=[by.descending for by in sorting],
                nulls_last=[_nulls_last(by) for by in sorting],
            )
        row = pl.int_range(1, pl.len() + 1, dtype=pl.Int32)
        found = found.with_columns((row.over(self._group) if self._group else row).alias(self._number))
        return found.filter(pl.col(self._number).is_between(self._first, self._last)).select(self.output.names)


def _nulls_last(by: Order) -> bool:
    return by.descending if by.nulls_first is None else not by.nulls_first


def _is_operator(top: AppendOnlyTopN) -> Operator:
    """For the type checker."""
    return top
