"""Single messages: by place in a subscription's backlog, by ledger and entry, by time, the last one."""

from __future__ import annotations

import json
from typing import Literal

from google.protobuf.message import DecodeError
from starlette.responses import Response

from magnetar.admin.answers import message_id
from magnetar.admin.call import Call
from magnetar.admin.errors import NotFoundError
from magnetar.admin.operation import BYTES, documented
from magnetar.admin.policy_documents import LongNatural
from magnetar.admin.routes.subscriptions import SUBSCRIPTION
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import single_persistent
from magnetar.admin.topic_documents import MessageId
from magnetar.base.clock import iso_time
from magnetar.base.printable import as_text
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.topics.expiry import first_published_at
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.headers import parse_metadata, payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import CompressionType, MessageMetadata

EARLIEST, LATEST = "earliest", "latest"

PEEK_MAX = 1_000_000
"""Places behind this one are not looked for: 404."""


@documented(answer=bytes, media=BYTES)
async def peek(call: Call) -> Response:
    """The unacknowledged entry at a place, 1 being the next one."""
    number = call.number("number")
    subscription = (await single_persistent(call)).subscriptions.get(call.subscription)
    entry = await subscription.peek(max(1, number)) if number <= PEEK_MAX else None
    if entry is None:
        raise NotFoundError("Message not found")
    return message(entry)


@documented(answer=bytes, media=BYTES)
async def by_id(call: Call) -> Response:
    """The ledger must be one of the topic's own: anything else would read other tenants' messages (CVE-2021-41571)."""
    topic = await single_persistent(call)
    return message(await topic.ledger.read_entry(Position(call.number("ledger"), call.number("entry"))))


@documented(
    answer=bytes, media=BYTES, query={"initialPosition": Literal["earliest", "latest"], "messagePosition": LongNatural}
)
async def examine(call: Call) -> Response:
    """The message at `messagePosition` (1 is the first one) from the beginning or the end; beyond that the furthest one."""
    if call.topic.partition < 0 and await call.broker.namespaces.partitions(call.topic):
        raise NotAllowedError("Examine messages on a partitioned topic is not allowed: name a partition")
    index = (await single_persistent(call)).ledger.index
    origin, place = call.query("initialPosition", LATEST), call.query_number("messagePosition", 1)
    if origin not in (EARLIEST, LATEST):
        raise PreconditionFailedError(f"initialPosition must be {EARLIEST} or {LATEST}")
    if not index.total_entries:
        raise PreconditionFailedError("Could not examine messages due to the total message is zero")
    steps = min(max(place, 1), index.total_entries) - 1
    rank = steps if origin == EARLIEST else index.total_entries - 1 - steps
    return message(await (await single_persistent(call)).ledger.read_entry(index.at_rank(rank)))


@documented(query={"index": LongNatural}, always_fails=True)
async def by_index(call: Call) -> Response:
    """412: messages get no index here (Pulsar: AppendIndexMetadataInterceptor)."""
    call.query_number("index", 0)
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


def message(entry: Entry) -> Response:
    """The stored payload as it is: a batch stays packed, compressed bytes stay compressed, headers say so."""
    try:
        metadata, payload = parse_metadata(entry.data), payload_of(entry.data)
    except (ValueError, DecodeError):
        raise NotFoundError(f"entry {entry.ledger_id}:{entry.entry_id} is not a message") from None
    headers = {"X-Pulsar-Message-ID": f"{entry.ledger_id}:{entry.entry_id}", **_headers(metadata)}
    return Response(payload, headers=headers, media_type="application/octet-stream")


def _headers(metadata: MessageMetadata) -> dict[str, str]:
    """Texts of clients are percent-free ASCII JSON or left out when they could break a header."""
    headers = {
        "X-Pulsar-Publish-Time": iso_time(metadata.publish_time),
        "X-Pulsar-Property": json.dumps({as_text(pair.key): as_text(pair.value) for pair in metadata.properties}),
        "X-Pulsar-Sequence-Id": str(metadata.sequence_id),
    }
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-Num-Batch-Message"] = str(metadata.num_messages_in_batch)
    if metadata.event_time:
        headers["X-Pulsar-Event-Time"] = iso_time(metadata.event_time)
    if metadata.deliver_at_time:
        headers["X-Pulsar-Deliver-At-Time"] = iso_time(metadata.deliver_at_time)
    if metadata.null_value:
        headers["X-Pulsar-Null-Value"] = "true"
    if metadata.compression:
        headers["X-Pulsar-Compression"] = CompressionType.Name(metadata.compression)
        headers["X-Pulsar-Uncompressed-Size"] = str(metadata.uncompressed_size)
    texts = {
        "X-Pulsar-Producer-Name": as_text(metadata.producer_name),
        "X-Pulsar-Partition-Key": as_text(metadata.partition_key),
    }
    return headers | {name: text for name, text in texts.items() if text and text.isascii() and text.isprintable()}


ROUTES = (
    *both_domains("GET", f"{SUBSCRIPTION}/position/{{number}}", Access.CONSUME, peek),
    *both_domains("GET", "/{topic}/ledger/{ledger}/entry/{entry}", Access.CONSUME, by_id),
    *both_domains("GET", "/{topic}/examinemessage", Access.CONSUME, examine),
    *both_domains("GET", "/{topic}/messageIdByIndex", Access.CONSUME, by_index),
    *both_domains("GET", "/{topic}/lastMessageId", Access.CONSUME, last),
    *both_domains("GET", "/{topic}/messageid/{timestamp}", Access.CONSUME, by_time),
)
