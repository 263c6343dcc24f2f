"""What happens to a scalable topic without an administrator: splits, merges, and the end of sealed segments that everybody has read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from magnetar.admin.client import AdminClient
from magnetar.admin.client.errors import NotFoundError, PreconditionFailedError
from magnetar.admin.documents.scalable import AutoScalePolicy
from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.headers import payload_of
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.raw import send_frame
from tests.support.raw_scalable import ScalableClient
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"scalableTopicAutoScaleIntervalSeconds": "0.2", "scalableTopicSplitCooldownSeconds": "0"}
    process = ServerProcess(tmp_path_factory.mktemp("server") / "data", settings).start()
    yield process
    process.close()


def publish(client: ScalableClient, name: str, count: int) -> None:
    assert client.producer(name).type == BaseCommand.PRODUCER_SUCCESS
    for number in range(count):
        assert client.publish(b"%d" % number, number).type == BaseCommand.SEND_RECEIPT
    client.send(BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 1}))
    client.until(BaseCommand.SUCCESS)


def segments(admin: AdminClient, topic: str) -> set[str]:
    return set(admin.scalable_topics.metadata(topic).segments)


def test_no_sealed_segment_goes_while_a_subscription_has_unread_messages(
    connected: Callable[[], ScalableClient], admin: AdminClient
) -> None:
    """Apache's 5.0.0-M1 deletes it with the messages: it does not know the subscriptions that clients have opened."""
    parent = "segment://public/default/unread/0000-ffff-0"
    admin.scalable_topics.create("unread")
    publish(connected(), parent, 10)
    for subscription, kind in (("queue", "Shared"), ("stream", "Exclusive")):
        client = connected()
        assert client.subscribe(parent, subscription, kind=kind).type == BaseCommand.SUCCESS
        client.close()
    admin.scalable_topics.split("unread", 0)
    admin.scalable_topics.create("witness")
    admin.scalable_topics.split("witness", 0)
    wait_until(lambda: "0" not in segments(admin, "witness"), what="a segment without subscriptions goes")
    assert "0" in segments(admin, "unread")
    for subscription, kind in (("queue", "Shared"), ("stream", "Exclusive")):
        reader = connected()
        assert reader.subscribe(parent, subscription, kind=kind).type == BaseCommand.SUCCESS
        reader.flow(10)
        found = [reader.message() for _ in range(10)]
        assert [payload_of(rest) for _, rest in found] == [b"%d" % number for number in range(10)]
        if subscription == "queue":
            ids = [(each.message.message_id.ledgerId, each.message.message_id.entryId) for each, _ in found]
            reader.ack(ids)
    assert "0" in segments(admin, "unread"), "one of two has acknowledged everything"
    admin.scalable_topics.clear_backlog("unread", "stream")
    wait_until(lambda: "0" not in segments(admin, "unread"), what="the segment goes")
    metadata = admin.scalable_topics.metadata("unread")
    assert {each.state for each in metadata.segments.values()} == {"ACTIVE"}
    assert metadata.segments["1"].parent_ids == []
    client = connected()
    assert client.subscribe(parent, "queue").error.error, "its topic is gone as well"
    with pytest.raises(NotFoundError):
        admin.scalable_topics.segment_stats("unread", 0)


def test_retention_keeps_sealed_segments(connected: Callable[[], ScalableClient], admin: AdminClient) -> None:
    admin.namespaces.create("public/kept")
    admin.namespace_policies.retention.set("public/kept", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    for name in ("topic://public/kept/x", "topic://public/default/not-kept"):
        admin.scalable_topics.create(name)
        admin.scalable_topics.split(name, 0)
    wait_until(lambda: "0" not in segments(admin, "topic://public/default/not-kept"), what="the other one goes")
    assert "0" in segments(admin, "topic://public/kept/x")


def test_the_parents_of_one_segment_go_together(connected: Callable[[], ScalableClient], admin: AdminClient) -> None:
    """A reader that has no subscription and waits for the other parent still finds the one that it has read."""
    topic = "topic://public/default/merged"
    admin.scalable_topics.create(topic, 2)
    admin.scalable_topics.create_subscription(topic, "s", "QUEUE")
    publish(connected(), "segment://public/default/merged/8000-ffff-1", 1)
    admin.scalable_topics.merge(topic, 0, 1)
    admin.scalable_topics.create("later")
    admin.scalable_topics.split("later", 0)
    wait_until(lambda: "0" not in segments(admin, "later"), what="sealed segments go")
    assert segments(admin, topic) == {"0", "1", "2"}
    admin.scalable_topics.clear_backlog(topic, "s")
    wait_until(lambda: segments(admin, topic) == {"2"}, what="both go")


def test_a_segment_for_each_consumer(connected: Callable[[], ScalableClient], admin: AdminClient) -> None:
    topic = "topic://public/default/consumed"
    admin.scalable_topics.create(topic)
    admin.scalable_topics.set_policy(topic, {"maxSegments": 3})
    one, two = connected(), connected()
    one.consume(topic, "a")
    assert not two.consume(topic, "b").assignment.segments
    wait_until(lambda: len(segments(admin, topic) - {"0"}) == 2, what="a segment for each of them")
    for name in ("c", "d"):
        connected().consume(topic, name)
    found = wait_until(
        lambda: (seen := admin.scalable_topics.explain(topic)).blocked and seen, what="the policy's limit"
    )
    assert (found.blocked, found.segment_ids) == ("max_segments", [])
    assert "4 consumers for 3 segments" in found.reason
    assert set(found.withheld) == {"s"}


def test_policies_of_a_topic(admin: AdminClient) -> None:
    admin.scalable_topics.create("policy")
    assert admin.scalable_topics.policy("policy") is None
    for wrong in ({"minSegments": 5, "maxSegments": 2}, {"splitMsgRateInThreshold": 1.0}):
        with pytest.raises(PreconditionFailedError):
            admin.scalable_topics.set_policy("policy", wrong)
    admin.scalable_topics.set_policy("policy", {"enabled": False})
    assert admin.scalable_topics.explain("policy").reason == "auto-scaling is switched off"
    found = admin.scalable_topics.policy("policy")
    assert found is not None
    assert (found.enabled, found.max_segments) == (False, None)
    admin.scalable_topics.remove_policy("policy")
    assert admin.scalable_topics.policy("policy") is None


def test_a_namespace_says_what_its_topics_do_not(admin: AdminClient) -> None:
    admin.namespaces.create("public/scaled")
    topic, policy = "topic://public/scaled/orders", admin.namespace_policies.scalable_auto_scale
    admin.scalable_topics.create(topic)
    assert policy.get("public/scaled") is None
    assert set(admin.scalable_topics.explain(topic).policy_sources.values()) == {"broker"}

    policy.set("public/scaled", AutoScalePolicy(enabled=False, max_segments=3))
    found = admin.scalable_topics.explain(topic)
    assert found.reason == "auto-scaling is switched off"
    assert (found.policy["enabled"], found.policy["maxSegments"], found.policy["minSegments"]) == (False, 3, 1)
    assert (found.policy_sources["maxSegments"], found.policy_sources["minSegments"]) == ("namespace", "broker")

    with pytest.raises(PreconditionFailedError, match="minSegments"):
        admin.scalable_topics.set_policy(topic, {"minSegments": 4})
    admin.scalable_topics.set_policy(topic, {"enabled": True, "minSegments": 2})
    found = admin.scalable_topics.explain(topic)
    assert found.reason.startswith("no segment is above a threshold")
    assert [found.policy_sources[each] for each in ("enabled", "minSegments", "maxSegments")] == [
        "topic",
        "topic",
        "namespace",
    ]

    policy.set("public/scaled", AutoScalePolicy(max_segments=1))
    found = admin.scalable_topics.explain(topic)
    assert (found.blocked, found.segment_ids) == ("invalid_policy", [])
    policy.remove("public/scaled")
    assert admin.scalable_topics.explain(topic).policy_sources["maxSegments"] == "broker"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (AutoScalePolicy(max_segments=2, min_segments=3), "maxSegments must be above minSegments"),
        (AutoScalePolicy(split_msg_rate_in_threshold=5, merge_msg_rate_in_threshold=5), "must be above"),
        (AutoScalePolicy(merge_bytes_rate_in_threshold=0), "must be above 0"),
        (AutoScalePolicy(split_cooldown_seconds=-1), "must be 0 or more"),
    ],
)
def test_a_policy_of_a_namespace_that_contradicts_itself(
    admin: AdminClient, wrong: AutoScalePolicy, reason: str
) -> None:
    with pytest.raises(PreconditionFailedError, match=reason):
        admin.namespace_policies.scalable_auto_scale.set("public/default", wrong)
    assert admin.namespace_policies.scalable_auto_scale.get("public/default") is None


def test_segments_that_were_made_beforehand_are_not_merged(admin: AdminClient) -> None:
    admin.scalable_topics.create("prepared", 4)
    admin.scalable_topics.set_policy("prepared", {"mergeWindowSeconds": 0, "mergeCooldownSeconds": 0})
    assert admin.scalable_topics.explain("prepared").segment_ids == []
    assert "no two neighbours" in admin.scalable_topics.explain("prepared").reason
    assert len(segments(admin, "prepared")) == 4


@pytest.mark.long
def test_load_splits_and_quiet_merges(connected: Callable[[], ScalableClient], admin: AdminClient) -> None:
    """Rates are means over five seconds."""
    topic = "topic://public/default/loaded"
    admin.scalable_topics.create(topic)
    policy = {"splitMsgRateInThreshold": 5.0, "mergeMsgRateInThreshold": 1.0, "maxSegments": 2}
    admin.scalable_topics.set_policy(topic, {**policy, "mergeWindowSeconds": 0, "mergeCooldownSeconds": 0})
    assert admin.scalable_topics.explain(topic).segment_ids == []
    client = connected()
    assert client.producer("segment://public/default/loaded/0000-ffff-0").type == BaseCommand.PRODUCER_SUCCESS

    def ids_given() -> int:
        return admin.scalable_topics.metadata(topic).next_segment_id

    def split() -> bool:
        for number in range(20):
            client.send_bytes(send_frame(b"x", number))
        return ids_given() == 3

    wait_until(split, 60, "the split")
    wait_until(lambda: ids_given() == 4, 60, "the merge")
