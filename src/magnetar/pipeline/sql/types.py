"""Column types: RisingWave's spelling normalised, and the same as a Spark type."""

from __future__ import annotations

import sqlglot
import sqlglot.errors
from sqlglot import exp

NUMERIC_DIGITS = (28, 10)
"""Of NUMERIC without digits: all, and those behind the point."""
_MAX_TYPE_CHARACTERS = 2_000
_WITHOUT_SPARK_TYPE = frozenset(
    {
        "INTERVAL",
        "TIME",
        "TIMETZ",
        "UINT",
        "UBIGINT",
        "USMALLINT",
        "UTINYINT",
        "INT128",
        "INT256",
        "UUID",
        "USER-DEFINED",
    }
)


def normalise_type(text: str) -> str:
    """`character varying` -> `VARCHAR`. ValueError for what is not a type or has no Spark type."""
    return str(_build(text).sql("risingwave"))


def spark_type(text: str) -> str:
    """`STRUCT<a VARCHAR>` -> `STRUCT<a: STRING>`; `jsonb` is a string for Spark."""
    built = _build(text).copy()
    for node in built.find_all(exp.DataType):
        if node.this in (exp.DType.JSON, exp.DType.JSONB):
            node.set("this", exp.DType.TEXT)
        elif node.this == exp.DType.DECIMAL and not node.expressions:
            # without digits it is DECIMAL(10, 0) for Spark, which drops what is behind the point
            node.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(n)) for n in NUMERIC_DIGITS])
    return str(built.sql("spark"))


def _build(text: str) -> exp.DataType:
    fix = "use for example INT, BIGINT, DOUBLE, NUMERIC(10, 2), VARCHAR, BOOLEAN, BYTEA, DATE, TIMESTAMP, TIMESTAMPTZ, STRUCT<...>"
    if len(text) > _MAX_TYPE_CHARACTERS:
        raise ValueError(f"this type is longer than {_MAX_TYPE_CHARACTERS} characters; name fewer fields")
    try:
        built = _read(text)
        spelled = built.sql("risingwave")
        if not built.sql("spark") or _read(spelled).sql("risingwave") != spelled:
            raise ValueError
    except (sqlglot.errors.SqlglotError, RecursionError, ValueError, AttributeError, IndexError, KeyError):
        raise ValueError(f"{text[:60]!r} is not a column type; {fix}") from None
    for node in built.find_all(exp.DataType):
        if str(getattr(node.this, "value", node.this)).upper() in _WITHOUT_SPARK_TYPE:
            raise ValueError(f"{text[:60]!r} has no Spark type; {fix}")
    return built


def _read(text: str) -> exp.DataType:
    """Within a CAST: `DataType.build` would read `INT c` as INT and drop the rest."""
    cast = sqlglot.parse_one(f"CAST(x AS {text}\n)", read="risingwave")
    if not isinstance(cast, exp.Cast) or not isinstance(cast.to, exp.DataType) or cast.args.get("format"):
        raise ValueError
    return cast.to
