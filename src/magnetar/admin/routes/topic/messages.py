"""Single messages: by place in a subscription's backlog, by ledger and entry, by time, the last one."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Literal

from google.protobuf.message import DecodeError
from starlette.responses import Response

from magnetar.admin.answers import message_id
from magnetar.admin.call import INT_MAX, Call
from magnetar.admin.documents.policies import LongNatural
from magnetar.admin.documents.topics import MessageId
from magnetar.admin.errors import NotFoundError
from magnetar.admin.operation import BYTES, documented
from magnetar.admin.routes.topic.subscriptions import SUBSCRIPTION
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import single_persistent
from magnetar.base.clock import iso_time
from magnetar.base.printable import as_text
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.topics.expiry import first_published_at
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.compression import PayloadError, decompress
from magnetar.wire.pulsar.headers import parse_metadata, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageMetadata

EARLIEST, LATEST = "earliest", "latest"

PEEK_MAX = 1_000_000
"""Places behind this one are not looked for: 404."""

UNPACKED_BYTES_MAX = 64 * 1024 * 1024
"""A compressed message that stands for more is refused: 412."""


@documented(answer=bytes, media=BYTES)
async def peek(call: Call) -> Response:
    """The unacknowledged entry at a place, 1 being the next one. A subscription that does not exist would see the topic from its
    beginning, and so does this; Pulsar even creates it, so that a misspelt name holds everything from then on."""
    number = max(1, call.number("number", INT_MAX))
    topic = await single_persistent(call)
    subscription = topic.subscriptions.find(call.subscription)
    entry: Entry | None = None
    if number > PEEK_MAX:
        pass
    elif subscription is not None:
        entry = await subscription.peek(number)
    elif number <= topic.ledger.index.total_entries:
        entry = await topic.ledger.read_entry(topic.ledger.index.at_rank(number - 1))
    if entry is None:
        raise NotFoundError("Message not found")
    return await message(call, entry)


@documented(answer=bytes, media=BYTES)
async def by_id(call: Call) -> Response:
    """The ledger must be one of the topic's own: anything else would read other tenants' messages (CVE-2021-41571)."""
    topic = await single_persistent(call)
    return await message(call, await topic.ledger.read_entry(Position(call.number("ledger"), call.number("entry"))))


@documented(
    answer=bytes, media=BYTES, query={"initialPosition": Literal["earliest", "latest"], "messagePosition": LongNatural}
)
async def examine(call: Call) -> Response:
    """The message at `messagePosition` (1 is the first one) from the beginning or the end; beyond that the furthest one."""
    if call.topic.partition < 0 and await call.broker.namespaces.partitions(call.topic):
        raise NotAllowedError("Examine messages on a partitioned topic is not allowed: name a partition")
    index = (await single_persistent(call)).ledger.index
    origin, place = call.query("initialPosition", LATEST), call.query_integer("messagePosition", 1)
    if origin not in (EARLIEST, LATEST):
        raise PreconditionFailedError(f"initialPosition must be {EARLIEST} or {LATEST}")
    if not index.total_entries:
        raise PreconditionFailedError("Could not examine messages due to the total message is zero")
    steps = min(max(place, 1), index.total_entries) - 1
    rank = steps if origin == EARLIEST else index.total_entries - 1 - steps
    return await message(call, await (await single_persistent(call)).ledger.read_entry(index.at_rank(rank)))


@documented(query={"index": LongNatural}, always_fails=True)
async def by_index(call: Call) -> Response:
    """412: messages get no index here (Pulsar: AppendIndexMetadataInterceptor)."""
    call.query_integer("index", 0)
    await single_persistent(call)
    raise PreconditionFailedError("GetMessageIDByIndex is not allowed when broker entry metadata is disabled")


@documented("Id of the last message.", answer=MessageId)
async def last(call: Call) -> Response:
    topic = await single_persistent(call)
    position, batch_size = await topic.last_message()
    return message_id(position, call.topic.partition, batch_size)


@documented(answer=MessageId)
async def by_time(call: Call) -> Response:
    """Id of the first message published at or after a time."""
    topic = await single_persistent(call)
    position = await first_published_at(topic.ledger, call.number("timestamp"))
    return message_id(position, call.topic.partition)


async def message(call: Call, entry: Entry) -> Response:
    """A message as Pulsar shows it: the payload without its compression, everything else in headers.

    A batch stays packed, and an encrypted payload stays as it is. Raises NotFoundError for an entry that is not a message,
    PreconditionFailedError when the payload is damaged or unpacks to more than UNPACKED_BYTES_MAX.
    """
    try:
        metadata, payload = parse_metadata(entry.data), payload_of(entry.data)
    except (ValueError, DecodeError):
        raise NotFoundError(f"entry {entry.ledger_id}:{entry.entry_id} is not a message") from None
    if not metadata.encryption_keys and metadata.compression != CompressionType.NONE:
        codec, size_bytes = metadata.compression, metadata.uncompressed_size
        try:
            async with call.admin.unpacking:
                payload = await asyncio.to_thread(decompress, codec, payload, size_bytes, UNPACKED_BYTES_MAX)
        except PayloadError as error:
            raise PreconditionFailedError(
                f"message {entry.ledger_id}:{entry.entry_id} cannot be shown: {error}"
            ) from None
    response = Response(payload, media_type="application/octet-stream")
    about = [("Message-ID", f"{entry.ledger_id}:{entry.entry_id}"), *_about(metadata, len(entry.data))]
    # Pulsar's Java client looks headers up by their exact case, which Starlette's own way to set them does not keep.
    response.raw_headers += [
        (b"X-Pulsar-" + name.encode(), text.encode())
        for name, text in about
        if text.isascii() and text.isprintable()  # a client's text must not become another header
    ]
    return response


_TIMES = ("publish_time", "event_time", "deliver_at_time")
_HEADER_FIELDS = (
    *_TIMES,
    "producer_name",
    "sequence_id",
    "highest_sequence_id",
    "replicated_from",
    "partition_key",
    "partition_key_b64_encoded",
    "null_partition_key",
    "null_value",
    "compression",
    "uncompressed_size",
    "encryption_algo",
    "marker_type",
    "txnid_least_bits",
    "txnid_most_bits",
    "uuid",
    "num_chunks_from_msg",
    "total_chunk_msg_size",
    "chunk_id",
)
"""Fields of MessageMetadata that become headers under their own name, `-` for `_`, where the producer has set them."""


def _about(metadata: MessageMetadata, entry_bytes: int) -> Iterator[tuple[str, str]]:
    """Names behind `X-Pulsar-` and values, as PersistentTopicsBase of Pulsar 4 writes them for TopicsImpl of its client."""
    present = {field.name: value for field, value in metadata.ListFields()}
    if "compression" in present:
        present["compression"] = CompressionType.Name(metadata.compression)
    for name in _HEADER_FIELDS:
        if name in present:
            yield name.replace("_", "-"), iso_time(present[name]) if name in _TIMES else _header_text(present[name])
    yield "PROPERTY", json.dumps({as_text(pair.key): as_text(pair.value) for pair in metadata.properties})
    for cluster in metadata.replicate_to:
        yield "replicated-to", as_text(cluster)
    if metadata.HasField("num_messages_in_batch"):
        yield "num-batch-message", str(metadata.num_messages_in_batch)
        yield "batch-size", str(entry_bytes - metadata.ByteSize())
    for name, field in (
        ("ordering-key", "ordering_key"),
        ("schema-version-b64encoded", "schema_version"),
        ("encryption-param", "encryption_param"),
    ):
        if field in present:
            yield f"Base64-{name}", b64encode(present[field]).decode()
    for key in metadata.encryption_keys:
        yield "Base64-encryption-keys", b64encode(key.SerializeToString()).decode()
    if metadata.encryption_keys:
        yield "Is-Encrypted", "true"


def _header_text(value: object) -> str:
    return as_text(value) if isinstance(value, str | bytes) else str(value).lower()


ROUTES = (
    *both_domains("GET", f"{SUBSCRIPTION}/position/{{number}}", Access.CONSUME, peek),
    *both_domains("GET", "/{topic}/ledger/{ledger}/entry/{entry}", Access.CONSUME, by_id),
    *both_domains("GET", "/{topic}/examinemessage", Access.CONSUME, examine),
    *both_domains("GET", "/{topic}/getMessageIdByIndex", Access.CONSUME, by_index),
    *both_domains("GET", "/{topic}/lastMessageId", Access.CONSUME, last),
    *both_domains("GET", "/{topic}/messageid/{timestamp}", Access.CONSUME, by_time),
)
