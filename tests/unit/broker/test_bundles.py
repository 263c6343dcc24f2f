"""Which bundle a topic falls into."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.namespaces.bundles import bundle_of, topic_hash
from magnetar.broker.namespaces.policies import bundle_boundaries
from magnetar.broker.naming import TopicName

FOUR = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


@pytest.mark.parametrize(
    ("hash_value", "bundle"),
    [
        (0, "0x00000000_0x40000000"),
        (0x3FFFFFFF, "0x00000000_0x40000000"),
        (0x40000000, "0x40000000_0x80000000"),
        (0xFFFFFFFE, "0xc0000000_0xffffffff"),
        (0xFFFFFFFF, "0xc0000000_0xffffffff"),
    ],
)
def test_edges(hash_value: int, bundle: str) -> None:
    assert bundle_of(hash_value, FOUR) == bundle


@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_every_hash_is_in_exactly_its_range(hash_value: int, count: int) -> None:
    low, _, high = bundle_of(hash_value, bundle_boundaries(count)).partition("_")
    assert int(low, 16) <= hash_value <= int(high, 16)
    assert hash_value < int(high, 16) or hash_value == 0xFFFFFFFF


def test_the_hash_is_that_of_the_complete_name() -> None:
    name = TopicName.parse("t-partition-3")
    assert topic_hash(name) == zlib.crc32(b"persistent://public/default/t-partition-3")
