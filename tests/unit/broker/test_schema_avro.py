"""Avro schemas: which ones are well-formed, which read which, and what is refused before it costs anything."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from magnetar.broker.schemas import avro_resolution, avro_schema
from magnetar.broker.schemas.avro_resolution import why_unreadable
from magnetar.broker.schemas.avro_schema import canonical_json, parse_avro
from magnetar.broker.schemas.types import InvalidSchemaError

REFUSAL_S_MAX = 2.0


def parse(schema: Any) -> avro_schema.AvroType:
    return parse_avro(json.dumps(schema).encode())


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Fields as (name, type[, attributes])."""
    made = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def reads(reader: Any, writer: Any) -> bool:
    return why_unreadable(parse(reader), parse(writer)) is None


PROMOTED = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"string", "bytes"},
    "boolean": {"boolean"},
    "null": {"null"},
}


@pytest.mark.parametrize("writer", PROMOTED, ids=lambda writer: f"written as {writer}")
def test_promotions(writer: str) -> None:
    assert {reader for reader in PROMOTED if reads(reader, writer)} == PROMOTED[writer]


def test_fields_come_and_go_with_defaults() -> None:
    one, two = record(("a", "int")), record(("a", "int"), ("b", "string"))
    with_default = record(("a", "int"), ("b", "string", {"default": ""}))
    assert reads(one, two)
    assert not reads(two, one)
    assert reads(with_default, one)
    assert reads(record(("b", ["null", "string"], {"default": None})), one)
    assert not reads(record(("b", ["null", "string"])), one), "nullable is not the same as having a default"
    assert reads(record(("b", "int", {"aliases": ["x", "a"]})), one)
    assert not reads(record(("b", "int", {"aliases": ["x"]})), one)


def test_the_reason_names_the_place() -> None:
    writer = record(("sub", record(("n", "string"), name="Sub")))
    reader = record(("sub", record(("n", "int"), name="Sub")))
    problem = why_unreadable(parse(reader), parse(writer))
    assert problem is not None
    assert "R.sub" in problem
    assert "Sub.n" in problem
    assert "string cannot be read as int" in problem


def test_record_names_do_not_matter_anywhere() -> None:
    assert reads(record(("a", "int"), name="Other"), record(("a", "int")))
    assert reads(record(("s", record(("a", "int"), name="X"))), record(("s", record(("a", "int"), name="Y"))))
    assert reads(
        record(("s", ["null", record(("a", "int"), name="X")])), record(("s", ["null", record(("a", "int"), name="Y")]))
    )


def test_enums() -> None:
    assert reads(enum("A", "B"), enum("A"))
    assert not reads(enum("A"), enum("A", "B"))
    assert reads(enum("A", default="A"), enum("A", "B"))
    assert not reads(enum("A", name="G"), enum("A"))
    assert reads(enum("A", name="G", aliases=["E"]), enum("A"))
    assert reads(enum("A", namespace="x"), enum("A", namespace="y")), "namespaces are not part of the comparison"
    assert reads(enum("A", name="G", aliases=["x.E"]), enum("A", namespace="x"))


def test_fixed_arrays_and_maps() -> None:
    assert reads(fixed(4), fixed(4))
    assert not reads(fixed(4), fixed(5))
    assert not reads(fixed(4, "G"), fixed(4))
    assert reads(fixed(4, "G", aliases=["F"]), fixed(4))
    assert not reads("bytes", fixed(4))
    for kind, part in (("array", "items"), ("map", "values")):
        assert reads({"type": kind, part: "long"}, {"type": kind, part: "int"})
        assert not reads({"type": kind, part: "int"}, {"type": kind, part: "long"})
    assert not reads({"type": "array", "items": "int"}, {"type": "map", "values": "int"})


def test_unions() -> None:
    assert reads(["null", "int"], "int")
    assert reads(["null", "long"], "int")
    assert not reads(["null", "string"], "int")
    assert not reads("int", ["null", "int"]), "a null may come"
    assert reads("long", ["int", "long"])
    assert reads(["string", "null"], ["null", "string"])
    assert not reads(["null", "string"], ["null", "string", "int"])


def test_recursive_types() -> None:
    def tree(value: str, **more: Any) -> Any:
        return record(("value", value), ("next", ["null", "R"], {"default": None}), *more.get("fields", ()))

    assert reads(tree("int"), tree("int"))
    assert reads(tree("long"), tree("int"))
    assert not reads(tree("int"), tree("long"))
    mutual = record(("b", ["null", record(("a", ["null", "R"]), ("x", "int"), name="B")]))
    changed = record(("b", ["null", record(("a", ["null", "R"]), ("x", "string"), name="B")]))
    assert reads(mutual, mutual)
    assert not reads(mutual, changed)


def test_what_was_concluded_from_a_wrong_assumption_is_forgotten() -> None:
    """R is assumed readable while B below it is looked at; when R then fails, B, which holds an R, must fail as well."""
    inner = record(("back", "R"), name="B")
    writer = {
        "type": "record",
        "name": "Top",
        "fields": [
            {"name": "first", "type": ["null", record(("b", inner), ("bad", "string"))]},
            {"name": "second", "type": "B"},
        ],
    }
    reader = json.loads(json.dumps(writer))
    reader["fields"][0]["type"][1]["fields"][1]["type"] = "int"
    reader["fields"][0]["type"].append(record(("b", record(name="Free")), name="Anything"))
    assert not reads(reader, writer)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (record(("a", "int")), record(("a", "int"), doc="text")),
        (record(("a", "int")), record(("a", "int", {"doc": "text"}))),
        ({"type": "array", "items": "int"}, {"items": "int", "type": "array"}),
    ],
)
def test_layout_and_documentation_do_not_make_another_schema(one: Any, other: Any) -> None:
    assert canonical_json(json.dumps(one).encode()) == canonical_json(json.dumps(other, indent=3).encode())


def test_defaults_do_make_another_schema() -> None:
    first, second = (record(("a", "boolean", {"default": default})) for default in (True, 1))
    assert canonical_json(json.dumps(first).encode()) != canonical_json(json.dumps(second).encode())


def test_namespaces_and_references() -> None:
    sub = record(("n", "int"), name="Sub", namespace="other")
    parsed = parse(record(("a", sub), ("b", "other.Sub"), ("c", enum("X", name="Kind")), ("d", "Kind"), namespace="ns"))
    assert parsed.name == "ns.R"
    assert parsed.by_name["a"].type is parsed.by_name["b"].type
    assert parsed.by_name["d"].type.name == "ns.Kind"
    assert parse({"type": {"type": "int"}}).kind == "int"


MALFORMED: list[Any] = [
    "nothing",
    17,
    None,
    {},
    {"type": "record", "name": "R"},
    {"type": "record", "fields": []},
    {"type": "record", "name": "R", "fields": {}},
    {"type": "record", "name": "R", "fields": [{"type": "int"}]},
    {"type": "record", "name": "R", "fields": [{"name": "a"}]},
    {"type": "record", "name": "R", "fields": ["a"]},
    {"type": "record", "name": "R", "namespace": 3, "fields": []},
    record(("a", "int"), ("a", "int")),
    record(("a", "int", {"aliases": "b"})),
    record(("a", record()), ("b", record())),
    {"type": "enum", "name": "E"},
    enum("A", "A"),
    enum("A", default="B"),
    {"type": "fixed", "name": "F"},
    fixed(-1),
    {"type": "fixed", "name": "F", "size": True},
    {"type": "array"},
    {"type": "map", "items": "int"},
    ["int", "int"],
    ["int", ["string"]],
    [enum("A"), enum("B")],
]


@pytest.mark.parametrize("schema", MALFORMED, ids=[json.dumps(schema)[:60] for schema in MALFORMED])
def test_malformed_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchemaError):
        parse(schema)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b'"int" "int"', b"[" * 100_000, b"null"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidSchemaError):
        parse_avro(data)


def nested(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_nesting_and_size_are_bounded() -> None:
    assert parse(nested(avro_schema.DEPTH_MAX - 1)).kind == "array"
    with pytest.raises(InvalidSchemaError, match="nested"):
        parse(nested(avro_schema.DEPTH_MAX + 1))
    with pytest.raises(InvalidSchemaError, match="nested"):
        parse(record(("a", "int", {"default": nested(avro_schema.JSON_DEPTH_MAX)})))
    with pytest.raises(InvalidSchemaError, match="more than"):
        parse(enum(*(f"S{index}" for index in range(avro_schema.NODES_MAX))))
    with pytest.raises(InvalidSchemaError, match="more than"):
        parse(["null"] * (avro_schema.NODES_MAX + 1))


def test_unions_of_unions_end_in_a_refusal_not_in_a_hang() -> None:
    """Every pair of records would be compared: 600 x 600 x their fields."""

    def bomb(side: str, *last: Any) -> Any:
        return [
            *(record(*((f"f{n}", "int") for n in range(5)), (side, "int"), name=f"R{index}") for index in range(600)),
            *last,
        ]

    started_s = time.thread_time()
    with pytest.raises(InvalidSchemaError, match="too complex"):
        reads(bomb("a", record(name="Anything")), bomb("b"))
    assert time.thread_time() - started_s < REFUSAL_S_MAX


def test_enums_count_by_their_symbols() -> None:
    symbols = [f"S{index}" for index in range(5000)]
    fields = [(f"f{index}", "E") for index in range(500)]
    writer = record(("e", enum(*symbols)), *fields)
    with pytest.raises(InvalidSchemaError, match="too complex"):
        reads(writer, writer)


def test_chains_of_named_types_end_in_a_refusal_not_in_a_crash() -> None:
    """Flat JSON, deep graph: each record holds the one before, and the reader meets the last one first."""
    length = avro_resolution.RESOLUTION_DEPTH_MAX + 50
    chain = [(f"f{n}", record(("x", f"R{n - 1}" if n else "int"), name=f"R{n}")) for n in range(length)]
    writer = record(*chain)
    reader = record(*((f"g{n}", kind, {"default": {}}) for n, (_, kind) in enumerate(chain)), ("f249", "R249"))
    with pytest.raises(InvalidSchemaError, match="too complex"):
        reads(reader, writer)
