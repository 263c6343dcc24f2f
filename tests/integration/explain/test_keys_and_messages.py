"""Where a key and a message are, and what they wait for, with the official client."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests

from magnetar.hashing.java_hash import java_positive_hash
from magnetar.hashing.murmur3 import murmur3_positive
from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.integration.explain.conftest import Explainer
from tests.integration.explain.test_subscriptions import acknowledging, key_shared, send_keys
from tests.integration.transactions.test_messages import begin, path_of
from tests.support.messages import take
from tests.support.raw_transactions import RawTransactions
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until


def id_of(sent: pulsar.MessageId) -> str:
    return f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}:{sent.batch_index()}"


def codes(document: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in document["reasons"]]


# ---- Keys


def test_a_key_of_a_partitioned_topic(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    """The Python client chooses it by a hash that it does not let us set: it is sent to the partition that is told."""
    api.put(f"{path_of(topic)}/partitions", 4)
    for key in ("some-key", "other"):
        details = explain.ask("key", topic=topic, key=key)["details"]
        told = (details["partition"], details["partitionByMurmur3"])
        assert told == (java_positive_hash(key) % 4, murmur3_positive(key) % 4)
        assert details["partitions"] == 4
        sent = client.create_producer(f"{topic}-partition-{details['partition']}").send(b"x", partition_key=key)
        details = explain.ask("key", topic=topic, key=key)["details"]
    assert details["bundle"].startswith("public/default/0x")
    assert details["broker"]
    assert details["ledger"]["ledger"] == sent.ledger_id()
    assert len(details["ledger"]["ensemble"]) >= 1


def test_the_consumer_of_a_key(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    consumers = {name: key_shared(client, topic, name) for name in ("c1", "c2")}
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(8):
        key = f"key-{number}"
        producer.send(b"x", partition_key=key)
        document = explain.ask("key", topic=topic, key=key, subscription="sub")
        (row,) = document["details"]["subscriptions"]
        received = consumers[row["consumer"]].receive(30_000)
        assert received.partition_key() == key
        consumers[row["consumer"]].acknowledge(received)
        assert row["range"].startswith("the range ")
        assert codes(document) == ["key-owned"]
        assert document["reasons"][0]["facts"]["consumer"] == row["consumer"]


def test_keys_of_a_frozen_consumer_and_of_another(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    key_shared(client, topic, "frozen")
    key_shared(client, topic, "quick", message_listener=acknowledging)
    send_keys(client, topic)
    explain.finds(topic, "consumer-frozen", False)
    owners = {}
    for number in range(20):
        document = explain.ask("key", topic=topic, key=f"key-{number}", subscription="sub")
        (row,) = document["details"]["subscriptions"]
        owners[row["consumer"]] = document
    assert owners["frozen"]["moving"] is False
    assert codes(owners["frozen"]) == ["consumer-frozen", "no-permits"]
    assert codes(owners["quick"]) == ["key-owned"]


def test_what_if_a_consumer_joined_or_left(
    explain: Explainer, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    for name in ("c1", "c2"):
        key_shared(client, topic, name)
    for question in ({"ifJoins": "c3"}, {"ifLeaves": "c2"}):
        document = explain.ask("key", topic=topic, key="some", subscription="sub", **question)
        change = document["details"]["subscriptions"][0]["whatIf"]
        before = {owner for _, _, owner in change["rangesBefore"]}
        after = {owner for _, _, owner in change["rangesAfter"]}
        assert before == {"c1", "c2"}
        assert after == ({"c1", "c2", "c3"} if "ifJoins" in question else {"c1"})
        assert 0 < change["slotsMoved"] < 65536
    shown = explain.command("key", "some", "--topic", topic, "--if-joins", "c3")
    drawn = [line for line in shown.splitlines() if line.startswith(("  before ", "  after  "))]
    assert [len(line) for line in drawn] == [9 + 64] * 2
    assert "C c3" in shown
    picture = tmp_path / "joins.svg"
    explain.command("key", "some", "--topic", topic, "--if-joins", "c3", "--svg", str(picture))
    assert {"c1", "c2", "c3"} <= set(re.findall(r">(c\d)<", picture.read_text()))
    # what was asked is what then happens
    foreseen = explain.ask("key", topic=topic, key="some", subscription="sub", ifJoins="c3")["details"][
        "subscriptions"
    ][0]
    key_shared(client, topic, "c3")
    now = explain.ask("key", topic=topic, key="some", subscription="sub")["details"]["subscriptions"][0]
    assert now["consumer"] == foreseen["whatIf"]["ownerAfter"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("&key=k&subscription=none", 404), ("&key=k&subscription=sub&ifLeaves=nobody", 400)],
)
def test_bad_questions_about_keys(
    server: ServerProcess, client: pulsar.Client, topic: str, query: str, status: int
) -> None:
    key_shared(client, topic, "c1")
    answer = requests.get(f"{server.http_url}/admin/v2/explain/key?topic={topic}{query}", timeout=60)
    assert answer.status_code == status, answer.text


# ---- Messages


def test_a_message_on_its_way(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", pulsar.ConsumerType.Shared, consumer_name="c1", receiver_queue_size=1)
    client.subscribe(topic, "other").close()
    producer = client.create_producer(topic, batching_enabled=False, producer_name="p1")
    first, second = producer.send(b"x", partition_key="k"), producer.send(b"y")
    last = [producer.send(b"z") for _ in range(3)][-1]

    def states(sent: pulsar.MessageId) -> dict[str, str]:
        reasons = explain.ask("message", topic=topic, id=id_of(sent))["reasons"]
        return {reason["facts"]["subscription"]: reason["code"] for reason in reasons}

    wait_until(lambda: states(first) == {"sub": "message-delivered", "other": "message-waits"})
    document = explain.ask("message", topic=topic, id=id_of(first))
    assert document["details"]["key"] == "k"
    assert document["details"]["producer"] == "p1"
    stored = document["details"]["stored"]
    assert (stored["ledger"], stored["entry"]) == (first.ledger_id(), first.entry_id())
    assert len(stored["bookies"]) >= 1
    assert stored["bookiesMissing"] == []
    waits = next(reason for reason in document["reasons"] if reason["facts"]["subscription"] == "other")
    assert waits["facts"]["cause"] == "no-consumers"
    delivered = next(reason for reason in document["reasons"] if reason["facts"]["subscription"] == "sub")
    assert delivered["facts"]["consumer"] == "c1"
    assert states(last)["sub"] in ("message-waits", "message-unread")
    waiting = explain.ask("message", topic=topic, id=id_of(last), subscription="sub")["reasons"][0]
    assert waiting["facts"]["ahead"] == 4
    consumer.acknowledge(consumer.receive(30_000))
    wait_until(lambda: states(first)["sub"] == "message-acknowledged")
    assert states(second)["sub"] == "message-delivered"
    shown = explain.command("message", id_of(first), "--topic", topic, "--subscription", "sub")
    assert "message-acknowledged" in shown
    assert json.loads(explain.command("message", id_of(first), "-t", topic, as_json=True))["subject"]["id"]


def test_an_exclusive_consumer(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub", consumer_name="only")
    sent = client.create_producer(topic).send(b"x")
    take(consumer, 1, ack=False)
    (reason,) = explain.ask("message", topic=topic, id=id_of(sent))["reasons"]
    assert (reason["code"], reason["facts"]["consumer"]) == ("message-delivered", "only")


def test_a_delayed_message(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub", pulsar.ConsumerType.Shared)
    sent = client.create_producer(topic).send(b"later", deliver_at=4_000_000_000_000)

    def found() -> list[str]:
        return codes(explain.ask("message", topic=topic, id=id_of(sent)))

    wait_until(lambda: found() == ["message-delayed"])


def test_an_expired_message(
    start_server: StartServer, explain: Explainer, api: Api, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "sub").close()
    sent = client.create_producer(topic).send(b"x")
    api.post(f"{path_of(topic)}/subscription/sub/expireMessages/0")
    document = explain.ask("message", topic=topic, id=id_of(sent))
    assert codes(document) == ["message-expired"]
    assert document["reasons"][0]["facts"]["rule"] == "request of an administrator"
    assert document["moving"] is None


def test_an_index_of_a_batch(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    """One is acknowledged, the other is not."""
    consumer = client.subscribe(
        topic, "sub", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True, consumer_name="c1"
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(3):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    received = take(consumer, 3, ack=False)
    consumer.acknowledge(received[1])

    def state(index: int) -> str:
        (code,) = codes(explain.ask("message", topic=topic, id=id_of(received[index].message_id())))
        return code

    wait_until(lambda: state(1) == "message-acknowledged")
    assert state(0) == state(2) == "message-delivered"


def test_messages_of_transactions(explain: Explainer, server: ServerProcess, topic: str) -> None:
    with RawTransactions(server.port) as raw:
        raw.producer(topic)
        raw.subscribe(topic, "sub")
        txn = begin(raw, topic)
        sent = raw.publish_in(txn, b"inside", sequence_id=1).send_receipt.message_id
        asked = f"{sent.ledgerId}:{sent.entryId}"
        document = explain.ask("message", topic=topic, id=asked)
        assert codes(document)[0] == "message-in-transaction"
        assert document["moving"] is False
        raw.abort(txn)
        assert codes(explain.ask("message", topic=topic, id=asked))[0] == "message-aborted"
        marker = f"{sent.ledgerId}:{sent.entryId + 1}"
        assert codes(explain.ask("message", topic=topic, id=marker))[0] == "message-is-marker"


def test_messages_that_are_not_there(start_server: StartServer, connect: Connect, topic: str) -> None:
    """Deleted by retention, never written, or never consumed by anybody."""
    server = start_server(
        managedLedgerMaxEntriesPerLedger=2,
        managedLedgerMinLedgerRolloverTimeMinutes=0,
        retentionCheckIntervalInSeconds=1,
    )
    explain = Explainer(server.http_url)
    client = connect(server.service_url)
    producer = client.create_producer(topic, batching_enabled=False)
    consumer = client.subscribe(topic, "sub")
    sent = [producer.send(b"%d" % number) for number in range(8)]
    take(consumer, 8)

    def gone() -> dict[str, Any] | None:
        document = explain.ask("message", topic=topic, id=id_of(sent[0]))
        return document if codes(document) == ["message-deleted"] else None

    document = wait_until(gone)
    assert document["moving"] is None
    never = explain.ask("message", topic=topic, id=f"{sent[-1].ledger_id() + 1000}:0")
    assert codes(never) == ["message-never-written"]


def test_nobody_has_subscribed(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    sent = client.create_producer(topic).send(b"x")
    assert codes(explain.ask("message", topic=topic, id=id_of(sent))) == ["no-subscription"]
    assert codes(explain.ask("message", topic=topic, id=str(sent))) == ["no-subscription"]


def test_a_message_of_a_partition(explain: Explainer, api: Api, client: pulsar.Client, topic: str) -> None:
    api.put(f"{path_of(topic)}/partitions", 3)
    sent = client.create_producer(topic).send(b"x")
    document = explain.ask("message", topic=topic, id=id_of(sent))
    assert document["subject"]["topic"] == f"{topic}-partition-{sent.partition()}"
    url = f"{explain.http_url}/admin/v2/explain/message?topic={topic}&id="
    for wrong in (f"{sent.ledger_id()}:{sent.entry_id()}", "x", "1", "-1:2", "1:2:3:4:5", f"{2**63}:1"):
        assert requests.get(url + wrong, timeout=60).status_code == 400, wrong
