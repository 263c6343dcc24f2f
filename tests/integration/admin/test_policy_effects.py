"""What each policy does to real clients: at the topic's level over the namespace's, on topics that are loaded and in use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from magnetar.testing.server import ServerProcess
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.admin.conftest import Api
from tests.support.messages import drain, ends_at_once, nothing_arrives, receive_all, send_all
from tests.support.raw_client import RawConnection, message
from tests.support.waiting import wait_until


@pytest.fixture
def topic(api: Api, namespace: str) -> str:
    """It exists, in a namespace of its own."""
    api.put(f"persistent/{namespace}/t")
    return f"persistent://{namespace}/t"


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


# ---- How many


def test_producers(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/maxProducersPerTopic", 1)
    client.create_producer(topic)
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(topic)
    api.post(f"{path_of(topic)}/maxProducers", 2)
    client.create_producer(topic)
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(topic)
    client.create_producer(f"{topic}-other")
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(f"{topic}-other")


def test_consumers(api: Api, client: pulsar.Client, topic: str) -> None:
    shared = pulsar.ConsumerType.Shared
    api.post(f"{path_of(topic)}/maxConsumersPerSubscription", 2)
    api.post(f"{path_of(topic)}/maxConsumers", 3)
    for _ in range(2):
        client.subscribe(topic, "a", shared)
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "a", shared)
    client.subscribe(topic, "b", shared)
    with ends_at_once(pulsar.ConsumerBusy):
        client.subscribe(topic, "b", shared)
    api.delete(f"{path_of(topic)}/maxConsumers")
    client.subscribe(topic, "b", shared)


def test_subscriptions(api: Api, client: pulsar.Client, topic: str) -> None:
    api.post(f"{path_of(topic)}/maxSubscriptionsPerTopic", 1)
    client.subscribe(topic, "first")
    with ends_at_once(pulsar.NotAllowedError):
        client.subscribe(topic, "second")
    api.post(f"{path_of(topic)}/maxSubscriptionsPerTopic", 2)
    client.subscribe(topic, "second")


def test_topics_of_a_namespace(api: Api, client: pulsar.Client, namespace: str) -> None:
    text = "Exceed maximum number of topics in namespace."
    api.post(f"namespaces/{namespace}/maxTopicsPerNamespace", 3)
    api.put(f"persistent/{namespace}/made")
    assert api.reason("PUT", f"persistent/{namespace}/split/partitions", 3, status=412) == text
    api.put(f"persistent/{namespace}/split/partitions", 1)
    client.create_producer(f"persistent://{namespace}/split")
    assert api.reason("POST", f"persistent/{namespace}/split/partitions", 3, status=412) == text
    client.create_producer(f"persistent://{namespace}/on-demand")
    with ends_at_once(pulsar.NotAllowedError):
        client.create_producer(f"persistent://{namespace}/one-more")
    assert api.reason("PUT", f"persistent/{namespace}/one-more", status=412) == text
    client.create_producer(f"non-persistent://{namespace}/does-not-count")
    api.delete(f"namespaces/{namespace}/maxTopicsPerNamespace")
    client.create_producer(f"persistent://{namespace}/one-more")


def test_unacknowledged_messages(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    api.post(f"namespaces/{namespace}/maxUnackedMessagesPerConsumer", 5)
    send_all(client.create_producer(topic), [b"x"] * 20)
    held = [consumer.receive(30_000) for _ in range(5)]
    assert nothing_arrives(consumer)
    api.post(f"{path_of(topic)}/maxUnackedMessagesOnConsumer", 8)
    held += [consumer.receive(30_000) for _ in range(3)]
    assert nothing_arrives(consumer)
    api.post(f"{path_of(topic)}/maxUnackedMessagesOnSubscription", 10)
    api.post(f"{path_of(topic)}/maxUnackedMessagesOnConsumer", 0)
    held += [consumer.receive(30_000) for _ in range(2)]
    assert nothing_arrives(consumer)
    api.delete(f"{path_of(topic)}/maxUnackedMessagesOnSubscription")
    assert len(drain(consumer, at_least=10, ack=False)) == 10


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_message_size(api: Api, client: pulsar.Client, namespace: str, domain: str) -> None:
    topic = f"{domain}://{namespace}/sized"
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    api.post(f"{path_of(topic)}/maxMessageSize", 1000)
    producer.send(b"small")
    with ends_at_once(pulsar.ChecksumError):
        producer.send(b"x" * 2000)
    producer.send(b"small too")
    api.delete(f"{path_of(topic)}/maxMessageSize")
    producer.send(b"x" * 2000)
    assert [len(data) for data in receive_all(consumer, 3)] == [5, 9, 2000]


def test_message_size_as_other_clients_see_it(api: Api, server: ServerProcess, topic: str) -> None:
    """Clients that tell the codes apart get Pulsar's own, in the order of sending, and deduplication does not mind."""
    api.post(f"{path_of(topic)}/maxMessageSize", 1000)
    api.post(f"{path_of(topic)}/deduplicationEnabled", True)
    with RawConnection(server.port) as raw:
        raw.producer(topic, producer_name="raw")
        for sequence_id, size in enumerate((10, 2000, 10, 2000, 10)):
            raw.publish(message(b"x" * size, sequence_id=sequence_id), sequence_id=sequence_id)
        answers = [raw.receipt() for _ in range(5)]
        kinds = [answer.type == BaseCommand.SEND_RECEIPT for answer in answers]
        assert kinds == [True, False, True, False, True]
        assert answers[1].send_error.error == ServerError.NotAllowedError
        raw.publish(message(b"x", sequence_id=4), sequence_id=4)
        assert raw.receipt().send_receipt.message_id.entryId == 2**64 - 1, "known already"


# ---- How long


def test_ttl(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    client.subscribe(topic, "s").close()
    send_all(client.create_producer(topic), [b"x"] * 5)
    api.post(f"namespaces/{namespace}/messageTTL", 3600)

    def backlog() -> int:
        return int(api.get(f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"])

    assert backlog() == 5

    def set_again() -> bool:
        """A TTL of one second, until the messages are that old: a change is applied at once and not with the next round."""
        api.call("POST", f"{path_of(topic)}/messageTTL?messageTTL=1", status=204)
        api.delete(f"{path_of(topic)}/messageTTL")
        return backlog() == 0

    wait_until(set_again, what="expiry")


def test_retention(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic), [b"x"] * 5)
    receive_all(consumer, 5)

    def entries() -> int:
        api.post(f"{path_of(topic)}/trim")
        return int(api.get(f"{path_of(topic)}/internalStats")["numberOfEntries"])

    wait_until(lambda: api.get(f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"] == 0)
    assert entries() == 5
    api.post(f"{path_of(topic)}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    wait_until(lambda: entries() == 0, what="the trim")


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
    ],
)
def test_backlog_quota(
    api: Api, client: pulsar.Client, topic: str, policy: str, error: type[pulsar.PulsarException]
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    send_all(producer, [b"x" * 1000] * 20)
    producer.close()
    api.post(f"{path_of(topic)}/backlogQuota", {"policy": policy, "limitSize": 10_000})
    with ends_at_once(error):
        client.create_producer(topic)
    api.delete(f"{path_of(topic)}/backlogQuota")
    client.create_producer(topic).close()
    assert len(drain(consumer, at_least=20)) == 20


def test_backlog_quota_evicts(api: Api, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    send_all(client.create_producer(topic), [b"x" * 1000] * 20)
    api.post(f"{path_of(topic)}/backlogQuota", {"policy": "consumer_backlog_eviction", "limitSize": 10_000})
    wait_until(lambda: 0 < api.get(f"{path_of(topic)}/stats")["subscriptions"]["s"]["msgBacklog"] < 11)


def test_unused_subscriptions_are_deleted(start_server: Callable[..., ServerProcess], connect: Any) -> None:
    server = start_server(subscriptionExpirationTimeMinutes=0.02, subscriptionExpiryCheckIntervalInMinutes=0.002)
    api, client = Api(server), connect(server.service_url)
    topic = "persistent://public/default/t"
    api.post("namespaces/public/default/subscriptionExpirationTime", 60)
    client.subscribe(topic, "unused").close()
    used = client.subscribe(topic, "used")
    path = f"{path_of(topic)}/subscriptions"
    time.sleep(2.0)  # longer than the broker's own time: the namespace's wins over it
    assert sorted(api.get(path)) == ["unused", "used"]
    api.delete("namespaces/public/default/subscriptionExpirationTime")
    wait_until(lambda: api.get(path) == ["used"], what="the end of the unused one")
    used.close()
    wait_until(lambda: api.get(path) == [], what="the end of the other one")


# ---- Switches


def test_deduplication(api: Api, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, producer_name="p")
    consumer = client.subscribe(topic, "s")
    producer.send(b"0", sequence_id=0)
    producer.send(b"0 again", sequence_id=0)
    api.post(f"{path_of(topic)}/deduplicationEnabled", True)
    producer.send(b"1", sequence_id=1)
    producer.send(b"1 again", sequence_id=1)
    api.post(f"{path_of(topic)}/deduplicationEnabled", False)
    producer.send(b"1 once more", sequence_id=1)
    assert receive_all(consumer, 4) == [b"0", b"0 again", b"1", b"1 once more"]
    assert nothing_arrives(consumer)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_delayed_delivery(api: Api, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    in_an_hour = int(time.time() * 1000) + 3_600_000
    producer.send(b"held back", deliver_at=in_an_hour)
    assert nothing_arrives(consumer)
    api.post(f"{path_of(topic)}/delayedDelivery", {"active": False, "tickTime": 1000})
    assert receive_all(consumer, 1) == [b"held back"]
    producer.send(b"at once", deliver_at=in_an_hour)
    assert receive_all(consumer, 1) == [b"at once"]
    api.delete(f"{path_of(topic)}/delayedDelivery")
    producer.send(b"held back again", deliver_at=in_an_hour)
    assert nothing_arrives(consumer)


def test_delayed_delivery_switched_on_while_connected(api: Api, client: pulsar.Client, topic: str) -> None:
    api.post(f"{path_of(topic)}/delayedDelivery", {"active": False, "tickTime": 1000})
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    soon = int(time.time() * 1000) + 3_600_000
    producer.send(b"at once", deliver_at=soon)
    assert receive_all(consumer, 1) == [b"at once"]
    api.post(f"{path_of(topic)}/delayedDelivery", {"active": True, "tickTime": 1000})
    producer.send(b"held back", deliver_at=soon)
    assert nothing_arrives(consumer)


def test_creation_of_subscriptions(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    api.put(f"{path_of(topic)}/subscription/made")
    client.subscribe(topic, "made").close()
    assert api.get(f"{path_of(topic)}/subscriptions") == ["made"]
    api.post(f"{path_of(topic)}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True})
    client.subscribe(topic, "on-demand").close()
    api.put(f"persistent/{namespace}/other")
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(f"persistent://{namespace}/other", "on-demand")


def test_encryption(api: Api, server: ServerProcess, namespace: str, topic: str) -> None:
    with RawConnection(server.port) as raw:
        assert raw.producer(topic).type == BaseCommand.PRODUCER_SUCCESS
        assert raw.producer(topic, producer_id=2, encrypted=True).type == BaseCommand.PRODUCER_SUCCESS
        api.post(f"namespaces/{namespace}/encryptionRequired", True)
        assert raw.expect(BaseCommand.CLOSE_PRODUCER)[0].close_producer.producer_id == 1
        refused = raw.producer(topic, producer_id=3)
        assert refused.error.error == ServerError.MetadataError
        raw.publish(message(b"in the clear"), producer_id=2)
        assert raw.receipt().send_error.message == "Messages must be encrypted"
        api.post(f"namespaces/{namespace}/encryptionRequired", False)
        raw.publish(message(b"in the clear", sequence_id=1), producer_id=2, sequence_id=1)
        assert raw.receipt().type == BaseCommand.SEND_RECEIPT


def test_types_of_subscriptions(api: Api, client: pulsar.Client, topic: str, namespace: str) -> None:
    api.post(f"namespaces/{namespace}/subscriptionTypesEnabled", ["Shared", "Failover"])
    assert api.get(f"namespaces/{namespace}/subscriptionTypesEnabled") == ["Failover", "Shared"]
    for name in (topic, topic.replace("persistent", "non-persistent")):
        client.subscribe(name, "shared", pulsar.ConsumerType.Shared)
        with ends_at_once(pulsar.NotAllowedError):
            client.subscribe(name, "keys", pulsar.ConsumerType.KeyShared)
    api.post(f"{path_of(topic)}/subscriptionTypesEnabled", ["Key_Shared"])
    client.subscribe(topic, "keys", pulsar.ConsumerType.KeyShared)
    api.delete(f"{path_of(topic)}/subscriptionTypesEnabled")
    api.delete(f"namespaces/{namespace}/subscriptionTypesEnabled")
    assert api.get(f"namespaces/{namespace}/subscriptionTypesEnabled") == []
    client.subscribe(topic, "exclusive")


def test_what_the_broker_asks_of_topics(start_server: Callable[..., ServerProcess], connect: Any) -> None:
    """Settings hold where no policy says it; encryption that the broker requires holds whatever the namespace says."""
    server = start_server(subscriptionTypesEnabled="Exclusive", encryptionRequireOnProducer="true")
    with pytest.raises(pulsar.NotAllowedError):
        connect(server.service_url).subscribe("t", "s", pulsar.ConsumerType.Shared)
    with RawConnection(server.port) as raw:
        assert raw.producer("persistent://public/default/t").error.error == ServerError.MetadataError
    api = Api(server)
    api.post("brokers/configuration/subscriptionTypesEnabled/Exclusive,Shared")
    connect(server.service_url).subscribe("t", "s", pulsar.ConsumerType.Shared).close()


def test_persistence(api: Api, client: pulsar.Client, topic: str) -> None:
    """Acknowledgements are written as often as asked; quorums take hold with the topic's next ledger."""
    body = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1}
    api.post(f"{path_of(topic)}/persistence", body | {"managedLedgerMaxMarkDeleteRate": 5.0})
    consumer = client.subscribe(topic, "s")
    send_all(client.create_producer(topic), [b"x"] * 10)
    receive_all(consumer, 10)
    assert api.get(f"{path_of(topic)}/persistence")["managedLedgerMaxMarkDeleteRate"] == 5.0
    reason = api.reason(
        "POST", f"{path_of(topic)}/persistence", body | {"managedLedgerMaxMarkDeleteRate": -1}, status=412
    )
    assert reason.startswith("persistence.managedLedgerMaxMarkDeleteRate must be 0, or between")


def test_schema_strategy(api: Api, topic: str, namespace: str) -> None:
    url = f"schemas/{namespace}/t/compatibility"
    text = {"type": "STRING", "schema": "", "properties": {}}

    def strategy() -> str:
        return str(api.call("POST", url, text).json()["schemaCompatibilityStrategy"])

    assert strategy() == "FULL"
    api.put(f"namespaces/{namespace}/schemaCompatibilityStrategy", "BACKWARD")
    assert strategy() == "BACKWARD"
    api.put(f"{path_of(topic)}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert strategy() == "ALWAYS_COMPATIBLE"
    api.put(f"{path_of(topic)}/schemaCompatibilityStrategy", "UNDEFINED")
    assert strategy() == "BACKWARD"


def test_schemas_are_required(api: Api, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=pulsar.schema.StringSchema()).close()
    client.create_producer(topic).close()
    api.post(f"{path_of(topic)}/schemaValidationEnforced", True)
    with ends_at_once(pulsar.IncompatibleSchema):
        client.create_producer(topic)
    api.delete(f"{path_of(topic)}/schemaValidationEnforced")
    client.create_producer(topic)


# ---- Topics that nobody uses


def inactive(mode: str, seconds: int = 1) -> dict[str, Any]:
    return {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": seconds, "deleteWhileInactive": True}


def test_inactive_topics(start_server: Callable[..., ServerProcess], connect: Any) -> None:
    """One topic for each thing that keeps it; all that is left of the others is nothing."""
    server = start_server(brokerDeleteInactiveTopicsFrequencySeconds=0.2)
    api, client = Api(server), connect(server.service_url)
    base = "persistent://public/default"
    send_all(client.create_producer(f"{base}/published"), [b"x"])
    consumers = {
        name: client.subscribe(f"{base}/{name}", "s") for name in ("consumed", "subscribed", "behind", "caught-up")
    }
    for name in ("subscribed", "behind", "caught-up"):
        consumers[name].close()
    client.create_producer(f"{base}/behind").send(b"x")
    for name in ("unused", "retained", "elsewhere"):
        api.put(f"persistent/public/default/{name}")
        api.get(f"persistent/public/default/{name}/stats")  # loads it: what is not loaded is not looked at
    api.post("persistent/public/default/retained/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    caught_up = inactive("delete_when_subscriptions_caught_up")
    api.post("persistent/public/default/caught-up/inactiveTopicPolicies", caught_up)
    api.post("persistent/public/default/behind/inactiveTopicPolicies", caught_up)
    api.post(
        "persistent/public/default/elsewhere/inactiveTopicPolicies", inactive("delete_when_no_subscriptions", 3600)
    )
    api.post("namespaces/public/default/inactiveTopicPolicies", inactive("delete_when_no_subscriptions"))

    def left() -> set[str]:
        return {name.rpartition("/")[2] for name in api.get("persistent/public/default")}

    kept = {"published", "consumed", "subscribed", "behind", "retained", "elsewhere"}
    wait_until(lambda: left() == kept, what="the end of `unused` and `caught-up`")
    time.sleep(1.5)  # as long again: what is needed stays
    assert left() == kept
    api.put("persistent/public/default/caught-up")
    assert api.get("persistent/public/default/caught-up/inactiveTopicPolicies", status=204) is None


def test_inactive_topics_are_kept_by_default(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server(
        brokerDeleteInactiveTopicsFrequencySeconds=0.1, brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=1
    )
    api = Api(server)
    api.put("persistent/public/default/unused")
    time.sleep(1.5)  # longer than a deletion would take
    assert api.get("persistent/public/default") == ["persistent://public/default/unused"]


def test_policies_of_a_partitioned_topic_hold_for_its_partitions(
    api: Api, client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/split"
    api.put(f"{path_of(topic)}/partitions", 2)
    client.create_producer(topic).close()
    api.post(f"{path_of(topic)}/maxSubscriptionsPerTopic", 1)
    client.subscribe(f"{topic}-partition-1", "first")
    with ends_at_once(pulsar.NotAllowedError):
        client.subscribe(f"{topic}-partition-1", "second")


def test_limits_hold_after_a_crash(start_server: Callable[..., ServerProcess], connect: Any) -> None:
    server = start_server()
    api, topic = Api(server), "persistent://public/default/t"
    api.put(path_of(topic))
    api.post(f"{path_of(topic)}/maxProducers", 1)
    server.restart()
    client = connect(server.service_url)
    client.create_producer(topic)
    with ends_at_once(pulsar.ProducerBusy):
        client.create_producer(topic)
