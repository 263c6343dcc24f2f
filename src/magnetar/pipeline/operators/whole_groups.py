"""Groups recomputed by Spark SQL between two stages: one keeps the rows, the other the results.

`TouchedGroups` says of every group that changed which rows it has now; Spark computes its results; `ReplaceGroups` compares them with
those that it keeps. So what was told before is what is taken back, even where an expression depends on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import ChangelogError
from magnetar.pipeline.operators.changelog import (
    CHANGE,
    DELETE,
    INSERT,
    checked,
    difference,
    empty,
    empty_changelog,
    key_of,
    keyed,
    matching,
    with_change,
)
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.stored_rows import StoredRows, puts_and_deletes
from magnetar.pipeline.state.table import StateTable


class TouchedGroups:
    """Keeps rows by group. Its changes are not a changelog: one delete for each group that a delta touches, with the group's columns
    only, and all rows that the group has now as inserts.
    """

    def __init__(
        self,
        table_id: int,
        name: str,
        schema: pa.Schema,
        group: Sequence[str],
        row_key: Sequence[str],
        vnode_count: int = DEFAULT_VNODES,
    ) -> None:
        self._rows = StoredRows(table_id, name, schema, group, row_key, vnode_count)
        self.output_schema = schema
        self.output_key = self._rows.key

    def state_tables(self) -> list[StateTable]:
        return [self._rows.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {self._rows.table.table_id: self._rows.groups(checked(deltas.get(INPUT), self._rows.schema))}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = checked(deltas.get(INPUT), self._rows.schema)
        table_id = self._rows.table.table_id
        groups = self._rows.groups(delta)
        applied = self._rows.apply(state.get(table_id), delta, groups)
        touched = pl.concat([empty_changelog(self.output_schema), with_change(groups, DELETE)], how="diagonal")
        now = with_change(applied.new, INSERT)
        changes = pl.concat([touched, now]).sort(*self._rows.key, CHANGE, nulls_last=False)
        return OperatorResult({table_id: self._rows.writes(applied)}, changes)


class ReplaceGroups:
    """Keeps the results of groups. A delta has a delete for each group to be replaced, of which only the group's columns count, and all
    results that it has now as inserts.
    """

    def __init__(
        self,
        table_id: int,
        name: str,
        schema: pa.Schema,
        group: Sequence[str],
        key: Sequence[str],
        vnode_count: int = DEFAULT_VNODES,
    ) -> None:
        """`key`: what makes a result unique within its group."""
        self._rows = StoredRows(table_id, name, schema, group, key, vnode_count)
        self.output_schema = schema
        self.output_key = self._rows.key

    def state_tables(self) -> list[StateTable]:
        return [self._rows.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        return {self._rows.table.table_id: self._rows.groups(checked(deltas.get(INPUT), self._rows.schema))}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = checked(deltas.get(INPUT), self._rows.schema)
        table = self._rows.table
        groups = self._rows.groups(delta.filter(pl.col(CHANGE) == DELETE))
        new = delta.filter(pl.col(CHANGE) == INSERT).drop(CHANGE)
        if new.height and matching(new, groups).height != new.height:
            raise ChangelogError(f"{table.name}: there are results of a group that nothing touched")
        doubled = new.filter(new.select(keyed(new, self.output_key)).is_duplicated()) if new.height else new
        if doubled.height:
            raise ChangelogError(f"{table.name}: two results have the key {key_of(doubled, self.output_key)}")
        found = state.get(table.table_id)
        old = matching(empty(table.schema) if found is None else found.select(table.schema.names), groups)
        changelog = difference(old, new, self.output_key)
        return OperatorResult({table.table_id: puts_and_deletes(new, old, self.output_key)}, changelog)


def _are_operators(touched: TouchedGroups, replace: ReplaceGroups) -> tuple[Operator, Operator]:
    """For the type checker."""
    return touched, replace
