"""A scalable topic over two brokers: its controller is one of them, its segments are served by both, and the other one takes over."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from magnetar.admin.client import AdminClient
from magnetar.broker.namespaces.records import boundaries_text, bundle_of
from magnetar.broker.naming import TopicName
from magnetar.testing.cluster import ClusterProcesses
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.brokers import STEADY, broker_names, send
from tests.support.raw_scalable import ScalableClient
from tests.support.waiting import wait_until

TOPIC = "topic://public/default/spread"
SEGMENTS = 4

EVENLY = "broker.loadBalancerEnabled=false"
"""A bundle goes to the broker with the fewest, however busy the machine is."""


@pytest.fixture(params=["metadata-server", pytest.param("zookeeper", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    directory = tmp_path_factory.mktemp("cluster") / "c"
    zookeeper = request.param == "zookeeper"
    with ClusterProcesses(
        directory, bookies=2, brokers=2, zookeeper=zookeeper, settings=(*STEADY, EVENLY)
    ) as processes:
        yield processes


def connect(url: str) -> ScalableClient:
    client = ScalableClient(urlsplit(url).port or 0)
    client.connect()
    return client


def names(client: ScalableClient, topic: str = TOPIC) -> dict[int, str]:
    """Topics of the active segments."""
    base = topic.replace("topic://", "segment://")
    segments = client.layout(topic).dag.segments
    return {
        each.segment_id: f"{base}/{each.hash_start:04x}-{each.hash_end:04x}-{each.segment_id}"
        for each in segments
        if not each.state
    }


def move(cluster: ClusterProcesses, name: str, destination: str) -> None:
    """The segment's bundle goes to the broker process of that name."""
    bundle = bundle_of(TopicName.parse(name), boundaries_text(4))
    broker_id = urlsplit(cluster.broker(destination)[1]).netloc
    url = f"{cluster.http_url}/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker={broker_id}"
    send("PUT", url)


def owner_url(client: ScalableClient, name: str, authoritative: bool = False) -> str:
    """The broker that serves the topic; redirects are followed, as clients do."""
    request = {"topic": name, "request_id": client.request_id(), "authoritative": authoritative}
    client.send(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic=request))
    answer = client.until(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
    if answer.response == answer.Redirect:
        with connect(answer.brokerServiceUrl) as following:
            return owner_url(following, name, answer.authoritative)
    assert answer.response == answer.Connect, answer
    return answer.brokerServiceUrl


def publish(client: ScalableClient, name: str, payload: bytes) -> None:
    with connect(owner_url(client, name)) as producer:
        assert producer.producer(name).type == BaseCommand.PRODUCER_SUCCESS
        assert producer.publish(payload).type == BaseCommand.SEND_RECEIPT


def check_spread(cluster: ClusterProcesses) -> None:
    """Whichever broker makes a topic and controls it, the one that leads or another: its segments go where bundles are few, also those
    of a split."""
    for asked in broker_names(cluster):
        namespace, topic = f"public/by-{asked}", f"topic://public/by-{asked}/wide"
        with AdminClient(cluster.broker(asked)[1]) as admin:
            admin.namespaces.create(namespace, bundles=64)
            admin.scalable_topics.create(topic, 1)
            for number in range(5):
                admin.scalable_topics.split(topic, 2 * number)
        with connect(cluster.broker(asked)[0]) as client:
            assert client.layout(topic).dag.controller_broker_url == cluster.broker(asked)[0]
            owners = [owner_url(client, name) for name in names(client, topic).values()]
        assert len(set(owners)) == 2, f"{asked}: {owners}"


def test_segments_elsewhere_and_a_controller_that_is_killed(cluster: ClusterProcesses) -> None:
    first, second = broker_names(cluster)
    check_spread(cluster)
    with AdminClient(cluster.broker(first)[1]) as admin:
        admin.scalable_topics.create(TOPIC, SEGMENTS)
    client = connect(cluster.broker(second)[0])
    controlling = client.layout(TOPIC).dag.controller_broker_url
    controller = next(name for name in (first, second) if cluster.broker(name)[0] == controlling)
    other = second if controller == first else first
    client.close()
    client = connect(cluster.broker(other)[0])
    client.layout(TOPIC, 1)
    move(cluster, names(client)[0], other)
    wait_until(lambda: owner_url(client, names(client)[0]) == cluster.broker(other)[0], what="segment 0 has moved")

    # its consumer is registered at the controller and reads elsewhere
    consumer = connect(controlling)
    assert len(consumer.consume(TOPIC, "a").assignment.segments) == SEGMENTS
    publish(client, names(client)[0], b"first")
    reader = connect(cluster.broker(other)[0])
    assert reader.subscribe(names(client)[0], "s", kind="Exclusive").type == BaseCommand.SUCCESS
    reader.flow(1)
    command, rest = reader.message()
    assert payload_of(rest) == b"first"

    # the split is asked for at the broker that does not control the topic
    with AdminClient(cluster.broker(other)[1]) as admin:
        admin.scalable_topics.split(TOPIC, 0)
        assert admin.scalable_topics.stats(TOPIC).subscriptions["s"].consumer_count == 1
    assert consumer.assigned() == [0, 1, 2, 3]
    identifier = command.message.message_id
    reader.ack([(identifier.ledgerId, identifier.entryId)], receipt=False)
    assert consumer.assigned() == [4, 5, 1, 2, 3], "the broker of the segment has told the controller"

    # whoever watches elsewhere brings about the next controller
    cluster.kill(controller)
    survivor = cluster.broker(other)[0]

    def taken_over() -> bool:
        return client.layout(TOPIC).dag.controller_broker_url == survivor

    wait_until(taken_over, 60, "the other broker controls the topic")
    again = connect(survivor)
    answer = again.consume(TOPIC, "a")
    assert [each.segment_id for each in answer.assignment.segments] in ([4, 5, 1, 2, 3], [0, 1, 2, 3])
    with AdminClient(cluster.broker(other)[1]) as admin:
        admin.scalable_topics.merge(TOPIC, 4, 5)
        assert admin.scalable_topics.stats(TOPIC).subscriptions["s"].consumer_count == 1
    for name in names(client).values():
        publish(client, name, b"after")
