"""What follows a topic to other clusters: its partitions, its schemas, the outcome of its transactions; and how fast it may go."""

from __future__ import annotations

import time
from collections import Counter

import pulsar
from pulsar.schema import AvroSchema, Integer, Record, String

from tests.support.geo import NAMESPACE, Region, read_all, receive
from tests.support.raw_transactions import RawTransactions
from tests.support.waiting import wait_until

EARLIEST = pulsar.InitialPosition.Earliest


class Order(Record):
    item = String()


class LongerOrder(Record):
    item = String()
    count = Integer(default=1, required=True, required_default=True)


def test_partitions_are_made_in_the_other_cluster_and_grow_with_the_topic(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/parts"
    topic = f"persistent://{name}"
    a.admin("PUT", f"persistent/{name}/partitions", 3)
    producer = a.client.create_producer(topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
    for index in range(30):
        producer.send(str(index).encode())
    for part in range(3):
        a.wait_drained(f"{name}-partition-{part}", "b", "c")
    assert b.admin("GET", f"persistent/{name}/partitions")["partitions"] == 3
    consumer = b.client.subscribe(topic, "sub", initial_position=EARLIEST)
    assert Counter(message.data() for message in receive(consumer, 30)) == Counter(str(i).encode() for i in range(30))
    a.admin("POST", f"persistent/{name}/partitions", 4)
    a.client.create_producer(f"{topic}-partition-3").send(b"new")
    a.wait_drained(f"{name}-partition-3", "b", "c")
    assert b.admin("GET", f"persistent/{name}/partitions")["partitions"] == 4
    assert [message.data() for message in read_all(b, f"{topic}-partition-3")] == [b"new"]


def test_topics_that_are_partitioned_in_one_cluster_only_are_left_alone_and_the_stats_say_why(
    mesh_of_three: list[Region],
) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/mismatch"
    b.admin("PUT", f"persistent/{name}/partitions", 2)
    a.client.create_producer(f"persistent://{name}").send(b"x")

    def problem() -> str:
        return a.stats(name)["replication"]["b"]["lastError"] or ""

    assert "2 in b" in wait_until(problem, what="an error")
    a.wait_drained(name, "c")


def test_a_topic_is_made_where_clients_may_not_make_any(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    namespace, name = "public/manual", "public/manual/topic"
    for region in mesh_of_three:
        region.replicate("a", "b", namespace=namespace)
    b.admin("POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    a.client.create_producer(f"persistent://{name}").send(b"made")
    a.wait_drained(name, "b")
    assert [message.data() for message in read_all(b, f"persistent://{name}")] == [b"made"]


def test_schemas_follow_with_versions_of_the_other_cluster(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/schemas"
    topic = f"persistent://{name}"
    consumer = b.client.subscribe(topic, "sub", initial_position=EARLIEST, schema=AvroSchema(LongerOrder))
    b.admin("DELETE", f"schemas/{name}/schema")  # so that the versions differ: b has 0, its deletion, and then a's
    a.client.create_producer(topic, schema=AvroSchema(Order)).send(Order(item="one"))
    a.client.create_producer(topic, schema=AvroSchema(LongerOrder)).send(LongerOrder(item="two", count=2))
    first, second = receive(consumer, 2)
    assert first.schema_version() != second.schema_version()
    assert (first.value().item, first.value().count) == ("one", 1)
    assert (second.value().item, second.value().count) == ("two", 2)
    assert len(a.admin("GET", f"schemas/{name}/schemas")["getSchemaResponses"]) == 2
    versions = [each["version"] for each in b.admin("GET", f"schemas/{name}/schemas")["getSchemaResponses"]]
    assert versions[0] > 0


def test_of_transactions_the_committed_messages_travel(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/transactions"
    topic = f"persistent://{name}"
    with RawTransactions(a.server.port) as raw:
        raw.producer(topic)
        raw.connect_coordinator()
        committed, aborted, still_open = raw.begin(), raw.begin(), raw.begin()
        for txn in (committed, aborted, still_open):
            raw.add_partitions(txn, topic)
        for number, (txn, text) in enumerate(
            ((committed, b"yes"), (aborted, b"no"), (still_open, b"later"), (committed, b"yes too"))
        ):
            raw.publish_in(txn, text, sequence_id=number)
        raw.abort(aborted)
        a.client.create_producer(topic).send(b"plain")
        raw.commit(committed)
        wait_until(lambda: [message.data() for message in read_all(b, topic)] == [b"yes"], what="what is decided")
        raw.commit(still_open)
    a.wait_drained(name, "b", "c")
    assert [message.data() for message in read_all(b, topic)] == [b"yes", b"later", b"yes too", b"plain"]


def test_the_replicators_rate_is_kept(mesh_of_three: list[Region]) -> None:
    a, _, _ = mesh_of_three
    name = f"{NAMESPACE}/rate"
    producer = a.client.create_producer(f"persistent://{name}", batching_enabled=False)
    a.wait_connected(name, "b", "c")
    a.admin(
        "POST",
        f"persistent/{name}/replicatorDispatchRate",
        {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1},
    )
    began = time.monotonic()
    for index in range(300):
        producer.send_async(str(index).encode(), None)
    producer.flush()
    a.wait_drained(name, "b", "c")
    assert 1.5 < time.monotonic() - began < 30
