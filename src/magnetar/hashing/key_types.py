"""Column types of vnode keys: RisingWave's names, read from RisingWave's, Spark's or Arrow's spelling.

The name decides how a value is encoded (`key_encoding`), so a pipeline states the type once and every engine follows it. One word
means two things: `timestamp` is a wall clock in SQL and RisingWave, an instant in Spark. Here it is the wall clock; `from_spark`
and `from_arrow` translate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from magnetar.hashing.errors import KeyEncodingError

MAX_TYPE_DEPTH: Final = 32
"""Deeper nesting of arrays, structs and maps is refused: no real key has it, and parsing is recursive."""

MAX_CACHED_TYPES: Final = 1024
"""Spellings of types that are remembered; the one used longest ago is read anew."""

_ALIASES: Final = {
    "boolean": "boolean", "bool": "boolean",
    "tinyint": "tinyint", "int1": "tinyint", "byte": "tinyint", "int8": "tinyint",
    "smallint": "smallint", "int2": "smallint", "short": "smallint", "int16": "smallint",
    "integer": "integer", "int": "integer", "int4": "integer", "int32": "integer",
    "bigint": "bigint", "long": "bigint", "int64": "bigint",
    "int256": "int256", "rw_int256": "int256",
    "serial": "serial",
    "real": "real", "float4": "real", "float32": "real",
    "double": "double", "double precision": "double", "float8": "double", "float64": "double",
    "decimal": "decimal", "numeric": "decimal",
    "varchar": "varchar", "string": "varchar", "text": "varchar", "character varying": "varchar",
    "bytea": "bytea", "binary": "bytea",
    "date": "date",
    "time": "time", "time without time zone": "time",
    "timestamp": "timestamp", "timestamp_ntz": "timestamp", "timestamp without time zone": "timestamp",
    "timestamptz": "timestamptz", "timestamp_ltz": "timestamptz", "timestamp with time zone": "timestamptz",
    "interval": "interval",
    "jsonb": "jsonb",
    "vector": "vector",
}  # fmt: skip

_NESTED: Final = ("array", "struct", "map")


@dataclass(frozen=True, slots=True)
class KeyType:
    """A column type. `name` is canonical; `children` are the element, the fields, or key and value; `fields` names a struct's."""

    name: str
    children: tuple[KeyType, ...] = ()
    fields: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> KeyType:
        """Read `bigint`, `varchar`, `numeric(10,2)`, `array<int>`, `struct<a:int,b:varchar>`, `map<varchar,int>`, `int[]`.

        `float` is not taken: it is 4 bytes in Spark and 8 in RisingWave; say `real` or `double`. KeyEncodingError.
        """
        return _parse(text, {}, 0)

    @staticmethod
    def from_spark(text: str) -> KeyType:
        """Read a Spark type as `DataType.simpleString()` gives it: `timestamp` is an instant there and `float` has 4 bytes."""
        return _parse(text, {"timestamp": "timestamptz", "float": "real"}, 0)

    @staticmethod
    def from_arrow(arrow_type: Any) -> KeyType:
        """The type of an Arrow column. KeyEncodingError for types without an encoding."""
        return _from_arrow(arrow_type)

    def __str__(self) -> str:
        if self.name == "struct":
            fields = zip(self.fields, self.children, strict=True)
            return f"struct<{','.join(f'{name}:{child}' for name, child in fields)}>"
        if self.children:
            return f"{self.name}<{','.join(map(str, self.children))}>"
        return self.name


def as_key_type(given: str | KeyType) -> KeyType:
    """A KeyType from its text or itself."""
    return given if isinstance(given, KeyType) else _parse_cached(given)


@lru_cache(maxsize=MAX_CACHED_TYPES)
def _parse_cached(text: str) -> KeyType:
    return KeyType.parse(text)


def _parse(text: str, overrides: dict[str, str], depth: int) -> KeyType:
    word = " ".join(text.strip().lower().split())
    if depth > MAX_TYPE_DEPTH:
        raise KeyEncodingError(f"type is nested deeper than {MAX_TYPE_DEPTH} levels: {text[:80]!r}")
    if word.endswith("[]"):
        return KeyType("array", (_parse(text.strip()[:-2], overrides, depth + 1),))
    for nested in _NESTED:
        if word.startswith(f"{nested}<") and word.endswith(">"):
            return _parse_nested(nested, text.strip()[len(nested) + 1 : -1], overrides, depth + 1)
    base = word.split("(", 1)[0].strip()
    if base.startswith("interval"):
        base = "interval"
    name = overrides.get(base) or _ALIASES.get(base)
    if name is None:
        hint = ": say 'real' (4 bytes) or 'double' (8 bytes)" if base == "float" else ""
        raise KeyEncodingError(f"no vnode encoding for type {text.strip()!r}{hint}")
    return KeyType(name)


def _parse_nested(kind: str, inner: str, overrides: dict[str, str], depth: int) -> KeyType:
    parts = _split(inner)
    if kind == "struct":
        names, types = [], []
        for part in parts:
            name, colon, rest = part.partition(":")
            if not colon:
                raise KeyEncodingError(f"struct field {part.strip()!r} needs the form name:type")
            names.append(name.strip())
            types.append(_parse(rest, overrides, depth))
        return KeyType("struct", tuple(types), tuple(names))
    expected = 1 if kind == "array" else 2
    if len(parts) != expected:
        raise KeyEncodingError(f"{kind}<{inner}> needs {expected} type{'s' if expected > 1 else ''}")
    return KeyType(kind, tuple(_parse(part, overrides, depth) for part in parts))


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


_FROM_ARROW: Final = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "integer", "int64": "bigint",
    "float": "real", "double": "double",
    "string": "varchar", "large_string": "varchar", "string_view": "varchar",
    "binary": "bytea", "large_binary": "bytea", "binary_view": "bytea",
    "date32[day]": "date", "date64[ms]": "date", "month_day_nano_interval": "interval",
}  # fmt: skip


def _from_arrow(arrow_type: Any) -> KeyType:
    text = str(arrow_type)
    if text in _FROM_ARROW:
        return KeyType(_FROM_ARROW[text])
    for prefix, name in (
        ("decimal", "decimal"),
        ("time32", "time"),
        ("time64", "time"),
        ("duration", "interval"),
        ("fixed_size_binary", "bytea"),
    ):
        if text.startswith(prefix):
            return KeyType(name)
    if text.startswith("timestamp"):
        return KeyType("timestamptz" if arrow_type.tz is not None else "timestamp")
    if text.startswith("dictionary"):
        return _from_arrow(arrow_type.value_type)
    if text.startswith("struct"):
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        return KeyType("struct", tuple(_from_arrow(field.type) for field in fields), tuple(f.name for f in fields))
    if text.startswith("map"):
        return KeyType("map", (_from_arrow(arrow_type.key_type), _from_arrow(arrow_type.item_type)))
    if text.startswith(("list", "large_list", "fixed_size_list")):
        return KeyType("array", (_from_arrow(arrow_type.value_type),))
    raise KeyEncodingError(f"no vnode encoding for Arrow type {text}: cast the column first")
