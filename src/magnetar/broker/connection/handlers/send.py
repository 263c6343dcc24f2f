"""SEND: the hot path into the topic. Plain calls; the receipt leaves from `Session.receipt`."""

from __future__ import annotations

from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.publish import PublishOp
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.headers import checksum_matches
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError


def send(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.send
    producer = session.producers.get(request.producer_id)
    if producer is None:
        _without_producer(session, request.producer_id)
        return
    if not checksum_matches(rest):
        session.context.counters.checksum_errors += 1
        session.write(
            commands.send_error(
                request.producer_id,
                request.sequence_id,
                ServerError.ChecksumError,
                "the message was damaged on its way",
            )
        )
        return
    size_bytes = len(rest)
    num_messages = request.num_messages
    op = PublishOp(
        producer,
        request.sequence_id,
        request.highest_sequence_id,
        num_messages if num_messages > 0 else 1,
        size_bytes,
    )
    session.publish_started(size_bytes)
    producer.publish(op, rest, request.is_chunk)


def _without_producer(session: Session, producer_id: int) -> None:
    """Frames that were on their way when the server closed the producer are dropped: the client sends them again."""
    if producer_id not in session.closed_producers:
        raise NotAllowedError(f"SEND for the unknown producer {producer_id}")
