"""Subscriptions and single messages over the admin API."""

from __future__ import annotations

import json
import time

import pulsar
import pytest
import requests

from tests.integration.admin.conftest import Api
from tests.support.messages import receive_all, send_all
from tests.support.waiting import wait_until


def backlog(api: Api, path: str, name: str) -> int:
    return int(api.get(f"{path}/stats")["subscriptions"][name]["msgBacklog"])


@pytest.fixture
def path(namespace: str) -> str:
    return f"persistent/{namespace}/t"


@pytest.fixture
def name(namespace: str) -> str:
    return f"persistent://{namespace}/t"


def test_create_list_and_delete(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    producer = client.create_producer(name)
    ids = [producer.send(b"%d" % index) for index in range(5)]
    api.put(f"{path}/subscription/latest")
    api.put(f"{path}/subscription/earliest", {"ledgerId": -1, "entryId": -1})
    api.put(f"{path}/subscription/third", {"ledgerId": ids[2].ledger_id(), "entryId": 2, "partitionIndex": -1})
    api.put(f"{path}/subscription/end", {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1})
    api.put(f"{path}/subscription/a%2Fb%20c")
    assert "already exists" in api.reason("PUT", f"{path}/subscription/latest", status=409)
    backlogs = {sub: backlog(api, path, sub) for sub in ("latest", "earliest", "third", "end", "a/b c")}
    assert backlogs == {"latest": 0, "earliest": 5, "third": 3, "end": 0, "a/b c": 0}
    assert receive_all(client.subscribe(name, "third"), 3) == [b"2", b"3", b"4"]
    api.delete(f"{path}/subscription/a%2Fb%20c")
    assert set(api.get(f"{path}/subscriptions")) == {"latest", "earliest", "third", "end"}
    assert api.reason("DELETE", f"{path}/subscription/none", status=404) == "Subscription not found"
    api.put(f"{path}/subscription/bad", {"ledgerId": "x"}, status=400)


def test_deletion_while_consumers_are_connected_takes_force(
    api: Api, client: pulsar.Client, path: str, name: str
) -> None:
    consumer = client.subscribe(name, "s")
    assert "connected consumers" in api.reason("DELETE", f"{path}/subscription/s", status=412)
    consumer.close()
    api.delete(f"{path}/subscription/s")
    assert api.get(f"{path}/subscriptions") == []
    again = client.subscribe(name, "s")
    api.delete(f"{path}/subscription/s?force=true")
    again.close()


def test_all_partitions_have_the_subscription(api: Api, client: pulsar.Client, namespace: str) -> None:
    path, name = f"persistent/{namespace}/split", f"persistent://{namespace}/split"
    api.put(f"{path}/partitions", 3)
    api.put(f"{path}/subscription/s")
    api.put(f"{path}/subscription/s", status=409)
    assert api.get(f"{path}/subscriptions") == ["s"]
    assert api.get(f"{path}-partition-2/subscriptions") == ["s"]
    send_all(client.create_producer(name), [b"%d" % index for index in range(30)])
    api.post(f"{path}/subscription/s/skip_all")
    assert api.get(f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == 0
    api.post(f"{path}/subscription/s/resetcursor/0")
    assert api.get(f"{path}/partitioned-stats")["subscriptions"]["s"]["msgBacklog"] == api.get(
        f"{path}/partitioned-stats"
    )["msgInCounter"] - _batched_away(api, path)
    api.post(f"{path}/subscription/s/skip/1", status=405)
    api.delete(f"{path}/subscription/s")
    assert api.get(f"{path}/subscriptions") == []


def _batched_away(api: Api, path: str) -> int:
    """Messages minus entries: what a backlog counted in entries does not show."""
    stats = api.get(f"{path}/partitioned-stats")
    entries = sum(int(api.get(f"{path}-partition-{index}/internalStats")["numberOfEntries"]) for index in range(3))
    return int(stats["msgInCounter"]) - entries


def test_skip_and_clear(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name)
    for index in range(10):
        producer.send(b"%d" % index)
    api.post(f"{path}/subscription/s/skip/3")
    assert backlog(api, path, "s") == 7
    consumer = client.subscribe(name, "s")
    assert receive_all(consumer, 1) == [b"3"]
    consumer.close()
    api.post(f"{path}/subscription/s/skip_all")
    assert backlog(api, path, "s") == 0
    api.post(f"{path}/subscription/none/skip_all", status=404)
    api.post(f"{path}/subscription/s/skip/many", status=404)
    api.post(f"{path}/subscription/s/skip/-1", status=400)


def test_reset_by_time_and_by_message(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    consumer = client.subscribe(name, "s")
    producer = client.create_producer(name)
    early = producer.send(b"early")
    first_ms = consumer.receive(30_000).publish_timestamp()
    wait_until(lambda: time.time() * 1000 > first_ms + 2)
    producer.send(b"late")
    second_ms = consumer.receive(30_000).publish_timestamp()
    api.post(f"{path}/subscription/s/resetcursor/{second_ms}")
    assert receive_all(consumer, 1) == [b"late"]
    position = {"ledgerId": early.ledger_id(), "entryId": early.entry_id(), "partitionIndex": -1}
    api.post(f"{path}/subscription/s/resetcursor", position)
    assert receive_all(consumer, 2) == [b"early", b"late"]
    api.post(f"{path}/subscription/s/resetcursor", {**position, "isExcluded": True})
    assert receive_all(consumer, 1) == [b"late"]
    api.post(f"{path}/subscription/s/resetcursor", status=400)
    api.post(f"{path}/subscription/none/resetcursor", position, status=404)
    assert api.get(f"{path}/messageid/{second_ms}")["entryId"] == 1
    assert api.get(f"{path}/messageid/0") == position


def test_expiry_by_age_and_by_message(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    for sub in ("a", "b"):
        client.subscribe(name, sub).close()
    producer = client.create_producer(name)
    ids = [producer.send(b"x") for _ in range(4)]
    api.post(f"{path}/subscription/a/expireMessages/3600")
    assert backlog(api, path, "a") == 4
    body = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    api.post(f"{path}/subscription/a/expireMessages", {**body, "isExcluded": True})
    assert backlog(api, path, "a") == 3
    api.post(f"{path}/subscription/a/expireMessages", body)
    assert (backlog(api, path, "a"), backlog(api, path, "b")) == (2, 4)
    published_ms = time.time() * 1000
    wait_until(lambda: time.time() * 1000 > published_ms + 1100)
    api.post(f"{path}/all_subscription/expireMessages/1")
    assert (backlog(api, path, "a"), backlog(api, path, "b")) == (0, 0)


def test_peek_shows_a_message_and_leaves_it(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name, producer_name="p")
    sent = producer.send(b"\x00payload", properties={"k": "ü\r\nX-Evil: 1"}, partition_key="key")
    url = f"{path}/subscription/s/position/1"
    answer = api.call("GET", url)
    assert answer.content == b"\x00payload"
    assert answer.headers["X-Pulsar-Message-ID"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert json.loads(answer.headers["X-Pulsar-Property"]) == {"k": "ü\r\nX-Evil: 1"}
    assert answer.headers["X-Pulsar-Partition-Key"] == "key"
    assert answer.headers["X-Pulsar-Publish-Time"].endswith("Z")
    assert "X-Pulsar-Num-Batch-Message" not in answer.headers
    assert "X-Evil" not in answer.headers
    by_id = api.call("GET", f"{path}/ledger/{sent.ledger_id()}/entry/{sent.entry_id()}")
    assert by_id.content == b"\x00payload"
    assert backlog(api, path, "s") == 1
    assert api.reason("GET", f"{path}/subscription/s/position/2", status=404) == "Message not found"


def test_peek_at_a_subscription_that_does_not_exist(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    """The Go client's own test does so; nothing may be left of it."""
    api.put(path)
    assert api.reason("GET", f"{path}/subscription/none/position/1", status=404) == "Message not found"
    send_all(client.create_producer(name), [b"one", b"two"])
    found = [api.call("GET", f"{path}/subscription/none/position/{number}").content for number in (1, 2)]
    assert found == [b"one", b"two"]
    assert api.reason("GET", f"{path}/subscription/none/position/3", status=404) == "Message not found"
    assert api.get(f"{path}/subscriptions") == []


def test_a_batch_is_shown_packed(api: Api, client: pulsar.Client, path: str, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=200)
    ids = send_all(producer, [b"one", b"two", b"three"])
    answer = api.call("GET", f"{path}/subscription/s/position/1")
    assert answer.headers["X-Pulsar-Num-Batch-Message"] == "3"
    assert b"two" in answer.content
    last = api.get(f"{path}/lastMessageId")
    assert (last["entryId"], last["batchIndex"], last["batchSize"]) == (ids[-1].entry_id(), 2, 3)


def test_no_entry_of_another_topic_is_shown(api: Api, client: pulsar.Client, path: str, namespace: str) -> None:
    """CVE-2021-41571: a ledger id is not a permission."""
    api.put(path)
    secret = client.create_producer(f"persistent://{namespace}/secret").send(b"secret")
    assert api.call("GET", f"persistent/{namespace}/secret/ledger/{secret.ledger_id()}/entry/0").content == b"secret"
    for entry in (f"{secret.ledger_id()}/entry/0", "0/entry/0", "99999/entry/0", f"{2**62}/entry/{2**62}"):
        response = requests.get(f"{api.base}/admin/v2/{path}/ledger/{entry}", timeout=30)
        assert response.status_code == 404
        assert b"secret" not in response.content
