"""One message from its producer to the acknowledgement, as its trace tells it: a standalone server and the official client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pulsar
import pytest
from click.testing import CliRunner

from magnetar.cli.main import cli
from magnetar.testing.server import ServerProcess
from tests.integration.trace.conftest import Tracer
from tests.support.waiting import wait_until

PUBLISHED = ["received", "sent-to-bookies", "copy-stored", "stored"]


def new_id() -> str:
    return uuid.uuid4().hex


def test_the_way_of_a_message(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    client, trace_id = connect(server.service_url), new_id()
    consumer = client.subscribe(topic, "sub", consumer_name="c1")
    producer = client.create_producer(topic)
    producer.send(b"before")
    sent = producer.send(b"traced", properties={"magnetar.trace": trace_id, "other": "x"})
    producer.send(b"behind")
    for _ in range(3):
        consumer.acknowledge(consumer.receive(10_000))
    events = tracer.sees(topic, trace_id, [*PUBLISHED, "delivered c1", "acknowledged c1"])
    assert events == [*PUBLISHED, "delivered c1", "acknowledged c1"]
    (document,) = tracer.command(trace_id, "--topic", topic)
    assert document["messageId"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert document["producer"] == producer.producer_name()
    assert document["complete"]
    times = [event["afterMs"] for event in document["events"]]
    assert times == sorted(times)
    assert document == tracer.command(document["messageId"], "--topic", topic)[0]  # by the id of the message as well
    assert [each["traceId"] for each in tracer.command("--topic", topic)] == [trace_id]  # the others have none


def test_key_shared_says_which_consumer(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    client, trace_id = connect(server.service_url), new_id()
    consumers = [
        client.subscribe(topic, "sub", consumer_name=name, consumer_type=pulsar.ConsumerType.KeyShared)
        for name in ("c1", "c2", "c3")
    ]
    producer = client.create_producer(topic)
    producer.send(b"x", partition_key="k-17", properties={"magnetar.trace": trace_id})
    deliveries = wait_until(
        lambda: [event for event in tracer.events(topic, trace_id) if event.startswith("delivered")]
    )
    owner = deliveries[0].removeprefix("delivered ")
    holder = consumers[("c1", "c2", "c3").index(owner)]
    holder.acknowledge(holder.receive(10_000))
    tracer.sees(topic, trace_id, [f"delivered {owner}", f"acknowledged {owner}"])


def test_redelivery_and_the_dead_letter(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    client, trace_id, dead = connect(server.service_url), new_id(), f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(1, dead)
    consumer = client.subscribe(
        topic,
        "sub",
        consumer_name="c1",
        consumer_type=pulsar.ConsumerType.Shared,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=10,
    )
    late = client.subscribe(dead, "sub", consumer_name="d1")
    client.create_producer(topic).send(b"poison", properties={"magnetar.trace": trace_id})
    consumer.negative_acknowledge(consumer.receive(10_000))
    consumer.negative_acknowledge(consumer.receive(10_000))
    late.acknowledge(late.receive(10_000))
    tracer.sees(topic, trace_id, [*PUBLISHED, "delivered c1", "returned c1", "delivered c1", "acknowledged c1"])
    redelivered = [event for event in tracer.of(topic, trace_id)[0]["events"] if event["event"] == "delivered"]
    assert [event["text"] for event in redelivered] == ["", "redelivered, time 1"]
    tracer.sees(dead, trace_id, [*PUBLISHED, "delivered d1", "acknowledged d1"])
    assert topic in tracer.of(dead, trace_id)[0]["events"][0]["text"]


def test_a_trace_only_message_is_not_delivered_and_says_where_it_would_go(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    client, trace_id = connect(server.service_url), new_id()
    consumer = client.subscribe(topic, "sub", consumer_name="c1", consumer_type=pulsar.ConsumerType.KeyShared)
    idle = client.subscribe(topic, "idle", consumer_name="gone")
    idle.close()
    producer = client.create_producer(topic)
    sent = producer.send(
        b"x", partition_key="k", properties={"magnetar.trace": trace_id, "magnetar.trace.only": "true"}
    )
    producer.send(b"delivered")
    assert sent.entry_id() == -1
    assert consumer.receive(10_000).data() == b"delivered"
    assert tracer.events(topic, trace_id) == ["received", "would-be-stored", "would-be-delivered c1", "would-wait"]
    (document,) = tracer.of(topic, trace_id)
    assert document["traceOnly"]
    assert document["messageId"] is None
    assert "no consumer is connected" in document["events"][-1]["text"]


def test_produce_prints_the_way(server: ServerProcess, topic: str) -> None:
    urls = ["--url", server.service_url, "--admin-url", server.http_url]
    result = CliRunner().invoke(cli, ["produce", topic, "-m", "one", "--trace", "--trace-wait", "0", *urls])
    assert result.exit_code == 0, result.output
    (document,) = json.loads(result.stdout)
    assert [event["event"] for event in document["events"]] == PUBLISHED
    result = CliRunner().invoke(cli, ["produce", topic, "-m", "one", "--trace-only", *urls])
    (document,) = json.loads(result.stdout)
    assert [event["event"] for event in document["events"]] == ["received", "would-be-stored", "would-wait"]


@pytest.mark.parametrize("value", ["", "with space", "x" * 65, "\u00fc", "a/b"])
def test_an_id_that_is_not_valid_is_replaced(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer, value: str
) -> None:
    """It is shown to others: whatever could be taken for something else is not kept."""
    connect(server.service_url).create_producer(topic).send(b"x", properties={"magnetar.trace": value})
    (document,) = tracer.of(topic)
    assert len(document["traceId"]) == 32
    assert document["traceId"] != value
