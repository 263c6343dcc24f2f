"""Partial results of an aggregate by DuckDB over Arrow, before rows are sent to the units that keep the groups.

The columns are those that Spark would compute (`AggregateFunction.spark_partial`), by the same names, so whoever merges them into the state
need not know who made them. Only what is the same to the last bit: whole numbers, texts, truth values and dates, of rows that are only
ever added. Everything else is left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.operators.aggregate import MergedAggregate
from magnetar.pipeline.operators.aggregate_functions import CHANGES, NativeColumn, is_native, quoted_for_duckdb
from magnetar.pipeline.operators.materialize import Materialized
from magnetar.pipeline.operators.operator import Operator
from magnetar.pipeline.state.table import VNODE, StateTable

ROWS_AT_ONCE: Final = 1 << 20
"""Rows of which a task makes partial results at once: as many groups as these may be are in its memory."""

_ROWS = "rows_"
"""The name of the rows in a query."""


@dataclass(frozen=True)
class NativePartials:
    """`group`: its columns; `table`: the state's, by whose key a group has a vnode; `columns`: of each group's partial result."""

    group: tuple[str, ...]
    table: StateTable
    columns: tuple[NativeColumn, ...]

    def of_rows(self, rows: pa.Table | pa.RecordBatchReader | str) -> pa.Table:
        """One row for each group of these rows, with `_vnode` (int32). The rows have the group's columns and those that are aggregated; a
        text is a query of DuckDB's that gives them."""
        found = self._grouped(rows, self.group, [(each.of_rows, each.name) for each in self.columns])
        key = pa.schema([self.table.schema.field(name) for name in self.group])
        vnodes = self.table.vnodes_of(found.select(self.group).cast(key))
        return found.append_column(pa.field(VNODE, pa.int32(), False), pa.array(vnodes, pa.int32()))

    def of_batches(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """The same of so many rows that only ROWS_AT_ONCE at a time may be held. Raises what `batches` raises."""
        failed: list[Exception] = []
        for first in batches:
            some = _some(chain([first], batches), failed)
            try:
                found = self.of_rows(pa.RecordBatchReader.from_batches(schema, some))
            except Exception:
                if failed:  # DuckDB makes a text of it
                    raise failed[0] from None
                raise
            yield found

    def merged(self, partials: pa.Table) -> pa.Table:
        """One row for each group of what `of_rows` gave here and there."""
        return self._grouped(partials, (VNODE, *self.group), [(each.merged, each.name) for each in self.columns])

    def _grouped(self, rows: Any, group: Sequence[str], columns: Sequence[tuple[str, str]]) -> pa.Table:
        keys = ", ".join(quoted_for_duckdb(name) for name in group)
        values = ", ".join(f"{sql} AS {quoted_for_duckdb(name)}" for sql, name in columns)
        with _connection().cursor() as session:
            if not isinstance(rows, str):
                session.register(_ROWS, rows)
            source = f"({rows})" if isinstance(rows, str) else _ROWS
            return session.sql(f"SELECT {keys}, {values} FROM {source} GROUP BY {keys}").to_arrow_table()


def native_partials(operator: Operator) -> NativePartials | None:
    """How DuckDB computes what this operator takes in place of rows; None where it would not be the same."""
    merged = operator.inner if isinstance(operator, Materialized) else operator
    if not isinstance(merged, MergedAggregate) or not merged.output_key or not merged.is_exact:
        return None
    columns = merged.native_partials()
    if columns is None or not all(is_native(merged.schema.field(name).type) for name in merged.output_key):
        return None
    (table,) = merged.state_tables()
    taken = {name for name, _ in merged.spark_partials()}
    assert CHANGES in taken
    return NativePartials(merged.output_key, table, tuple(each for each in columns if each.name in taken))


def _some(batches: Iterator[pa.RecordBatch], failed: list[Exception]) -> Iterator[pa.RecordBatch]:
    taken = 0
    try:
        for batch in batches:
            yield batch
            taken += batch.num_rows
            if taken >= ROWS_AT_ONCE:
                return
    except Exception as error:
        failed.append(error)
        raise


@cache
def _connection() -> Any:
    """Of the process: a unit is one thread."""
    import duckdb  # tasks need it, those who plan do not

    settings: dict[str, Any] = {
        "threads": 1,
        "temp_directory": "",
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
    }
    return duckdb.connect(":memory:", config=settings)
