"""A SEND whose message asks for a trace: it is published like any other, watched, or only told where it would go."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import NO_ID, PublishOp
from magnetar.broker.topics.replicated_publish import place_of
from magnetar.broker.tracing.destination import where_it_would_go
from magnetar.broker.tracing.publishing import Told, TracedOp, TraceOnlyOp, telling, watched
from magnetar.broker.tracing.trace import Asked, Kind, Origin, Trace
from magnetar.wire.pulsar.headers import metadata_bounds
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandSend, MessageMetadata

ORIGINAL_TOPIC_PROPERTIES = ("REAL_TOPIC", "ORIGINAL_TOPIC")
"""Clients write them into messages that they send to a retry or dead letter topic."""

ORIGINAL_MESSAGE_PROPERTIES = ("ORIGIN_MESSAGE_ID", "ORIGINAL_MESSAGE_ID")


def asked_by(session: Session, metadata: MessageMetadata) -> Asked | None:
    """What the message's properties ask for; None for nothing."""
    return session.context.traces.asked(metadata.properties) if metadata.properties else None


def begin(
    session: Session, producer: Producer, asked: Asked | None, metadata: MessageMetadata, size_bytes: int
) -> Trace | None:
    """None where nothing is asked, or above the tenant's rate."""
    if asked is None:
        return None
    name = session.producer_topics[producer.producer_id].name
    role = session.principal.role if session.principal is not None else None
    messages = metadata.num_messages_in_batch
    who = (str(name), name.tenant, role, producer.name, session.address)
    trace = session.context.traces.begin(asked, Origin(*who, metadata.sequence_id, messages, size_bytes))
    if trace is not None:
        trace.note(Kind.RECEIVED, _said(metadata, size_bytes))
    return trace


def _said(metadata: MessageMetadata, size_bytes: int) -> str:
    told = [f"{size_bytes} bytes", f"sequence id {metadata.sequence_id}"]
    if metadata.num_messages_in_batch > 1:
        told.append(f"a batch of {metadata.num_messages_in_batch}")
    if metadata.partition_key:
        told.append(f"key {metadata.partition_key[:100]}")
    if metadata.replicated_from:
        place = place_of(metadata)
        told.append(f"from cluster {metadata.replicated_from}" + (f", there {place[0]}:{place[1]}" if place else ""))
    properties = {pair.key: pair.value[:200] for pair in metadata.properties}
    message = next((properties[name] for name in ORIGINAL_MESSAGE_PROPERTIES if name in properties), "")
    topic = next((properties[name] for name in ORIGINAL_TOPIC_PROPERTIES if name in properties), "")
    if message or topic:
        told.append(f"its client says that it was message {message} of {topic or 'another topic'} before")
    return ", ".join(told)


def telling_of(session: Session, producer: Producer, trace: Trace, metadata: MessageMetadata, data: bytes) -> Told:
    """See `telling`."""
    topic = session.producer_topics[producer.producer_id]
    return telling(trace, topic, metadata, len(data) - metadata_bounds(data)[1], session.context.clock)


def publish(
    session: Session, producer: Producer, request: CommandSend, metadata: MessageMetadata, data: bytes, asked: Asked
) -> None:
    """One message that asks for a trace; it was counted as started."""
    numbers = [request.sequence_id], [request.highest_sequence_id], [metadata.num_messages_in_batch], [len(data)]
    trace = begin(session, producer, asked, metadata, len(data))
    if trace is None:
        producer.publish(PublishOp(producer, *numbers), [data], request.is_chunk)
        return
    op = TracedOp(producer, *numbers)
    op.told = telling_of(session, producer, trace, metadata, data)
    producer.publish(op, watched(trace, data), request.is_chunk)


def tell_only(
    session: Session, producer: Producer, request: CommandSend, metadata: MessageMetadata, data: bytes, asked: Asked
) -> None:
    """Store nothing: note where the message would go and why not further, and answer with a receipt without a place."""
    numbers = [request.sequence_id], [request.highest_sequence_id], [metadata.num_messages_in_batch], [len(data)]
    session.publish_started(1, len(data))
    op = TraceOnlyOp(producer, *numbers)
    trace = begin(session, producer, asked, metadata, len(data))
    if trace is not None:
        topic = session.producer_topics[producer.producer_id]
        where_it_would_go(trace, topic, op, metadata, data, session.context.clock)
        trace.complete = True
    producer.pending.append(op)
    op.done(None, NO_ID, NO_ID, 1)
