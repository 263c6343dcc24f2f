"""Structs and maps: `(a).b`, ROW(...), MAP {...}, and RisingWave's functions of maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlglot import exp

from magnetar.pipeline.errors import SqlError
from magnetar.pipeline.sql.typed import ArrayKind, MapKind, StructKind, element_kind, kind, of_kind, refused, spark_of

# the names within must not be those of columns
_MERGED: Final = "MAP_CONCAT(MAP_FILTER(_0, (__key, __value) -> NOT MAP_CONTAINS_KEY(_1, __key)), _1)"


def field(node: exp.Dot) -> exp.Expr:
    """`(a).b` of a struct. Raises SqlError for a field that it is known not to have."""
    found = kind(node.this)
    if isinstance(found, StructKind) and isinstance(node.expression, exp.Identifier):
        name, inner = found.field(node.expression.name)
        node.set("expression", exp.to_identifier(name, quoted=not name.isidentifier()))
        return of_kind(node, inner)
    if found is not None and found != "struct":
        raise SqlError(f"a value of the sort {found} has no fields; (x).field takes one of a STRUCT")
    return node


def row(given: list[exp.Expr]) -> exp.Expr:
    """ROW(a, b), whose fields are f1, f2, ..."""
    if not given:
        raise refused("ROW()", "name at least one value")
    names = [f"f{number}" for number in range(1, len(given) + 1)]
    parts = [exp.PropertyEQ(this=exp.to_identifier(n), expression=each) for n, each in zip(names, given, strict=True)]
    made = exp.Struct(expressions=parts)
    return of_kind(made, StructKind.of({name: kind(each) for name, each in zip(names, given, strict=True)}))


def map_literal(node: exp.Expr) -> exp.Expr:
    """`MAP {key: value, ...}`."""
    pairs = [each for each in node.this.expressions if isinstance(each, exp.PropertyEQ)]
    parts: list[exp.Expr] = []
    for pair in pairs:
        parts += [pair.this, pair.expression]
    kinds = [next((kind(each) for each in parts[start::2] if kind(each) is not None), None) for start in (0, 1)]
    return of_kind(exp.Anonymous(this="map", expressions=parts), MapKind.of(*kinds))


def at_key(node: exp.Expr, key: exp.Expr) -> exp.Expr:
    """The value of a key, NULL where there is none."""
    found = kind(node)
    return of_kind(spark_of("TRY_ELEMENT_AT(_0, _1)", node, key), found.value if isinstance(found, MapKind) else None)


def _counted(name: str, given: list[exp.Expr], count: int) -> None:
    if len(given) != count:
        raise SqlError(f"{name}() takes {count} arguments, found {len(given)}")


def _same_map(name: str, template: str, count: int) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(given: list[exp.Expr]) -> exp.Expr:
        _counted(name, given, count)
        return of_kind(spark_of(template, *given), kind(given[0]))

    return build


def _part(name: str, template: str, of: Callable[[MapKind], str | None]) -> Callable[[list[exp.Expr]], exp.Expr]:
    def build(given: list[exp.Expr]) -> exp.Expr:
        _counted(name, given, 1)
        found = kind(given[0])
        return of_kind(spark_of(template, given[0]), ArrayKind.of(of(found) if isinstance(found, MapKind) else None))

    return build


def _of_entries(given: list[exp.Expr]) -> exp.Expr:
    _counted("map_from_entries", given, 1)
    inner = element_kind(given[0])
    kinds = list(inner.fields.values()) if isinstance(inner, StructKind) else []
    found = MapKind.of(*kinds) if len(kinds) == 2 else MapKind.of(None, None)
    return of_kind(spark_of("MAP_FROM_ENTRIES(_0)", given[0]), found)


def _of_arrays(given: list[exp.Expr]) -> exp.Expr:
    _counted("map_from_key_values", given, 2)
    return of_kind(spark_of("MAP_FROM_ARRAYS(_0, _1)", *given), MapKind.of(*map(element_kind, given)))


def _access(given: list[exp.Expr]) -> exp.Expr:
    _counted("map_access", given, 2)
    return at_key(*given)


def _contains(given: list[exp.Expr]) -> exp.Expr:
    _counted("map_contains", given, 2)
    return of_kind(spark_of("MAP_CONTAINS_KEY(_0, _1)", *given), "bool")


def _length(given: list[exp.Expr]) -> exp.Expr:
    _counted("map_length", given, 1)
    return of_kind(spark_of("SIZE(_0)", *given), "int")


FUNCTIONS: Final[Mapping[str, Callable[[list[exp.Expr]], exp.Expr]]] = {
    "ROW": row,
    "MAP_ACCESS": _access,
    "MAP_CONTAINS": _contains,
    "MAP_LENGTH": _length,
    "MAP_KEYS": _part("map_keys", "MAP_KEYS(_0)", lambda found: found.key),
    "MAP_VALUES": _part("map_values", "MAP_VALUES(_0)", lambda found: found.value),
    "MAP_ENTRIES": _part("map_entries", "MAP_ENTRIES(_0)", lambda found: found.entry),
    "MAP_FROM_ENTRIES": _of_entries,
    "MAP_FROM_KEY_VALUES": _of_arrays,
    "MAP_CAT": _same_map("map_cat", f"CASE WHEN _0 IS NULL THEN _1 WHEN _1 IS NULL THEN _0 ELSE {_MERGED} END", 2),
    "MAP_INSERT": _same_map("map_insert", _MERGED.replace("_1", "MAP(_1, _2)"), 3),
    "MAP_DELETE": _same_map("map_delete", "MAP_FILTER(_0, (__key, __value) -> NOT __key <=> _1)", 2),
}
"""By name. Of a key that is there twice the later value counts, as in RisingWave; `map_from_...` refuses such a key for the row."""
