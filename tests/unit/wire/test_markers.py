"""Markers of replicated subscriptions, byte for byte as Pulsar writes them."""

from __future__ import annotations

import pytest

from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.transactions.types import MARKERS, TxnId, marker
from magnetar.managed_ledger.entry import Entry
from magnetar.wire.pulsar.headers import MAGIC_CRC32C, checksum_matches, payload_of, with_checksum
from magnetar.wire.pulsar.markers import (
    Marker,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
    decode,
    encode,
)
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

# Field by field from PulsarMarkers.proto: tag, length, value. 1234 = d2 09, 45678 = ee e4 02, 1_700_000_000_000 = 80 d0 95 ff bc 31.
METADATA = b"\x0a\x0dpulsar.marker\x10\x00\x18\x80\xd0\x95\xff\xbc\x31"
NOW_MS = 1_700_000_000_000
ID_1234_45678 = b"\x08\xd2\x09\x10\xee\xe4\x02"
CLUSTER_B = b"\x0a\x01b\x12\x07" + ID_1234_45678
CLUSTER_C = b"\x0a\x01c\x12\x04\x08\x07\x10\x09"
FRONT = b"\xff" * 9 + b"\x01"  # -1 as an unsigned number: in front of the first entry

VECTORS: list[tuple[Marker, str | None, bytes, bytes]] = [
    (
        SnapshotRequest("id-1", "a"),
        None,
        METADATA + b"\xa0\x01\x0a",
        b"\x0a\x04id-1\x12\x01a",
    ),
    (
        SnapshotResponse("id-1", "b", (1234, 45678)),
        "a",
        METADATA + b"\x3a\x01a\xa0\x01\x0b",
        b"\x0a\x04id-1\x12\x0c" + CLUSTER_B,
    ),
    (
        SnapshotResponse("id-1", "b", (7, -1)),
        "a",
        METADATA + b"\x3a\x01a\xa0\x01\x0b",
        b"\x0a\x04id-1\x12\x12\x0a\x01b\x12\x0d\x08\x07\x10" + FRONT,
    ),
    (
        Snapshot("id-1", (1234, 45678), {"c": (7, 9), "b": (1234, 45678)}),
        "a",
        METADATA + b"\x3a\x01a\xa0\x01\x0c",
        b"\x0a\x04id-1\x12\x07" + ID_1234_45678 + b"\x1a\x0c" + CLUSTER_B + b"\x1a\x09" + CLUSTER_C,
    ),
    (
        SubscriptionUpdate("sub", {"c": (7, 9), "b": (1234, 45678)}),
        None,
        METADATA + b"\xa0\x01\x0d",
        b"\x0a\x03sub\x12\x0c" + CLUSTER_B + b"\x12\x09" + CLUSTER_C,
    ),
    (
        # Not Pulsar's: field 1000, behind its own, with a length to skip it by
        SubscriptionUpdate("sub", {"c": (7, 9)}, {"b": ((3, 4, 6), (3, 9, 9))}),
        None,
        METADATA + b"\xa0\x01\x0d",
        b"\x0a\x03sub\x12\x09" + CLUSTER_C + b"\xc2\x3e\x0b\x0a\x01b\x12\x06\x03\x04\x02\x03\x09\x00",
    ),
]


@pytest.mark.parametrize(("marker", "only_to", "metadata", "payload"), VECTORS, ids=lambda value: type(value).__name__)
def test_bytes(marker: Marker, only_to: str | None, metadata: bytes, payload: bytes) -> None:
    data = encode(marker, NOW_MS, only_to)
    assert data[:2] == MAGIC_CRC32C
    assert checksum_matches(data)
    assert data[6:] == len(metadata).to_bytes(4, "big") + metadata + payload
    assert decode(data) == marker
    assert metadata_of(Entry(1, 1, data)).marker_type >= 0  # what dispatch goes by: no consumer sees it


def test_what_is_no_marker_of_these() -> None:
    plain = MessageMetadata(producer_name="p", sequence_id=1, publish_time=NOW_MS)
    assert decode(with_checksum(plain, b"\x0a\x04id-1")) is None
    assert decode(marker(TxnId(0, 1), commit=True, now_ms=NOW_MS)) is None
    plain.marker_type = 99
    assert decode(with_checksum(plain, b"anything")) is None


@pytest.mark.parametrize(
    ("marker_type", "payload", "text"),
    [
        (10, b"\x0a\x04id-1", "which cluster asks"),
        (11, b"\x0a\x04id-1", "which cluster answers"),
        (12, b"\x0a\x04id-1", "which local message"),
        (13, b"", "Update lacks a required field"),
        (11, b"\x0a\x04id-1\x12\x03\x0a\x01b", "Response lacks a required field"),
        (13, b"\x0a\x01s\x12\x07\x0a\x01b\x12\x02\x08\x01", "Update lacks a required field"),
        (10, b"\x0a\x7fid", "cannot be read"),
    ],
)
def test_damaged_markers_are_none(marker_type: int, payload: bytes, text: str) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, marker_type=marker_type)
    with pytest.raises(ValueError, match=text):
        decode(with_checksum(metadata, payload))


def test_transactions_use_the_same_list_of_types() -> None:
    data = marker(TxnId(0, 1), commit=False, now_ms=0)
    assert metadata_of(Entry(1, 1, data)).marker_type == 22
    assert payload_of(data) == b""
    assert MARKERS == (21, 22)
