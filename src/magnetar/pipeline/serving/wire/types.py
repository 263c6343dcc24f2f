"""The types that clients are told of, by PostgreSQL's object ids, and which of them a column of DuckDB or Arrow is. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PgType:
    """`size`: bytes, -1 where it varies. `array`: the oid of arrays of it. `duckdb`: what a parameter of this type is cast to.
    `element`: the name of an array's elements' type."""

    oid: int
    name: str
    size: int
    array: int
    duckdb: str
    category: str = "U"
    element: str = ""


_ROWS: Final = """
16 bool 1 1000 BOOLEAN B
17 bytea -1 1001 BLOB U
18 char 1 1002 VARCHAR Z
19 name 64 1003 VARCHAR S
20 int8 8 1016 BIGINT N
21 int2 2 1005 SMALLINT N
22 int2vector -1 1006 SMALLINT[] A
23 int4 4 1007 INTEGER N
24 regproc 4 1008 VARCHAR N
25 text -1 1009 VARCHAR S
26 oid 4 1028 UINTEGER N
114 json -1 199 JSON U
700 float4 4 1021 FLOAT N
701 float8 8 1022 DOUBLE N
705 unknown -2 0 VARCHAR X
1042 bpchar -1 1014 VARCHAR S
1043 varchar -1 1015 VARCHAR S
1082 date 4 1182 DATE D
1083 time 8 1183 TIME D
1114 timestamp 8 1115 TIMESTAMP D
1184 timestamptz 8 1185 TIMESTAMPTZ D
1186 interval 16 1187 INTERVAL T
1700 numeric -1 1231 DECIMAL(38,9) N
2205 regclass 4 2210 VARCHAR N
2206 regtype 4 2211 VARCHAR N
2249 record -1 2287 VARCHAR P
2278 void 4 0 VARCHAR P
2950 uuid 16 2951 UUID U
3802 jsonb -1 3807 JSON U
"""

BY_NAME: Final[dict[str, PgType]] = {}
"""Arrays are called as PostgreSQL calls them: `_int4`."""

for _row in _ROWS.split("\n"):
    if not _row:
        continue
    _oid, _name, _size, _array, _duckdb, _category = _row.split()
    BY_NAME[_name] = PgType(int(_oid), _name, int(_size), int(_array), _duckdb, _category)
    if int(_array):
        BY_NAME[f"_{_name}"] = PgType(int(_array), f"_{_name}", -1, 0, f"{_duckdb}[]", "A", _name)

BY_OID: Final[dict[int, PgType]] = {kind.oid: kind for kind in BY_NAME.values()}

TEXT: Final = BY_NAME["text"]

_DUCKDB: Final = {
    "BOOLEAN": "bool",
    "TINYINT": "int2",
    "UTINYINT": "int2",
    "SMALLINT": "int2",
    "USMALLINT": "int4",
    "INTEGER": "int4",
    "UINTEGER": "int8",
    "BIGINT": "int8",
    "UBIGINT": "numeric",
    "HUGEINT": "numeric",
    "UHUGEINT": "numeric",
    "FLOAT": "float4",
    "DOUBLE": "float8",
    "VARCHAR": "text",
    "BLOB": "bytea",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_S": "timestamp",
    "TIMESTAMP_MS": "timestamp",
    "TIMESTAMP_NS": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "INTERVAL": "interval",
    "UUID": "uuid",
    "JSON": "json",
}


def of_duckdb(text: str) -> tuple[PgType, int]:
    """The type of a result's column by DuckDB's name of it, and its modifier (-1: none)."""
    if text.endswith("]"):
        return _array_of(of_duckdb(text[: text.rindex("[")])[0]), -1
    decimal = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", text)
    if decimal is not None:
        return BY_NAME["numeric"], numeric_modifier(int(decimal[1]), int(decimal[2]))
    if text.startswith("TUPLE"):
        return BY_NAME["record"], -1
    if text.startswith(("STRUCT", "MAP", "UNION")):
        return BY_NAME["json"], -1
    return BY_NAME[_DUCKDB.get(text, "text")], -1


def _array_of(element: PgType) -> PgType:
    """Arrays of arrays have the type of arrays, as in PostgreSQL, which has one type for any number of dimensions."""
    return element if element.element else BY_NAME.get(f"_{element.name}", BY_NAME["json"])


def has_any_digits(precision: int, scale: int) -> bool:
    """Whether it is a NUMERIC without digits, or computed from one: what stands behind the point is then as long as it has to be."""
    return (precision >= ANY_DIGITS[0] and scale == ANY_DIGITS[1]) or (precision, scale) == (38, 2 * ANY_DIGITS[1])


ANY_DIGITS: Final = (28, 10)
"""How NUMERIC without digits is stored: all digits at least, and those behind the point."""


def numeric_modifier(precision: int, scale: int) -> int:
    if has_any_digits(precision, scale):
        return -1
    return (precision << 16 | scale) + 4


def of_arrow(kind: Any) -> tuple[PgType, int]:
    """The type of a view's column, and its modifier."""
    if pa.types.is_decimal(kind):
        return BY_NAME["numeric"], numeric_modifier(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return BY_NAME["timestamptz" if kind.tz else "timestamp"], -1
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _array_of(of_arrow(kind.value_type)[0]), -1
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return BY_NAME["json"], -1
    for names, found in (
        ((pa.bool_(),), "bool"),
        ((pa.int8(), pa.uint8(), pa.int16()), "int2"),
        ((pa.uint16(), pa.int32()), "int4"),
        ((pa.uint32(), pa.int64()), "int8"),
        ((pa.uint64(),), "numeric"),
        ((pa.float32(),), "float4"),
        ((pa.float64(),), "float8"),
        ((pa.date32(),), "date"),
    ):
        if kind in names:
            return BY_NAME[found], -1
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return BY_NAME["bytea"], -1
    if pa.types.is_time(kind):
        return BY_NAME["time"], -1
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return BY_NAME["interval"], -1
    return TEXT, -1
