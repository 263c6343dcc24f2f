"""Scalable topics over raw frames: layouts, segments, consumers at the controller, splits and merges, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import ConflictError, RefusedError
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar import PulsarApi_pb2 as pb
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.support.raw_scalable import ScalableClient, segments_of

FULL = {0: (0, 0xFFFF, "ACTIVE")}


@pytest.fixture
def client(connected: Callable[[], ScalableClient]) -> ScalableClient:
    return connected()


@pytest.fixture
def topic(new_scalable_topic: Callable[[int], str]) -> str:
    """A scalable topic of one segment."""
    return new_scalable_topic(1)


def segment(topic: str, descriptor: str) -> str:
    return f"segment://{topic.removeprefix('topic://')}/{descriptor}"


def publish(client: ScalableClient, name: str, *payloads: bytes, producer_id: int = 1) -> None:
    assert client.producer(name, producer_id).type == BaseCommand.PRODUCER_SUCCESS
    for number, payload in enumerate(payloads):
        assert client.publish(payload, number, producer_id).type == BaseCommand.SEND_RECEIPT
    client.send(
        BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": producer_id, "request_id": 1})
    )
    client.until(BaseCommand.SUCCESS)


def receive(client: ScalableClient, count: int, *, ack: bool = True) -> list[bytes]:
    found = [client.message() for _ in range(count)]
    for command, _ in found if ack else ():
        identifier = command.message.message_id
        client.ack([(identifier.ledgerId, identifier.entryId)], consumer_id=command.message.consumer_id)
    return [payload_of(rest) for _, rest in found]


# ---- Layouts


def test_the_server_says_that_it_serves_them(server: ServerProcess) -> None:
    with ScalableClient(server.port) as client:
        assert client.connect().connected.feature_flags.supports_scalable_topics


def test_classic_topics_have_a_synthetic_layout(client: ScalableClient, admin: AdminClient) -> None:
    admin.topics.create_partitioned("persistent://public/default/classic-3", 3)
    found = client.layout("persistent://public/default/classic-3")
    assert found.resolved_topic_name == "topic://public/default/classic-3"
    assert [each.legacy_topic_name for each in found.dag.segments] == [
        f"persistent://public/default/classic-3-partition-{number}" for number in range(3)
    ]
    assert segments_of(found)[2] == (0xAAAA, 0xFFFF, "ACTIVE")
    assert not found.dag.HasField("controller_broker_url")
    plain = client.layout("persistent://public/default/classic-not-there", 2)
    assert segments_of(plain) == FULL
    assert plain.dag.segments[0].legacy_topic_name == "persistent://public/default/classic-not-there"


@pytest.mark.parametrize("name", ["topic://public/default/any", "segment://public/default/any/0000-ffff-0"])
def test_lookup_knows_the_new_names(client: ScalableClient, server: ServerProcess, name: str) -> None:
    client.send(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": name, "request_id": 1}))
    found = client.until(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
    assert found.brokerServiceUrl == f"pulsar://127.0.0.1:{server.port}"


def test_the_layout_of_a_scalable_topic(client: ScalableClient, admin: AdminClient, server: ServerProcess) -> None:
    admin.scalable_topics.create("four", 4, {"team": "a"})
    found = client.layout("topic://public/default/four")
    assert [segments_of(found)[number][:2] for number in range(4)] == [
        (0, 0x3FFF),
        (0x4000, 0x7FFF),
        (0x8000, 0xBFFF),
        (0xC000, 0xFFFF),
    ]
    url = f"pulsar://127.0.0.1:{server.port}"
    assert found.dag.controller_broker_url == url
    assert {(each.segment_id, each.broker_url) for each in found.dag.segment_brokers} == {(n, url) for n in range(4)}
    stored = admin.scalable_topics.metadata("four")
    assert (stored.epoch, stored.next_segment_id, stored.properties) == (0, 4, {"team": "a"})
    # the same layout by its classic name
    assert segments_of(client.layout("persistent://public/default/four", 2)) == segments_of(found)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("persistent://public/default/x-partition-1", ServerError.NotAllowedError),
        ("non-persistent://public/default/x", ServerError.NotAllowedError),
        ("segment://public/default/x/0000-ffff-0", ServerError.NotAllowedError),
        ("topic://public/nowhere/x", ServerError.TopicNotFound),
        ("topic://public/default/a/b", ServerError.InvalidTopicName),
        ("other://public/default/a", ServerError.InvalidTopicName),
    ],
)
def test_names_without_a_layout(client: ScalableClient, name: str, code: int) -> None:
    refused = client.layout(name, 7)
    assert (refused.session_id, refused.error) == (7, code), refused
    assert refused.message
    client.ping()


def test_a_missing_topic_is_created_if_the_client_wants_that(client: ScalableClient, admin: AdminClient) -> None:
    name = "topic://public/default/wanted"
    assert client.layout(name, create_if_missing=False).error == ServerError.TopicNotFound
    assert segments_of(client.layout(name, 2)) == FULL
    assert name in admin.scalable_topics.list("public/default")


def test_one_name_is_either_classic_or_scalable(client: ScalableClient, admin: AdminClient, topic: str) -> None:
    admin.topics.create("persistent://public/default/taken")
    with pytest.raises(RefusedError) as refused:
        admin.scalable_topics.create("taken")
    assert refused.value.status == 409
    assert client.layout("topic://public/default/taken").dag.segments[0].legacy_topic_name
    with pytest.raises(RefusedError):
        admin.scalable_topics.create(topic)


def test_a_classic_topic_never_hides_a_scalable_one(client: ScalableClient, admin: AdminClient, topic: str) -> None:
    """Clients of Pulsar 4 are told so at once: what they wrote under that name, nobody would read."""
    classic = topic.replace("topic://", "persistent://")
    assert client.producer(classic).error.error == ServerError.NotAllowedError
    assert client.subscribe(classic).error.error == ServerError.NotAllowedError
    assert "topic://public/default" in client.producer(f"{classic}-partition-0", 2).error.message
    for create in (admin.topics.create, lambda name: admin.topics.create_partitioned(name, 2)):
        with pytest.raises(ConflictError):
            create(classic)
    request = {"topic": classic, "request_id": 1, "metadata_auto_creation_enabled": True}
    client.send(BaseCommand(type=BaseCommand.PARTITIONED_METADATA, partitionMetadata=request))
    assert client.until(BaseCommand.PARTITIONED_METADATA_RESPONSE).partitionMetadataResponse.partitions == 0


def test_switched_off(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(scalableTopicsEnabled="false")
    with ScalableClient(server.port) as client:
        assert not client.connect().connected.feature_flags.supports_scalable_topics
        assert client.layout("persistent://public/default/x").error == ServerError.NotAllowedError
        assert client.consume("topic://public/default/x", "c").error == ServerError.NotAllowedError
        client.watch("public/default")
        assert client.listed().error == ServerError.NotAllowedError
    with AdminClient(server.http_url) as admin, pytest.raises(RefusedError):
        admin.scalable_topics.create("x")


# ---- Segments


def test_a_segment_is_a_topic_that_nobody_creates_by_connecting(client: ScalableClient, topic: str) -> None:
    name = segment(topic, "0000-ffff-0")
    publish(client, name, b"a", b"b")
    assert client.subscribe(name).type == BaseCommand.SUCCESS
    client.flow(10)
    assert receive(client, 2) == [b"a", b"b"]
    missing = segment(topic, "0000-ffff-1")
    assert client.producer(missing, 2).error.error == ServerError.TopicNotFound
    assert client.subscribe(missing, consumer_id=2).error.error == ServerError.TopicNotFound
    assert client.producer(topic, 3).error.error == ServerError.InvalidTopicName


def test_segments_share_their_topics_schema(client: ScalableClient, admin: AdminClient) -> None:
    admin.scalable_topics.create("typed", 2)
    first, second = "segment://public/default/typed/0000-7fff-0", "segment://public/default/typed/8000-ffff-1"
    for number, name, kind in ((1, first, "String"), (2, second, "Int64")):
        schema = {"name": "typed", "schema_data": b"", "type": kind, "properties": []}
        request = {"topic": name, "producer_id": number, "request_id": number, "schema": schema}
        client.send(BaseCommand(type=BaseCommand.PRODUCER, producer=request))
    client.expect(BaseCommand.PRODUCER_SUCCESS)
    assert client.expect(BaseCommand.ERROR).error.error == ServerError.IncompatibleSchema
    assert admin.schemas.get("typed").type == "STRING"


def test_a_split_is_followed_by_everybody(
    connected: Callable[[], ScalableClient], admin: AdminClient, topic: str
) -> None:
    producer, watcher, consumer = connected(), connected(), connected()
    watcher.layout(topic, 1)
    parent, low, high = (segment(topic, each) for each in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2"))
    assert producer.producer(parent).type == BaseCommand.PRODUCER_SUCCESS
    assert consumer.subscribe(parent, "s").type == BaseCommand.SUCCESS
    consumer.flow(10)
    assert producer.publish(b"before").type == BaseCommand.SEND_RECEIPT
    admin.scalable_topics.split(topic, 0)
    assert producer.until(BaseCommand.CLOSE_PRODUCER).close_producer.producer_id == 1
    refused = producer.producer(parent)
    assert refused.error.error == ServerError.TopicTerminatedError
    pushed = watcher.pushed_layout()
    assert segments_of(pushed) == {
        0: (0, 0xFFFF, "SEALED"),
        1: (0, 0x7FFF, "ACTIVE"),
        2: (0x8000, 0xFFFF, "ACTIVE"),
    }
    assert (pushed.dag.epoch, list(pushed.dag.segments[1].parent_ids)) == (1, [0])
    assert receive(consumer, 1, ack=False) == [b"before"]
    publish(producer, low, b"low")
    publish(producer, high, b"high")
    for name in (low, high):  # the subscription has its place there from the beginning
        late = connected()
        assert late.subscribe(name, "s", initialPosition=CommandSubscribe.Latest).type == BaseCommand.SUCCESS
        late.flow(10)
        assert receive(late, 1) == [b"low" if name == low else b"high"]
    admin.scalable_topics.merge(topic, 2, 1)
    assert segments_of(watcher.pushed_layout())[3] == (0, 0xFFFF, "ACTIVE")


def test_a_consumer_that_has_acknowledged_everything_learns_the_end(
    client: ScalableClient, admin: AdminClient, topic: str
) -> None:
    name = segment(topic, "0000-ffff-0")
    publish(client, name, b"only")
    assert client.subscribe(name).type == BaseCommand.SUCCESS
    admin.scalable_topics.split(topic, 0)
    client.flow(1)
    command, _ = client.message()
    client.ack([(command.message.message_id.ledgerId, command.message.message_id.entryId)], receipt=False)
    assert client.until(BaseCommand.REACHED_END_OF_TOPIC).reachedEndOfTopic.consumer_id == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda admin, topic: admin.scalable_topics.split(topic, 9), 412),
        (lambda admin, topic: admin.scalable_topics.merge(topic, 0, 2), 412),
        (lambda admin, topic: admin.scalable_topics.split("not-there", 0), 404),
        (lambda admin, topic: admin.scalable_topics.metadata("not-there"), 404),
        (lambda admin, topic: admin.scalable_topics.stats("not-there"), 404),
        (lambda admin, topic: admin.scalable_topics.delete("not-there"), 404),
        (lambda admin, topic: admin.scalable_topics.create("many", 5000), 412),
        (lambda admin, topic: admin.scalable_topics.segment_stats(topic, 9), 404),
        (lambda admin, topic: admin.scalable_topics.delete_subscription(topic, "nobody"), 404),
    ],
)
def test_changes_that_are_refused(
    admin: AdminClient,
    new_scalable_topic: Callable[[int], str],
    change: Callable[[AdminClient, str], object],
    code: int,
) -> None:
    topic = new_scalable_topic(3)
    with pytest.raises(RefusedError) as refused:
        change(admin, topic)
    assert refused.value.status == code
    assert admin.scalable_topics.metadata(topic).epoch == 0


# ---- Subscriptions


def test_a_subscription_of_a_client_is_written_down_and_is_in_every_segment(
    client: ScalableClient, admin: AdminClient
) -> None:
    admin.scalable_topics.create("noted", 2)
    first, second = "segment://public/default/noted/0000-7fff-0", "segment://public/default/noted/8000-ffff-1"
    assert client.subscribe(first, "mine", initialPosition=CommandSubscribe.Latest).type == BaseCommand.SUCCESS
    assert "mine" in admin.scalable_topics.stats("noted").subscriptions
    publish(client, second, b"not to be missed")
    assert admin.scalable_topics.segment_stats("noted", 1).backlog == {"mine": 1}
    assert (
        client.subscribe(second, "mine", consumer_id=2, initialPosition=CommandSubscribe.Latest).type
        == BaseCommand.SUCCESS
    )
    client.flow(1, 2)
    assert receive(client, 1) == [b"not to be missed"]
    for consumer_id in (1, 2):
        unsubscribe = {"consumer_id": consumer_id, "request_id": 5}
        client.send(BaseCommand(type=BaseCommand.UNSUBSCRIBE, unsubscribe=unsubscribe))
        client.until(BaseCommand.SUCCESS)
    assert admin.scalable_topics.stats("noted").subscriptions == {}


def test_an_administrators_subscription(client: ScalableClient, admin: AdminClient, topic: str) -> None:
    admin.scalable_topics.create_subscription(topic, "made", "STREAM")
    publish(client, segment(topic, "0000-ffff-0"), b"a", b"b")
    admin.scalable_topics.split(topic, 0)
    publish(client, segment(topic, "8000-ffff-2"), b"c")

    def backlog() -> list[int]:
        return [admin.scalable_topics.segment_stats(topic, each).backlog["made"] for each in range(3)]

    assert backlog() == [2, 0, 1]
    admin.scalable_topics.clear_backlog(topic, "made")
    assert backlog() == [0, 0, 0]
    admin.scalable_topics.seek(topic, "made", 1)
    assert backlog()[2] == 1
    admin.scalable_topics.delete_subscription(topic, "made")
    assert admin.scalable_topics.stats(topic).subscriptions == {}
    assert admin.scalable_topics.segment_stats(topic, 0).backlog == {}


# ---- Consumers at the controller


def test_segments_are_divided_and_given_back_at_once(
    connected: Callable[[], ScalableClient], admin: AdminClient
) -> None:
    admin.scalable_topics.create("shared", 4)
    one, two = connected(), connected()
    answer = one.consume("topic://public/default/shared", "a")
    assert [each.segment_id for each in answer.assignment.segments] == [0, 1, 2, 3]
    assert answer.assignment.segments[1].segment_topic == "segment://public/default/shared/4000-7fff-1"
    assert answer.assignment.layout_epoch == 0
    second = [each.segment_id for each in two.consume("topic://public/default/shared", "b").assignment.segments]
    assert sorted(one.assigned() + second) == [0, 1, 2, 3]
    assert len(second) == 2
    assert admin.scalable_topics.stats("shared").subscriptions["s"].consumer_count == 2
    two.leave()
    two.leave()  # may be repeated
    assert one.assigned() == [0, 1, 2, 3]


def test_children_wait_for_the_last_acknowledgement(
    connected: Callable[[], ScalableClient], admin: AdminClient, new_scalable_topic: Callable[[int], str]
) -> None:
    """The quickest of a few counts: what else the machine does only ever adds to the time until the consumer is told."""
    for left in reversed(range(5)):
        took_s = drained_in_s(connected(), connected(), admin, new_scalable_topic(1))
        if took_s < 1.5:
            break
        assert left, "told by the acknowledgement, not by asking every two seconds"


def drained_in_s(producer: ScalableClient, consumer: ScalableClient, admin: AdminClient, topic: str) -> float:
    """A split of a split, and the time from the last acknowledgement of the parent until its children are assigned."""
    assert [each.segment_id for each in consumer.consume(topic, "a").assignment.segments] == [0]
    parent = segment(topic, "0000-ffff-0")
    assert consumer.subscribe(parent, "s", consumer_id=9, kind="Exclusive").type == BaseCommand.SUCCESS
    publish(producer, parent, b"first")
    consumer.flow(5, 9)
    command, _ = consumer.message()
    admin.scalable_topics.split(topic, 0)
    admin.scalable_topics.split(topic, 1)
    assert consumer.assigned() == [0], "the parent is not drained"
    assert consumer.assigned() == [0], "neither after the second split"
    started = time.monotonic()
    identifier = command.message.message_id
    consumer.ack([(identifier.ledgerId, identifier.entryId)], consumer_id=9, receipt=False)
    assert consumer.assigned() == [1, 2], "the grandchildren wait for segment 1"
    took_s = time.monotonic() - started
    assert consumer.assigned() == [3, 4, 2], "nothing was in segment 1"
    return took_s


def test_a_consumer_that_is_back_in_time_keeps_its_segments(
    connected: Callable[[], ScalableClient], admin: AdminClient
) -> None:
    admin.scalable_topics.create("patient", 2)
    topic = "topic://public/default/patient"
    one, two = connected(), connected()
    one.consume(topic, "a")
    kept = [each.segment_id for each in two.consume(topic, "b").assignment.segments]
    left = one.assigned()
    two.close()
    back = connected()
    assert [each.segment_id for each in back.consume(topic, "b", 5).assignment.segments] == kept
    assert sorted(kept + left) == [0, 1]
    one.ping()


def test_a_consumer_that_does_not_come_back_loses_them(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(scalableTopicConsumerSessionGracePeriodSeconds="0.2")
    with AdminClient(server.http_url) as admin:
        admin.scalable_topics.create("impatient", 2)
    topic = "topic://public/default/impatient"
    with ScalableClient(server.port) as one:
        one.connect()
        one.consume(topic, "a")
        two = ScalableClient(server.port)
        two.connect()
        two.consume(topic, "b")
        assert len(one.assigned()) == 1
        two.close()
        assert one.assigned() == [0, 1]


def test_checkpoint_consumers_read_all_segments_in_no_order(
    connected: Callable[[], ScalableClient], admin: AdminClient, topic: str
) -> None:
    admin.scalable_topics.split(topic, 0)
    one = connected()
    answer = one.consume(topic, "a", subscription="group", kind="CHECKPOINT")
    assert [each.segment_id for each in answer.assignment.segments] == [1, 0, 2]
    refused = connected().consume(topic, "b", subscription="group", kind="STREAM")
    assert refused.error == ServerError.NotAllowedError


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "topic://public/default/missing"}, ServerError.TopicNotFound),
        ({"topic": "other://public/default/missing"}, ServerError.InvalidTopicName),
        ({"subscription": "pulsar.dedup"}, ServerError.NotAllowedError),
        ({"subscription": ""}, ServerError.InvalidTopicName),
        ({"name": ".."}, ServerError.InvalidTopicName),
    ],
)
def test_consumers_that_are_refused(client: ScalableClient, topic: str, fields: dict[str, str], code: int) -> None:
    request = {"topic": topic, "name": "a", "subscription": "s", **fields}
    refused = client.consume(request["topic"], request["name"], 3, request["subscription"])
    assert refused.error == code
    client.ping()


# ---- Namespaces, and the end of a topic


def test_topics_of_a_namespace_are_followed(client: ScalableClient, admin: AdminClient) -> None:
    admin.namespaces.create("public/followed")
    admin.scalable_topics.create("topic://public/followed/a", properties={"team": "x"})
    admin.scalable_topics.create("topic://public/followed/b")
    client.watch("public/followed")
    client.watch("public/followed", 2, property_filters=[pb.KeyValue(key="team", value="x")])
    assert list(client.listed().snapshot.topics) == ["topic://public/followed/a", "topic://public/followed/b"]
    assert list(client.listed().snapshot.topics) == ["topic://public/followed/a"]
    admin.scalable_topics.create("topic://public/followed/c")
    told = client.listed()
    assert (told.watch_id, list(told.diff.added), list(told.diff.removed)) == (1, ["topic://public/followed/c"], [])
    admin.scalable_topics.delete("topic://public/followed/a")
    told = [client.listed(), client.listed()]
    assert {each.watch_id: list(each.diff.removed) for each in told} == {
        n: ["topic://public/followed/a"] for n in (1, 2)
    }
    client.watch("public/nowhere", 3)
    assert client.listed().error == ServerError.TopicNotFound
    client.send(BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE, watchScalableTopicsClose={"watch_id": 1}))
    client.ping()


def test_the_end_of_a_topic(connected: Callable[[], ScalableClient], admin: AdminClient, topic: str) -> None:
    producer, watcher = connected(), connected()
    watcher.layout(topic, 4)
    assert producer.producer(segment(topic, "0000-ffff-0")).type == BaseCommand.PRODUCER_SUCCESS
    with pytest.raises(RefusedError) as refused:
        admin.scalable_topics.delete(topic)
    assert refused.value.status == 412
    admin.scalable_topics.delete(topic, force=True)
    told = watcher.pushed_layout()
    assert (told.session_id, told.error) == (4, ServerError.TopicNotFound)
    producer.until(BaseCommand.CLOSE_PRODUCER)
    assert producer.producer(segment(topic, "0000-ffff-0"), 2).error.error == ServerError.TopicNotFound
    assert watcher.layout(topic, 5, create_if_missing=False).error == ServerError.TopicNotFound
    admin.scalable_topics.create(topic)
    assert segments_of(watcher.layout(topic, 6)) == FULL


def test_a_namespace_with_scalable_topics_is_not_empty(client: ScalableClient, admin: AdminClient) -> None:
    admin.namespaces.create("public/full")
    admin.scalable_topics.create("topic://public/full/a", 2)
    with pytest.raises(RefusedError) as refused:
        admin.namespaces.delete("public/full")
    assert refused.value.status == 409
    admin.namespaces.delete("public/full", force=True)
    admin.namespaces.create("public/full")
    assert admin.scalable_topics.list("public/full") == []
    assert client.producer("segment://public/full/a/0000-7fff-0").error.error == ServerError.TopicNotFound
