"""Messages of tables that clients write, read without Spark: what this server sends, and what is left to Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pytest

from magnetar.pipeline.sql.parser import parse_one
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.source.written_rows import OtherForm, table_of

TABLE = cast("CreateSource", parse_one("CREATE TABLE t (id INT PRIMARY KEY, v DOUBLE) WITH (topic = 't')"))
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("flag", pa.bool_()),
        ("name", pa.string()),
        ("price", pa.decimal128(8, 2)),
        ("part", pa.float32()),
        ("v", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("other", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("words", pa.list_(pa.string())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)


def rows(*values: bytes | None, key: str = "7") -> list[dict[str, object]]:
    found = table_of(TABLE, SCHEMA, list(values), [key] * len(values)).to_pylist()
    return cast("list[dict[str, object]]", found)


def test_rows_of_the_form_that_is_sent() -> None:
    whole = (
        b'{"id":1,"flag":true,"name":"\xc3\xa9","price":-1.50,"part":0.5,"v":1e300,"day":"0001-01-01","at":"2024-02-29T12:00:00.000001Z",'
        b'"other":"1969-12-31T23:59:59","raw":"AP8=","words":["a",null],"pair":{"a":1}}'
    )
    first, second, gone = rows(whole, b'{"id":2,"v":"NaN"}', b"")
    assert {name: value for name, value in first.items() if name in SCHEMA.names} == {
        "id": 1, "flag": True, "name": "é", "price": Decimal("-1.50"), "part": 0.5, "v": 1e300, "day": date(1, 1, 1),
        "at": datetime(2024, 2, 29, 12, 0, 0, 1, UTC), "other": datetime(1969, 12, 31, 23, 59, 59), "raw": b"\x00\xff",
        "words": ["a", None], "pair": {"a": 1, "b": None},
    }  # fmt: skip
    assert second["v"] != second["v"]
    assert (first["_change"], gone["_change"], gone["id"], gone["name"]) == (2, 3, 7, None)
    assert [each["_row_id"] for each in (first, second, gone)] == [0, 1, 2]


@pytest.mark.parametrize(
    "value",
    [
        b"[]", b"no json", b'{"id":1} ?', b'{"id":"1"}', b'{"id":1.0}', b'{"id":true}', b'{"id":2147483648}', b'{"id":null}', b"{}",
        b'{"id":1,"id":2}', b'{"id":1,"unknown":2}', b'{"id":1,"name":5}', b'{"id":1,"name":{}}', b'{"id":1,"flag":"true"}',
        b'{"id":1,"price":1.234}', b'{"id":1,"price":1000000}', b'{"id":1,"price":"1"}', b'{"id":1,"part":0.1}', b'{"id":1,"v":"x"}',
        b'{"id":1,"v":1e999}', b'{"id":1,"v":NaN}', b'{"id":1,"day":"2024-1-1"}', b'{"id":1,"day":19000}', b'{"id":1,"day":"2023-02-30"}',
        b'{"id":1,"at":"2024-02-29 12:00:00Z"}', b'{"id":1,"at":"2024-02-29T12:00:00"}', b'{"id":1,"other":1700000000}',
        b'{"id":1,"other":"2024-02-29T12:00:00Z"}', b'{"id":1,"raw":"?"}', b'{"id":1,"words":"a"}', b'{"id":1,"words":[1]}',
        b'{"id":1,"pair":[1]}', b'{"id":1,"pair":{"c":1}}',
    ],
)  # fmt: skip
def test_every_other_form_is_left_to_spark(value: bytes) -> None:
    with pytest.raises(OtherForm):
        rows(b'{"id":3}', value)


def test_a_key_of_another_form_is_left_to_spark() -> None:
    for key in ("x", "1.0", "", "00"):
        with pytest.raises(OtherForm):
            rows(None, key=key)
