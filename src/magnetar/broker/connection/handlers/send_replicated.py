"""SEND of another cluster's replicator."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY
from magnetar.broker.replicators.outgoing import LOCAL_MARKERS
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import MarkerOp, PublishOp
from magnetar.broker.topics.replicated_publish import ReplicatedOp, place_of
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSend, MessageMetadata

MARKER_RECEIPT = 1 << 63
"""In the place of a receipt's highest sequence id: it is for a marker (Pulsar's Long.MIN_VALUE)."""


def send_replicated(
    session: Session, producer: Producer, source: str, request: CommandSend, metadata: MessageMetadata, data: bytes
) -> None:
    """`metadata`, of `data`, was looked at. `source`: the cluster that sends."""
    size_bytes = len(data)
    session.publish_started(size_bytes)
    place = place_of(metadata)
    problem = _problem(metadata, place, source)
    if problem:
        refused = PublishOp(producer, request.sequence_id, request.highest_sequence_id, 1, size_bytes)
        producer.refuse(refused, NotAllowedError(problem))
        return
    if metadata.HasField("marker_type"):
        highest = MARKER_RECEIPT if session.replication_by_place else 0
        producer.publish_marker(MarkerOp(producer, request.sequence_id, highest, 1, size_bytes), data)
        return
    op = ReplicatedOp(producer, source, metadata, place, size_bytes, session.replication_by_place)
    producer.publish(op, data, request.is_chunk)


def _problem(metadata: MessageMetadata, place: tuple[int, int] | None, source: str) -> str:
    """Why a replicator of `source` cannot send this, empty when it can."""
    if metadata.replicated_from != source:
        return f"a replicator of cluster {source} sends messages of that cluster only, and names it in replicated_from"
    if metadata.HasField("marker_type") and metadata.marker_type in LOCAL_MARKERS:
        return "snapshots and the ends of transactions concern the log that they are in: they are not replicated"
    if metadata.txnid_least_bits:
        return "a transaction of another cluster means nothing here: replicate its messages without their transaction"
    if place is None and any(pair.key == SOURCE_POSITION_PROPERTY for pair in metadata.properties):
        return f"{SOURCE_POSITION_PROPERTY} is not a place: write ledger:entry"
    return ""
