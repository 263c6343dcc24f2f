"""Avro schemas: from their JSON to a graph of types that resolution walks over. Pure.

After the Avro 1.11 specification. Lenient where Java's parser is as Pulsar configures it: characters of names, unknown attributes and
logical types do not matter. Bounded against schemas made to hurt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar.broker.schemas.types import InvalidSchemaError

DEPTH_MAX = 64
"""Nesting of types; a deeper schema is refused."""

JSON_DEPTH_MAX = 256
"""Nesting of the schema's JSON, defaults and unknown attributes included; a deeper one is refused."""

NODES_MAX = 20_000
"""Types, fields and enum symbols of one schema; a larger one is refused: comparing takes the event loop's time."""

FIXED_BYTES_MAX = 2**31 - 1

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


@dataclass(slots=True, eq=False)
class AvroType:
    """One type. `kind` is a primitive, or record, enum, fixed, array, map, union; which other attributes count follows from it.

    Records of a recursive schema refer back to themselves, so types are compared by identity.
    """

    kind: str
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: tuple[AvroField, ...] = ()
    symbols: frozenset[str] = frozenset()
    has_default: bool = False
    size: int = 0
    element: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    by_name: dict[str, AvroField] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def answers_to(self, other: AvroType) -> bool:
        """True if a reader of this named type accepts a writer's: by its name without the namespace, or by an alias."""
        return self.short_name == other.short_name or not self.aliases.isdisjoint((other.name, other.short_name))


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    has_default: bool
    aliases: tuple[str, ...] = ()


def parse_avro(data: bytes) -> AvroType:
    """The type that a JSON text defines. Raises InvalidSchemaError."""
    return _Parser().type(parse_json(data), "", 0)


def parse_json(data: bytes) -> Any:
    """Checks that the document, which is walked recursively later, is nested no deeper than `JSON_DEPTH_MAX`. Raises InvalidSchemaError."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {_short(error)}") from None
    level: list[Any] = [document]
    for _ in range(JSON_DEPTH_MAX):
        level = [child for node in level for child in _children(node)]
        if not level:
            return document
    raise InvalidSchemaError(f"the schema's JSON is nested deeper than {JSON_DEPTH_MAX} levels")


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def canonical_json(data: bytes) -> str:
    """The same text for schemas that differ only in layout, order of attributes and documentation. Raises InvalidSchemaError."""
    return json.dumps(_without_docs(parse_json(data)), sort_keys=True)


def _without_docs(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: value if key == "default" else _without_docs(value) for key, value in node.items() if key != "doc"}
    return [_without_docs(item) for item in node] if isinstance(node, list) else node


class _Parser:
    """State of one parse: named types so far, and how much has been made."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._nodes = 0

    def type(self, node: Any, namespace: str, depth: int) -> AvroType:
        self._count(1)
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"the schema is nested deeper than {DEPTH_MAX} levels")
        if isinstance(node, str):
            return AvroType(node) if node in PRIMITIVES else self._reference(node, namespace)
        if isinstance(node, list):
            return self._union(node, namespace, depth)
        if not isinstance(node, dict):
            raise InvalidSchemaError(f"a type must be a name, a list or an object, not {_short(node)}")
        kind = node.get("type")
        if kind in ("record", "error"):
            return self._record(node, namespace, depth)
        if kind == "enum":
            return self._enum(node, namespace)
        if kind == "fixed":
            return self._fixed(node, namespace)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return AvroType(kind, element=self.type(_required(node, part, kind), namespace, depth + 1))
        if kind is None:
            raise InvalidSchemaError(f"a type without 'type': {_short(node)}")
        return self.type(kind, namespace, depth + 1)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise InvalidSchemaError(f"the schema has more than {NODES_MAX} types, fields and symbols")

    def _reference(self, name: str, namespace: str) -> AvroType:
        found = self._named.get(_full(name, namespace)) or self._named.get(name)
        if found is None:
            raise InvalidSchemaError(f"unknown type {_short(name)}")
        return found

    def _union(self, node: list[Any], namespace: str, depth: int) -> AvroType:
        branches = tuple(self.type(branch, namespace, depth + 1) for branch in node)
        seen = set()
        for branch in branches:
            key = branch.name or branch.kind
            if branch.kind == "union" or key in seen:
                raise InvalidSchemaError(f"a union may not hold {_short(key)} twice, nor another union")
            seen.add(key)
        return AvroType("union", branches=branches)

    def _record(self, node: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        record, inner = self._define("record", node, namespace)
        fields = _required(node, "fields", "record")
        if not isinstance(fields, list):
            raise InvalidSchemaError(f"the fields of {_short(record.name)} must be a list")
        record.fields = tuple(self._field(item, record, inner, depth) for item in fields)
        return record

    def _field(self, node: Any, record: AvroType, namespace: str, depth: int) -> AvroField:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str) or not node["name"]:
            raise InvalidSchemaError(f"a field of {_short(record.name)} has no name")
        name: str = node["name"]
        if name in record.by_name:
            raise InvalidSchemaError(f"{_short(record.name)} has the field {_short(name)} twice")
        kind = self.type(_required(node, "type", f"field {name}"), namespace, depth + 1)
        made = AvroField(name, kind, "default" in node, tuple(_texts(node.get("aliases"), "aliases")))
        self._count(1 + len(made.aliases))
        record.by_name[name] = made
        return made

    def _enum(self, node: Mapping[str, Any], namespace: str) -> AvroType:
        made, _ = self._define("enum", node, namespace)
        symbols = _texts(_required(node, "symbols", "enum"), "symbols")
        self._count(len(symbols))
        made.symbols = frozenset(symbols)
        made.has_default = node.get("default") is not None
        if len(made.symbols) != len(symbols) or (made.has_default and node["default"] not in symbols):
            raise InvalidSchemaError(f"the symbols of {_short(made.name)} must differ, and its default be one of them")
        return made

    def _fixed(self, node: Mapping[str, Any], namespace: str) -> AvroType:
        made, _ = self._define("fixed", node, namespace)
        size = node.get("size")
        if type(size) is not int or not 0 <= size <= FIXED_BYTES_MAX:
            raise InvalidSchemaError(f"the size of {_short(made.name)} must be a number of bytes")
        made.size = size
        return made

    def _define(self, kind: str, node: Mapping[str, Any], namespace: str) -> tuple[AvroType, str]:
        """A new named type, known from here on, and the namespace inside it."""
        name = node.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidSchemaError(f"a type of kind {kind} has no name")
        declared = node.get("namespace")
        if declared is not None and not isinstance(declared, str):
            raise InvalidSchemaError(f"the namespace of {_short(name)} must be a text")
        full = _full(name, namespace if declared is None else declared)
        if full in self._named:
            raise InvalidSchemaError(f"{_short(full)} is defined twice")
        inner = full.rpartition(".")[0]
        aliases = _texts(node.get("aliases"), "aliases")
        self._count(len(aliases))
        made = AvroType(kind, name=full, aliases=frozenset([*aliases, *(_full(alias, inner) for alias in aliases)]))
        self._named[full] = made
        return made, inner


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _required(node: Mapping[str, Any], key: str, what: str) -> Any:
    if key not in node:
        raise InvalidSchemaError(f"{_short(what)} without '{key}'")
    return node[key]


def _texts(value: Any, what: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSchemaError(f"{what} must be a list of names")
    return value


def _short(value: object) -> str:
    """At most a line of a text from outside."""
    return repr(value)[:80] if not isinstance(value, Exception) else printable(str(value))


def printable(name: str) -> str:
    """A name that came from outside, fit for an error's text: short, and without halves of surrogate pairs."""
    return name[:80].encode("utf-8", "backslashreplace").decode()
