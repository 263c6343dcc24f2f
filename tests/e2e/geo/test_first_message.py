"""Geo-replication between real processes: the first message, both ways, and what travels with it."""

from __future__ import annotations

from pathlib import Path

import pulsar

from tests.support.geo import NAMESPACE, nothing_more, receive, regions


def test_a_message_published_in_one_cluster_is_consumed_in_the_other(tmp_path: Path) -> None:
    topic = f"persistent://{NAMESPACE}/orders"
    with regions(tmp_path, "west", "east") as (west, east):
        consumer = east.client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
        producer = west.client.create_producer(topic)
        producer.send(b"hello", properties={"a": "1"}, partition_key="k", event_timestamp=77)
        (message,) = receive(consumer, 1)
        assert (message.data(), message.partition_key(), message.event_timestamp()) == (b"hello", "k", 77)
        assert message.properties()["a"] == "1"
        assert message.producer_name() == producer.producer_name()
        back = west.client.subscribe(topic, "sub", initial_position=pulsar.InitialPosition.Earliest)
        east.client.create_producer(topic).send(b"answer")
        assert [message.data() for message in receive(back, 2)] == [b"hello", b"answer"]
        assert receive(consumer, 1)[0].data() == b"answer"
        west.wait_drained(f"{NAMESPACE}/orders", "east")
        east.wait_drained(f"{NAMESPACE}/orders", "west")
        assert nothing_more(back)
        assert nothing_more(consumer)
