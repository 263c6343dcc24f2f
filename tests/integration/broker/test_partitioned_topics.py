"""Partitioned topics: by default policy and by admin call; growing; what lies beyond the count."""

from __future__ import annotations

import threading

import pulsar
import pytest
import requests

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import CommandPartitionedTopicMetadataResponse
from tests.support.messages import ends_at_once, receive_all, send_all
from tests.support.raw_client import BaseCommand, RawConnection
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

Earliest = pulsar.InitialPosition.Earliest
TOPIC_NOT_FOUND = 11


def admin_url(server: ServerProcess, topic: str) -> str:
    return f"{server.http_url}/admin/v2/{topic.replace('://', '/')}/partitions"


def payloads(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


def test_created_on_demand_with_the_default_number(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(allowAutoTopicCreationType="partitioned", defaultNumPartitions=4)
    client = connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(4)]
    send_all(producer, payloads(40))
    assert sorted(receive_all(consumer, 40)) == sorted(payloads(40))
    server.restart()
    assert len(connect(server.service_url).get_topic_partitions(topic)) == 4


def test_clients_that_meet_at_a_new_topic_agree_on_it(start_server: StartServer, connect: Connect, topic: str) -> None:
    server = start_server(allowAutoTopicCreationType="partitioned", defaultNumPartitions=3)
    clients = [connect(server.service_url) for _ in range(4)]
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda client=client: found.append(len(client.get_topic_partitions(topic))))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == [3, 3, 3, 3]


def test_by_admin_call(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    assert requests.put(admin_url(server, topic), json=3, timeout=30).status_code == 204
    assert requests.put(admin_url(server, topic), json=3, timeout=30).status_code == 409
    assert len(client.get_topic_partitions(topic)) == 3
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    ids = send_all(producer, payloads(30))
    assert {message_id.partition() for message_id in ids} == {0, 1, 2}
    assert sorted(receive_all(consumer, 30)) == sorted(payloads(30))


def test_keys_stay_in_their_partition_and_in_order(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    requests.put(admin_url(server, topic), json=4, timeout=30)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    for index in range(200):
        producer.send_async(b"%d" % index, None, partition_key=f"k{index % 10}")
    producer.flush()
    partitions: dict[str, set[int]] = {}
    order: dict[str, list[int]] = {}
    for _ in range(200):
        received = consumer.receive(30_000)
        partitions.setdefault(received.partition_key(), set()).add(received.message_id().partition())
        order.setdefault(received.partition_key(), []).append(int(received.data()))
    assert all(len(found) == 1 for found in partitions.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert len({min(found) for found in partitions.values()}) > 1


def test_a_partition_may_be_used_by_its_name(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    requests.put(admin_url(server, topic), json=2, timeout=30)
    whole = client.subscribe(topic, "sub")
    client.create_producer(f"{topic}-partition-1").send(b"only here")
    received = whole.receive(30_000)
    assert (received.data(), received.topic_name()) == (b"only here", f"{topic}-partition-1")


def test_beyond_the_count_there_is_nothing_even_with_auto_creation(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    requests.put(admin_url(server, topic), json=2, timeout=30)
    beyond = f"{topic}-partition-2"
    with ends_at_once(pulsar.TopicNotFound):
        client.create_producer(beyond)
    with ends_at_once(pulsar.TopicNotFound):
        client.subscribe(beyond, "sub")
    with ends_at_once(pulsar.TopicNotFound):
        client.create_reader(beyond, pulsar.MessageId.earliest)
    with RawConnection(server.port) as raw:
        assert raw.producer(beyond).error.error == TOPIC_NOT_FOUND


def test_growing_loses_nothing(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """A subscription exists on the new partitions before the first message gets there."""
    requests.put(admin_url(server, topic), json=1, timeout=30)
    client.subscribe(topic, "sub").close()
    assert requests.post(admin_url(server, topic), json=3, timeout=30).status_code == 204
    assert requests.post(admin_url(server, topic), json=2, timeout=30).status_code == 422
    producer = client.create_producer(topic)
    ids = send_all(producer, payloads(30))
    assert {message_id.partition() for message_id in ids} == {0, 1, 2}
    assert sorted(receive_all(client.subscribe(topic, "sub"), 30)) == sorted(payloads(30))


def test_the_number_is_a_property_of_the_name_and_not_created_by_asking(server: ServerProcess, topic: str) -> None:
    with RawConnection(server.port) as raw:
        response = raw.partitions(topic).partitionMetadataResponse
        assert (response.response, response.error) == (response.Failed, TOPIC_NOT_FOUND)
        listed = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        listed.getTopicsOfNamespace.namespace = "public/default"
        listed.getTopicsOfNamespace.request_id = raw.next_request_id()
        raw.send(listed)
        topics = raw.expect(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)[0].getTopicsOfNamespaceResponse.topics
        assert topic not in topics


@pytest.mark.parametrize("create", [False, True])
def test_asking_creates_only_when_told_to(start_server: StartServer, topic: str, create: bool) -> None:
    server = start_server(allowAutoTopicCreationType="partitioned", defaultNumPartitions=2)
    with RawConnection(server.port) as raw:
        assert raw.partitions(topic, create=create).partitionMetadataResponse.partitions == (2 if create else 0)
        assert raw.partitions(topic).partitionMetadataResponse.partitions == (2 if create else 0)


def test_without_auto_creation_only_what_exists_is_served(
    start_server: StartServer, connect: Connect, topic: str
) -> None:
    server = start_server(allowAutoTopicCreation="false")
    client = connect(server.service_url)
    with ends_at_once(pulsar.TopicNotFound):
        client.create_producer(topic)
    with ends_at_once(pulsar.TopicNotFound):
        client.subscribe(topic, "sub")
    assert requests.put(admin_url(server, topic), json=2, timeout=30).status_code == 204
    consumer = client.subscribe(topic, "sub")
    client.create_producer(topic).send(b"x")
    assert receive_all(consumer, 1) == [b"x"]


def test_the_official_consumer_notices_new_partitions(server: ServerProcess, client: pulsar.Client, topic: str) -> None:
    """Its poll comes every minute; another client sees them at once, and both get everything."""
    requests.put(admin_url(server, topic), json=1, timeout=30)
    client.subscribe(topic, "sub", initial_position=Earliest)
    requests.post(admin_url(server, topic), json=2, timeout=30)
    wait_until(lambda: len(client.get_topic_partitions(topic)) == 2)


def test_a_missing_topic_is_told_to_who_does_not_want_it_created(
    server: ServerProcess, client: pulsar.Client, topic: str
) -> None:
    """The Java client asks so for retry topics by their old names: two topics would share one if it seemed to be there."""
    partitioned, plain, fleeting = f"{topic}-partitioned", f"{topic}-plain", f"non-{topic}"
    assert requests.put(admin_url(server, partitioned), json=3, timeout=30).status_code == 204
    client.create_producer(plain)
    producer = client.create_producer(fleeting)
    with RawConnection(server.port) as raw:

        def answer(name: str, create: bool) -> CommandPartitionedTopicMetadataResponse:
            return raw.partitions(name, create=create).partitionMetadataResponse

        for missing, why in (
            (topic, "does not exist"),
            (f"{partitioned}-partition-7", "has 3 partitions, no 7"),
            (f"{fleeting}-other", "does not exist"),
        ):
            found = answer(missing, False)
            assert (found.response, found.error) == (found.Failed, TOPIC_NOT_FOUND)
            assert why in found.message
        there = (partitioned, f"{partitioned}-partition-2", plain, fleeting)
        assert [answer(name, False).partitions for name in there] == [3, 0, 0, 0]
        assert all(answer(name, False).response == 0 for name in there)
        assert answer(topic, True).response == 0
    producer.close()


def test_an_address_that_there_is_not_is_left_out(server: ServerProcess, topic: str) -> None:
    """pulsar-rs takes an empty TLS address for one, and fails every operation."""
    with RawConnection(server.port) as raw:
        found = raw.lookup(topic).lookupTopicResponse
        assert found.brokerServiceUrl.startswith("pulsar://")
        assert not found.HasField("brokerServiceUrlTls")
