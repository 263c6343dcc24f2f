"""SEND of another cluster's replicator."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import MarkerOp
from magnetar.broker.topics.replicated_publish import ReplicatedOp
from magnetar.wire.pulsar.headers import parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSend

MARKER_RECEIPT = 1 << 63
"""In the place of a receipt's highest sequence id: it is for a marker (Pulsar's Long.MIN_VALUE)."""


def send_replicated(session: Session, producer: Producer, source: str, request: CommandSend, data: bytes) -> None:
    """`data` was looked at: it is whole. `source`: the cluster that sends."""
    size_bytes = len(data)
    session.publish_started(size_bytes)
    if request.marker:
        highest = MARKER_RECEIPT if session.replication_by_place else 0
        producer.publish_marker(MarkerOp(producer, request.sequence_id, highest, 1, size_bytes), data)
        return
    op = ReplicatedOp(producer, source, parse_metadata(data), size_bytes, session.replication_by_place)
    producer.publish(op, data, request.is_chunk)
