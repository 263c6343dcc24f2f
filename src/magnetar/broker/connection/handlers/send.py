"""SEND, also within a transaction or from another cluster's replicator: the hot path into the topic.

Consecutive frames of one producer that arrived together are a run and travel as one (`send_run`). A frame that is not plain is handled by
itself (`send`): then the run is its one entry. Plain calls; the receipts leave from `Session.receipt`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.base.checksum import crc32c
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BATCH_MESSAGES_MAX, CHUNKS_MAX, MESSAGE_METADATA_BYTES_MAX
from magnetar.broker.connection.handlers import traced
from magnetar.broker.connection.handlers.transactions import acting_role
from magnetar.broker.connection.session import Session
from magnetar.broker.errors import ChecksumError, NotAllowedError
from magnetar.broker.replicators.names import SOURCE_POSITION_PROPERTY, cluster_of_source
from magnetar.broker.replicators.outgoing import LOCAL_MARKERS
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.producer import Producer
from magnetar.broker.topics.publish import MarkerOp, PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.broker.topics.replicated_publish import ReplicatedOp, place_of, source_of
from magnetar.broker.topics.transactions import TransactionPublishOp
from magnetar.broker.tracing.publishing import TracedReplicatedOp, TracedTransactionOp, watched
from magnetar.broker.tracing.trace import TRACING_KEYS, TRACING_MARKS
from magnetar.broker.transactions.buffer import TransactionBuffer
from magnetar.broker.transactions.grants import TOPIC_ITSELF
from magnetar.broker.transactions.types import TxnId, txn_of
from magnetar.wire.pulsar import commands
from magnetar.wire.pulsar.batches import batch_messages_max
from magnetar.wire.pulsar.compression import unpacked_bytes_max
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.frequent import SendHead, read_send
from magnetar.wire.pulsar.headers import MAGIC_BROKER_ENTRY_METADATA, MAGIC_CRC32C, metadata_bounds, with_checksum
from magnetar.wire.pulsar.kernel import kernel as compiled
from magnetar.wire.pulsar.parsers import parse_metadata
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSend, MessageMetadata, ServerError

CHUNK_ENCRYPTION_BYTES_MAX = 64
"""Bytes that encryption may add to a chunk; the claimed size of the whole message is from before it. The clients' AES-GCM adds 16 bytes."""

RESERVED = "marker_type and replicated_from are set by servers only: send the message without them"
"""Brokers obey markers and do not replicate what came from elsewhere. Told as NotAllowedError: the message is whole, and not a client's."""

NO_METADATA = "the message has no valid metadata, or text in it that is not UTF-8"

FOREIGN_NAME = "producer_name in the message's metadata is not the producer's own"
"""Where producers are deduplicated, a restart learns their sequence ids from there: a false name would make another one's messages
repeats."""

MARKER_RECEIPT = 1 << 63
"""The highest sequence id in the receipt of a marker (Pulsar's Long.MIN_VALUE)."""


class _MayBeTraced(ChecksumError):
    """Not for a run: `send` looks at its properties."""


def send_run(session: Session, frames: deque[Frame], entries_max: int) -> int:
    """Publish the plain SENDs of one producer with which `frames` begins; answers how many were taken off.

    0: the first frame is not plain. It ends before a frame that `send` would refuse or trace, and where reading would pause for what is
    published.
    """
    head = read_send(frames[0][0])
    if head is None:
        return 0
    producer_id, is_chunk = head.producer_id, head.is_chunk
    producer = session.producers.get(producer_id)
    if producer is None or producer.source_cluster is not None:
        return 0
    topic = producer.topic
    entries_left, bytes_left = session.publish_room(entries_max if topic.gate is None and not topic.deduplicates else 1)
    own_name = producer.name if topic.deduplicates else None
    columns = take_sends(frames, head, entries_left, bytes_left, own_name, session.context.traces.looks_for)
    run = columns[0]
    if run:
        op = PublishOp(producer, *columns[1:])
        session.publish_started(len(run), op.data_bytes)
        producer.publish(op, run, is_chunk)
    return len(run)


SendColumns = tuple[list[bytes], list[int], list[int], list[int], list[int]]
"""Entries, sequence ids, highest sequence ids, messages, bytes: an item for each SEND."""


def take_sends(
    frames: deque[Frame],
    head: SendHead,
    entries_left: int,
    bytes_left: int,
    own_name: str | None,
    looks_for: int = 0,
    kernel: Any = compiled,
) -> SendColumns:
    """Take the plain SENDs of one producer off the beginning of `frames`, up to the one that reaches a bound. `head` is the first one's,
    and `own_name` the producer's where messages have to be in it. A message with a property of `TRACING_KEYS[looks_for]` is not plain.

    The compiled `kernel`, if there is one, takes as many as it knows; what it leaves is looked at here.
    """
    producer_id = head.producer_id
    following: SendHead | None = head
    run: list[bytes] = []
    sequence_ids: list[int] = []
    highest_sequence_ids: list[int] = []
    messages: list[int] = []
    sizes: list[int] = []
    if kernel:
        run, sequence_ids, highest_sequence_ids, messages, sizes = kernel.plain_sends(
            frames, producer_id, entries_left, bytes_left, own_name, BATCH_MESSAGES_MAX, looks_for
        )
        if run:
            entries_left -= len(run)
            bytes_left -= sum(sizes)
            following = None if entries_left <= 0 or bytes_left <= 0 or not frames else read_send(frames[0][0])
    while following is not None and following.producer_id == producer_id:
        rest = frames[0][1]
        try:
            metadata = checked_metadata(rest, looks_for=looks_for)
        except ChecksumError:
            break
        if metadata.replicated_from or metadata.HasField("marker_type"):
            break
        if own_name is not None and metadata.producer_name != own_name:
            break
        frames.popleft()
        size_bytes = len(rest)
        run.append(rest)
        sequence_ids.append(following.sequence_id)
        highest_sequence_ids.append(following.highest_sequence_id)
        messages.append(
            metadata.num_messages_in_batch
        )  # and not what the command says: rates and statistics are charged by it
        sizes.append(size_bytes)
        entries_left -= 1
        bytes_left -= size_bytes
        if entries_left <= 0 or bytes_left <= 0 or not frames:
            break
        following = read_send(frames[0][0])
    return run, sequence_ids, highest_sequence_ids, messages, sizes


def send(session: Session, command: BaseCommand, rest: bytes) -> None:
    """One SEND of any kind."""
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
        _refuse(session, producer, request, size_bytes, NotAllowedError(problem))
        return
    asked = traced.asked_by(session, metadata)
    if asked is not None and asked.only:
        traced.tell_only(session, producer, request, metadata, rest, asked)
        return
    if txn:
        send_in_transaction(session, producer, request, metadata, rest)
        return
    session.publish_started(1, size_bytes)
    if asked is not None:
        traced.publish(session, producer, request, metadata, rest, asked)
        return
    numbers = request.sequence_id, request.highest_sequence_id, metadata.num_messages_in_batch, size_bytes
    producer.publish(PublishOp.single(producer, *numbers), [rest], request.is_chunk)


def _refuse(session: Session, producer: Producer, request: CommandSend, size_bytes: int, error: MagnetarError) -> None:
    """Answer with an error when it is the entry's turn."""
    session.publish_started(1, size_bytes)
    op = PublishOp.single(producer, request.sequence_id, request.highest_sequence_id, 1, size_bytes)
    producer.refuse(op, error)


def reserved(metadata: MessageMetadata) -> str:
    """Why nobody but a replicator may send this metadata although it is whole; empty when everybody may."""
    return RESERVED if metadata.replicated_from or metadata.HasField("marker_type") else ""


def checked_metadata(headers_and_payload: bytes, txn: int = 0, looks_for: int = 0) -> MessageMetadata:
    """The metadata of an entry that can be stored. `txn`: the number of the transaction that its command names, 0 for none. One with a
    property of `TRACING_KEYS[looks_for]` may ask for a trace, and is not taken here.

    Raises ChecksumError for one that cannot: what a client cannot parse must not reach the log, it would end every official consumer
    that ever reads it (the C++ client up to 4.2 crashes on an empty entry). That code is the one after which a producer goes on.
    """
    magic, size = headers_and_payload[:2], len(headers_and_payload)
    if magic == MAGIC_CRC32C:
        if crc32c(headers_and_payload[6:]) != int.from_bytes(headers_and_payload[2:6], "big"):
            raise ChecksumError("the message was damaged on its way")
        start = 10
    elif magic == MAGIC_BROKER_ENTRY_METADATA:
        raise ChecksumError("broker entry metadata is the broker's to write")
    else:  # clients before 1.0 send no checksum
        start = 4
    end = start + int.from_bytes(headers_and_payload[start - 4 : start], "big")
    if end > size:
        raise ChecksumError(NO_METADATA)
    if end - start > MESSAGE_METADATA_BYTES_MAX:
        text = f"the metadata of a message is at most {MESSAGE_METADATA_BYTES_MAX} bytes, not {end - start}"
        raise ChecksumError(text)
    try:
        metadata = parse_metadata(headers_and_payload[start:end])
    except DecodeError:
        raise ChecksumError(NO_METADATA) from None
    for mark in TRACING_MARKS[looks_for]:
        if headers_and_payload.find(mark, start, end) >= 0:
            _check_untraced(metadata, TRACING_KEYS[looks_for])
    named = metadata.txnid_least_bits
    if named not in (0, txn):
        raise ChecksumError("the message belongs to another transaction than its frame says")
    if metadata.num_messages_in_batch != 1 or metadata.num_chunks_from_msg > 1 or metadata.compression:
        problem = false_claim(metadata, size - end)
        if problem:
            raise ChecksumError(problem)
    return metadata


def _check_untraced(metadata: MessageMetadata, keys: tuple[str, ...]) -> None:
    """Raises _MayBeTraced. Asked only where the bytes of the metadata have one of the words: to look at properties costs more than that."""
    if any(pair.key in keys for pair in metadata.properties):
        raise _MayBeTraced


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
        return f"chunk {chunk} of {chunks} does not exist"
    plain_bytes = payload_bytes - CHUNK_ENCRYPTION_BYTES_MAX if metadata.encryption_keys else payload_bytes
    if total_bytes < plain_bytes or (chunk < chunks - 1 and total_bytes > 2 * chunks * payload_bytes):
        return f"{chunks} chunks of {payload_bytes} bytes cannot be a message of {total_bytes}"
    return ""


def _without_producer(session: Session, producer_id: int) -> None:
    """Frames that were on their way when the server closed the producer are dropped: the client sends them again."""
    if producer_id not in session.closed_producers:
        raise NotAllowedError(f"SEND for the unknown producer {producer_id}")


def send_in_transaction(
    session: Session, producer: Producer, request: CommandSend, metadata: MessageMetadata, data: bytes
) -> None:
    """A SEND within a transaction: stored like any other once the transaction is known to be open and to have named the topic.

    `metadata` is parsed from `data` and names no other transaction than the command.
    """
    txn = TxnId(request.txnid_most_bits, request.txnid_least_bits)
    topic = session.producer_topics[request.producer_id]
    buffer: TransactionBuffer | None = None
    allowed: bool | None = False
    if isinstance(topic, PersistentTopic) and topic.transactions.buffer is not None:
        buffer, grants = topic.transactions.buffer, topic.transactions.grants
        allowed = session.context.transactions.allows(txn, str(topic.name), TOPIC_ITSELF, acting_role(session), grants)
        if allowed is None:
            topic.publishers.disconnect(producer)  # nothing behind this entry may be stored before it
            session.spawn(
                session.context.transactions.learn(txn.most, str(topic.name), grants), "learn of transactions"
            )
            return
    data = stamped(metadata, data, txn)
    if buffer is None or not allowed:
        _refuse(session, producer, request, len(data), NotAllowedError(_refusal(txn, topic)))
        return
    numbers = request.sequence_id, request.highest_sequence_id, metadata.num_messages_in_batch, len(data)
    session.publish_started(1, len(data))
    trace = traced.begin(session, producer, traced.asked_by(session, metadata), metadata, len(data))
    if trace is None:
        producer.publish(TransactionPublishOp(buffer.state, txn, producer, *numbers), [data], request.is_chunk)
        return
    op = TracedTransactionOp(buffer.state, txn, producer, *numbers)
    op.told = traced.telling_of(session, producer, trace, metadata, data)
    producer.publish(op, watched(trace, data), request.is_chunk)


def _refusal(txn: TxnId, topic: AnyTopic) -> str:
    return f"transaction {txn} is not open, belongs to another role, or has not named {topic.name}"


def stamped(metadata: MessageMetadata, data: bytes, txn: TxnId) -> bytes:
    """The entry with the transaction in its metadata. The Go client names it in the command alone, which is not stored."""
    if txn_of(metadata) == txn:
        return data
    metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return with_checksum(metadata, data[metadata_bounds(data)[1] :])


def send_replicated(
    session: Session, producer: Producer, source: str, request: CommandSend, metadata: MessageMetadata, data: bytes
) -> None:
    """A SEND of another cluster's replicator. `metadata` is parsed from `data`; `source` is the cluster that sends."""
    size_bytes = len(data)
    place = place_of(metadata)
    problem = _problem(metadata, place, source)
    if problem:
        _refuse(session, producer, request, size_bytes, NotAllowedError(problem))
        return
    session.publish_started(1, size_bytes)
    if metadata.HasField("marker_type"):
        highest = MARKER_RECEIPT if session.replication_by_place else 0
        producer.publish_marker(MarkerOp(producer, [request.sequence_id], [highest], [1], [size_bytes]), data)
        return
    about = source, metadata, place, size_bytes, session.replication_by_place
    trace = traced.begin(session, producer, traced.asked_by(session, metadata), metadata, size_bytes)
    if trace is None:
        producer.publish(ReplicatedOp(producer, *about), [data], request.is_chunk)
        return
    op = TracedReplicatedOp(producer, *about)
    op.told = traced.telling_of(session, producer, trace, metadata, data)
    producer.publish(op, watched(trace, data), request.is_chunk)


def _problem(metadata: MessageMetadata, place: tuple[int, int] | None, source: str) -> str:
    """Why a replicator of `source` cannot send this, empty when it can."""
    if source_of(metadata) != source:
        source = cluster_of_source(source)
        return f"a replicator of cluster {source} sends messages of that cluster only, and names it in replicated_from"
    if metadata.HasField("marker_type") and metadata.marker_type in LOCAL_MARKERS:
        return "snapshots and the ends of transactions concern the log that they are in: they are not replicated"
    if metadata.txnid_least_bits:
        return "a transaction of another cluster means nothing here: replicate its messages without their transaction"
    if place is None and any(pair.key == SOURCE_POSITION_PROPERTY for pair in metadata.properties):
        return f"{SOURCE_POSITION_PROPERTY} is not valid: expected ledger:entry"
    return ""
