"""Recompute the groups that changed: exact for any function of a group's rows, at the price of keeping the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl
import pyarrow as pa

from magnetar.pipeline.operators.changelog import checked, difference
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, OperatorResult, Slices
from magnetar.pipeline.operators.stored_rows import StoredRows
from magnetar.pipeline.state.table import StateTable

Compute = Callable[[pl.DataFrame], pl.DataFrame]
"""Rows of some whole groups to output rows, each output key once; the result may not depend on the rows' order."""


class RecomputeGroups:
    """`compute` over the old and the new rows of every group a delta touches; what differs is the changelog.

    The input needs a key (`rows.key`); taking away a row that is not there is a ChangelogError.
    """

    def __init__(self, rows: StoredRows, output_schema: pa.Schema, output_key: Sequence[str], compute: Compute) -> None:
        self.rows = rows
        self.output_schema = output_schema
        self.output_key = tuple(output_key)
        self._compute = compute

    @property
    def schema(self) -> pa.Schema:
        """Of the input."""
        return self.rows.schema

    def received(self, deltas: Deltas) -> pl.DataFrame:
        """The delta, checked."""
        return checked(deltas.get(INPUT), self.rows.schema)

    def state_tables(self) -> list[StateTable]:
        return [self.rows.table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        delta = self.received(deltas)
        return {self.rows.table.table_id: self.rows.groups(delta) if self.rows.group else None}

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = self.received(deltas)
        table_id = self.rows.table.table_id
        applied = self.rows.apply(state.get(table_id), delta, self.rows.groups(delta))
        changelog = difference(self._compute(applied.old), self._compute(applied.new), self.output_key)
        return OperatorResult({table_id: self.rows.writes(applied)}, changelog)

    def results(self, stored: pl.DataFrame) -> pl.DataFrame:
        """The output rows of these state rows, which are whole groups."""
        return self._compute(self.rows.read(stored))
