"""JSON made of values: to_jsonb, jsonb_build_object, jsonb_build_array, jsonb_agg and jsonb_object_agg, as text of JSON in Spark.

The text is spaced as PostgreSQL writes a JSONB; of an object whose keys are literals they are in JSONB's order, each once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.typed import ArrayKind, StructKind, kind, of_kind, refused, spark_of, text_of

_ELEMENT: Final = "__element"
_DEEP_MAX: Final = 4


AGGREGATES: Final = {
    "JSONB_AGG": exp.JSONArrayAgg.from_arg_list,
    "JSON_AGG": exp.JSONArrayAgg.from_arg_list,
    "JSONB_OBJECT_AGG": exp.JSONBObjectAgg.from_arg_list,
    "JSON_OBJECT_AGG": exp.JSONBObjectAgg.from_arg_list,
}
"""What the parser makes of them."""


def to_json(given: list[exp.Expr]) -> exp.Expr:
    """`to_jsonb(x)`: NULL of NULL. Raises SqlError."""
    if len(given) != 1:
        raise SqlError(f"expected 1 argument, found {len(given)}")
    return of_kind(_json(given[0]), "json")


def _json(node: exp.Expr, deep: int = 0) -> exp.Expr:
    """Text of JSON, NULL of NULL."""
    found = kind(node)
    if found == "json":
        return node
    if found in ("int", "bool", "numeric"):
        return spark_of("CAST(_0 AS STRING)", node)
    if found == "float":
        text = text_of(node.copy())
        return spark_of(
            "CASE WHEN ISNAN(_0) OR ABS(_0) = DOUBLE('Infinity') THEN CONCAT('\"', CAST(_0 AS STRING), '\"') ELSE _1 END",
            node,
            text,
        )
    if found == "date":
        return spark_of("CONCAT('\"', CAST(_0 AS STRING), '\"')", node)
    if found in ("timestamp", "timestamptz"):
        zone = "+00:00" if found == "timestamptz" else ""
        return spark_of(f"CONCAT('\"', REPLACE(CAST(_0 AS STRING), ' ', 'T'), '{zone}\"')", node)
    if found in ("bytes", "interval"):
        raise refused(f"JSON of {found}", "write encode(x, 'hex') of bytes, or EXTRACT(EPOCH FROM x) of an interval")
    if isinstance(found, ArrayKind) and found.element is not None and deep < _DEEP_MAX:
        name = f"{_ELEMENT}{deep}"
        inner = _json(of_kind(exp.column(name), found.element), deep + 1)
        each = f"TRANSFORM(_0, {name} -> COALESCE(_1, 'null'))"
        return spark_of(f"CONCAT('[', ARRAY_JOIN({each}, ', '), ']')", node, inner)
    if isinstance(found, StructKind) and None not in found.fields.values() and deep < _DEEP_MAX:
        return _json_of_struct(node, found, deep)
    # of what nobody knows the kind, and of text: Spark's JSON of a row that has it, without what stands around it
    whole = "TO_JSON(STRUCT(_0 AS v), MAP('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSxxx'))"
    return spark_of(f"CASE WHEN NOT _0 IS NULL THEN SUBSTRING({whole}, 6, LENGTH({whole}) - 6) END", node)


def _json_of_struct(node: exp.Expr, found: StructKind, deep: int) -> exp.Expr:
    """An object of the fields; Spark's own JSON of a row gives each time a zone."""
    parts: list[exp.Expr] = []
    for name in sorted(found.fields, key=_order):
        quoted = name.replace("`", "``")
        field = of_kind(spark_of(f"(_0).`{quoted}`", node), found.fields[name])
        shown = exp.Literal.string(f"{json.dumps(name, ensure_ascii=False)}: ")
        value = spark_of("COALESCE(_0, 'null')", _json(field, deep + 1))
        parts.append(exp.Anonymous(this="concat", expressions=[shown, value]))
    return spark_of("CASE WHEN NOT _0 IS NULL THEN _1 END", node, _joined(parts, "{", "}"))


def _or_null(node: exp.Expr) -> exp.Expr:
    return spark_of("COALESCE(_0, 'null')", _json(node))


def _joined(parts: list[exp.Expr], first: str, last: str) -> exp.Expr:
    """One text, which is NULL where a part is."""
    between: list[exp.Expr] = []
    for number, part in enumerate(parts):
        between += [exp.Literal.string(", ")] if number else []
        between.append(part)
    whole = [exp.Literal.string(first), *between, exp.Literal.string(last)]
    return of_kind(exp.Anonymous(this="concat", expressions=whole), "json")


def build_array(given: list[exp.Expr]) -> exp.Expr:
    """`jsonb_build_array(a, b, ...)`. Raises SqlError."""
    return _joined([_or_null(each) for each in given], "[", "]")


def build_object(given: list[exp.Expr]) -> exp.Expr:
    """`jsonb_build_object(key, value, ...)`; NULL where a key is. Raises SqlError."""
    if len(given) % 2:
        raise SqlError("jsonb_build_object() takes keys and values in turn; it has one argument too few")
    pairs = list(zip(given[::2], given[1::2], strict=True))
    if all(isinstance(key, exp.Literal) for key, _ in pairs):
        by_key = {key.name: (key, value) for key, value in pairs}
        pairs = [by_key[name] for name in sorted(by_key, key=_order)]
    parts: list[exp.Expr] = []
    for key, value in pairs:
        shown = of_kind(text_of(of_kind(key, kind(key) or "text")), "text")
        parts.append(
            exp.Anonymous(this="concat", expressions=[_json(shown), exp.Literal.string(": "), _or_null(value)])
        )
    return _joined(parts, "{", "}")


def _order(name: str) -> tuple[int, bytes]:
    """Of the keys of a JSONB: shorter ones first."""
    text = name.encode()
    return len(text), text


def aggregated(node: exp.JSONArrayAgg, array_agg: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """`jsonb_agg(x ORDER BY y)`: JSON of the array of the values, NULL of no rows. `array_agg`: the rule for that."""
    inner = node.this.this if isinstance(node.this, exp.Order) else node.this
    value = inner.expressions[0] if isinstance(inner, exp.Distinct) else inner
    found = array_agg(exp.ArrayAgg(this=node.this))
    return of_kind(_json(of_kind(found, ArrayKind.of(kind(value)))), "json")


def aggregated_object(node: exp.JSONBObjectAgg) -> exp.Expr:
    """In the order of JSONB's keys. Of several values for a key PostgreSQL takes the last row's, which in a view are in no order: the
    greatest text is taken. NULL of no rows, and where a key is NULL."""
    if isinstance(node.this, exp.Distinct | exp.Order) or isinstance(node.expression, exp.Order):
        raise refused("jsonb_object_agg() with DISTINCT or ORDER BY", "leave it out: the keys are in order, each once")
    key = text_of(node.this)
    rows = "SORT_ARRAY(COLLECT_LIST(NAMED_STRUCT('n', OCTET_LENGTH(_0), 'k', _1, 'v', _2)))"
    last = "CASE WHEN n IS NULL OR n.k <> e.k THEN CONCAT(e.k, ': ', e.v) END"  # beside the one behind it; NULLs are not joined
    text = f"ARRAY_JOIN(ZIP_WITH({rows}, SLICE({rows}, 2, GREATEST(SIZE({rows}), 1)), (e, n) -> {last}), ', ')"
    found = f"CASE WHEN COUNT(*) > 0 AND COUNT_IF(_0 IS NULL) = 0 THEN CONCAT('{{', {text}, '}}') END"
    return of_kind(spark_of(found, key, _json(of_kind(key.copy(), "text")), _or_null(node.expression)), "json")
