"""RisingWave's golden vnodes, and the bytes of every type pinned: the storage layout depends on them for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from magnetar.hashing.errors import KeyEncodingError, VnodeCountError
from magnetar.hashing.key_encoding import Interval, encode_key, year_flags
from magnetar.hashing.key_types import KeyType
from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.hashing.vnode import vnode, vnode_function, vnode_of_row_id


@pytest.mark.parametrize(("count", "expected"), [(256, 97), (4096, 1377), (32768, 21857)])
def test_golden_vnodes_of_risingwave(count: int, expected: int) -> None:
    assert vnode((114, 514), count=count) == expected
    assert vnode((114, 514), ("integer", "int4"), count) == expected
    assert vnode_function(("int", "int"), count)((114, 514)) == expected
    assert vnodes([np.array([114], np.int32), np.array([514], np.int32)], count=count).tolist() == [expected]


@pytest.mark.parametrize(
    ("key_type", "value", "expected"),
    [
        ("int", None, "f0ffffff"),
        ("boolean", True, "01"),
        ("boolean", False, "00"),
        ("tinyint", -2, "fe"),
        ("smallint", 258, "0201"),
        ("integer", -1, "ffffffff"),
        ("bigint", 1, "0100000000000000"),
        ("serial", 1, "0100000000000000"),
        ("int256", -1, "0200000000000000" + "ff" * 32),
        ("varchar", "", "ff"),
        ("varchar", "aé", "61c3a9ff"),
        ("bytea", b"", "0000000000000000"),
        ("bytea", b"\x00\xff", "020000000000000000ff"),
        # integer_decode(1.0) is (2^52, -52, 1): mantissa bits 0, exponent -52 in 11 bits, sign bit set for positive numbers.
        ("double", 1.0, "000000000000c0fc"),
        ("double", -0.0, "0000000000000000"),
        ("double", math.nan, "000000000000f87f"),
        ("real", 1.0, "00008000000090fe"),
        ("real", -2.5, "0000a0000000a07e"),
        ("real", math.nan, "000000000000f87f"),
        ("decimal", Decimal("1.50"), "0100000000000000" "0f0000000000000000000000" "00000100"),
        ("decimal", Decimal("-0.00"), "0100000000000000" "000000000000000000000000" "00000000"),
        ("decimal", Decimal("-100"), "0100000000000000" "640000000000000000000000" "00000080"),
        ("decimal", Decimal(2**96), "0100000000000000" "00000000000000000000000001000000" "00000000"),
        ("decimal", Decimal("NaN"), "0300000000000000"),
        ("decimal", Decimal("-Infinity"), "0000000000000000"),
        ("decimal", Decimal("Infinity"), "0200000000000000"),
        # 1970 begins on a Thursday and is not a leap year: flags 0o12.
        ("date", date(1970, 1, 1), (1970 << 13 | 1 << 4 | 0o12).to_bytes(4, "little").hex()),
        ("date", date(2024, 12, 31), (2024 << 13 | 366 << 4 | 0o06).to_bytes(4, "little").hex()),
        ("time", time(0, 1, 2, 3), "3e000000" "b80b0000"),
        ("timestamptz", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "40420f0000000000"),
        ("timestamptz", datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "0000000000000000"),
        ("interval", timedelta(microseconds=-1), "ff" * 16),
        ("interval", Interval(1, 0, 0), (30 * 86_400_000_000).to_bytes(16, "little").hex()),
        ("jsonb", '{"b": [1, 2.5], "a": null}', b'{"a":null,"b":[1,2.5]}'.hex() + "ff"),
        ("vector", [1.0], "0100000000000000" "00008000000090fe"),
        ("array<int>", [1, None], "01000000" "f0ffffff"),
        ("array<int>", [], ""),
        ("struct<a:int,b:varchar>", {"a": 1, "b": "x"}, "01000000" "78ff"),
        ("struct<a:int,b:varchar>", (1, None), "01000000" "f0ffffff"),
        ("map<varchar,int>", {"b": 1, "a": None}, "61ff" "f0ffffff" "62ff" "01000000"),
    ],
)  # fmt: skip
def test_bytes_of_every_type_are_pinned(key_type: str, value: Any, expected: str) -> None:
    assert encode_key([value], [KeyType.parse(key_type)]).hex() == expected


# Printed by a Rust program that hashed these values into a byte buffer, with std, chrono 0.4, rust_decimal 1, ethnum 1 and
# num-traits 0.2 (for the parts of floats), the crates whose `Hash` RisingWave relies on.
RUST = [
    ("double", "-2.5", "000000000000d47c"),
    ("double", "5e-324", "020000000000d0bc"),
    ("double", "-5e-324", "020000000000d03c"),
    ("double", "1.7976931348623157e308", "ffffffffffffbfbc"),
    ("double", "inf", "000000000000c0bc"),
    ("double", "-inf", "000000000000c03c"),
    ("double", "2.2250738585072014e-308", "000000000000e0bc"),
    ("double", "0.1", "9a999999999989fc"),
    ("real", "1e-45", "020000000000a0f6"),
    ("real", "-1e-45", "020000000000a076"),
    ("real", "3.4028235e38", "ffffff0000008086"),
    ("real", "inf", "0000800000009086"),
    ("real", "-inf", "0000800000009006"),
    ("real", "1.1754944e-38", "000080000000b0f6"),
    ("real", "0.1", "cdcccc00000050fe"),
    ("decimal", "1.50", "0f000000000000000000000000000100"),
    ("decimal", "-0.00", "00000000000000000000000000000000"),
    ("decimal", "-100", "64000000000000000000000000000080"),
    ("decimal", "123456789012345678.123456789", "155943fea7f258f1fd1e660000000900"),
    ("decimal", "79228162514264337593543950335", "ffffffffffffffffffffffff00000000"),
    ("decimal", "-0.0000000000000000000000000001", "01000000000000000000000000001c80"),
    ("date", "1970-01-01", "1a40f600"),
    ("date", "2024-12-31", "e616fd00"),
    ("date", "2024-02-29", "c603fd00"),
    ("date", "0001-01-01", "1e200000"),
    ("date", "9999-12-31", "dbf6e104"),
    ("date", "1900-03-01", "ce83ed00"),
    ("date", "2000-01-01", "1400fa00"),
    ("time", "00:01:02.000003", "3e000000b80b0000"),
    ("timestamp", "2024-02-29T23:59:59.999999", "c603fd007f51010018c69a3b"),
    ("int256", "-1", "0200000000000000" + "ff" * 32),
    ("int256", "258", "02000000000000000201" + "00" * 30),
]
PARSERS: dict[str, Callable[[str], Any]] = {
    "double": float,
    "real": float,
    "decimal": Decimal,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "int256": int,
}


@pytest.mark.parametrize(("key_type", "text", "expected"), RUST)
def test_bytes_are_those_of_the_rust_crates(key_type: str, text: str, expected: str) -> None:
    # RisingWave puts the kind of a decimal, finite 1, in front of the crate's bytes.
    prefix = "0100000000000000" if key_type == "decimal" else ""
    assert encode_key([PARSERS[key_type](text)], [KeyType(key_type)]).hex() == prefix + expected


def test_timestamp_is_date_then_time() -> None:
    moment = datetime(2024, 2, 29, 1, 2, 3, 4)
    both = encode_key([moment.date(), moment.time()], [KeyType("date"), KeyType("time")])
    assert encode_key([moment], [KeyType("timestamp")]) == both


def test_columns_follow_each_other_without_separators() -> None:
    types = [KeyType("bigint"), KeyType("varchar"), KeyType("boolean")]
    assert encode_key([1, "a", None], types).hex() == "010000000000000061fff0ffffff"


def test_year_flags_repeat_after_400_years() -> None:
    # The dominical letters B A, G, F, E, D C of years 0 to 4, as chrono codes them.
    assert [year_flags(year) for year in range(5)] == [0o04, 0o16, 0o17, 0o11, 0o02]
    assert all(year_flags(year) == year_flags(year + 400) for year in range(-400, 400))


def test_a_single_serial_key_carries_its_vnode_in_its_bits() -> None:
    row_id = (123456 << 22) | (77 << 12) | 5
    assert vnode((row_id,), ("serial",)) == 77
    assert vnode_of_row_id((9 << 22) | (1500 << 11) | 1, 2048) == 1500
    # With another column it is hashed like a bigint.
    assert vnode((row_id, 1), ("serial", "int")) == vnode((row_id, 1), ("bigint", "int"))
    assert vnode((None,), ("serial",)) == vnode((None,), ("bigint",))


def test_no_key_is_the_single_vnode_0() -> None:
    assert vnode((), ()) == 0


@pytest.mark.parametrize("count", [0, 1, -256, 32769, 256.0, True])
def test_vnode_counts_out_of_bounds_are_refused(count: Any) -> None:
    with pytest.raises(VnodeCountError, match="2 to 32768"):
        vnode((1,), ("int",), count)
    with pytest.raises(VnodeCountError):
        vnodes([np.arange(3)], count=count)


@pytest.mark.parametrize(
    ("key_type", "value"),
    [
        ("int", 2**31),
        ("tinyint", 128),
        ("int", "1"),
        ("int", True),
        ("varchar", b"x"),
        ("bytea", "x"),
        ("boolean", 2),
        ("decimal", 1.5),
        ("decimal", Decimal(10) ** 38),
        ("decimal", Decimal("1E-39")),
        ("date", datetime(2024, 1, 1)),
        ("timestamp", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamptz", datetime(2024, 1, 1)),
        ("real", 1e300),
        ("array<int>", "12"),
        ("struct<a:int>", (1, 2)),
        ("jsonb", "{"),
    ],
)
def test_values_that_do_not_fit_their_type_are_refused(key_type: str, value: Any) -> None:
    with pytest.raises(KeyEncodingError):
        vnode((value,), (key_type,))


def test_types_are_read_in_every_spelling() -> None:
    assert KeyType.parse(" Character  Varying (20)") == KeyType("varchar")
    assert KeyType.parse("int[]") == KeyType.parse("array<INTEGER>")
    nested = "struct<a:array<int>,b:map<varchar,decimal(10,2)>>"
    assert str(KeyType.parse(nested)) == "struct<a:array<integer>,b:map<varchar,decimal>>"
    assert KeyType.from_spark("timestamp") == KeyType("timestamptz")
    assert KeyType.from_spark("float") == KeyType("real")
    assert KeyType.from_spark("interval day to second") == KeyType("interval")
    with pytest.raises(KeyEncodingError, match=r"'real' .* or 'double'"):
        KeyType.parse("float")
    for bad in ("uuid", "struct<a>", "map<int>", "array<int,int>", "array<" * 40 + "int" + ">" * 40):
        with pytest.raises(KeyEncodingError):
            KeyType.parse(bad)


def test_columns_have_to_match() -> None:
    with pytest.raises(KeyEncodingError, match="different lengths"):
        vnodes([np.arange(3), np.arange(4)])
    with pytest.raises(KeyEncodingError, match="2 types for 1 columns"):
        vnodes([np.arange(3)], ["int", "int"])
    with pytest.raises(KeyEncodingError, match="do not fit smallint"):
        vnodes([np.array([70000])], ["smallint"])
    with pytest.raises(KeyEncodingError, match="type of a list"):
        vnodes([[1, 2]])
