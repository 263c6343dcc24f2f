"""Backlog quotas: hold producers, refuse producers, or drop the oldest backlog; by size and by age."""

from __future__ import annotations

import pulsar
import pytest

from tests.support.messages import drain, ends_at_once, receive_all, send_all, take
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

LIMIT_BYTES = 100_000
BODY = b"x" * 1000
QUICK = {
    "backlogQuotaCheckIntervalInSeconds": 0.2,
    "managedLedgerMaxEntriesPerLedger": 50,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}


def creation_fails(client: pulsar.Client, topic: str) -> bool:
    try:
        client.create_producer(topic).close()
    except pulsar.PulsarException:
        return True
    return False


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
    ],
)
def test_producers_are_kept_out_until_the_backlog_is_consumed(
    start_server: StartServer, connect: Connect, topic: str, policy: str, error: type[pulsar.PulsarException]
) -> None:
    client = connect(
        start_server(
            backlogQuotaDefaultRetentionPolicy=policy, backlogQuotaDefaultLimitBytes=LIMIT_BYTES, **QUICK
        ).service_url
    )
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    send_all(producer, [BODY] * 50)
    assert not creation_fails(client, topic)
    producer.send(BODY * 100)  # one message: of several, those behind the limit may meet the check already
    wait_until(lambda: creation_fails(client, topic))
    with ends_at_once(error):
        client.create_producer(topic)
    take(consumer, 51)
    wait_until(lambda: not creation_fails(client, topic))
    assert send_all(client.create_producer(topic), [BODY])


def test_live_producers_are_disconnected_and_come_back_by_themselves(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    """The periodic check evicts producers that are connected; messages they hold are sent once there is room."""
    client = connect(
        start_server(
            backlogQuotaDefaultRetentionPolicy="producer_request_hold",
            backlogQuotaDefaultLimitBytes=LIMIT_BYTES,
            **QUICK,
        ).service_url
    )
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(BODY * 150)
    wait_until(lambda: not producer.is_connected())
    results: list[pulsar.Result] = []
    producer.send_async(b"held", lambda result, _: results.append(result))
    assert receive_all(consumer, 1) == [BODY * 150]
    assert receive_all(consumer, 1, timeout_ms=20_000) == [b"held"]
    assert results == [pulsar.Result.Ok]


def test_eviction_drops_the_oldest_backlog_and_keeps_producers(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    client = connect(
        start_server(
            backlogQuotaDefaultRetentionPolicy="consumer_backlog_eviction",
            backlogQuotaDefaultLimitBytes=LIMIT_BYTES,
            **QUICK,
        ).service_url
    )
    client.subscribe(topic, "sub").close()
    producer = client.create_producer(topic)
    send_all(producer, [b"%04d" % index + BODY for index in range(400)])

    def left() -> list[pulsar.Message]:
        consumer = client.subscribe(topic, "sub")
        found = drain(consumer, ack=False)
        consumer.close()
        return found

    wait_until(lambda: len(left()) <= 100, 60)
    rest = [int(entry.data()[:4]) for entry in left()]
    assert rest == list(range(400 - len(rest), 400))
    assert len(rest) >= 30  # not more than the limit asks for
    assert producer.send(b"goes on")


@pytest.mark.parametrize("policy", ["producer_exception", "consumer_backlog_eviction"])
def test_quota_by_age(start_server: StartServer, connect: Connect, topic: str, policy: str) -> None:
    client = connect(
        start_server(backlogQuotaDefaultRetentionPolicy=policy, backlogQuotaDefaultLimitSecond=1, **QUICK).service_url
    )
    client.subscribe(topic, "sub").close()
    send_all(client.create_producer(topic), [b"old"] * 10)
    if policy == "producer_exception":
        wait_until(lambda: creation_fails(client, topic))
        consumer = client.subscribe(topic, "sub")
        take(consumer, 10)
        wait_until(lambda: not creation_fails(client, topic))
        return
    wait_until(lambda: nothing_left(client, topic), 60)
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "sub")
    producer.send(b"new")  # to somebody who is there: it is new for a second only
    assert receive_all(consumer, 1) == [b"new"]


def nothing_left(client: pulsar.Client, topic: str) -> bool:
    consumer = client.subscribe(topic, "sub")
    found = drain(consumer, ack=False)
    consumer.close()
    return not found


def test_a_topic_without_subscriptions_has_no_backlog(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(
        start_server(
            backlogQuotaDefaultRetentionPolicy="producer_exception", backlogQuotaDefaultLimitBytes=1000, **QUICK
        ).service_url
    )
    other = client.create_producer(f"{topic}-full")
    client.subscribe(f"{topic}-full", "sub")
    producer = client.create_producer(topic)
    send_all(producer, [BODY] * 20)
    send_all(other, [BODY] * 20)
    wait_until(lambda: creation_fails(client, f"{topic}-full"))
    assert not creation_fails(client, topic)
