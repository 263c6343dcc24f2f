"""What only a cluster can show: copies on a bookie that is gone, with as many left as a receipt needs; and whose bundle goes where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pulsar

from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import STEADY, broker_names, get
from tests.support.waiting import wait_until

Connect = Callable[..., pulsar.Client]


def test_a_lost_bookie_and_a_broker_that_might_die(tmp_path: Path, connect: Connect) -> None:
    with ClusterProcesses(tmp_path / "c", bookies=3, brokers=2, settings=STEADY) as cluster:
        client = connect(cluster.service_url)
        producer = client.create_producer("lost")
        sent = producer.send(b"x")
        asked = f"{cluster.http_url}/admin/v2/explain"
        found = get(f"{asked}/ledger?id={sent.ledger_id()}")
        assert not [reason for reason in found["reasons"] if reason["code"] == "copies-missing"]
        ensemble = found["details"]["segments"][0]["ensemble"]
        message = get(f"{asked}/message?topic=lost&id={sent.ledger_id()}:{sent.entry_id()}")["details"]["stored"]
        assert set(message["bookies"]) <= set(ensemble)
        lost = message["bookies"][0]
        names = {bookie_id: name for name, bookie_id in cluster.bookie_ids.items()}
        cluster.kill(names[lost])

        def missing() -> list[dict[str, object]]:
            reasons = get(f"{asked}/ledger?id={sent.ledger_id()}")["reasons"]
            return [reason["facts"] for reason in reasons if reason["code"] == "copies-missing"]

        facts = wait_until(missing, 60, what="the bookie is gone")[0]
        assert facts["missing"] == [lost]
        assert facts["copiesLeft"] == found["details"]["writeQuorum"] - 1
        again = get(f"{asked}/message?topic=lost&id={sent.ledger_id()}:{sent.entry_id()}")
        assert again["details"]["stored"]["bookiesMissing"] == [lost]

        bundle = get(f"{asked}/bundle?topic=lost")
        owner = bundle["reasons"][0]["facts"]["broker"]
        brokers = {cluster.broker(name)[1].removeprefix("http://") for name in broker_names(cluster)}
        assert owner in brokers
        dead = get(f"{asked}/bundle?topic=lost&ifBrokerDies={owner}")["details"]["whatIf"]
        assert {dead["brokerAfter"]} == brokers - {owner}
