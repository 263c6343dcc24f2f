"""The WebSocket API, by upgrades of GET requests, and messages published by REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.errors import BadRequestError, BusyError, UnhealthyError, UpgradeRequiredError
from magnetar.admin.http.request import UPGRADE
from magnetar.admin.operation import documented
from magnetar.admin.routing import Handler as RouteHandler
from magnetar.admin.routing import Route
from magnetar.admin.websocket.consuming import (
    Consuming,
    consumer_options,
    reader_options,
    reader_subscription,
)
from magnetar.admin.websocket.documents import Outgoing, Published, number_of
from magnetar.admin.websocket.framing import Handler, accept_of
from magnetar.admin.websocket.producing import ProducerOptions, Producing, options_of
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import ConsumerBusyError, ProducerBusyError, ProducerFencedError, ServiceNotReadyError
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.naming import DOMAINS, TopicName

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

OPEN_TIMEOUT_S = 30.0
"""A producer or consumer that is not open by then is refused with 503."""

MESSAGES_MAX = 1000
"""Messages of one REST call."""

PRODUCED_TIMEOUT_S = 30.0
"""What has no receipt by then is answered as failed."""

TOKEN = {"token": str}
PRODUCER_QUERY = TOKEN | {
    "producerName": str,
    "initialSequenceId": int,
    "compressionType": Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"],
    "batchingEnabled": bool,
    "batchingMaxMessages": int,
    "batchingMaxPublishDelay": int,
    "hashingScheme": Literal["JavaStringHash", "Murmur3_32Hash"],
    "messageRoutingMode": Literal["RoundRobinPartition", "SinglePartition"],
}
CONSUMER_QUERY = TOKEN | {
    "subscriptionType": Literal["Exclusive", "Shared", "Failover", "Key_Shared"],
    "subscriptionMode": Literal["Durable", "NonDurable"],
    "subscriptionInitialPosition": Literal["Latest", "Earliest"],
    "receiverQueueSize": int,
    "consumerName": str,
    "priorityLevel": int,
    "pullMode": bool,
    "negativeAckRedeliveryDelay": int,
    "ackTimeoutMillis": int,
    "maxRedeliverCount": int,
    "deadLetterTopic": str,
}
READER_QUERY = TOKEN | {"messageId": str, "readerName": str, "receiverQueueSize": int, "pullMode": bool}


class Upgraded(Response):
    """The answer is 101, and the connection is a WebSocket."""

    def __init__(self, handler: Handler, accept: bytes) -> None:
        super().__init__(status_code=101)
        self._handler = handler
        self._accept = accept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"][UPGRADE](self._handler, self._accept)


def accepted(call: Call) -> bytes:
    """What accepts the upgrade. Raises UpgradeRequiredError."""
    accept = accept_of(call.request.headers) if UPGRADE in call.request.scope.get("state", {}) else None
    if accept is None:
        raise UpgradeRequiredError("this is a WebSocket address: connect with ws:// or wss:// (RFC 6455, version 13)")
    return accept


async def check_here(call: Call) -> None:
    """This broker serves the topic, or all its partitions. Raises NotOwnedError, which redirects, or UnhealthyError."""
    topic = call.topic
    count = await call.broker.namespaces.partitions(topic) if topic.partition < 0 else 0
    if not count:
        await call.broker.lookup.require(topic)
        return
    try:
        await call.broker.lookup.require_all(topic.partition_name(number) for number in range(count))
    except NotOwnedError:
        raise UnhealthyError(
            f"the partitions of {topic} are served by several brokers: connect to each partition, {topic}-partition-0 and so on"
        ) from None


@asynccontextmanager
async def opening(handler: Handler) -> AsyncIterator[None]:
    """A handler that could not be opened leaves nothing behind. Raises ServiceNotReadyError when it takes too long."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            yield
    except TimeoutError:
        handler.closed()
        raise ServiceNotReadyError(f"not opened within {OPEN_TIMEOUT_S:.0f} s; try again") from None
    except (ConsumerBusyError, ProducerBusyError, ProducerFencedError) as error:
        handler.closed()
        raise BusyError(str(error)) from error
    except BaseException:
        handler.closed()
        raise


def client_of(call: Call) -> str:
    return call.request.client.host if call.request.client is not None else ""


@documented(answer=bytes, query=PRODUCER_QUERY, errors=(409, 426))
async def producer(call: Call) -> Response:
    """A WebSocket that publishes: one JSON message in, one JSON answer out, in order."""
    accept, options = accepted(call), options_of(call.query)
    await check_here(call)
    handler = Producing(call.broker, call.principal, client_of(call), options)
    async with opening(handler):
        await handler.open(call.topic)
    return Upgraded(handler, accept)


@documented(answer=bytes, query=CONSUMER_QUERY, errors=(409, 426))
async def consumer(call: Call) -> Response:
    """A WebSocket that consumes: JSON messages out, acknowledgements in."""
    subscription = call.subscription
    accept, options = accepted(call), consumer_options(call.query)
    await check_here(call)
    handler = Consuming(call.broker, call.principal, client_of(call), options)
    async with opening(handler):
        await handler.open(call.topic, subscription)
    return Upgraded(handler, accept)


@documented(answer=bytes, query=READER_QUERY, errors=(409, 426))
async def reader(call: Call) -> Response:
    """A WebSocket that reads from a place on: JSON messages out; what is acknowledged makes room for more."""
    accept, options = accepted(call), reader_options(call.query)
    await check_here(call)
    handler = Consuming(call.broker, call.principal, client_of(call), options)
    async with opening(handler):
        await handler.open(call.topic, reader_subscription(options.name))
    return Upgraded(handler, accept)


class OutgoingMessages(msgspec.Struct, rename="camel"):
    """Messages to be published. `payload` is base64; the schema of the topic is not applied to it."""

    messages: list[Outgoing]
    producer_name: str = ""
    schema_version: int = -1
    key_schema: str | None = None
    value_schema: str | None = None


class PublishedMessages(msgspec.Struct, rename="camel"):
    """The answers in the order of the messages."""

    message_publish_results: list[Published]
    schema_version: int = 0


@documented(body=OutgoingMessages, answer=PublishedMessages, query=TOKEN)
async def publish(call: Call) -> Response:
    """Publish messages to a topic, or to whichever partitions their keys choose."""
    return await published(call, call.topic)


@documented(body=OutgoingMessages, answer=PublishedMessages, query=TOKEN)
async def publish_to_partition(call: Call) -> Response:
    """Publish messages to one partition of a topic."""
    return await published(call, call.topic.partition_name(call.number("partition")))


async def published(call: Call, topic: TopicName) -> Response:
    body = await call.body_as(OutgoingMessages)
    if not 0 < len(body.messages) <= MESSAGES_MAX:
        raise BadRequestError(f"messages must be a list of 1 to {MESSAGES_MAX} messages, not {len(body.messages)}")
    if body.key_schema or body.value_schema or body.schema_version >= 0:
        raise BadRequestError(
            "schemas are not applied by REST: send the encoded payload in base64, without schema fields"
        )
    for message in body.messages:
        number_of(message.event_time, "eventTime")
    await check_here(call)
    handler = Producing(call.broker, call.principal, client_of(call), ProducerOptions(name=body.producer_name))
    answers: list[Published] = []
    complete = asyncio.Event()

    def answered(answer: Published) -> None:
        answers.append(answer)
        if len(answers) == len(body.messages):
            complete.set()

    handler.answer = answered
    async with opening(handler):
        await handler.open(topic)
    try:
        for number, message in enumerate(body.messages):
            message.context = str(number)
            handler.publish(message)
        async with asyncio.timeout(PRODUCED_TIMEOUT_S):
            await complete.wait()
    except TimeoutError:
        raise ServiceNotReadyError(f"not stored within {PRODUCED_TIMEOUT_S:.0f} s") from None
    finally:
        handler.closed()
    by_number = {int(answer.context or 0): answer for answer in answers}
    results = [by_number[number] for number in range(len(body.messages))]
    for answer in results:
        answer.context = None
    return as_json(msgspec.to_builtins(PublishedMessages(results)))


def _of_both(method: str, front: str, rest: str, access: Access, handler: RouteHandler) -> tuple[Route, ...]:
    path = "{tenant}/{namespace}/{topic}"
    return tuple(
        Route(method, f"{front}/{domain}/{path}{rest}", access, handler, {"domain": domain}) for domain in DOMAINS
    )


ROUTES: tuple[Any, ...] = (
    *_of_both("GET", "/ws/v2/producer", "", Access.PRODUCE, producer),
    *_of_both("GET", "/ws/v2/consumer", "/{subscription}", Access.CONSUME, consumer),
    *_of_both("GET", "/ws/v2/reader", "", Access.CONSUME, reader),
    *_of_both("POST", "/topics", "", Access.PRODUCE, publish),
    *_of_both("POST", "/topics", "/partitions/{partition}", Access.PRODUCE, publish_to_partition),
)
