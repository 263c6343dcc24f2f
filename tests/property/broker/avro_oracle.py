"""Random pairs of Avro schemas, data that covers all of a schema, and its bytes; fastavro then says what is readable.

Names of types follow from where they stand (`R_a`: the record of field a), so that both sides of a pair name the same things alike:
fastavro compares the names of nested records, our rules do not.
"""

from __future__ import annotations

import io
import itertools
import json
import struct
from typing import Any

import fastavro
from hypothesis import strategies as st

Schema = Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
WIDER = {"int": "long", "long": "double", "float": "double", "string": "bytes", "bytes": "string"}
SYMBOLS = ("A", "B", "C", "D")
FIELDS = ("a", "b", "c")
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": False,
    "int": 0,
    "long": 0,
    "float": 0.0,
    "double": 0.0,
    "bytes": "",
    "string": "",
}


def schemas(path: str = "", depth: int = 2) -> st.SearchStrategy[Schema]:
    """Any type at a place."""
    plain = st.one_of(st.sampled_from(PRIMITIVES), _enums(path), _fixed(path))
    if depth == 0:
        return plain
    return st.one_of(plain, _containers(path, depth), records(path, depth), unions(path, depth), unions(path, 0))


def records(path: str = "", depth: int = 3) -> st.SearchStrategy[Schema]:
    names = st.lists(st.sampled_from(FIELDS), min_size=1, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*(schemas(f"{path}_{name}", depth - 1) for name in chosen)).map(
            lambda types: {
                "type": "record",
                "name": f"R{path}",
                "fields": [{"name": name, "type": kind} for name, kind in zip(chosen, types, strict=True)],
            }
        )
    )


def _enums(path: str) -> st.SearchStrategy[Schema]:
    symbols = st.lists(st.sampled_from(SYMBOLS), min_size=1, unique=True)
    return symbols.flatmap(
        lambda chosen: st.sampled_from([None, *chosen]).map(
            lambda default: (
                {"type": "enum", "name": f"E{path}", "symbols": chosen}
                | ({} if default is None else {"default": default})
            )
        )
    )


def _fixed(path: str) -> st.SearchStrategy[Schema]:
    return st.integers(1, 2).map(lambda size: {"type": "fixed", "name": f"F{path}", "size": size})


def _containers(path: str, depth: int) -> st.SearchStrategy[Schema]:
    return st.one_of(
        schemas(f"{path}_i", depth - 1).map(lambda items: {"type": "array", "items": items}),
        schemas(f"{path}_v", depth - 1).map(lambda values: {"type": "map", "values": values}),
    )


def unions(path: str, depth: int) -> st.SearchStrategy[Schema]:
    branch = st.one_of(st.sampled_from(PRIMITIVES), _enums(path), _fixed(path))
    if depth > 0:
        branch = st.one_of(branch, _containers(path, depth), records(path, depth))
    return st.lists(branch, min_size=1, max_size=3, unique_by=kind_of)


def kind_of(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return schema if isinstance(schema, str) else str(schema["type"])


@st.composite
def evolved(draw: st.DrawFn, schema: Schema, path: str = "", depth: int = 3) -> Schema:
    """A schema after a change or some, at one place or several."""
    change = draw(st.integers(0, 9))
    if change == 0:
        return draw(schemas(path, min(depth, 1)))
    if change == 1 and kind_of(schema) not in ("union", "null"):
        return draw(st.permutations([schema, "null"]))
    kind = kind_of(schema)
    if kind == "union":
        if change in (2, 3) and len(schema) > 1:
            return draw(st.permutations(schema))[1:]
        if change in (4, 5):
            schema = [*schema, draw(st.sampled_from(PRIMITIVES))]
        return _unique([draw(evolved(branch, path, depth)) for branch in schema])
    if kind == "record":
        return draw(_evolved_record(schema, path, depth))
    if kind in ("array", "map"):
        part, suffix = ("items", "_i") if kind == "array" else ("values", "_v")
        return schema | {part: draw(evolved(schema[part], path + suffix, depth - 1))}
    if kind == "enum" and change < 5:
        return draw(_enums(path))
    if kind in PRIMITIVES and change == 2:
        return draw(st.sampled_from(PRIMITIVES))
    return WIDER.get(kind, schema) if change in (3, 4) else schema


@st.composite
def _evolved_record(draw: st.DrawFn, schema: Schema, path: str, depth: int) -> Schema:
    fields = []
    for field in schema["fields"]:
        match draw(st.integers(0, 7)):
            case 0:
                continue
            case 1 if kind_of(field["type"]) in PRIMITIVES:
                fields.append({"name": f"new_{field['name']}", "aliases": [field["name"]], "type": field["type"]})
            case 2 | 3:
                fields.append(field)
            case _:
                fields.append(
                    field | {"type": draw(evolved(field["type"], f"{path}_{field['name']}", max(depth - 1, 0)))}
                )
    if draw(st.booleans()):
        kind = draw(st.sampled_from(PRIMITIVES))
        fields.append({"name": "added", "type": kind} | ({"default": DEFAULTS[kind]} if draw(st.booleans()) else {}))
    return schema | {"fields": draw(st.permutations(fields))}


def _unique(branches: list[Schema]) -> Schema:
    """A union of these, its own unions flattened, one of each kind."""
    flat = [inner for branch in branches for inner in (branch if isinstance(branch, list) else [branch])]
    return list({kind_of(branch): branch for branch in flat}.values())


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Schema, Schema]:
    """Writer and reader, the reader mostly a descendant of the writer."""
    writer = draw(st.one_of(records(depth=2), records(depth=1), unions("", 1), schemas(depth=2)))
    return writer, draw(st.one_of(evolved(writer), evolved(writer), evolved(writer), schemas(depth=2)))


def samples(schema: Schema) -> list[Any]:
    """Values that together use every branch, symbol and field. Values of unions are (index, value)."""
    match kind_of(schema):
        case "union":
            return [(index, value) for index, branch in enumerate(schema) for value in samples(branch)]
        case "enum":
            return list(range(len(schema["symbols"])))
        case "fixed":
            return [b"x" * schema["size"]]
        case "array":
            return [samples(schema["items"])]
        case "map":
            return [{f"k{index}": value for index, value in enumerate(samples(schema["values"]))}]
        case "record":
            columns = [samples(field["type"]) for field in schema["fields"]]
            rows = max(map(len, columns), default=1)
            return [[column[row % len(column)] for column in columns] for row in range(rows)]
        case primitive:
            return [_PRIMITIVE_SAMPLES[primitive]]


_PRIMITIVE_SAMPLES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 5,
    "long": 5,
    "float": 1.5,
    "double": 1.5,
    "bytes": b"ab",
    "string": b"ab",
}


def encode(schema: Schema, value: Any) -> bytes:
    """Avro's binary encoding of a sample."""
    match kind_of(schema):
        case "null":
            return b""
        case "boolean":
            return b"\1" if value else b"\0"
        case "int" | "long" | "enum":
            return _long(value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "bytes" | "string":
            return _long(len(value)) + bytes(value)
        case "fixed":
            return bytes(value)
        case "union":
            return _long(value[0]) + encode(schema[value[0]], value[1])
        case "array":
            return _block([encode(schema["items"], item) for item in value])
        case "map":
            return _block([encode("string", k.encode()) + encode(schema["values"], v) for k, v in value.items()])
        case _:
            types = (field["type"] for field in schema["fields"])
            return b"".join(itertools.starmap(encode, zip(types, value, strict=True)))


def _long(value: int) -> bytes:
    rest = value << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def _block(items: list[bytes]) -> bytes:
    return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"


def fastavro_reads(writer: Schema, reader: Schema) -> bool:
    """Whether it reads all the samples of the writer's schema."""
    parsed_writer, parsed_reader = (fastavro.parse_schema(json.loads(json.dumps(one))) for one in (writer, reader))
    for value in samples(writer):
        try:
            fastavro.schemaless_reader(io.BytesIO(encode(writer, value)), parsed_writer, parsed_reader)
        except Exception:
            return False
    return True
