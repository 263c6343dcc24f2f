"""An asyncio client of Pulsar 5's scalable topics: producers with segment routing, and the three kinds of consumers.

    async with Client("pulsar://127.0.0.1:6650") as client:
        producer = await client.producer("topic://public/default/orders")
        await producer.send(b"...", key="customer-7")
        consumer = await client.stream_consumer("topic://public/default/orders", "billing", earliest=True)
        message = await consumer.receive(timeout_s=5)
        await consumer.acknowledge_cumulative(message)

Values are bytes: schemas, encryption, chunked messages and transactions are the official clients' affair. Delivery is at least once.
"""

from magnetar.client.scalable.client import Client
from magnetar.client.scalable.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
from magnetar.client.scalable.errors import (
    ConsumerClosedError,
    ReceiveTimeoutError,
    SendTimeoutError,
    UnreadableMessageError,
)
from magnetar.client.scalable.messages import EARLIEST, LATEST, Checkpoint, Message, MessageId
from magnetar.client.scalable.producer import Producer

__all__ = [
    "EARLIEST",
    "LATEST",
    "Checkpoint",
    "CheckpointConsumer",
    "Client",
    "ConsumerClosedError",
    "Message",
    "MessageId",
    "Producer",
    "QueueConsumer",
    "ReceiveTimeoutError",
    "SendTimeoutError",
    "StreamConsumer",
    "UnreadableMessageError",
]
