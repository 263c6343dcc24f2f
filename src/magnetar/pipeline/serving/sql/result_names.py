"""What PostgreSQL calls the columns of a query's result, and the types that a query names. A decision core."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from sqlglot import exp

from magnetar.pipeline.serving.wire.types import BY_NAME, PgType

Node: TypeAlias = Any
"""A node of sqlglot's trees, whose classes its versions call differently."""


def cast_type(cast: Node) -> PgType | None:
    """The type that a CAST names, where clients know it."""
    kind = cast.args.get("to")
    if kind is None:
        return None
    if isinstance(kind, exp.DataType) and kind.this == exp.DataType.Type.ARRAY:
        inner = kind.expressions[0] if kind.expressions else None
        name = inner.sql("postgres").lower() if inner is not None else ""
        return BY_NAME.get(f"_{_SQL_NAMES.get(name, name)}")
    name = kind.sql("postgres").lower().split("(")[0].strip()
    return BY_NAME.get(_SQL_NAMES.get(name, name))


_SQL_NAMES: Final = {
    "int": "int4",
    "integer": "int4",
    "bigint": "int8",
    "smallint": "int2",
    "boolean": "bool",
    "double precision": "float8",
    "real": "float4",
    "decimal": "numeric",
    "char": "bpchar",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}


def result_names(tree: Node) -> tuple[str, ...] | None:
    """The names that PostgreSQL gives the columns; None where a star leaves them to the tables."""
    first: Node = tree
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    if isinstance(first, exp.Values):
        return (
            tuple(f"column{at}" for at, _ in enumerate(first.expressions[0].expressions, 1))
            if first.expressions
            else None
        )
    if not isinstance(first, exp.Select):
        return None
    if any(
        isinstance(part, exp.Star)
        or (isinstance(part, exp.Column) and isinstance(part.this, exp.Star))
        or (isinstance(part, exp.Dot) and isinstance(part.expression, exp.Star))
        for part in first.expressions
    ):
        return None
    return tuple(_name_of(part) for part in first.expressions)


def _name_of(node: Node) -> str:
    if isinstance(node, exp.Alias):
        return node.alias
    if isinstance(node, exp.Column | exp.Identifier):
        quoted = node.args.get("quoted") if isinstance(node, exp.Identifier) else node.this.args.get("quoted")
        return node.name if quoted else node.name.lower()
    if isinstance(node, exp.Paren | exp.Collate):
        return _name_of(node.this)
    if isinstance(node, exp.Cast):
        inner = _name_of(node.this)
        kind = cast_type(node)
        return inner if inner != UNNAMED else (kind.name if kind is not None else UNNAMED)
    if isinstance(node, exp.Dot):
        return _name_of(node.expression)
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.Case):
        return "case"
    if isinstance(node, exp.Exists):
        return "exists"
    if isinstance(node, exp.Boolean):
        return "bool"
    if isinstance(node, exp.Window | exp.Filter | exp.WithinGroup | exp.Order | exp.IgnoreNulls):
        return _name_of(node.this)
    if isinstance(node, exp.Subquery):
        names = result_names(node)
        return names[0] if names else UNNAMED
    if isinstance(node, exp.Func) and not isinstance(node, exp.Binary | exp.Connector):
        return _FUNCTION_NAMES.get(type(node).__name__, node.sql_name().lower())
    return UNNAMED


UNNAMED: Final = "?column?"

_FUNCTION_NAMES: Final = {
    "CurrentTimestamp": "now",
    "CurrentVersion": "version",
    "TimestampTrunc": "date_trunc",
    "DateTrunc": "date_trunc",
    "GroupConcat": "string_agg",
    "StrPosition": "strpos",
    "TimeToStr": "to_char",
    "CurrentDatabase": "current_database",
    "ExplodingGenerateSeries": "generate_series",
    "ArrayAgg": "array_agg",
    "Stddev": "stddev",
    "LogicalAnd": "bool_and",
    "LogicalOr": "bool_or",
}
