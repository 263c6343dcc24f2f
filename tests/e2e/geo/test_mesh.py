"""Three clusters that all replicate to each other: no loops, `replicate_to`, changes of the list while messages flow, unloads."""

from __future__ import annotations

from collections import Counter

import pulsar

from tests.support.geo import NAMESPACE, Region, nothing_more, read_all, receive
from tests.support.waiting import wait_until

EARLIEST = pulsar.InitialPosition.Earliest


def test_a_message_published_in_one_cluster_is_consumed_in_the_other(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    topic = f"persistent://{NAMESPACE}/first"
    consumer = b.client.subscribe(topic, "sub", initial_position=EARLIEST)
    producer = a.client.create_producer(topic)
    producer.send(b"hello", properties={"a": "1"}, partition_key="k", event_timestamp=77)
    (message,) = receive(consumer, 1)
    assert (message.data(), message.partition_key(), message.event_timestamp()) == (b"hello", "k", 77)
    assert message.properties()["a"] == "1"
    assert message.producer_name() == producer.producer_name()
    back = a.client.subscribe(topic, "sub", initial_position=EARLIEST)
    b.client.create_producer(topic).send(b"answer")
    assert [message.data() for message in receive(back, 2)] == [b"hello", b"answer"]
    assert receive(consumer, 1)[0].data() == b"answer"
    assert nothing_more(back, 0.5)
    assert nothing_more(consumer, 0.5)


def test_every_message_is_once_in_every_cluster(mesh_of_three: list[Region]) -> None:
    topic = f"persistent://{NAMESPACE}/loops"
    expected: Counter[str] = Counter()
    for round_number in range(5):
        for region in mesh_of_three:
            producer = region.client.create_producer(topic, producer_name=f"{region.name}-{round_number}")
            for index in range(20):
                text = f"{region.name} {round_number} {index}"
                producer.send_async(text.encode(), None)
                expected[text] += 1
            producer.flush()
            producer.close()
    for region in mesh_of_three:
        others = [other.name for other in mesh_of_three if other is not region]
        region.wait_drained(f"{NAMESPACE}/loops", *others)
    for region in mesh_of_three:
        texts = [message.data().decode() for message in read_all(region, topic)]
        assert Counter(texts) == expected
        for source in mesh_of_three:
            own = [tuple(text.split()[1:]) for text in texts if text.startswith(source.name)]
            assert own == sorted(own, key=lambda pair: (int(pair[0]), int(pair[1]))), "in the order of their cluster"
    replication = mesh_of_three[0].stats(f"{NAMESPACE}/loops")["replication"]
    assert {name: row["msgOutCount"] for name, row in replication.items()} == {"b": 100, "c": 100}
    assert {name: row["msgInCount"] for name, row in replication.items()} == {"b": 100, "c": 100}
    assert all(row["bytesInCount"] > 0 and row["bytesOutCount"] > 0 for row in replication.values())


def test_a_message_goes_where_its_producer_says(mesh_of_three: list[Region]) -> None:
    a, b, c = mesh_of_three
    topic = f"persistent://{NAMESPACE}/selected"
    consumers = [region.client.subscribe(topic, "sub", initial_position=EARLIEST) for region in (b, c)]
    producer = a.client.create_producer(topic)
    producer.send(b"everywhere")
    producer.send(b"to b", replication_clusters=["b"])
    producer.send(b"nowhere else", disable_replication=True)
    producer.send(b"to c", replication_clusters=["c"])
    producer.send(b"end")
    assert [message.data() for message in receive(consumers[0], 3)] == [b"everywhere", b"to b", b"end"]
    assert [message.data() for message in receive(consumers[1], 3)] == [b"everywhere", b"to c", b"end"]
    assert all(nothing_more(consumer, 0.5) for consumer in consumers)
    a.wait_drained(f"{NAMESPACE}/selected", "b", "c")


def test_batches_keys_and_properties_arrive_as_they_were(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    topic = f"persistent://{NAMESPACE}/faithful"
    consumer = b.client.subscribe(topic, "sub", initial_position=EARLIEST)
    producer = a.client.create_producer(
        topic, batching_enabled=True, compression_type=pulsar.CompressionType.ZLib, batching_max_publish_delay_ms=50
    )
    for index in range(10):
        producer.send_async(
            b"x" * index, None, properties={"n": str(index)}, partition_key=f"k{index}", event_timestamp=index + 1
        )
    producer.flush()
    found = receive(consumer, 10)
    assert [(m.data(), m.properties(), m.partition_key(), m.event_timestamp()) for m in found] == [
        (b"x" * index, {"n": str(index)}, f"k{index}", index + 1) for index in range(10)
    ]
    (first,) = read_all(a, topic)[:1]
    assert found[0].publish_timestamp() == first.publish_timestamp()


def test_clusters_are_added_and_removed_while_messages_flow(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    namespace, name = "public/changing", "public/changing/topic"
    topic = f"persistent://{name}"
    for region in (a, b):
        region.replicate(namespace=namespace)
    producer = a.client.create_producer(topic)
    producer.send(b"before")
    assert a.stats(name)["replication"] == {}
    a.replicate("b", namespace=namespace)
    a.wait_connected(name, "b")
    producer.send(b"during")
    a.wait_drained(name, "b")
    assert "pulsar.repl.b" in a.admin("GET", f"persistent/{name}/internalStats")["cursors"]
    a.replicate(namespace=namespace)
    producer.send(b"after")
    assert a.stats(name)["replication"] == {}
    assert "pulsar.repl.b" not in a.admin("GET", f"persistent/{name}/internalStats")["cursors"]
    assert [message.data() for message in read_all(b, topic)] == [b"during"]


def test_the_topics_own_clusters_win_over_its_namespaces(mesh_of_three: list[Region]) -> None:
    a, b, c = mesh_of_three
    name = f"{NAMESPACE}/own"
    topic = f"persistent://{name}"
    producer = a.client.create_producer(topic)
    a.wait_connected(name, "b", "c")
    a.admin("POST", f"persistent/{name}/replication", ["a", "c"])
    wait_until(lambda: connected_to(a, name) == ["c"], what="one replicator")
    producer.send(b"for c")
    a.wait_drained(name, "c")
    assert [message.data() for message in read_all(c, topic)] == [b"for c"]
    a.admin("DELETE", f"persistent/{name}/replication")
    a.wait_connected(name, "b", "c")
    producer.send(b"for both")
    a.wait_drained(name, "b", "c")
    assert [message.data() for message in read_all(c, topic)] == [b"for c", b"for both"]
    assert [message.data() for message in read_all(b, topic)] == [b"for both"]


def test_unloading_on_either_side_loses_and_repeats_nothing(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    name = f"{NAMESPACE}/unloaded"
    topic = f"persistent://{name}"
    producer = a.client.create_producer(topic, batching_enabled=False)
    a.wait_connected(name, "b")
    sent = []
    for round_number in range(6):
        for index in range(100):
            text = f"{round_number}-{index}".encode()
            sent.append(text)
            producer.send_async(text, None)
        producer.flush()
        (a if round_number % 2 else b).admin("PUT", f"persistent/{name}/unload")
    a.wait_drained(name, "b", "c")
    assert [message.data() for message in read_all(b, topic)] == sent


def connected_to(region: Region, name: str) -> list[str]:
    """Clusters that the topic is sent to; others may send here all the same."""
    return [cluster for cluster, row in region.stats(name)["replication"].items() if row["connected"]]
