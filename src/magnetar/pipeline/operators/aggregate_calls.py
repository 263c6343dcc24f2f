"""Aggregate functions as expressions: over rows, as partial results that merge, and from partial results to values.

NULL counts for nothing but `count(*)`; the sum, average, least and greatest of nothing are NULL. NaN is greater than any number and equal
to itself, as in Spark. Sums of whole numbers are exact or AggregateOverflowError; sums of doubles depend on the order of addition
in their last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import AggregateOverflowError, StateSchemaError
from magnetar.pipeline.operators.changelog import keyed, weight

ROWS: Final = "_rows"
"""How many input rows a partial result stands for."""

FUNCTIONS: Final = ("count", "count_distinct", "sum", "avg", "min", "max")


@dataclass(frozen=True)
class Call:
    """`function(column) AS name`; `count` without a column counts rows."""

    function: str
    column: str | None
    name: str

    def value_type(self, schema: pa.Schema) -> pa.DataType:
        """Of the result. StateSchemaError for an unknown function or a column it cannot take."""
        if self.function not in FUNCTIONS:
            raise StateSchemaError(f"{self.function} is not an aggregate function; there are {', '.join(FUNCTIONS)}")
        if self.column is None:
            if self.function != "count":
                raise StateSchemaError(f"{self.function} needs a column")
            return pa.int64()
        if self.column not in schema.names:
            raise StateSchemaError(f"{self.function}({self.column}): the input has the columns {schema.names}")
        column = schema.field(self.column).type
        if self.function in ("count", "count_distinct"):
            return pa.int64()
        if self.function in ("min", "max"):
            return column
        if pa.types.is_floating(column):
            return pa.float64()
        if pa.types.is_integer(column):
            return pa.int64() if self.function == "sum" else pa.float64()
        raise StateSchemaError(
            f"{self.function}({self.column}) of {column}: whole numbers, floats and doubles are taken"
        )

    def subtracts(self, schema: pa.Schema) -> bool:
        """Whether the rows taken away can be subtracted exactly."""
        if self.function == "count":
            return True
        return self.function in ("sum", "avg") and pa.types.is_integer(schema.field(self.column).type)


def over_rows(calls: Sequence[Call], rows: pl.DataFrame, group: Sequence[str], schema: pa.Schema) -> pl.DataFrame:
    """Group columns and values of whole groups."""
    merged = [call for call in calls if call.function != "count_distinct"]
    found = finished(calls, partial(merged, rows, group, schema, pl.lit(1, pl.Int64)), group, schema)
    distinct = [call for call in calls if call.function == "count_distinct"]
    if not distinct:
        return found
    counts = rows.group_by(keyed(rows, group), maintain_order=True).agg(
        pl.col(str(call.column)).drop_nulls().n_unique().cast(pl.Int64).alias(call.name) for call in distinct
    )
    # both group the same rows in the order in which the groups appear
    return found.with_columns(counts[call.name] for call in distinct).select(*group, *(call.name for call in calls))


def partial_schema(calls: Sequence[Call], group: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """Columns of partial results: the group, `_rows`, and for the call i `_p<i>_n`, `_p<i>_sum` or `_p<i>_value`."""
    fields = [schema.field(name) for name in group]
    fields.append(pa.field(ROWS, pa.int64(), False))
    for place, call in enumerate(calls):
        if call.function in ("count", "sum", "avg"):
            fields.append(pa.field(f"_p{place}_n", pa.int64(), False))
        if call.function in ("sum", "avg"):
            whole = pa.types.is_integer(schema.field(call.column).type)
            fields.append(pa.field(f"_p{place}_sum", pa.int64() if whole else pa.float64(), False))
        if call.function in ("min", "max"):
            fields.append(pa.field(f"_p{place}_value", schema.field(call.column).type))
    return pa.schema(fields)


def partial(
    calls: Sequence[Call], rows: pl.DataFrame, group: Sequence[str], schema: pa.Schema, sign: pl.Expr | None = None
) -> pl.DataFrame:
    """Partial results of a delta (or, with `sign`, of plain rows), one row a group in order of appearance."""
    sign = weight() if sign is None else sign
    rows = rows.with_columns(sign.alias("_weight"))
    parts = [pl.col("_weight").sum().alias(ROWS)]
    for place, call in enumerate(calls):
        value = pl.col(call.column) if call.column is not None else pl.col("_weight")
        if call.function in ("count", "sum", "avg"):
            parts.append(pl.col("_weight").filter(value.is_not_null()).sum().alias(f"_p{place}_n"))
        if call.function in ("sum", "avg"):
            whole = pa.types.is_integer(schema.field(call.column).type)
            wide = value.cast(pl.Int128 if whole else pl.Float64)
            parts.append((wide * pl.col("_weight")).sum().alias(f"_p{place}_sum"))
        if call.function in ("min", "max"):
            parts.append(_extreme(value, call.function, schema.field(call.column).type).alias(f"_p{place}_value"))
    return _narrowed(rows.group_by(keyed(rows, group), maintain_order=True).agg(parts))


def merged(
    calls: Sequence[Call], partials: Sequence[pl.DataFrame], group: Sequence[str], schema: pa.Schema
) -> pl.DataFrame:
    """One partial result a group."""
    together = pl.concat(partials)
    parts = [pl.col(ROWS).sum()]
    for place, call in enumerate(calls):
        if call.function in ("count", "sum", "avg"):
            parts.append(pl.col(f"_p{place}_n").sum())
        if call.function in ("sum", "avg"):
            whole = together.schema[f"_p{place}_sum"].is_integer()
            parts.append(pl.col(f"_p{place}_sum").cast(pl.Int128 if whole else pl.Float64).sum())
        if call.function in ("min", "max"):
            value = pl.col(f"_p{place}_value")
            parts.append(_extreme(value, call.function, schema.field(call.column).type).alias(f"_p{place}_value"))
    found = _narrowed(together.group_by(keyed(together, group), maintain_order=True).agg(parts))
    return found.select(together.columns)


def finished(calls: Sequence[Call], partials: pl.DataFrame, group: Sequence[str], schema: pa.Schema) -> pl.DataFrame:
    """Group columns and values of partial results; calls that have no partial result are left out."""
    values = []
    for place, call in enumerate(call for call in calls if call.function != "count_distinct"):
        if call.function == "count":
            values.append(pl.col(f"_p{place}_n").alias(call.name))
        elif call.function in ("min", "max"):
            values.append(pl.col(f"_p{place}_value").alias(call.name))
        else:
            count, total = pl.col(f"_p{place}_n"), pl.col(f"_p{place}_sum")
            value = total if call.function == "sum" else total.cast(pl.Float64) / count
            values.append(pl.when(count > 0).then(value).alias(call.name))
    return partials.select(*group, *values)


def _extreme(value: pl.Expr, function: str, kind: pa.DataType) -> pl.Expr:
    if not pa.types.is_floating(kind):
        return value.max() if function == "max" else value.min()
    nan = pl.lit(float("nan")).cast(pl.Float32 if pa.types.is_float32(kind) else pl.Float64)
    numbers = value.filter(value.is_not_nan())
    if function == "max":
        return pl.when(value.is_nan().any()).then(nan).otherwise(numbers.max())
    return pl.when(numbers.len() > 0).then(numbers.min()).when(value.is_nan().any()).then(nan)


def _narrowed(partials: pl.DataFrame) -> pl.DataFrame:
    """Sums in 64 bits again."""
    try:
        return partials.with_columns(pl.selectors.by_dtype(pl.Int128).cast(pl.Int64))
    except pl.exceptions.InvalidOperationError as error:
        raise AggregateOverflowError(f"a sum does not fit 64 bits; sum a double instead: {error}") from error
