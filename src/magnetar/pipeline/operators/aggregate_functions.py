"""Aggregate functions, a class for each: partial results of rows, how they are added, the value, and the same in Spark SQL.

NULL counts for nothing but `count(*)`; the sum, average, least and greatest of nothing are NULL. NaN is greater than any number and equal
to itself, as in Spark. Sums of whole numbers and decimals are exact or AggregateOverflowError; sums of doubles depend on the order of
addition in their last bits. Result types are Spark's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import ClassVar, Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import AggregateOverflowError, ChangelogError, StateSchemaError
from magnetar.pipeline.operators.changelog import CHANGE, empty, keyed, weight

ROWS: Final = "_rows"
"""How many input rows a partial result stands for."""

CHANGES: Final = "_changes"
"""How many changes a partial result that Spark computed stands for; `_rows` is what they come to."""

SUMMED_DIGITS_MAX: Final = 28
"""Decimals with more digits are refused in sums, which have 10 digits more and 38 at most."""

_WEIGHT: Final = "_weight"
"""1 for a row that is added and -1 for one that is taken away, while partial results are computed."""

_SPARK_ADDS: Final = f"{CHANGE} IN (0, 2)"
_SPARK_WEIGHT: Final = f"CASE WHEN {_SPARK_ADDS} THEN 1L ELSE -1L END"


@dataclass(frozen=True)
class NativeColumn:
    """A column of partial results in DuckDB's SQL: `of_rows` over a group's rows, `merged` over such columns of the same group."""

    name: str
    of_rows: str
    merged: str

    @staticmethod
    def summed(name: str, of_rows: str) -> NativeColumn:
        """A whole number that is added."""
        return NativeColumn(name, of_rows, f"CAST(sum({quoted_for_duckdb(name)}) AS BIGINT)")


def quoted_for_duckdb(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def is_native(kind: pa.DataType) -> bool:
    """Whether DuckDB compares, groups and gives back values of a type as Spark does."""
    is_plain = (pa.types.is_signed_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    return any(check(kind) for check in (*is_plain, pa.types.is_date32))


@dataclass(frozen=True)
class Call:
    """`function(column) AS name`; `count` without a column counts rows."""

    function: str
    column: str | None
    name: str


class AggregateFunction(ABC):
    """One call of a function, in a GROUP BY that has it at `place`: `_p<place>_...` are the columns of its partial results."""

    counts: ClassVar[bool] = False
    """True if the value of no rows is 0 instead of NULL."""
    merges: ClassVar[bool] = True
    """True if partial results of two sets of rows can be added."""

    def __init__(self, call: Call, place: int, kind: pa.DataType) -> None:
        """`kind`: type of the column, null for `count(*)`. StateSchemaError for one that the function does not take."""
        self.call = call
        self._kind = kind
        self._prefix = f"_p{place}_"
        self._value = pl.col(_WEIGHT if call.column is None else call.column)
        self._sql = "" if call.column is None else "`" + call.column.replace("`", "``") + "`"
        self._native = "*" if call.column is None else quoted_for_duckdb(call.column)

    @property
    @abstractmethod
    def value_type(self) -> pa.DataType:
        """Type of the result."""

    @property
    def subtracts(self) -> bool:
        """True if partial results of rows that are taken away can be subtracted exactly."""
        return False

    @property
    def is_exact(self) -> bool:
        """True if the order in which rows and partial results are added changes no bit of the value."""
        return True

    @property
    def never_negative(self) -> list[str]:
        """Columns of partial results that are at least 0, whatever is taken away."""
        return []

    @property
    def zero_without_rows(self) -> list[str]:
        """Columns of partial results that are 0 when all rows are taken away."""
        return self.never_negative

    @abstractmethod
    def parts(self) -> list[pa.Field]:
        """Columns of a partial result, as the state has them."""

    @abstractmethod
    def partial(self) -> list[pl.Expr]:
        """The parts of a group's rows."""

    @abstractmethod
    def added(self, old: str) -> list[pl.Expr]:
        """The parts with those in the columns `old` + name added to them, which are NULL for a group that had no rows."""

    @abstractmethod
    def value(self, partials: pl.DataFrame) -> pl.Expr | pl.Series:
        """The result of each partial result, under the call's name."""

    @abstractmethod
    def spark_partial(self, append_only: bool) -> list[tuple[str, str]]:
        """Names and Spark SQL of what Spark computes over a group's rows."""

    @abstractmethod
    def from_spark(self, column: Callable[[str], pl.Expr]) -> list[pl.Expr]:
        """The parts, of what Spark computed; `column` has it by the name in `spark_partial`."""

    def native_partial(self) -> list[NativeColumn] | None:
        """What Spark computes (`spark_partial`) over rows that are only added, by DuckDB; None where that would not be the same."""
        return None


class Count(AggregateFunction):
    """`count(*)` and `count(column)`: the partial result is the number of rows, or of those that are not NULL."""

    counts = True

    @property
    def _n(self) -> str:
        return self._prefix + "n"

    @property
    def value_type(self) -> pa.DataType:
        return pa.int64()

    @property
    def subtracts(self) -> bool:
        return True

    @property
    def never_negative(self) -> list[str]:
        return [self._n]

    def parts(self) -> list[pa.Field]:
        return [pa.field(self._n, pa.int64(), False)]

    def partial(self) -> list[pl.Expr]:
        return [pl.col(_WEIGHT).filter(self._value.is_not_null()).sum().alias(self._n)]

    def added(self, old: str) -> list[pl.Expr]:
        return [pl.col(self._n) + pl.col(old + self._n).fill_null(0)]

    def value(self, partials: pl.DataFrame) -> pl.Expr | pl.Series:
        return pl.col(self._n).alias(self.call.name)

    def spark_partial(self, append_only: bool) -> list[tuple[str, str]]:
        if append_only:
            return [(self._n, f"count({self._sql or 1})")]
        if not self._sql:
            return [(self._n, f"sum({_SPARK_WEIGHT})")]
        return [(self._n, f"sum(CASE WHEN {self._sql} IS NULL THEN 0L WHEN {_SPARK_ADDS} THEN 1L ELSE -1L END)")]

    def from_spark(self, column: Callable[[str], pl.Expr]) -> list[pl.Expr]:
        return [column(self._n).cast(pl.Int64).alias(self._n)]

    def native_partial(self) -> list[NativeColumn] | None:
        if self.call.column is not None and not is_native(self._kind):
            return None
        return [NativeColumn.summed(self._n, f"count({self._native})")]


class CountDistinct(Count):
    """`count(DISTINCT column)`, of whole groups only."""

    merges = False

    @property
    def subtracts(self) -> bool:
        return False

    def partial(self) -> list[pl.Expr]:
        return [self._value.drop_nulls().n_unique().cast(pl.Int64).alias(self._n)]

    def native_partial(self) -> list[NativeColumn] | None:
        return None


class Sum(Count):
    """`sum(column)`: the number of values and their sum, which the state holds as 64 bits, a double or a decimal of 10 more digits."""

    counts = False

    def __init__(self, call: Call, place: int, kind: pa.DataType) -> None:
        super().__init__(call, place, kind)
        taken = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        if not taken or (pa.types.is_decimal(kind) and kind.precision > SUMMED_DIGITS_MAX):
            raise StateSchemaError(
                f"{call.function}({call.column}) of {kind}: whole numbers, floats, doubles and decimals of up to "
                f"{SUMMED_DIGITS_MAX} digits are taken; CAST it"
            )

    @property
    def _sum(self) -> str:
        return self._prefix + "sum"

    @property
    def _sum_type(self) -> pa.DataType:
        """Wide enough for 10^10 rows of decimals, as Spark's."""
        if pa.types.is_decimal(self._kind):
            return pa.decimal128(min(38, self._kind.precision + 10), self._kind.scale)
        return pa.float64() if pa.types.is_floating(self._kind) else pa.int64()

    @property
    def _wide(self) -> pl.DataType:
        """What sums are taken in, so that only the end has to fit."""
        if pa.types.is_decimal(self._kind):
            return pl.Decimal(38, self._kind.scale)
        return pl.Float64() if pa.types.is_floating(self._kind) else pl.Int128()

    @property
    def value_type(self) -> pa.DataType:
        return self._sum_type

    @property
    def subtracts(self) -> bool:
        return self.is_exact

    @property
    def is_exact(self) -> bool:
        return not pa.types.is_floating(self._kind)

    @property
    def zero_without_rows(self) -> list[str]:
        return [self._n, self._sum]

    def parts(self) -> list[pa.Field]:
        return [*super().parts(), pa.field(self._sum, self._sum_type, False)]

    def partial(self) -> list[pl.Expr]:
        wide, weighted = self._value.cast(self._wide), self._value.cast(self._wide) * pl.col(_WEIGHT)
        if pa.types.is_decimal(self._kind):
            weighted = pl.when(pl.col(_WEIGHT) < 0).then(-wide).otherwise(wide)
        return [*super().partial(), weighted.sum().alias(self._sum)]

    def added(self, old: str) -> list[pl.Expr]:
        new, before = pl.col(self._sum).cast(self._wide), pl.col(old + self._sum).cast(self._wide)
        return [*super().added(old), pl.when(before.is_null()).then(new).otherwise(new + before)]

    def value(self, partials: pl.DataFrame) -> pl.Expr | pl.Series:
        return pl.when(pl.col(self._n) > 0).then(pl.col(self._sum)).alias(self.call.name)

    def spark_partial(self, append_only: bool) -> list[tuple[str, str]]:
        return [*super().spark_partial(append_only), *self._spark_sums(append_only)]

    def _spark_sums(self, append_only: bool) -> list[tuple[str, str]]:
        """Of 64-bit numbers in two halves, the upper 32 bits and the lower, which fit 64 bits for 2^31 rows of an epoch.

        Spark would otherwise fail where only what is left at the end has to fit.
        """
        sql = self._sql
        if self._kind == pa.int64():
            summed = [("_hi", f"shiftright({sql}, 32)", "0L"), ("_lo", f"({sql} & 4294967295L)", "0L")]
        elif pa.types.is_integer(self._kind):
            summed = [("", f"CAST({sql} AS BIGINT)", "0L")]
        elif pa.types.is_floating(self._kind):
            summed = [("", f"CAST({sql} AS DOUBLE)", "0D")]
        else:
            summed = [("", sql, "0")]
        found = []
        for half, value, zero in summed:
            signed = value if append_only else f"CASE WHEN {_SPARK_ADDS} THEN {value} ELSE -{value} END"
            found.append((self._sum + half, f"coalesce(sum({signed}), {zero})"))
        return found

    def from_spark(self, column: Callable[[str], pl.Expr]) -> list[pl.Expr]:
        if self._kind == pa.int64():
            high, low = (column(self._sum + half).cast(pl.Int128) for half in ("_hi", "_lo"))
            total = high * 2**32 + low
        else:
            total = column(self._sum)
        return [*super().from_spark(column), total.alias(self._sum)]

    def native_partial(self) -> list[NativeColumn] | None:
        counted = super().native_partial()
        if counted is None or not pa.types.is_signed_integer(self._kind):
            return None
        total = f"coalesce(sum({self._native}), 0::HUGEINT)"  # of 128 bits
        upper_and_lower = [("_hi", f"({total} >> 32)"), ("_lo", f"({total} & 4294967295::HUGEINT)")]
        halves = upper_and_lower if self._kind == pa.int64() else [("", total)]
        return counted + [NativeColumn.summed(self._sum + half, f"CAST({sql} AS BIGINT)") for half, sql in halves]


class Average(Sum):
    """`avg(column)`: a sum, divided at the end."""

    @property
    def value_type(self) -> pa.DataType:
        if pa.types.is_decimal(self._kind):
            return pa.decimal128(min(38, self._kind.precision + 4), min(38, self._kind.scale + 4))
        return pa.float64()

    def value(self, partials: pl.DataFrame) -> pl.Expr | pl.Series:
        if pa.types.is_decimal(self._kind):
            return self._of_decimals(partials[self._sum], partials[self._n])
        count = pl.col(self._n)
        return pl.when(count > 0).then(pl.col(self._sum).cast(pl.Float64) / count).alias(self.call.name)

    def _of_decimals(self, sums: pl.Series, counts: pl.Series) -> pl.Series:
        """Rounded half up, away from zero, as Spark rounds; NULL for no rows, and for a group that is not there, whose count is NULL."""
        kind = self.value_type
        unit = Decimal(1).scaleb(-kind.scale)
        context = Context(prec=kind.precision + kind.scale + 10, rounding=ROUND_HALF_UP)
        found = [
            context.quantize(context.divide(total, Decimal(count)), unit) if count else None
            for total, count in zip(sums, counts, strict=True)
        ]
        return pl.Series(self.call.name, found, dtype=pl.Decimal(kind.precision, kind.scale))


class Extreme(AggregateFunction):
    """`min(column)` and `max(column)`: the partial result is the value."""

    def __init__(self, call: Call, place: int, kind: pa.DataType) -> None:
        super().__init__(call, place, kind)
        if pa.types.is_nested(kind):  # polars knows no least or greatest of them
            raise StateSchemaError(
                f"{call.function}({call.column}) of {kind}: arrays, structs and maps are not taken; "
                "take one of their values, or CAST it to VARCHAR"
            )

    @property
    def _extreme(self) -> str:
        return self._prefix + "value"

    @property
    def value_type(self) -> pa.DataType:
        return self._kind

    def parts(self) -> list[pa.Field]:
        return [pa.field(self._extreme, self._kind)]

    def partial(self) -> list[pl.Expr]:
        if not pa.types.is_floating(self._kind):
            return [self._of(self._value).alias(self._extreme)]
        nan = pl.lit(float("nan")).cast(pl.Float32 if pa.types.is_float32(self._kind) else pl.Float64)
        return [self._of_floats(self._value.filter(self._value.is_not_nan()), nan).alias(self._extreme)]

    @abstractmethod
    def _of(self, value: pl.Expr) -> pl.Expr:
        """The extreme of values among which there is no NaN."""

    @abstractmethod
    def _of_floats(self, numbers: pl.Expr, nan: pl.Expr) -> pl.Expr:
        """The extreme of these and of the NaN that there may be beside them."""

    @abstractmethod
    def _wins(self, value: pl.Expr, before: pl.Expr) -> pl.Expr:
        """True if `value` replaces `before`; polars, too, takes NaN for greater than any number."""

    def added(self, old: str) -> list[pl.Expr]:
        value, before = pl.col(self._extreme), pl.col(old + self._extreme)
        kept = pl.when(before.is_null() | self._wins(value, before)).then(value).otherwise(before)
        return [kept.alias(self._extreme)]

    def value(self, partials: pl.DataFrame) -> pl.Expr | pl.Series:
        return pl.col(self._extreme).alias(self.call.name)

    def spark_partial(self, append_only: bool) -> list[tuple[str, str]]:
        return [(self._extreme, f"{self.call.function}({self._sql})")]

    def from_spark(self, column: Callable[[str], pl.Expr]) -> list[pl.Expr]:
        state = empty(pa.schema(self.parts())).schema
        return [column(self._extreme).cast(state[self._extreme]).alias(self._extreme)]

    def native_partial(self) -> list[NativeColumn] | None:
        if not is_native(self._kind):
            return None
        extreme, held = self.call.function, quoted_for_duckdb(self._extreme)
        return [NativeColumn(self._extreme, f"{extreme}({self._native})", f"{extreme}({held})")]


class Least(Extreme):
    """`min(column)`."""

    def _of(self, value: pl.Expr) -> pl.Expr:
        return value.min()

    def _of_floats(self, numbers: pl.Expr, nan: pl.Expr) -> pl.Expr:
        return pl.when(numbers.len() > 0).then(numbers.min()).when(self._value.is_nan().any()).then(nan)

    def _wins(self, value: pl.Expr, before: pl.Expr) -> pl.Expr:
        return value < before


class Greatest(Extreme):
    """`max(column)`."""

    def _of(self, value: pl.Expr) -> pl.Expr:
        return value.max()

    def _of_floats(self, numbers: pl.Expr, nan: pl.Expr) -> pl.Expr:
        return pl.when(self._value.is_nan().any()).then(nan).otherwise(numbers.max())

    def _wins(self, value: pl.Expr, before: pl.Expr) -> pl.Expr:
        return value > before


FUNCTIONS: Final[dict[str, type[AggregateFunction]]] = {
    "count": Count,
    "count_distinct": CountDistinct,
    "sum": Sum,
    "avg": Average,
    "min": Least,
    "max": Greatest,
}


class Aggregation:
    """All aggregate functions of one GROUP BY.

    Partial results are frames with the group's columns, `_rows`, and the parts of each function.
    """

    def __init__(self, calls: Sequence[Call], schema: pa.Schema) -> None:
        """StateSchemaError for an unknown function or column, or a column that the function cannot take."""
        self.functions = [_bound(call, place, schema) for place, call in enumerate(calls)]
        self._parts = pa.schema([part for function in self.functions for part in function.parts()])

    def partial_schema(self, group: Sequence[pa.Field]) -> pa.Schema:
        """Columns of partial results."""
        return pa.schema([*group, pa.field(ROWS, pa.int64(), False), *self._parts])

    def over_rows(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """Group columns and values of whole groups."""
        return self.values(self._partial(rows, group, pl.lit(1, pl.Int64)), group)

    def partial(self, delta: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """Partial results of a delta, one row a group in order of appearance."""
        return self._partial(delta, group, weight())

    def _partial(self, rows: pl.DataFrame, group: Sequence[str], sign: pl.Expr) -> pl.DataFrame:
        parts = [pl.col(_WEIGHT).sum().alias(ROWS), *(part for each in self.functions for part in each.partial())]
        weighted = rows.with_columns(sign.alias(_WEIGHT))
        return self._narrowed(weighted.group_by(keyed(rows, group), maintain_order=True).agg(parts))

    def added(self, found: pl.DataFrame, old: str) -> pl.DataFrame:
        """Partial results with those of the same row in the columns whose names begin with `old` added; those may be NULL."""
        parts = [pl.col(ROWS) + pl.col(old + ROWS).fill_null(0)]
        return self._narrowed(found.with_columns(parts + [part for each in self.functions for part in each.added(old)]))

    def values(self, partials: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """Group columns and values of partial results."""
        return partials.select(*group, *(function.value(partials) for function in self.functions))

    def spark_partials(self, append_only: bool) -> list[tuple[str, str]]:
        """Names and Spark SQL of the columns for each group, over rows of the input and `_change`. What is the same comes once."""
        every = self._spark_partials(append_only)
        kept = _kept(every)
        return [(name, sql) for name, sql in every if kept[name] == name]

    def _spark_partials(self, append_only: bool) -> list[tuple[str, str]]:
        found = [(CHANGES, "count(1)"), (ROWS, "count(1)" if append_only else f"sum({_SPARK_WEIGHT})")]
        return found + [part for each in self.functions for part in each.spark_partial(append_only)]

    def native_partials(self) -> list[NativeColumn] | None:
        """As `spark_partials` of rows that are only added, in DuckDB's SQL; None where one of them would not be the same."""
        found = [NativeColumn.summed(name, "count(*)") for name in (CHANGES, ROWS)]
        for each in self.functions:
            part = each.native_partial()
            if part is None:
                return None
            found += part
        return found

    def from_spark(
        self, received: pl.DataFrame, group: Sequence[str], state: pl.Schema, *, append_only: bool
    ) -> pl.DataFrame:
        """Partial results with the state's columns, of what Spark computed. ChangelogError when it has other columns."""
        kept = _kept(self._spark_partials(append_only))

        def column(name: str) -> pl.Expr:
            return pl.col(kept[name])

        columns = [pl.col(name).cast(state[name]) for name in group]
        columns.append(column(ROWS).cast(pl.Int64).alias(ROWS))
        columns += [part for each in self.functions for part in each.from_spark(column)]
        try:
            return self._narrowed(received.select(columns)).select(state.names())
        except pl.exceptions.ColumnNotFoundError as error:
            raise ChangelogError(f"partial results need {state.names()}, not {received.columns}: {error}") from error

    def _narrowed(self, partials: pl.DataFrame) -> pl.DataFrame:
        """Sums in the types of the state again. AggregateOverflowError."""
        try:
            return partials.with_columns(pl.col(name).cast(kind) for name, kind in empty(self._parts).schema.items())
        except pl.exceptions.InvalidOperationError as error:
            raise AggregateOverflowError(
                f"a sum of whole numbers does not fit 64 bits, or one of decimals 38 digits; sum a double instead: {error}"
            ) from error


def stands_for(delta: pl.DataFrame) -> int:
    """Number of changes that these rows, or partial results, are."""
    return int(delta[CHANGES].sum()) if CHANGES in delta.columns else delta.height


def _bound(call: Call, place: int, schema: pa.Schema) -> AggregateFunction:
    function = FUNCTIONS.get(call.function)
    if function is None:
        raise StateSchemaError(f"{call.function} is not an aggregate function; there are {', '.join(FUNCTIONS)}")
    if call.column is None:
        if function is not Count:
            raise StateSchemaError(f"{call.function} needs a column")
        return Count(call, place, pa.null())
    if call.column not in schema.names:
        raise StateSchemaError(f"{call.function}({call.column}): the input has the columns {schema.names}")
    return function(call, place, schema.field(call.column).type)


def _kept(partials: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By name: the column that holds it, which is the first one with the same SQL."""
    first: dict[str, str] = {}
    return {name: first.setdefault(sql, name) for name, sql in partials}
