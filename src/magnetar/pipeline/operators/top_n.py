"""The first rows of each group in some order: Top-N, and `ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) <= n`.

All rows are kept, since any of them may move up when a row before it is taken away; the groups that change are sorted anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from magnetar.hashing.vnode import DEFAULT_VNODES
from magnetar.pipeline.errors import StateSchemaError
from magnetar.pipeline.operators.recompute import RecomputeGroups
from magnetar.pipeline.operators.stored_rows import StoredRows


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

    `rank`: the name of a column with the row's number, from 1. No group columns: one group, in vnode 0. StateSchemaError.
    """
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
    rows = StoredRows(table_id, name, schema, group, row_key, vnode_count)
    output = schema if rank is None else schema.append(pa.field(rank, pa.int64()))
    number = "_number" if rank is None else rank
    ties = [Order(column) for column in rows.key if column not in [by.column for by in order]]
    sorting = [by for by in (*order, *ties) if by.column not in group]

    def compute(found: pl.DataFrame) -> pl.DataFrame:
        if sorting:
            found = found.sort(
                [by.column for by in sorting],
                descending=[by.descending for by in sorting],
                nulls_last=[_nulls_last(by) for by in sorting],
            )
        row = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        found = found.with_columns((row.over(list(group)) if group else row).alias(number))
        return found.filter(pl.col(number).is_between(offset + 1, offset + limit)).select(output.names)

    return RecomputeGroups(rows, output, rows.key, compute)


def _nulls_last(by: Order) -> bool:
    return by.descending if by.nulls_first is None else not by.nulls_first
