"""SEND: the hot path into the topic. Plain calls; the receipt leaves from `Session.receipt`."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from magnetar.base.limits import CHUNKS_MAX, MESSAGE_METADATA_BYTES_MAX
from magnetar.broker.connection.handlers.send_in_transaction import send_in_transaction
from magnetar.broker.connection.handlers.send_replicated import send_replicated
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import ChecksumError, NotAllowedError
from magnetar.broker.topics.publish import PublishOp
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.batches import batch_messages_max
from magnetar.wire.pulsar.compression import unpacked_bytes_max
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, checksum_matches, metadata_bounds
from magnetar.wire.pulsar.parsers import parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, MessageMetadata, ServerError

CHUNK_ENCRYPTION_BYTES_MAX = 64
"""What encryption may add to a chunk; the claimed size of the whole message is from before it. The clients' AES-GCM adds 16 bytes."""


RESERVED = "marker_type and replicated_from are set by servers only: send the message without them"
"""Brokers obey markers and do not replicate what came from elsewhere. Told as NotAllowedError: the message is whole, and not a client's."""


FOREIGN_NAME = "producer_name in the message's metadata is not the producer's own"
"""Where producers are deduplicated, a restart learns their sequence ids from there: a false name would make another one's messages
repeats."""


def send(session: Session, command: BaseCommand, rest: bytes) -> None:
    request = command.send
    producer = session.producers.get(request.producer_id)
    if producer is None:
        _without_producer(session, request.producer_id)
        return
    txn = request.txnid_least_bits
    source = producer.source_cluster
    size_bytes = len(rest)
    try:
        metadata = checked_metadata(rest, txn)
    except ChecksumError as error:
        session.context.counters.checksum_errors += 1
        code = ServerError.ChecksumError
        session.write(commands.send_error(request.producer_id, request.sequence_id, code, str(error)))
        return
    if source is not None:
        send_replicated(session, producer, source, request, metadata, rest)
        return
    problem = reserved(metadata)
    if not problem and metadata.producer_name != producer.name and producer.topic.deduplicates:
        problem = FOREIGN_NAME
    if problem:
        session.publish_started(size_bytes)
        refused = PublishOp(producer, request.sequence_id, request.highest_sequence_id, 1, size_bytes)
        producer.refuse(refused, NotAllowedError(problem))
        return
    if txn:
        send_in_transaction(session, producer, request, metadata, rest)
        return
    op = PublishOp(
        producer,
        request.sequence_id,
        request.highest_sequence_id,
        metadata.num_messages_in_batch,  # and not what the command says: rates and statistics are charged by it
        size_bytes,
    )
    session.publish_started(size_bytes)
    producer.publish(op, rest, request.is_chunk)


def reserved(metadata: MessageMetadata) -> str:
    """Why nobody but a replicator may send this metadata although it is whole; empty when everybody may."""
    return RESERVED if metadata.replicated_from or metadata.HasField("marker_type") else ""


def checked_metadata(headers_and_payload: bytes, txn: int = 0) -> MessageMetadata:
    """The metadata of an entry that can be stored. `txn`: the number of the transaction that its command names, 0 for none.

    Raises ChecksumError for one that cannot: what a client cannot parse must not reach the log, it would end every official consumer
    that ever reads it (the C++ client up to 4.2 crashes on an empty entry). That code is the one after which a producer goes on.
    """
    if headers_and_payload[:2] == MAGIC_BROKER_ENTRY_METADATA:
        raise ChecksumError("broker entry metadata is the broker's to write")
    if not checksum_matches(headers_and_payload):
        raise ChecksumError("the message was damaged on its way")
    try:
        start, end = metadata_bounds(headers_and_payload)
        if end - start > MESSAGE_METADATA_BYTES_MAX:
            raise ChecksumError(
                f"the metadata of a message is at most {MESSAGE_METADATA_BYTES_MAX} bytes, not {end - start}"
            )
        metadata = parse_metadata(headers_and_payload[start:end])
    except (ValueError, DecodeError):
        raise ChecksumError("the message has no valid metadata, or text in it that is not UTF-8") from None
    named = metadata.txnid_least_bits
    if named not in (0, txn):
        raise ChecksumError("the message belongs to another transaction than its frame says")
    problem = false_claim(metadata, len(headers_and_payload) - end)
    if problem:
        raise ChecksumError(problem)
    return metadata


def false_claim(metadata: MessageMetadata, payload_bytes: int) -> str:
    """What the headers claim and what cannot be true of a payload of this size; empty when all of it can. Nothing is unpacked.

    Others pay for claims: each message of a batch costs its consumers a permit, and consumers allocate what is said to come.
    """
    count = metadata.num_messages_in_batch  # 1 by default
    if count != 1:
        if count < 1:
            return "a batch holds at least one message"
        if count > batch_messages_max(metadata, payload_bytes):
            return f"{payload_bytes} bytes cannot hold a batch of {count} messages"
    if metadata.num_chunks_from_msg > 1:
        problem = _false_chunk(metadata, payload_bytes)
        if problem:
            return problem
        payload_bytes = metadata.total_chunk_msg_size  # the message is compressed as a whole
    codec = metadata.compression
    if codec and metadata.uncompressed_size > unpacked_bytes_max(codec, payload_bytes):
        return f"{payload_bytes} bytes cannot unpack to {metadata.uncompressed_size}"
    return ""


def _false_chunk(metadata: MessageMetadata, payload_bytes: int) -> str:
    """All chunks of a message but the last are of one size, in every official client; a factor of two is left to others."""
    chunks, chunk, total_bytes = metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size
    if chunks > CHUNKS_MAX:
        return f"a message is sent in at most {CHUNKS_MAX} chunks, not {chunks}"
    if not 0 <= chunk < chunks:
        return f"there is no chunk {chunk} of {chunks}"
    plain_bytes = payload_bytes - CHUNK_ENCRYPTION_BYTES_MAX if metadata.encryption_keys else payload_bytes
    if total_bytes < plain_bytes or (chunk < chunks - 1 and total_bytes > 2 * chunks * payload_bytes):
        return f"{chunks} chunks of {payload_bytes} bytes are no message of {total_bytes}"
    return ""


def _without_producer(session: Session, producer_id: int) -> None:
    """Frames that were on their way when the server closed the producer are dropped: the client sends them again."""
    if producer_id not in session.closed_producers:
        raise NotAllowedError(f"SEND for the unknown producer {producer_id}")
