"""Messages into a topic through the official client, and all that is in it."""

from __future__ import annotations

from typing import Any

import pulsar


def produce(client: pulsar.Client, topic: str, values: list[bytes], **batching: object) -> list[Any]:
    """Message ids in the order of `values`."""
    producer = client.create_producer(topic, **batching)
    ids: list[Any] = []
    for value in values:
        producer.send_async(value, lambda _result, message_id: ids.append(message_id))
    producer.flush()
    producer.close()
    return ids


def drain(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    """All messages of a topic without partitions."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000))
    reader.close()
    return found
