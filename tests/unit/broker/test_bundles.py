"""Which bundle a topic falls into."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.namespaces.records import boundaries_text, bundle_of
from magnetar.broker.naming import TopicName


def test_four_bundles_as_pulsar_writes_them() -> None:
    assert boundaries_text(4) == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_a_topic_is_in_the_bundle_of_its_complete_names_hash(number: int, count: int) -> None:
    topic = TopicName.parse(f"topic-{number}-partition-3")
    hash_value = zlib.crc32(f"persistent://public/default/topic-{number}-partition-3".encode())
    low, _, high = bundle_of(topic, boundaries_text(count)).partition("_")
    assert int(low, 16) <= hash_value
    assert hash_value < int(high, 16) or (hash_value == 0xFFFFFFFF and high == "0xffffffff")
