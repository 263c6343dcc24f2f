"""One message published by the server for a person: through the topic's own door, as a producer that comes, sends and goes."""

from __future__ import annotations

import asyncio
from typing import Final

from magnetar.admin.call import Call
from magnetar.admin.documents.topics import NewMessage
from magnetar.admin.errors import UnhealthyError
from magnetar.base.errors import MagnetarError
from magnetar.broker.errors import MetadataRefusedError, TopicTerminatedError
from magnetar.broker.topics.producer import AccessMode, Producer
from magnetar.broker.topics.publish import PublishOp
from magnetar.broker.topics.registry import AnyTopic
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata

STORED_TIMEOUT_S: Final = 10.0
"""Time-out of the receipt. The message may be stored all the same."""


class _Channel:
    """What a connection is for a client's producer: here it ends in a future."""

    client_version = "admin API"

    def __init__(self, address: str) -> None:
        self.address = address
        self.receipt_of: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def receipt(self, producer_id: int, op: PublishOp) -> None:
        if not self.receipt_of.done():
            self.receipt_of.set_result(Position(op.ledger_id, op.entry_id))

    def refuse(self, producer_id: int, op: PublishOp, error: MagnetarError) -> None:
        if not self.receipt_of.done():
            self.receipt_of.set_exception(error)

    def ignore_producer(self, producer_id: int) -> None:
        """It sends nothing more anyway."""

    def close_producer(self, producer_id: int) -> None:
        if not self.receipt_of.done():
            self.receipt_of.set_exception(UnhealthyError("the topic was closed meanwhile; try again"))

    def hold_publishing(self, change: int) -> None:
        """Nothing follows that could be held."""

    async def probe(self) -> bool:
        return True


async def publish_one(
    call: Call, topic: AnyTopic, message: NewMessage, payload: bytes, schema_version: bytes
) -> Position:
    """Raises what a producer would be told: terminated, encryption required, quota, an exclusive producer, a payload that is too large."""
    if topic.policies.encryption_required:
        raise MetadataRefusedError(f"Encryption is required in {topic.name}")
    if topic.terminated:
        raise TopicTerminatedError(f"Topic {topic.name} has been already terminated")
    if not schema_version:
        await call.broker.schemas.producer(topic.name, None)
    context = call.broker.context
    channel = _Channel(call.who)
    producer = Producer(
        producer_id=0,
        name=context.producer_names.next(),
        generated_name=True,
        epoch=0,
        access_mode=AccessMode.SHARED,
        topic_epoch=None,
        channel=channel,
        topic=topic.publishers,
        metadata={},
        connected_since_ms=context.clock.now_ms(),
    )
    data = with_checksum(
        _metadata(message, producer.name, schema_version, context.clock.now_ms(), len(payload)), payload
    )
    await topic.publishers.register(producer)
    try:
        producer.publish(PublishOp.single(producer, 0, 0, 1, len(data)), [data], False)
        async with asyncio.timeout(STORED_TIMEOUT_S):
            return await channel.receipt_of
    except TimeoutError:
        raise UnhealthyError(
            f"no receipt within {STORED_TIMEOUT_S:.0f} s; the message may be stored all the same"
        ) from None
    finally:
        topic.publishers.remove(producer)
        channel.receipt_of.cancel()


def _metadata(message: NewMessage, producer: str, version: bytes, now_ms: int, size_bytes: int) -> MessageMetadata:
    metadata = MessageMetadata(producer_name=producer, sequence_id=0, publish_time=now_ms, uncompressed_size=size_bytes)
    if message.key is not None:
        metadata.partition_key = message.key
    if message.event_time:
        metadata.event_time = message.event_time
    for key, value in message.properties.items():
        metadata.properties.add(key=key, value=value)
    if version:
        metadata.schema_version = version
    return metadata
