"""Aggregate functions as expressions: over rows, as partial results that merge, and from partial results to values.

NULL counts for nothing but `count(*)`; the sum, average, least and greatest of nothing are NULL. NaN is greater than any number and equal
to itself, as in Spark. Sums of whole numbers and decimals are exact or AggregateOverflowError; sums of doubles depend on the order of
addition in their last bits. Result types are Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import AggregateOverflowError, StateSchemaError
from magnetar.pipeline.operators.changelog import empty, keyed, weight

ROWS: Final = "_rows"
"""How many input rows a partial result stands for."""

SUMMED_DIGITS_MAX: Final = 28
"""Decimals with more digits are refused in sums, which have 10 digits more and 38 at most."""

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
        if pa.types.is_decimal(column) and column.precision <= SUMMED_DIGITS_MAX:
            return sum_type(column) if self.function == "sum" else _average_type(column)
        raise StateSchemaError(
            f"{self.function}({self.column}) of {column}: whole numbers, floats, doubles and decimals of up to "
            f"{SUMMED_DIGITS_MAX} digits are taken; CAST it"
        )

    def subtracts(self, schema: pa.Schema) -> bool:
        """Whether the rows taken away can be subtracted exactly."""
        if self.function == "count":
            return True
        kind = schema.field(self.column).type
        return self.function in ("sum", "avg") and not pa.types.is_floating(kind)


def sum_type(kind: pa.DataType) -> pa.DataType:
    """Of partial sums: wide enough for 10^10 rows of decimals, as Spark's."""
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(38, kind.precision + 10), kind.scale)
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def _average_type(kind: pa.DataType) -> pa.DataType:
    return pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))


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
            fields.append(pa.field(f"_p{place}_sum", sum_type(schema.field(call.column).type), False))
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
            kind = schema.field(call.column).type
            parts.append(_weighted(value, kind).sum().alias(f"_p{place}_sum"))
        if call.function in ("min", "max"):
            parts.append(_extreme(value, call.function, schema.field(call.column).type).alias(f"_p{place}_value"))
    return narrowed(rows.group_by(keyed(rows, group), maintain_order=True).agg(parts), calls, schema)


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
            parts.append(pl.col(f"_p{place}_sum").cast(_wide(schema.field(call.column).type)).sum())
        if call.function in ("min", "max"):
            value = pl.col(f"_p{place}_value")
            parts.append(_extreme(value, call.function, schema.field(call.column).type).alias(f"_p{place}_value"))
    found = narrowed(together.group_by(keyed(together, group), maintain_order=True).agg(parts), calls, schema)
    return found.select(together.columns)


def added(calls: Sequence[Call], found: pl.DataFrame, old: str, schema: pa.Schema) -> pl.DataFrame:
    """Partial results with those of the same row in the columns whose names begin with `old` added to them; those may be NULL."""
    parts = [pl.col(ROWS) + pl.col(old + ROWS).fill_null(0)]
    for place, call in enumerate(calls):
        if call.function in ("count", "sum", "avg"):
            name = f"_p{place}_n"
            parts.append(pl.col(name) + pl.col(old + name).fill_null(0))
        if call.function in ("sum", "avg"):
            name, wide = f"_p{place}_sum", _wide(schema.field(call.column).type)
            before = pl.col(old + name).cast(wide)
            parts.append(
                pl.when(before.is_null()).then(pl.col(name).cast(wide)).otherwise(pl.col(name).cast(wide) + before)
            )
        if call.function in ("min", "max"):
            value, before = pl.col(f"_p{place}_value"), pl.col(f"{old}_p{place}_value")
            wins = value > before if call.function == "max" else value < before  # NaN is greater than any number
            parts.append(pl.when(before.is_null() | wins).then(value).otherwise(before).alias(f"_p{place}_value"))
    return narrowed(found.with_columns(parts), calls, schema)


def finished(calls: Sequence[Call], partials: pl.DataFrame, group: Sequence[str], schema: pa.Schema) -> pl.DataFrame:
    """Group columns and values of partial results; calls that have no partial result are left out."""
    values: list[pl.Expr | pl.Series] = []
    for place, call in enumerate(call for call in calls if call.function != "count_distinct"):
        if call.function == "count":
            values.append(pl.col(f"_p{place}_n").alias(call.name))
        elif call.function in ("min", "max"):
            values.append(pl.col(f"_p{place}_value").alias(call.name))
        elif call.function == "avg" and pa.types.is_decimal(schema.field(call.column).type):
            sums, counts = partials[f"_p{place}_sum"], partials[f"_p{place}_n"]
            values.append(_averages(sums, counts, call.value_type(schema)).alias(call.name))
        else:
            count, total = pl.col(f"_p{place}_n"), pl.col(f"_p{place}_sum")
            value = total if call.function == "sum" else total.cast(pl.Float64) / count
            values.append(pl.when(count > 0).then(value).alias(call.name))
    return partials.select(*group, *values)


def _averages(sums: pl.Series, counts: pl.Series, kind: pa.DataType) -> pl.Series:
    """Rounded half up, away from zero, as Spark rounds; NULL for no rows, and for a group that is not there, whose count is NULL."""
    unit = Decimal(1).scaleb(-kind.scale)
    context = Context(prec=kind.precision + kind.scale + 10, rounding=ROUND_HALF_UP)
    found = [
        context.quantize(context.divide(total, Decimal(count)), unit) if count else None
        for total, count in zip(sums, counts, strict=True)
    ]
    return pl.Series(found, dtype=pl.Decimal(kind.precision, kind.scale))


def _weighted(value: pl.Expr, kind: pa.DataType) -> pl.Expr:
    """Each value as often as it counts: once, or minus once."""
    wide = value.cast(_wide(kind))
    if pa.types.is_decimal(kind):
        return pl.when(pl.col("_weight") < 0).then(-wide).otherwise(wide)
    return wide * pl.col("_weight")


def _wide(kind: pa.DataType) -> pl.DataType:
    """What sums are taken in, so that only the end has to fit."""
    if pa.types.is_decimal(kind):
        return pl.Decimal(38, kind.scale)
    return pl.Float64() if pa.types.is_floating(kind) else pl.Int128()


def _extreme(value: pl.Expr, function: str, kind: pa.DataType) -> pl.Expr:
    if not pa.types.is_floating(kind):
        return value.max() if function == "max" else value.min()
    nan = pl.lit(float("nan")).cast(pl.Float32 if pa.types.is_float32(kind) else pl.Float64)
    numbers = value.filter(value.is_not_nan())
    if function == "max":
        return pl.when(value.is_nan().any()).then(nan).otherwise(numbers.max())
    return pl.when(numbers.len() > 0).then(numbers.min()).when(value.is_nan().any()).then(nan)


def narrowed(partials: pl.DataFrame, calls: Sequence[Call], schema: pa.Schema) -> pl.DataFrame:
    """Sums in the types of the state again. AggregateOverflowError."""
    casts = []
    for place, call in enumerate(calls):
        if call.function in ("sum", "avg"):
            kind = sum_type(schema.field(call.column).type)
            casts.append(pl.col(f"_p{place}_sum").cast(empty(pa.schema([("x", kind)])).schema["x"]))
    try:
        return partials.with_columns(casts)
    except pl.exceptions.InvalidOperationError as error:
        raise AggregateOverflowError(
            f"a sum of whole numbers does not fit 64 bits, or one of decimals 38 digits; sum a double instead: {error}"
        ) from error
