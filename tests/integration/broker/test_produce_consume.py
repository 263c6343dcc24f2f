"""The first thing anybody does: produce, consume, acknowledge, over TCP with the official client."""

from __future__ import annotations

import pulsar
import pytest


def test_messages_arrive_in_order_with_gap_free_ids(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    sent = [producer.send(f"message-{index}".encode()) for index in range(20)]
    assert [message_id.entry_id() for message_id in sent] == list(range(20))
    for index in range(20):
        message = consumer.receive(30_000)
        assert message.data() == f"message-{index}".encode()
        assert (message.message_id().ledger_id(), message.message_id().entry_id()) == (sent[index].ledger_id(), index)
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)
