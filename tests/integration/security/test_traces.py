"""Traces name consumers, producers and addresses: each role is told its own side. And nobody's traces push out another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pulsar
import pytest

from tests.integration.security.conftest import Secured
from tests.support.tokens import token
from tests.support.waiting import wait_until

TOPIC = "persistent://t/ns/traced"


def traces(secured: Secured, role: str, topic: str = TOPIC, **query: str) -> list[dict[str, Any]]:
    answer = secured.http("GET", "/admin/v2/trace", role, params={"topic": topic} | query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


def names(document: dict[str, Any]) -> tuple[bool, set[str]]:
    """Whether the producer is named, and the consumers that are."""
    return bool(document["producer"] and document["address"]), {
        event["consumer"] for event in document["events"] if event["consumer"]
    }


@pytest.fixture(scope="module")
def traced(secured: Secured) -> str:
    """The id of a message of role `producer`, delivered to role `consumer` and acknowledged."""
    as_consumer = pulsar.Client(secured.process.service_url, pulsar.AuthenticationToken(token("consumer")))
    as_producer = pulsar.Client(secured.process.service_url, pulsar.AuthenticationToken(token("producer")))
    consumer = as_consumer.subscribe(TOPIC, "sub", consumer_name="secret-consumer")
    as_producer.create_producer(TOPIC).send(b"x", properties={"magnetar.trace": "rights"})
    consumer.acknowledge(consumer.receive(30_000))
    wait_until(lambda: any(each["complete"] for each in traces(secured, "root", id="rights")))
    as_consumer.close()
    as_producer.close()
    return "rights"


@pytest.mark.parametrize(
    ("role", "producer_named", "consumers"),
    [
        ("root", True, {"secret-consumer"}),
        ("tenant-admin", True, {"secret-consumer"}),
        ("producer", True, set()),
        ("consumer", False, {"secret-consumer"}),
    ],
)
def test_each_role_sees_its_side(
    secured: Secured, traced: str, role: str, producer_named: bool, consumers: Sequence[str]
) -> None:
    (document,) = traces(secured, role, id=traced)
    assert names(document) == (producer_named, consumers)
    text = str(document)
    assert ("secret-consumer" in text) == bool(consumers)
    assert [event["event"] for event in document["events"]][-1] == "acknowledged"


@pytest.mark.parametrize("role", ["stranger", "topic-role", "other-admin", "anonymous"])
def test_strangers_are_refused(secured: Secured, traced: str, role: str) -> None:
    """Also those who have rights on other topics or tenants."""
    for query in (f"topic={TOPIC}", f"topic={TOPIC}&id={traced}", f"topic=other/ns/x&topic={TOPIC}"):
        url = f"{secured.process.http_url}/admin/v2/trace?{query}"
        assert secured.http("GET", url, role).status_code in (401, 403)


def test_another_ones_trace_id_says_nothing_of_his_trace(
    secured: Secured, traced: str, connect: Callable[..., pulsar.Client]
) -> None:
    """An id may be guessed or copied: the same one on another topic is another trace, and takes nothing away."""
    own = "persistent://t/ns/one"
    client = connect(pulsar.AuthenticationToken(token("topic-role")))
    client.create_producer(own).send(b"x", properties={"magnetar.trace": traced})
    (document,) = traces(secured, "topic-role", own, id=traced)
    assert document["topic"] == own
    assert names(document)[1] == set()
    (kept,) = traces(secured, "root", id=traced)
    assert kept["topic"] == TOPIC


def test_a_flood_of_one_tenant_takes_nothing_from_another(
    secured: Secured, traced: str, connect: Callable[..., pulsar.Client]
) -> None:
    """5,000 messages that ask for traces: all are stored, few are traced, and the other tenant's are still there and can be made."""
    secured.admin("PUT", "namespaces/other/flood")
    flooded, count = "persistent://other/flood/topic", 5_000
    client = connect(pulsar.AuthenticationToken(token("other-admin")))
    consumer = client.subscribe(flooded, "sub")
    producer = client.create_producer(flooded, block_if_queue_full=True, max_pending_messages=1000)
    for number in range(count):
        producer.send_async(b"x", lambda *_: None, properties={"magnetar.trace": f"flood-{number}"})
    producer.flush()
    for _ in range(count):
        consumer.acknowledge(consumer.receive(30_000))
    assert 0 < len(traces(secured, "root", flooded)) <= 50
    (kept,) = traces(secured, "root", id=traced)
    assert kept["complete"]
    connect(pulsar.AuthenticationToken(token("producer"))).create_producer(TOPIC).send(
        b"x", properties={"magnetar.trace": "after-the-flood"}
    )
    assert traces(secured, "producer", id="after-the-flood")


def test_metadata_that_only_looks_like_a_trace(secured: Secured, connect: Callable[..., pulsar.Client]) -> None:
    """The words in a key, a value, a longer name: published like any other message."""
    client = connect(pulsar.AuthenticationToken(token("tenant-admin")))
    topic = "persistent://t/ns/lookalikes"
    producer = client.create_producer(topic)
    for attributes in (
        {"partition_key": "magnetar.trace"},
        {"properties": {"x": "magnetar.trace.only"}},
        {"properties": {"magnetar.traces": "x", "magnetar.trace.only.not": "true", "Magnetar.Trace.Only": "true"}},
        {"properties": {"magnetar.trace.only": "false"}},
        {"properties": {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}},
    ):
        assert producer.send(b"x", **attributes).entry_id() >= 0
    assert traces(secured, "root", topic) == []
