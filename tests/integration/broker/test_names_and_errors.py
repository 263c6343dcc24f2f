"""Name rules, and errors that end the official client's calls at once: a wrong code would let it retry until it times out."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
import requests

from magnetar.testing.server import ServerProcess
from tests.support.messages import NEGATIVE_CASE_S, ends_at_once, receive_all
from tests.support.raw_client import BaseCommand, RawConnection
from tests.support.types import Connect, StartServer

GOOD_NAMES = [
    "plain",
    "public/default/short",
    "persistent://public/default/complete",
    "non-persistent://public/default/complete",
    "persistent://public/default/with spaces and ümlaut",
    "persistent://public/default/a.b:c=d_e-f",
    "persistent://public/default/%2e%2e",
    "persistent://public/default/...",
    "persistent://public/default/x-partition-",
    "persistent://public/default/x-partition-01",
]
BAD_NAMES = [
    "",
    "://public/default/x",
    "other://public/default/x",
    "persistent://public/default",
    "persistent://public/default/",
    "persistent:///default/x",
    "persistent://public//x",
    "persistent://pub lic/default/x",
    "persistent://public/../x",
    "persistent://../default/x",
    "persistent://public/default/.",
    "persistent://public/default/..",
    "persistent://public/default/nul\x00byte",
    "persistent://public/default/new\nline",
    "persistent://public/default/" + "x" * 10_000,
    "a/b",
]
MISSING = ["persistent://nowhere/default/x", "persistent://public/nowhere/x", "non-persistent://public/nowhere/x"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_names(client: pulsar.Client, name: str) -> None:
    consumer = client.subscribe(name, "sub")
    client.create_producer(name).send(b"x")
    assert receive_all(consumer, 1) == [b"x"]
    consumer.unsubscribe()


def test_short_names_are_those_of_public_default(client: pulsar.Client) -> None:
    consumer = client.subscribe("persistent://public/default/short-form", "sub")
    client.create_producer("short-form").send(b"x")
    assert receive_all(consumer, 1) == [b"x"]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name[:40]))
def test_bad_names_are_refused_on_every_command(server: ServerProcess, name: str) -> None:
    """By raw frames: the official client refuses some of them itself."""
    with RawConnection(server.port, timeout_s=NEGATIVE_CASE_S) as raw:
        assert raw.partitions(name).partitionMetadataResponse.response == 1  # Failed
        assert raw.lookup(name).lookupTopicResponse.response == 2  # Failed
        assert raw.producer(name).type == BaseCommand.ERROR
        assert raw.subscribe(name, "sub").type == BaseCommand.ERROR
        assert raw.producer("persistent://public/default/still-works", 2).type == BaseCommand.PRODUCER_SUCCESS


@pytest.mark.parametrize("name", [*BAD_NAMES[2:10], *MISSING], ids=lambda name: repr(name[:40]))
def test_the_official_client_does_not_hang(client: pulsar.Client, name: str) -> None:
    with ends_at_once():
        client.create_producer(name)
    with ends_at_once():
        client.subscribe(name, "sub")
    with ends_at_once():
        client.create_reader(name, pulsar.MessageId.earliest)
    with ends_at_once():
        client.get_topic_partitions(name)


@pytest.mark.parametrize("name", MISSING)
def test_missing_tenants_and_namespaces(client: pulsar.Client, name: str) -> None:
    with ends_at_once(pulsar.TopicNotFound):
        client.create_producer(name)
    with ends_at_once(pulsar.TopicNotFound):
        client.subscribe(name, "sub")


@pytest.mark.parametrize("name", ["", ".", "..", "nul\x00", "new\nline", "x" * 2000], ids=lambda name: repr(name[:10]))
def test_bad_subscription_names(server: ServerProcess, client: pulsar.Client, topic: str, name: str) -> None:
    if "\x00" not in name:  # which the official client would cut off
        with ends_at_once():
            client.subscribe(topic, name)
    with RawConnection(server.port, timeout_s=NEGATIVE_CASE_S) as raw:
        assert raw.subscribe(topic, name).type == BaseCommand.ERROR


@pytest.mark.parametrize("name", ["with/slash", "ümlaut", "a b", "%2e", "..."])
def test_unusual_subscription_names_are_names(
    start_server: StartServer, connect: Connect, topic: str, name: str
) -> None:
    """They become names of cursors in the metadata store, and must come back from it as they were."""
    server = start_server()
    connect(server.service_url).subscribe(topic, name).close()
    connect(server.service_url).create_producer(topic).send(b"x")
    server.restart()
    assert receive_all(connect(server.service_url).subscribe(topic, name), 1) == [b"x"]


def test_a_producer_name_in_use(client: pulsar.Client, connect: Connect, server: ServerProcess, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="taken")
    for other in (client, connect(server.service_url)):
        with ends_at_once(pulsar.ProducerBusy):
            other.create_producer(topic, producer_name="taken")
    producer.close()
    connect(server.service_url).create_producer(topic, producer_name="taken").send(b"x")


def test_too_many_producers(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(maxProducersPerTopic=1).service_url)
    client.create_producer(topic)
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(topic)
    client.create_producer(f"{topic}-other")


def test_too_many_consumers(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(maxConsumersPerTopic=1).service_url)
    client.subscribe(topic, "one")
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "two")


def test_subscriptions_that_are_not_created_on_demand(start_server: StartServer, connect: Connect, topic: str) -> None:
    client = connect(start_server(allowAutoSubscriptionCreation="false").service_url)
    client.create_producer(topic)
    with ends_at_once(pulsar.NotAllowedError):
        client.subscribe(topic, "sub")
    client.create_reader(topic, pulsar.MessageId.earliest)  # not a subscription that stays


def test_a_durable_subscription_is_no_reader(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    with RawConnection(server.port, timeout_s=NEGATIVE_CASE_S) as raw:
        assert raw.subscribe(topic, "sub", durable=False).error.error == 22  # NotAllowedError


def test_an_unknown_listener_name(server: ServerProcess, topic: str) -> None:
    client = pulsar.Client(server.service_url, listener_name="test", operation_timeout_seconds=30)
    with ends_at_once():
        client.create_producer(topic)
    client.close()


def test_lookup_over_http_is_a_client_too(server: ServerProcess, connect: Connect, topic: str) -> None:
    client = connect(server.http_url)
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x")
    assert receive_all(consumer, 1) == [b"x"]
    for name in MISSING:
        with ends_at_once():
            client.create_producer(name)


def test_the_same_ids_again(server: ServerProcess, topic: str) -> None:
    """A client that repeats PRODUCER or SUBSCRIBE with ids that are in use gets the same answer."""
    with RawConnection(server.port, timeout_s=NEGATIVE_CASE_S) as raw:
        first = raw.producer(topic).producer_success
        assert raw.producer(topic).producer_success.producer_name == first.producer_name
        assert raw.subscribe(topic, "sub").type == BaseCommand.SUCCESS
        assert raw.subscribe(topic, "sub").type == BaseCommand.SUCCESS


def test_sending_for_a_producer_that_never_was_ends_the_connection(server: ServerProcess) -> None:
    with RawConnection(server.port) as raw:
        raw.publish(b"", producer_id=77)
        assert [command.type for command in raw.wait_closed(NEGATIVE_CASE_S)] == [BaseCommand.ERROR]


def test_an_admin_call_that_creates_what_a_client_is_opening(server: ServerProcess, topic: str) -> None:
    """Both create the topic at the same moment: the client's request succeeds, whoever was first."""
    rounds = 60
    with RawConnection(server.port) as raw, ThreadPoolExecutor(1) as admin:
        for number in range(rounds):
            name = f"{topic}-{number}"
            url = f"{server.http_url}/admin/v2/{name.replace('://', '/')}"
            put = admin.submit(requests.put, url, timeout=60)
            time.sleep(number % 10 / 3000)
            answer = raw.subscribe(name, "s", consumer_id=number + 1)
            assert answer.type == BaseCommand.SUCCESS, f"round {number}: {answer}"
            assert put.result().status_code in (204, 409)
