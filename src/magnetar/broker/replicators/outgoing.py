"""Decides whether a stored entry is sent to another cluster, with its origin, or left out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY
from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.pulsar.PulsarMarkers_pb2 import MarkerType

LOCAL_MARKERS: Final = frozenset(
    {
        int(MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT),
        int(MarkerType.TXN_COMMITTING),
        int(MarkerType.TXN_COMMIT),
        int(MarkerType.TXN_ABORT),
    }
)
"""They say something about this log only. Transactions travel as their committed messages."""


SCHEMA_VERSION_BYTES_MAX: Final = 64
"""Longest schema version of a message. Versions have 8 bytes; a longer one names no schema, and the message is sent without it."""


class Skip(Enum):
    """The reason why an entry is not sent."""

    REPLICATED = auto()
    """It came from another cluster, which sends it everywhere itself."""
    NOT_MEANT = auto()
    """`replicate_to` names other clusters."""
    LOCAL_MARKER = auto()
    UNREADABLE = auto()


class Outgoing(NamedTuple):
    """Headers and payload for SEND."""

    data: bytes
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    is_chunk: bool
    marker: bool
    publish_time_ms: int


class UnknownSchema(NamedTuple):
    """The entry can go once somebody knows which version its schema has there."""

    version: bytes


def outgoing(
    data: bytes, ledger_id: int, entry_id: int, local: str, remote: str, schema_versions: Mapping[bytes, bytes]
) -> Outgoing | Skip | UnknownSchema:
    """`schema_versions`: the remote cluster's version for each of ours that is known."""
    try:
        start, end = metadata_bounds(data)
        metadata = MessageMetadata.FromString(data[start:end])
    except (ValueError, DecodeError):
        return Skip.UNREADABLE
    skip = _skip(metadata, remote)
    if skip is not None:
        return skip
    version = metadata.schema_version
    if len(version) > SCHEMA_VERSION_BYTES_MAX:
        metadata.ClearField("schema_version")
    elif version:
        there = schema_versions.get(version)
        if there is None:
            return UnknownSchema(version)
        metadata.schema_version = there
    metadata.replicated_from = local
    metadata.properties.add(key=SOURCE_POSITION_PROPERTY, value=f"{ledger_id}:{entry_id}")
    metadata.ClearField("txnid_least_bits")
    metadata.ClearField("txnid_most_bits")
    return Outgoing(
        with_checksum(metadata, data[end:]),
        metadata.sequence_id,
        metadata.highest_sequence_id,
        metadata.num_messages_in_batch,
        metadata.num_chunks_from_msg > 1,
        metadata.HasField("marker_type"),
        metadata.publish_time,
    )


def _skip(metadata: MessageMetadata, remote: str) -> Skip | None:
    if metadata.HasField("marker_type") and metadata.marker_type in LOCAL_MARKERS:
        return Skip.LOCAL_MARKER
    if metadata.replicated_from:
        return Skip.REPLICATED
    if metadata.replicate_to and remote not in metadata.replicate_to:
        return Skip.NOT_MEANT
    return None
