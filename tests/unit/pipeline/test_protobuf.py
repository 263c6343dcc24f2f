"""Messages of Protocol Buffers as rows and back, and what is said of types that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.pipeline.connect.errors import SchemaError, SinkError
from magnetar.pipeline.connect.protobuf import columns, from_location, of_schema, to_schema
from magnetar.pipeline.connect.reading.protobuf_values import reader
from magnetar.pipeline.connect.writing.protobuf_rows import encoder
from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSink
from magnetar.pipeline.views.sink.options import sink_of
from tests.support.protobuf_types import order_type

ORDER = order_type()
PLACE = pa.struct([("city", pa.string()), ("lat", pa.float64())])
SCHEMA = pa.schema(
    [
        ("i32", pa.int32()), ("s64", pa.int64()), ("u32", pa.int64()), ("u64", pa.decimal128(20, 0)), ("f", pa.float32()),
        ("d", pa.float64()), ("flag", pa.bool_()), ("word", pa.string()), ("raw", pa.binary()), ("kind", pa.string()),
        ("at", pa.timestamp("us", "UTC")), ("place", PLACE), ("places", pa.list_(PLACE)), ("amounts", pa.map_(pa.string(), pa.int64())),
        ("words", pa.list_(pa.string())), ("perhaps", pa.int32()),
    ]
)  # fmt: skip
_PLACE = st.fixed_dictionaries({"city": st.text(), "lat": st.floats(allow_nan=False)})
ROWS = st.fixed_dictionaries(
    {
        "i32": st.integers(-(2**31), 2**31 - 1),
        "s64": st.integers(-(2**63), 2**63 - 1),
        "u32": st.integers(0, 2**32 - 1),
        "u64": st.integers(0, 2**64 - 1).map(Decimal),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "flag": st.booleans(),
        "word": st.text(),
        "raw": st.binary(),
        "kind": st.sampled_from(["UNKNOWN", "NEW", "PAID", "7"]),
        "at": st.none() | st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
        "place": st.none() | _PLACE,
        "places": st.lists(_PLACE, max_size=3),
        "amounts": st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
        "words": st.lists(st.text(), max_size=3),
        "perhaps": st.none() | st.integers(-5, 5),
    }
)


@settings(max_examples=60)
@given(ROWS)
def test_a_row_is_read_as_it_was_written(row: dict[str, Any]) -> None:
    read = reader(ORDER.descriptor(), list(SCHEMA))
    found = read(encoder(ORDER, SCHEMA)(row))
    assert found | {"amounts": dict(found["amounts"])} == row
    assert pa.array([found], pa.struct(list(SCHEMA))).to_pylist(maps_as_pydicts="strict") == [row]


def test_what_is_not_set() -> None:
    """As in RisingWave a field without presence has its default; NULL is what has one and is not there."""
    found = reader(ORDER.descriptor(), list(SCHEMA))(b"")
    assert (found["i32"], found["word"], found["kind"], found["words"]) == (0, "", "UNKNOWN", [])
    assert (found["place"], found["at"], found["perhaps"]) == (None, None, None)
    assert encoder(ORDER, SCHEMA)(dict.fromkeys(SCHEMA.names)) == b""


def test_the_columns_of_a_message() -> None:
    assert columns(ORDER.descriptor())[9:] == [
        ("kind", "VARCHAR"),
        ("at", "TIMESTAMPTZ"),
        ("place", "STRUCT<city VARCHAR, lat DOUBLE PRECISION>"),
        ("places", "STRUCT<city VARCHAR, lat DOUBLE PRECISION>[]"),
        ("amounts", "MAP(VARCHAR, BIGINT)"),
        ("words", "VARCHAR[]"),
        ("perhaps", "INT"),
    ]
    assert of_schema(json.dumps(to_schema(ORDER))) == ORDER
    node = replace(ORDER, name="shop.Node")
    with pytest.raises(SchemaError, match=r"shop.Node contains itself; name the columns, with next JSONB"):
        columns(node.descriptor())
    read = reader(node.descriptor(), [pa.field("ID", pa.int64()), pa.field("next", pa.string())])
    assert read(b"\x08\x01\x12\x02\x08\x02") == {"ID": 1, "next": '{"id": 2}'}


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    path = tmp_path / "order.pb"
    path.write_bytes(ORDER.files)
    assert from_location(f"file://{path}", "shop.Order") == ORDER
    for location, name, why in (
        (
            f"file://{path}",
            "shop.Nothing",
            r"there is no message shop\.Nothing; there is shop\.Node",
        ),
        (f"file://{tmp_path}/none", "x", "cannot be read: No such file"),
        ("https://registry/x", "x", "write schema.location = 'file:///"),
    ):
        with pytest.raises(SchemaError, match=why):
            from_location(location, name).descriptor()
    (tmp_path / "bad").write_bytes(b"\xff\xff\xff")
    with pytest.raises(SchemaError, match="no descriptor set; make it with protoc"):
        from_location(f"file://{tmp_path}/bad", "x").descriptor()
    for column, kind, why in (
        ("nothing", pa.int32(), "has no field nothing; it has i32"),
        ("word", pa.int32(), "cannot be a column"),
    ):
        with pytest.raises(SchemaError, match=why):
            reader(ORDER.descriptor(), [pa.field(column, kind)])
    with pytest.raises(SchemaError, match=r"'GONE' does not fit the field shop\.Order\.kind"):
        encoder(ORDER, SCHEMA)({"kind": "GONE"})
    sink = parse_one(
        "CREATE SINK k FROM v WITH (connector = 'pulsar', topic = 't', service.url = 'pulsar://h:1') "
        f"FORMAT PLAIN ENCODE PROTOBUF (message = 'shop.Order', schema.location = 'file://{path}')"
    )
    assert isinstance(sink, CreateSink)
    assert sink_of(sink, pa.schema([("i32", pa.int32())]), (), append_only=True).message == ORDER
    with pytest.raises(SinkError, match="has no field other"):
        sink_of(sink, pa.schema([("other", pa.int32())]), (), append_only=True)
