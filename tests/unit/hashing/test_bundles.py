"""Bundles: Pulsar's boundaries and which bundle a topic is in."""

from __future__ import annotations

import pytest

from magnetar.hashing.bundles import bundle_boundaries, bundle_index, bundle_range, check_boundaries
from magnetar.hashing.crc import crc32
from magnetar.hashing.errors import InvalidRangeError


def test_four_bundles_have_the_boundaries_of_a_new_namespace() -> None:
    assert bundle_boundaries(4) == [0, 0x40000000, 0x80000000, 0xC0000000, 0xFFFFFFFF]
    check_boundaries(bundle_boundaries(4))


def test_a_topic_lies_in_the_bundle_of_its_crc32() -> None:
    topic = "persistent://public/default/t"
    assert crc32(topic) == 2185025833
    assert bundle_range(topic, bundle_boundaries(4)) == "0x80000000_0xc0000000"
    assert bundle_range(topic, bundle_boundaries(1)) == "0x00000000_0xffffffff"


def test_low_ends_are_inside_and_the_last_high_end_too() -> None:
    value = crc32("persistent://public/default/t")
    assert bundle_index("persistent://public/default/t", [0, value, 0xFFFFFFFF]) == 1
    assert bundle_index("persistent://public/default/t", [0, value + 1, 0xFFFFFFFF]) == 0
    # CRC-32 of these four bytes is 0xffffffff.
    assert crc32(b"\xff\xff\xff\xff") == 0xFFFFFFFF


def test_bad_boundaries_are_refused() -> None:
    for count in (0, -1, 65_537):
        with pytest.raises(InvalidRangeError):
            bundle_boundaries(count)
    for boundaries in ([], [0], [1, 0xFFFFFFFF], [0, 5], [0, 9, 9, 0xFFFFFFFF]):
        with pytest.raises(InvalidRangeError):
            check_boundaries(boundaries)
