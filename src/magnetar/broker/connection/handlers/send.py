"""SEND: the hot path into the topic. Plain calls; the receipt leaves from `Session.receipt`."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from magnetar.base.limits import BATCH_MESSAGES_MAX
from magnetar.broker.connection.handlers.send_in_transaction import send_in_transaction
from magnetar.broker.connection.handlers.send_replicated import send_replicated
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.publish import PublishOp
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, checksum_matches, parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError

BATCHED_MESSAGE_BYTES_MIN = 6
"""A message in a batch: u32 size and its one required field."""


def send(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.send
    producer = session.producers.get(request.producer_id)
    if producer is None:
        _without_producer(session, request.producer_id)
        return
    txn = request.txnid_least_bits
    problem = problem_of(rest, txn)
    if problem:
        session.context.counters.checksum_errors += 1
        session.write(commands.send_error(request.producer_id, request.sequence_id, ServerError.ChecksumError, problem))
        return
    if txn:
        send_in_transaction(session, producer, request, rest)
        return
    source = producer.source_cluster
    if source is not None:
        send_replicated(session, producer, source, request, rest)
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


def problem_of(headers_and_payload: bytes, txn: int = 0) -> str:
    """Why an entry cannot be stored, empty when it can. `txn`: the number of the transaction that its command names, 0 for none.

    What a client cannot parse must not reach the log: it would end every official consumer that ever reads it (the C++ client
    up to 4.2 crashes on an empty entry). ChecksumError is the one code after which a producer goes on (facts 0.3).
    """
    if headers_and_payload[:2] == MAGIC_BROKER_ENTRY_METADATA:
        return "broker entry metadata is the broker's to write"
    if not checksum_matches(headers_and_payload):
        return "the message was damaged on its way"
    try:
        metadata = parse_metadata(headers_and_payload)
    except (ValueError, DecodeError):
        return "the message has no valid metadata"
    named = metadata.txnid_least_bits
    if (txn or named) and (named not in (0, txn) or metadata.HasField("marker_type")):
        return "the message belongs to another transaction than its frame says"
    count = metadata.num_messages_in_batch  # 1 by default
    if count < 1:
        return "a batch holds at least one message"
    if count > 1 and count > batch_messages_max(metadata, len(headers_and_payload)):
        return "a batch cannot hold that many messages"
    return ""


def batch_messages_max(metadata: MessageMetadata, size_bytes: int) -> int:
    """How many messages a batch may claim: each costs its consumer a permit, so a forged count would starve it."""
    plain_bytes = metadata.uncompressed_size if metadata.compression else size_bytes
    return min(plain_bytes // BATCHED_MESSAGE_BYTES_MIN, BATCH_MESSAGES_MAX)


def _without_producer(session: Session, producer_id: int) -> None:
    """Frames that were on their way when the server closed the producer are dropped: the client sends them again."""
    if producer_id not in session.closed_producers:
        raise NotAllowedError(f"SEND for the unknown producer {producer_id}")
