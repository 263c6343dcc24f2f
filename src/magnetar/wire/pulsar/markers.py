"""Markers of replicated subscriptions (PIP-33) as entries of a topic: Pulsar's bytes. Pure.

A message id is (ledger, entry) of the cluster it is told of, with -1 as in `managed_ledger.position`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from magnetar.wire.pulsar.headers import metadata_bounds, with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata
from magnetar.wire.pulsar.PulsarMarkers_pb2 import (
    AcknowledgedMessages,
    ClusterMessageId,
    MarkersMessageIdData,
    MarkerType,
    ReplicatedSubscriptionsSnapshot,
    ReplicatedSubscriptionsSnapshotRequest,
    ReplicatedSubscriptionsSnapshotResponse,
    ReplicatedSubscriptionsUpdate,
)

PRODUCER_NAME: Final = "pulsar.marker"
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64

Body = TypeVar("Body", bound=Message)

MessageId: TypeAlias = tuple[int, int]


class SnapshotRequest(NamedTuple):
    """Asks every other cluster how far its topic is."""

    snapshot_id: str
    source_cluster: str


class SnapshotResponse(NamedTuple):
    """`cluster` had `message_id` as its last entry before it wrote this."""

    snapshot_id: str
    cluster: str
    message_id: MessageId


class Snapshot(NamedTuple):
    """A consumer that has consumed everything up to `local_message_id` here has consumed everything up to these ids there."""

    snapshot_id: str
    local_message_id: MessageId
    clusters: Mapping[str, MessageId]


Run: TypeAlias = tuple[int, int, int]
"""Ledger, first and last entry."""


class SubscriptionUpdate(NamedTuple):
    """The subscription has consumed everything up to these ids, and the messages of `acknowledged`: by the cluster where they were
    published, runs of their places there. Pulsar neither writes nor reads these."""

    subscription: str
    clusters: Mapping[str, MessageId]
    acknowledged: Mapping[str, tuple[Run, ...]] = {}


Marker: TypeAlias = SnapshotRequest | SnapshotResponse | Snapshot | SubscriptionUpdate


def encode(marker: Marker, now_ms: int, only_to: str | None = None) -> bytes:
    """The entry. `only_to`: the one cluster it is meant for; a response names who asked, a snapshot its own cluster (it goes
    nowhere), the others None (they go everywhere)."""
    marker_type, payload = _pack(marker)
    metadata = MessageMetadata(
        producer_name=PRODUCER_NAME,
        sequence_id=0,
        publish_time=now_ms,
        replicate_to=() if only_to is None else (only_to,),
        marker_type=marker_type,
    )
    return with_checksum(metadata, payload)


def decode(data: bytes) -> Marker | None:
    """The marker in an entry; None for an entry that is none of these: a message, a transaction's end, a type of tomorrow.

    Raises ValueError when the bytes are not what they say, or lack what this version of Pulsar's markers must have.
    """
    start, end = metadata_bounds(data)
    try:
        metadata = MessageMetadata.FromString(data[start:end])
        unpack = _UNPACK.get(metadata.marker_type)
        return None if unpack is None else unpack(data[end:])
    except DecodeError as failure:
        raise ValueError(f"an entry's marker cannot be read: {failure}") from None


# ---- To bytes


def _pack(marker: Marker) -> tuple[int, bytes]:
    match marker:
        case SnapshotRequest():
            return _pack_request(marker)
        case SnapshotResponse():
            return _pack_response(marker)
        case Snapshot():
            return _pack_snapshot(marker)
        case SubscriptionUpdate():
            return _pack_update(marker)


def _pack_request(marker: SnapshotRequest) -> tuple[int, bytes]:
    body = ReplicatedSubscriptionsSnapshotRequest(snapshot_id=marker.snapshot_id, source_cluster=marker.source_cluster)
    return MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST, body.SerializeToString()


def _pack_response(marker: SnapshotResponse) -> tuple[int, bytes]:
    body = ReplicatedSubscriptionsSnapshotResponse(
        snapshot_id=marker.snapshot_id,
        cluster=ClusterMessageId(cluster=marker.cluster, message_id=_pack_id(marker.message_id)),
    )
    return MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE, body.SerializeToString()


def _pack_snapshot(marker: Snapshot) -> tuple[int, bytes]:
    body = ReplicatedSubscriptionsSnapshot(
        snapshot_id=marker.snapshot_id,
        local_message_id=_pack_id(marker.local_message_id),
        clusters=_pack_clusters(marker.clusters),
    )
    return MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT, body.SerializeToString()


def _pack_update(marker: SubscriptionUpdate) -> tuple[int, bytes]:
    body = ReplicatedSubscriptionsUpdate(
        subscription_name=marker.subscription,
        clusters=_pack_clusters(marker.clusters),
        acknowledged=[
            AcknowledgedMessages(cluster=name, runs=_pack_runs(marker.acknowledged[name]))
            for name in sorted(marker.acknowledged)
        ],
    )
    return MarkerType.REPLICATED_SUBSCRIPTION_UPDATE, body.SerializeToString()


def _pack_clusters(clusters: Mapping[str, MessageId]) -> list[ClusterMessageId]:
    """The clusters in the order of their names, as Pulsar writes them."""
    return [ClusterMessageId(cluster=name, message_id=_pack_id(clusters[name])) for name in sorted(clusters)]


def _pack_runs(runs: Iterable[Run]) -> list[int]:
    return [number for ledger_id, first, last in runs for number in (ledger_id, first, last - first)]


def _pack_id(message_id: MessageId) -> MarkersMessageIdData:
    ledger_id, entry_id = message_id
    return MarkersMessageIdData(ledger_id=ledger_id % _WRAP, entry_id=entry_id % _WRAP)


# ---- From bytes


def _parse(kind: type[Body], payload: bytes) -> Body:
    body = kind.FromString(payload)
    if not body.IsInitialized():  # the parser itself takes a message without its required fields
        raise ValueError(f"a {kind.__name__} lacks a required field")
    return body


def _unpack_request(payload: bytes) -> SnapshotRequest:
    body = _parse(ReplicatedSubscriptionsSnapshotRequest, payload)
    if not body.source_cluster:
        raise ValueError("a snapshot request does not say which cluster asks")
    return SnapshotRequest(body.snapshot_id, body.source_cluster)


def _unpack_response(payload: bytes) -> SnapshotResponse:
    body = _parse(ReplicatedSubscriptionsSnapshotResponse, payload)
    if not body.HasField("cluster"):
        raise ValueError("a snapshot response does not say which cluster answers")
    return SnapshotResponse(body.snapshot_id, body.cluster.cluster, _unpack_id(body.cluster.message_id))


def _unpack_snapshot(payload: bytes) -> Snapshot:
    body = _parse(ReplicatedSubscriptionsSnapshot, payload)
    if not body.HasField("local_message_id"):
        raise ValueError("a snapshot does not say which local message it belongs to")
    return Snapshot(body.snapshot_id, _unpack_id(body.local_message_id), _unpack_clusters(body.clusters))


def _unpack_update(payload: bytes) -> SubscriptionUpdate:
    body = _parse(ReplicatedSubscriptionsUpdate, payload)
    acknowledged = {each.cluster: _unpack_runs(each.runs) for each in body.acknowledged}
    return SubscriptionUpdate(body.subscription_name, _unpack_clusters(body.clusters), acknowledged)


def _unpack_runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    if len(numbers) % 3:
        raise ValueError("the acknowledged messages of an update are not valid runs")
    return tuple(
        (ledger_id, first, first + more)
        for ledger_id, first, more in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    )


def _unpack_clusters(clusters: Iterable[ClusterMessageId]) -> dict[str, MessageId]:
    return {each.cluster: _unpack_id(each.message_id) for each in clusters}


def _unpack_id(message_id: MarkersMessageIdData) -> MessageId:
    return _signed(message_id.ledger_id), _signed(message_id.entry_id)


def _signed(number: int) -> int:
    return number - _WRAP if number >= _SIGN else number


_UNPACK: Final[Mapping[int, Callable[[bytes], Marker]]] = {
    int(MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST): _unpack_request,
    int(MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE): _unpack_response,
    int(MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT): _unpack_snapshot,
    int(MarkerType.REPLICATED_SUBSCRIPTION_UPDATE): _unpack_update,
}
