"""What lies below a topic, messages by their place, properties of subscriptions, what is left to consume."""

from __future__ import annotations

import pulsar

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def test_backlog_and_internal_info(api: Api, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    ids = [producer.send(b"x" * 10) for _ in range(5)]
    consumer.acknowledge_cumulative(consumer.receive(30_000))
    backlog = api.get(f"{path_of(topic)}/backlog")
    assert (backlog["totalMessages"], backlog["topicName"]) == (5, topic)
    assert backlog["dataLedgerDetails"][0]["ledgerId"] == ids[0].ledger_id()
    assert set(backlog["cursorDetails"]) == {"sub"}
    info = api.get(f"{path_of(topic)}/internal-info")
    assert [ledger["ledgerId"] for ledger in info["ledgers"]] == [ids[0].ledger_id()]
    assert info["cursors"]["sub"]["markDelete"]["ledgerId"] >= -1
    assert api.get(f"{path_of(topic)}/offload") == {"status": "NOT_RUN", "lastError": ""}
    api.reason("PUT", f"{path_of(topic)}/offload", {"ledgerId": 1, "entryId": 1}, status=405)
    api.reason("GET", f"{path_of(topic)}-none/backlog", status=404)


def test_messages_are_examined_from_both_ends(api: Api, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    api.reason("GET", f"{path_of(topic)}/examinemessage", status=412)
    for number in range(5):
        producer.send(f"m{number}".encode())
    for query, expected in (
        ("", "m4"),
        ("?messagePosition=2", "m3"),
        ("?initialPosition=earliest", "m0"),
        ("?initialPosition=earliest&messagePosition=2", "m1"),
        ("?initialPosition=earliest&messagePosition=99", "m4"),
    ):
        assert api.call("GET", f"{path_of(topic)}/examinemessage{query}").text == expected
    api.reason("GET", f"{path_of(topic)}/examinemessage?initialPosition=middle", status=412)
    api.reason("GET", f"{path_of(topic)}/examinemessage?messagePosition=-1", status=400)
    reason = api.reason("GET", f"{path_of(topic)}/getMessageIdByIndex?index=0", status=412)
    assert "broker entry metadata" in reason


def test_partitions_are_terminated_together(api: Api, client: pulsar.Client, topic: str) -> None:
    api.put(f"{path_of(topic)}/partitions", 2)
    api.reason("POST", f"{path_of(topic)}/terminate", status=405)
    found = api.call("POST", f"{path_of(topic)}/terminate/partitions").json()
    assert {key: value["partitionIndex"] for key, value in found.items()} == {"0": 0, "1": 1}
    api.put(f"{path_of(topic)}-plain")
    api.reason("POST", f"{path_of(topic)}-plain/terminate/partitions", status=405)


def test_properties_of_a_subscription(api: Api, server: ServerProcess, topic: str) -> None:
    api.put(f"{path_of(topic)}")
    subscription = f"{path_of(topic)}/subscription/sub"
    api.put(subscription, {"ledgerId": -1, "entryId": -1, "properties": {"a": "1"}})
    assert api.get(f"{subscription}/properties") == {"a": "1"}
    api.put(f"{subscription}/properties", {"b": "2"})
    assert api.get(f"{subscription}/properties") == {"b": "2"}
    server.restart()
    fresh = Api(server)
    assert fresh.get(f"{subscription}/properties") == {"b": "2"}
    fresh.session.close()


def test_the_backlog_is_analysed(api: Api, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for _ in range(4):
        producer.send_async(b"x", None)
    producer.flush()
    single = client.create_producer(topic)
    last = single.send(b"y")
    found = api.get(f"{path_of(topic)}/subscription/sub/analyzeBacklog")
    assert (found["entries"], found["messages"], found["aborted"]) == (2, 5, False)
    assert found["lastMessageId"] == f"{last.ledger_id()}:{last.entry_id()}"
    assert found["filterAcceptedMessages"] == 5
    consumer.close()
    api.post(f"{path_of(topic)}/subscription/sub/skip_all")
    found = api.get(f"{path_of(topic)}/subscription/sub/analyzeBacklog")
    assert (found["entries"], found["firstMessageId"]) == (0, None)
