"""The numpy twins give what the scalar functions give, on every input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.hashing.crc import crc32
from magnetar.hashing.fnv import fnv1a_32, fnv1a_64
from magnetar.hashing.java_hash import java_string_hash
from magnetar.hashing.ketama import ketama_hash
from magnetar.hashing.murmur3 import key_slot, murmur3_32
from magnetar.hashing.ring import HashRing
from magnetar.hashing.vectorized.batch import MAX_ROW_BYTES
from magnetar.hashing.vectorized.crc import crc32_hashes
from magnetar.hashing.vectorized.fnv import fnv1a_32_hashes, fnv1a_64_hashes
from magnetar.hashing.vectorized.java_hash import java_string_hashes
from magnetar.hashing.vectorized.md5 import ketama_hashes
from magnetar.hashing.vectorized.murmur3 import key_slots, murmur3_hashes
from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.hashing.vnode import vnode, vnode_function

# Lengths around MD5's blocks (55, 64, 119) and the longest row of a batch, and all short ones.
lengths = st.one_of(st.integers(0, 20), st.sampled_from([55, 56, 63, 64, 119, 120, MAX_ROW_BYTES, MAX_ROW_BYTES + 1]))
byte_keys = lengths.flatmap(lambda length: st.binary(min_size=length, max_size=length))
text_keys = st.text(max_size=40)
counts = st.one_of(st.sampled_from([2, 256, 4096, 32768]), st.integers(2, 32768))

TWINS: list[tuple[Callable[[Any], Any], Callable[[bytes], int]]] = [
    (murmur3_hashes, murmur3_32),
    (key_slots, key_slot),
    (crc32_hashes, crc32),
    (fnv1a_32_hashes, fnv1a_32),
    (fnv1a_64_hashes, fnv1a_64),
    (ketama_hashes, ketama_hash),
]


@pytest.mark.parametrize(("twin", "scalar"), TWINS, ids=lambda function: function.__name__)
@settings(max_examples=150, deadline=None)
@given(keys=st.lists(byte_keys, max_size=30))
def test_hashes_of_bytes(twin: Callable[[Any], Any], scalar: Callable[[bytes], int], keys: list[bytes]) -> None:
    expected = [scalar(key) for key in keys]
    assert twin(keys).tolist() == expected
    assert twin(pa.array(keys, pa.binary())).tolist() == expected
    assert twin(pa.array([b"x", *keys], pa.large_binary())[1:]).tolist() == expected


@pytest.mark.parametrize(("twin", "scalar"), TWINS, ids=lambda function: function.__name__)
@settings(max_examples=120, deadline=None)
@given(
    keys=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), min_size=1)
)
def test_hashes_of_numpy_text(twin: Callable[[Any], Any], scalar: Callable[[bytes], int], keys: list[str]) -> None:
    expected = [scalar(key.encode()) for key in keys]
    assert twin(np.array(keys)).tolist() == expected
    assert twin(np.array([key.encode() for key in keys])).tolist() == expected
    assert twin(np.array(keys, object)).tolist() == expected
    assert twin(pa.chunked_array([pa.array(keys[:1]), pa.array(keys[1:], pa.string())])).tolist() == expected


@settings(max_examples=100, deadline=None)
@given(keys=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40)))
def test_java_hashes(keys: list[str]) -> None:
    assert java_string_hashes(keys).tolist() == [java_string_hash(key) for key in keys]


@pytest.mark.parametrize("algorithm", ["ketama", "crc32"])
@settings(max_examples=120, deadline=None)
@given(
    weights=st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(1, 4), min_size=1, max_size=8),
    keys=st.lists(byte_keys, max_size=30),
    extra=st.lists(st.integers(0, 2**32 - 1), max_size=10),
)
def test_owners(algorithm: Any, weights: dict[str, int], keys: list[bytes], extra: list[int]) -> None:
    ring = HashRing(weights, algorithm)
    assert [ring.nodes[owner] for owner in ring.owners(keys)] == [ring.get(key) for key in keys]
    # Right at the points, and one before and behind, is where searches go wrong.
    edges = [(point + step) % 2**32 for point, _ in ring.points()[:50] for step in (-1, 0, 1)]
    places = np.array([0, 2**32 - 1, *edges, *extra], np.uint32)
    assert [ring.nodes[owner] for owner in ring.owners_of_hashes(places)] == [
        ring.owner_of_hash(int(place)) for place in places
    ]


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


instants = st.datetimes(timezones=st.just(UTC))
COLUMNS: list[tuple[str, st.SearchStrategy[Any], pa.DataType]] = [
    ("boolean", st.booleans(), pa.bool_()),
    ("tinyint", integers(8), pa.int8()),
    ("smallint", integers(16), pa.int16()),
    ("integer", integers(32), pa.int32()),
    ("bigint", st.one_of(integers(64), st.integers(0, 1000)), pa.int64()),
    ("serial", st.integers(0, 2**62), pa.int64()),
    ("real", st.floats(width=32), pa.float32()),
    ("double", st.floats(), pa.float64()),
    ("varchar", st.one_of(text_keys, st.just("x" * (MAX_ROW_BYTES + 7))), pa.string()),
    ("bytea", byte_keys, pa.binary()),
    ("date", st.dates(), pa.date32()),
    ("timestamp", st.datetimes(), pa.timestamp("us")),
    ("timestamptz", instants, pa.timestamp("us", "UTC")),
    ("time", st.times(), pa.time64("us")),
    ("interval", st.timedeltas(timedelta(days=-90000), timedelta(days=90000)), pa.duration("us")),
    ("decimal", st.decimals(-(10**15), 10**15, places=3), pa.decimal128(20, 3)),
    ("decimal", st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal), pa.decimal128(38, 0)),
    ("array<int>", st.lists(st.one_of(st.none(), integers(32)), max_size=4), pa.list_(pa.int32())),
    (
        "struct<a:int,b:varchar>",
        st.fixed_dictionaries({"a": integers(32), "b": st.one_of(st.none(), text_keys)}),
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
    ),
    (
        "map<varchar,int>",
        st.dictionaries(text_keys, integers(32), max_size=3).map(lambda entries: list(entries.items())),
        pa.map_(pa.string(), pa.int32()),
    ),
]


@pytest.mark.parametrize(
    ("name", "values", "arrow"), COLUMNS, ids=lambda value: value if isinstance(value, str) else ""
)
@settings(max_examples=120, deadline=None)
@given(data=st.data(), count=counts)
def test_vnodes_of_one_column(name: str, values: st.SearchStrategy[Any], arrow: Any, data: Any, count: int) -> None:
    rows = data.draw(st.lists(st.one_of(st.none(), values), max_size=20))
    expected = [vnode((row,), (name,), count) for row in rows]
    assert vnodes([rows], [name], count).tolist() == expected
    array = pa.array(rows, arrow)
    assert vnodes([array], [name], count).tolist() == expected
    assert vnodes([pa.concat_arrays([array, array])[len(rows) :]], [name], count).tolist() == expected
    assert [vnode_function((name,), count)((row,)) for row in rows] == expected
    if name != "serial":
        assert vnodes([array], count=count).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), integers(64)), st.one_of(st.none(), text_keys), st.one_of(st.none(), st.dates())
        ),
        min_size=1,
        max_size=20,
    ),
    count=counts,
)
def test_vnodes_of_several_columns(rows: list[tuple[int | None, str | None, date | None]], count: int) -> None:
    types = ("bigint", "varchar", "date")
    expected = [vnode(row, types, count) for row in rows]
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert vnodes(columns, types, count).tolist() == expected
    arrow_types = (pa.int64(), pa.string(), pa.date32())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, arrow_types, strict=True)]
    table = pa.table(dict(zip("abc", arrays, strict=True)))
    assert vnodes(table, count=count).tolist() == expected
    assert vnodes(pa.concat_tables([table, table]), count=count).tolist() == expected * 2


@settings(max_examples=150, deadline=None)
@given(values=st.lists(integers(64), min_size=1, max_size=50), low=integers(64), count=counts)
def test_integer_lanes_with_common_high_bits(values: list[int], low: int, count: int) -> None:
    # Close values share their upper lanes, which the fast path folds into a constant.
    near = [max(-(2**63), min(2**63 - 1, low + value % 70_000)) for value in values]
    for dtype, bits in ((np.int64, 64), (np.int32, 32), (np.int16, 16), (np.int8, 8)):
        name = {64: "bigint", 32: "integer", 16: "smallint", 8: "tinyint"}[bits]
        for numbers in (values, near):
            array = np.array(numbers, np.int64).astype(dtype)
            assert vnodes([array], count=count).tolist() == [vnode((int(n),), (name,), count) for n in array]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)), min_size=1, max_size=20))
def test_numpy_datetimes_and_masks(values: list[datetime]) -> None:
    expected = [vnode((value,), ("timestamp",)) for value in values]
    array = np.array(values, "M8[us]")
    assert vnodes([array]).tolist() == expected
    null = vnode((None,), ("timestamp",))
    assert vnodes([np.array([*array, np.datetime64("NaT")])]).tolist() == [*expected, null]
    masked = np.ma.MaskedArray(array, [True] + [False] * (len(values) - 1))
    assert vnodes([masked]).tolist() == [null, *expected[1:]]
