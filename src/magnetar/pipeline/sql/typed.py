"""Expressions with the sort of value they have, which PostgreSQL's rules depend on, and Spark SQL made out of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import sqlglot
import sqlglot.errors
from sqlglot import exp

from magnetar.pipeline.errors import SqlError

KIND: Final = "kind"
"""In the `meta` of a node: which sort of value it is, where that is known: one of KINDS."""
KINDS: Final = (
    "int",
    "numeric",
    "float",
    "text",
    "bool",
    "date",
    "timestamp",
    "timestamptz",
    "bytes",
    "json",
    "array",
    "interval",
    "struct",
    "map",
)

_SPELLED: Final = {
    "int": ("SMALLINT", "INT", "BIGINT", "TINYINT"),
    "numeric": ("DECIMAL", "BIGDECIMAL"),
    "float": ("DOUBLE", "FLOAT"),
    "text": ("TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR", "BPCHAR", "NAME"),
    "bool": ("BOOLEAN",),
    "date": ("DATE",),
    "timestamp": ("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME"),
    "timestamptz": ("TIMESTAMPTZ", "TIMESTAMPLTZ"),
    "bytes": ("VARBINARY", "BINARY"),
    "json": ("JSON", "JSONB"),
    "array": ("ARRAY", "LIST"),
    "interval": ("INTERVAL",),
    "struct": ("STRUCT", "OBJECT"),
    "map": ("MAP",),
}
_KIND_OF: Final = {spelled: kind for kind, all_of in _SPELLED.items() for spelled in all_of}
NUMBERS: Final = ("int", "numeric", "float")
TIMES: Final = ("date", "timestamp", "timestamptz")


def kind_of_type(text: str) -> str | None:
    """The kind of a column's type in RisingWave's spelling."""
    try:
        return kind_of(exp.DataType.build(text, dialect="risingwave"))
    except (sqlglot.errors.SqlglotError, ValueError):
        return None


class ArrayKind(str):
    """The kind `array`, with the kind of the elements."""

    element: str | None = None

    @classmethod
    def of(cls, element: str | None) -> ArrayKind:
        found = cls("array")
        found.element = element
        return found


class StructKind(str):
    """The kind `struct`, with the names of its fields as they are spelled, and their kinds."""

    fields: Mapping[str, str | None]

    @classmethod
    def of(cls, fields: Mapping[str, str | None]) -> StructKind:
        found = cls("struct")
        found.fields = fields
        return found

    def field(self, name: str) -> tuple[str, str | None]:
        """As it is spelled, and its kind. Raises SqlError."""
        for each, found in self.fields.items():
            if each.lower() == name.lower():
                return each, found
        raise SqlError(f"the STRUCT has no field {name}; it has {', '.join(self.fields)}")


class MapKind(str):
    """The kind `map`, with those of its keys and values."""

    key: str | None = None
    value: str | None = None

    @classmethod
    def of(cls, key: str | None, value: str | None) -> MapKind:
        found = cls("map")
        found.key, found.value = key, value
        return found

    @property
    def entry(self) -> StructKind:
        return StructKind.of({"key": self.key, "value": self.value})


def kind_of(built: exp.DataType) -> str | None:
    found = _KIND_OF.get(str(getattr(built.this, "value", built.this)).upper())
    if found == "struct" and all(isinstance(each, exp.ColumnDef) for each in built.expressions):
        return StructKind.of({each.name: _kind_within(each.args.get("kind")) for each in built.expressions})
    if found == "map" and len(built.expressions) == 2:
        return MapKind.of(*(_kind_within(each) for each in built.expressions))
    if found == "array" and built.expressions and isinstance(built.expressions[0], exp.DataType):
        return ArrayKind.of(kind_of(built.expressions[0]))
    return found


def _kind_within(built: object) -> str | None:
    return kind_of(built) if isinstance(built, exp.DataType) else None


def element_kind(node: exp.Expr) -> str | None:
    """Of the elements of an array, where that is known."""
    found = kind(node)
    return found.element if isinstance(found, ArrayKind) else None


def kind(node: exp.Expr) -> str | None:
    """What `translated` found out, or a column was said to be."""
    found: str | None = node.meta.get(KIND)
    return found


def of_kind(node: exp.Expr, found: str | None) -> exp.Expr:
    """The node, with its kind noted."""
    if found is not None:
        node.meta[KIND] = found
    else:
        node.meta.pop(KIND, None)
    return node


def spark_of(template: str, *nodes: exp.Expr) -> exp.Expr:
    """Spark SQL in which `_0`, `_1`, ... stand for nodes."""
    tree = sqlglot.parse_one(template, read="spark")
    slots = [each for each in tree.find_all(exp.Column) if re.fullmatch(r"_\d", each.name) and not each.table]
    if any(int(slot.name[1:]) >= len(nodes) for slot in slots):
        raise SqlError("a function has too few arguments")
    for slot in slots:
        given = nodes[int(slot.name[1:])].copy()
        bare = isinstance(given, exp.Column | exp.Literal | exp.Func | exp.Paren | exp.Cast | exp.Null | exp.Boolean)
        put = given if bare else exp.Paren(this=given)
        if slot is tree:
            return put
        slot.replace(put)
    return tree


def refused(what: str, instead: str) -> SqlError:
    return SqlError(f"{what} has no equal in Spark; {instead}")


def text_of(node: exp.Expr) -> exp.Expr:
    """As PostgreSQL casts it to text. Raises SqlError."""
    found = kind(node)
    if found == "text" or (isinstance(node, exp.Literal) and node.is_string):
        return node
    if found == "float":
        return of_kind(spark_of(_FLOAT_TEXT, node), "text")
    if found == "timestamptz":
        return of_kind(spark_of("CAST(_0 AS STRING) || '+00'", node), "text")
    if found in ("array", "bytes", "interval", "struct", "map"):
        raise refused(
            f"the text of {'' if found == 'bytes' else 'an ' if found[0] in 'ai' else 'a '}{found}",
            "take its fields or elements, write to_jsonb(x)::text, or encode(x, 'hex') of bytes",
        )
    return of_kind(spark_of("CAST(_0 AS STRING)", node), "text")


_FLOAT_TEXT: Final = """
CASE WHEN _0 IS NULL THEN NULL WHEN ISNAN(_0) THEN 'NaN' WHEN ABS(_0) = DOUBLE('Infinity') THEN CAST(_0 AS STRING)
  WHEN _0 = 0 THEN IF(CAST(_0 AS STRING) LIKE '-%', '-0', '0')
  WHEN ABS(_0) >= 1e-4 AND ABS(_0) < 1e15 THEN
    REGEXP_REPLACE(CAST(CAST(CAST(_0 AS STRING) AS DECIMAL(38, 22)) AS STRING), '[.]?0+$', '')
  ELSE REGEXP_REPLACE(REGEXP_REPLACE(REPLACE(REPLACE(CAST(_0 AS STRING), '.0E', 'E'), 'E-', 'e-'), 'E', 'e+'), '([+-])(\\\\d)$', '$10$2')
END
"""


def sub_text(text: exp.Expr, start: exp.Expr, length: exp.Expr | None) -> exp.Expr:
    if length is None:
        return of_kind(spark_of("SUBSTRING(_0, IF(_1 < 1, 1, _1))", text, start), "text")
    taken = "_1 + _2 - IF(_1 < 1, 1, _1)"
    whole = f"SUBSTRING(_0, IF(_1 < 1, 1, _1), IF({taken} < 0, 0, {taken}))"
    return of_kind(spark_of(f"CASE WHEN _2 >= 0 THEN {whole} END", text, start, length), "text")


def truncated_time(unit: str, source: exp.Expr) -> exp.Expr:
    units = ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
    one = unit.lower()
    names = {"microsecond": "microseconds", "millisecond": "milliseconds"}
    one = names.get(one.rstrip("s"), one.rstrip("s"))
    if one not in units:
        raise refused(f"date_trunc('{unit}', ...)", f"take one of {', '.join(units)}")
    spark_unit = {"microseconds": "MICROSECOND", "milliseconds": "MILLISECOND"}.get(one, one.upper())
    cut = f"DATE_TRUNC('{spark_unit}', CAST(_0 AS TIMESTAMP))"
    if kind(source) == "timestamp":
        return of_kind(spark_of(cut, source), "timestamp")
    return of_kind(spark_of(cut, source), "timestamptz")
