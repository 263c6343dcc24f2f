"""Partial results by Spark, before a unit sees any row: the same as `aggregate_calls.partial` gives.

Sums of 64-bit numbers are taken in two halves, the upper 32 bits and the lower, which fit 64 bits for 2^31 rows of an epoch: Spark
would otherwise fail where only what is left at the end has to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import ChangelogError
from magnetar.pipeline.operators.aggregate_calls import ROWS, Call, narrowed
from magnetar.pipeline.operators.changelog import CHANGE

CHANGES: Final = "_changes"
"""How many changes a partial result stands for; `_rows` is what they come to."""

_ADDS: Final = f"{CHANGE} IN (0, 2)"
_WEIGHT: Final = f"CASE WHEN {_ADDS} THEN 1L ELSE -1L END"


def spark_partials(calls: Sequence[Call], schema: pa.Schema, *, append_only: bool) -> list[tuple[str, str]]:
    """Names and Spark SQL of the columns for each group, over rows of `schema` and `_change`. What is the same comes once."""
    every = _partials(calls, schema, append_only)
    kept = _kept(every)
    return [(name, sql) for name, sql in every if kept[name] == name]


def _kept(partials: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By name: the column that holds it, which is the first one with the same SQL."""
    first: dict[str, str] = {}
    return {name: first.setdefault(sql, name) for name, sql in partials}


def _partials(calls: Sequence[Call], schema: pa.Schema, append_only: bool) -> list[tuple[str, str]]:
    found = [(CHANGES, "count(1)"), (ROWS, "count(1)" if append_only else f"sum({_WEIGHT})")]
    for place, call in enumerate(calls):
        column = None if call.column is None else "`" + call.column.replace("`", "``") + "`"
        if call.function in ("count", "sum", "avg"):
            found.append((f"_p{place}_n", _count(column, append_only)))
        if column is not None and call.function in ("sum", "avg"):
            kind = schema.field(call.column).type
            found += [(f"_p{place}_{name}", sql) for name, sql in _sums(column, kind, append_only)]
        if column is not None and call.function in ("min", "max"):
            found.append((f"_p{place}_value", f"{call.function}({column})"))
    return found


def stands_for(delta: pl.DataFrame) -> int:
    """How many changes these rows, or partial results, are."""
    return int(delta[CHANGES].sum()) if CHANGES in delta.columns else delta.height


def state_partials(
    received: pl.DataFrame,
    calls: Sequence[Call],
    group: Sequence[str],
    schema: pa.Schema,
    state: pl.Schema,
    *,
    append_only: bool,
) -> pl.DataFrame:
    """What Spark computed, with the state's columns. ChangelogError when it has others."""
    kept = _kept(_partials(calls, schema, append_only))
    columns = [pl.col(name).cast(state[name]) for name in group]
    columns.append(pl.col(kept[ROWS]).cast(pl.Int64).alias(ROWS))
    for place, call in enumerate(calls):
        if call.function in ("count", "sum", "avg"):
            columns.append(pl.col(kept[f"_p{place}_n"]).cast(pl.Int64).alias(f"_p{place}_n"))
        if call.function in ("sum", "avg"):
            name = f"_p{place}_sum"
            halves = schema.field(call.column).type == pa.int64()
            if halves:
                high, low = (pl.col(kept[f"{name}_{half}"]).cast(pl.Int128) for half in ("hi", "lo"))
                columns.append((high * 2**32 + low).alias(name))
            else:
                columns.append(pl.col(kept[name]).alias(name))
        if call.function in ("min", "max"):
            name = f"_p{place}_value"
            columns.append(pl.col(kept[name]).cast(state[name]).alias(name))
    try:
        return narrowed(received.select(columns), calls, schema).select(state.names())
    except pl.exceptions.ColumnNotFoundError as error:
        raise ChangelogError(f"partial results need {state.names()}, not {received.columns}: {error}") from error


def _count(column: str | None, append_only: bool) -> str:
    if append_only:
        return "count(1)" if column is None else f"count({column})"
    if column is None:
        return f"sum({_WEIGHT})"
    return f"sum(CASE WHEN {column} IS NULL THEN 0L WHEN {_ADDS} THEN 1L ELSE -1L END)"


def _sums(column: str, kind: pa.DataType, append_only: bool) -> list[tuple[str, str]]:
    if kind == pa.int64():
        halves = [("sum_hi", f"shiftright({column}, 32)"), ("sum_lo", f"({column} & 4294967295L)")]
        return [(name, _sum(sql, "0L", append_only)) for name, sql in halves]
    if pa.types.is_integer(kind):
        return [("sum", _sum(f"CAST({column} AS BIGINT)", "0L", append_only))]
    if pa.types.is_floating(kind):
        return [("sum", _sum(f"CAST({column} AS DOUBLE)", "0D", append_only))]
    return [("sum", _sum(column, "0", append_only))]


def _sum(sql: str, zero: str, append_only: bool) -> str:
    value = sql if append_only else f"CASE WHEN {_ADDS} THEN {sql} ELSE -{sql} END"
    return f"coalesce(sum({value}), {zero})"
