"""One message from its producer to the acknowledgement, as its trace tells it: a standalone server and the official client."""

from __future__ import annotations

import html
import json
import re
import uuid
from collections.abc import Callable

import pulsar
import pytest
import requests
from click.testing import CliRunner

from magnetar.base.limits import TRACES_FOLLOWED_PER_TOPIC_MAX
from magnetar.broker.tracing import following
from magnetar.cli.main import cli
from magnetar.pipeline.connect import acknowledge
from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import Connection
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.headers import with_checksum
from magnetar.wire.pulsar.PulsarApi_pb2 import MessageMetadata
from tests.integration.trace.conftest import Tracer
from tests.support.raw_transactions import RawTransactions
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
        consumer.acknowledge(consumer.receive(30_000))
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
    holder.acknowledge(holder.receive(30_000))
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
    consumer.negative_acknowledge(consumer.receive(30_000))
    consumer.negative_acknowledge(consumer.receive(30_000))
    late.acknowledge(late.receive(30_000))
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
    assert consumer.receive(30_000).data() == b"delivered"
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


def test_a_pipeline_s_commit_is_told_as_one(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    """What the driver of a pipeline does when the views have committed an epoch."""
    assert acknowledge.PIPELINE_PROPERTY == following.PIPELINE_PROPERTY
    client, trace_id = connect(server.service_url), new_id()
    client.subscribe(topic, "pipeline", consumer_type=pulsar.ConsumerType.Failover).close()
    producer = client.create_producer(topic)
    sent = producer.send(b"x", properties={"magnetar.trace": trace_id})
    committing = acknowledge.Acknowledger(Connection(server.service_url), "pipeline")
    committing.acknowledge({topic: Position(sent.ledger_id(), sent.entry_id() + 1)})
    committing.close()
    wait_until(lambda: any(event.startswith("view-committed") for event in tracer.events(topic, trace_id)))


def test_a_transaction_that_publishes_is_traced(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    client, trace_id = connect(server.service_url), new_id()
    with RawTransactions(server.port) as raw:
        raw.producer(topic, 1)
        raw.connect_coordinator()
        txn = raw.begin()
        raw.add_partitions(txn, topic)
        named = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        metadata = MessageMetadata(producer_name="raw", sequence_id=0, publish_time=1, **named)
        metadata.properties.add(key="magnetar.trace", value=trace_id)
        raw.publish(with_checksum(metadata, b"x"), producer_id=1, sequence_id=0, **named)
        raw.receipt()
        assert tracer.events(topic, trace_id) == PUBLISHED
        raw.commit(txn)
    consumer = client.subscribe(topic, "sub", consumer_name="c1", initial_position=pulsar.InitialPosition.Earliest)
    consumer.acknowledge(consumer.receive(30_000))
    tracer.sees(topic, trace_id, [*PUBLISHED, "delivered c1", "acknowledged c1"])


def test_thousands_of_messages_behind_a_traced_one_cost_no_events(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str, tracer: Tracer
) -> None:
    """One that nobody acknowledges is followed while others flow past it; of more than can be followed the oldest is let go."""
    client, trace_id = connect(server.service_url), new_id()
    consumer = client.subscribe(topic, "sub", consumer_name="c1", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, block_if_queue_full=True)
    producer.send(b"held", properties={"magnetar.trace": trace_id})
    for number in range(2_000):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    consumer.receive(30_000)
    for _ in range(2_000):
        consumer.acknowledge(consumer.receive(30_000))
    assert tracer.events(topic, trace_id) == [*PUBLISHED, "delivered c1"]
    for _ in range(TRACES_FOLLOWED_PER_TOPIC_MAX):
        producer.send(b"newer", properties={"magnetar.trace": "newer"})
    tracer.sees(topic, trace_id, ["delivered c1", "not-followed"])


def test_the_console_links_from_a_message_to_its_trace(
    server: ServerProcess, connect: Callable[..., pulsar.Client], topic: str
) -> None:
    producer = connect(server.service_url).create_producer(topic)
    sent = producer.send(b"x", properties={"magnetar.trace": "in-the-console"})
    local_name = topic.rsplit("/", 1)[1]
    page = requests.get(
        f"{server.http_url}/console/topics/persistent/public/default/{local_name}/messages", timeout=10
    ).text
    (link,) = re.findall(r'href="(/console/trace[^"]*)"', page)
    shown = requests.get(server.http_url + html.unescape(link), timeout=60)
    assert shown.status_code == 200
    assert "in-the-console" in shown.text
    assert f"{sent.ledger_id()}:{sent.entry_id()}" in shown.text
    assert "copy-stored" in shown.text
