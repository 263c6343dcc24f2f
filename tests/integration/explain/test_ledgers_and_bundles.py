"""Whose a ledger is and what keeps it, why a bundle is where it is, and where a subscription is in other clusters."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
import requests

from magnetar.testing.server import ServerProcess
from tests.integration.admin.conftest import Api
from tests.integration.explain.conftest import Explainer
from tests.support.messages import take
from tests.support.types import Connect, StartServer
from tests.support.waiting import wait_until

SMALL_LEDGERS = {"managedLedgerMaxEntriesPerLedger": 2, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


def test_what_keeps_a_ledger(start_server: StartServer, connect: Connect, topic: str) -> None:
    """A backlog, then retention; the newest one is written to."""
    server = start_server(**SMALL_LEDGERS, defaultRetentionTimeInMinutes=1000, defaultRetentionSizeInMB=1000)
    explain, client = Explainer(server.http_url), connect(server.service_url)
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [producer.send(b"%d" % number) for number in range(6)]
    first, last = sent[0].ledger_id(), sent[-1].ledger_id()
    assert first != last

    def code(ledger: int) -> str:
        codes = [reason["code"] for reason in explain.ask("ledger", id=ledger)["reasons"]]
        return codes[0]

    found = explain.ask("ledger", id=first)
    assert found["reasons"][0]["code"] == "kept-by-subscription"
    assert list(found["reasons"][0]["facts"]["subscriptions"]) == ["sub"]
    assert found["details"]["managedLedger"].startswith("public/default/persistent/")
    assert found["details"]["segments"][0]["ensemble"]
    assert found["moving"] is None
    take(consumer, 6)
    wait_until(lambda: code(first) == "kept-by-retention")
    current = explain.ask("key", topic=topic, key="k")["details"]["ledger"]["ledger"]
    open_one = [reason["code"] for reason in explain.ask("ledger", id=current)["reasons"]]
    assert "ledger-current" in open_one
    assert "kept-by-retention" in explain.command("ledger", str(first))


@pytest.mark.parametrize(("query", "status"), [("", 400), ("?id=x", 400), ("?id=-1", 400), ("?id=99999999", 404)])
def test_ledgers_that_are_not_there(server: ServerProcess, query: str, status: int) -> None:
    answer = requests.get(f"{server.http_url}/admin/v2/explain/ledger{query}", timeout=60)
    assert answer.status_code == status, answer.text


def test_a_bundle(explain: Explainer, client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    client.create_producer(topic)
    found = explain.ask("bundle", topic=topic)
    assert found["reasons"][0]["code"] == "bundle-served"
    broker = found["reasons"][0]["facts"]["broker"]
    assert found["details"]["broker"] == broker
    dead = explain.ask("bundle", topic=topic, ifBrokerDies=broker)["details"]["whatIf"]
    assert (dead["moves"], dead["brokerAfter"]) == (True, None)
    assert explain.ask("bundle", topic=topic, ifBrokerDies="other:1")["details"]["whatIf"]["moves"] is False
    assert [owner for *_, owner in dead["rangesBefore"]] == [broker] * len(dead["rangesBefore"])
    assert dead["rangesAfter"] == [], "nobody is left"
    picture = tmp_path / "dies.svg"
    shown = explain.command("bundle", "--topic", topic, "--if-broker-dies", broker, "--svg", str(picture))
    assert "bundle-served" in shown
    assert f"bundles of {broker} would move" in shown
    assert broker in picture.read_text()


def test_a_subscription_that_is_not_replicated(explain: Explainer, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "sub")
    found = explain.ask("cursor", topic=topic, subscription="sub")
    assert [reason["code"] for reason in found["reasons"]] == ["not-replicated"]
    assert "not-replicated" in explain.command("cursor", "sub", "--topic", topic)


def test_a_snapshot_that_waits_for_a_cluster(explain: Explainer, api: Api, client: pulsar.Client) -> None:
    api.put("clusters/away", {"serviceUrl": "http://127.0.0.1:9", "brokerServiceUrl": "pulsar://127.0.0.1:9"})
    api.put("tenants/far", {"allowedClusters": ["standalone", "away"]})
    api.put("namespaces/far/ns", {"replication_clusters": ["standalone", "away"]})
    topic = "persistent://far/ns/t"
    client.subscribe(topic, "sub", replicate_subscription_state_enabled=True)
    client.create_producer(topic).send(b"x")

    def missing() -> bool:
        reasons = explain.ask("cursor", topic=topic, subscription="sub")["reasons"]
        return bool(reasons) and reasons[0]["code"] == "snapshot-missing" and "away" in reasons[0]["text"]

    wait_until(missing, timeout_s=60)
    assert explain.ask("cursor", topic=topic, subscription="sub")["moving"] is False
