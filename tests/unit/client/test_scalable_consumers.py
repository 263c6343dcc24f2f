"""What a consumer of a scalable topic hands to its application while its segments change."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.base.clock import SystemClock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.client.client import Endpoint, RemoteClient
from magnetar.client.scalable.attachment import Attachment, Subscribing
from magnetar.client.scalable.consumers import QueueConsumer
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.errors import ReceiveTimeoutError, UnreadableMessageError
from magnetar.client.scalable.layout import Segment
from magnetar.client.scalable.messages import Message, MessageId
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandMessage, CommandSubscribe, MessageMetadata


class IdleContext(ClientContext):
    """Nothing runs in the background."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        work.close()
        return asyncio.ensure_future(asyncio.sleep(0))


def message(number: int) -> Message:
    return Message(MessageId(0, 1, number), "segment://a/b/c/0000-ffff-0", b"", "k", {}, 0, 0, "p", number, 0)


async def test_what_comes_of_a_segment_that_is_left_is_not_received() -> None:
    """The messages before it were dropped: received, it would be out of order."""
    remote = RemoteClient(Endpoint("pulsar://127.0.0.1:1"), AsyncioNetwork(), "test")
    context = IdleContext(remote, SystemClock(), TaskScope("test"))
    consumer = QueueConsumer(context, "topic://a/b/c", "s")
    segment = Segment(0, 0, 0xFFFF, True, (), "segment://a/b/c/0000-ffff-0")
    attachment = consumer._attach(segment, Subscribing("s", CommandSubscribe.Shared))
    consumer.received(attachment, [message(0)])
    assert (await consumer.receive(1)).sequence_id == 0
    consumer.received(attachment, [message(1)])
    consumer._detach(0)
    consumer.received(attachment, [message(2)])
    with pytest.raises(ReceiveTimeoutError):
        await consumer.receive(0.01)


class LeavingContext(IdleContext):
    """Segments are left in the background, and nothing else is done there."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work) if name.startswith("leave ") else super().spawn(work, name)


async def test_a_consumer_that_is_closed_while_it_leaves_a_segment_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds 267 and 278 of the simulator: it stayed connected, and the consumer to which the segment went could not read it."""
    answered = asyncio.Event()
    left: list[str] = []

    async def close(attachment: Attachment) -> None:
        await answered.wait()
        left.append(attachment.segment.topic)

    monkeypatch.setattr(Attachment, "close", close)
    remote = RemoteClient(Endpoint("pulsar://127.0.0.1:1"), AsyncioNetwork(), "test")
    consumer = QueueConsumer(LeavingContext(remote, SystemClock(), TaskScope("test")), "topic://a/b/c", "s")
    segment = Segment(0, 0, 0xFFFF, True, (), "segment://a/b/c/0000-ffff-0")
    consumer._attach(segment, Subscribing("s", CommandSubscribe.Shared))
    consumer._detach(0)
    closing = asyncio.ensure_future(consumer.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    answered.set()
    await closing
    assert left == [segment.topic]


@pytest.mark.parametrize("acknowledged", [0, 4])
async def test_a_batch_that_cannot_be_read_gives_back_what_the_server_counts_it_as(acknowledged: int) -> None:
    """The application gets one error for all of its messages: a few such batches would use up the window else."""
    remote = RemoteClient(Endpoint("pulsar://127.0.0.1:1"), AsyncioNetwork(), "test")
    consumer = QueueConsumer(IdleContext(remote, SystemClock(), TaskScope("test")), "topic://a/b/c", "s")
    segment = Segment(0, 0, 0xFFFF, True, (), "segment://a/b/c/0000-ffff-0")
    attachment = consumer._attach(segment, Subscribing("s", CommandSubscribe.Shared))
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=10)
    metadata.encryption_keys.add(key="k", value=b"v")
    told = CommandMessage(consumer_id=1)
    told.message_id.ledgerId, told.message_id.entryId = 1, 2
    if acknowledged:
        told.ack_set.append((1 << 10) - (1 << acknowledged))
    attachment.message(told, with_checksum(metadata, b"secret"))
    with pytest.raises(UnreadableMessageError):
        await consumer.receive(1)
    assert attachment._taken == 10 - acknowledged
