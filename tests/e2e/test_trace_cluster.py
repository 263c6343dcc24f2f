"""Traces where only a cluster can have them: copies on several bookies, and a broker that is asked about another one's topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pulsar

from magnetar.testing.cluster import ClusterProcesses
from tests.integration.trace.conftest import Tracer
from tests.support.brokers import STEADY, broker_names
from tests.support.waiting import wait_until


def test_the_copies_of_a_quorum_and_any_broker_tells(tmp_path: Path, connect: Callable[..., pulsar.Client]) -> None:
    with ClusterProcesses(tmp_path / "c", bookies=3, brokers=2, ensemble=(3, 3, 2), settings=STEADY) as cluster:
        topic = "persistent://public/default/traced"
        client = connect(cluster.service_url)
        consumer = client.subscribe(topic, "sub", consumer_name="c1")
        client.create_producer(topic).send(b"x", properties={"magnetar.trace": "in-a-cluster"})
        consumer.acknowledge(consumer.receive(30_000))
        for name in broker_names(cluster):  # one of them is not the owner
            tracer = Tracer(cluster.broker(name)[1])
            tracer.sees(
                topic, "in-a-cluster", ["received", "sent-to-bookies", "stored", "delivered c1", "acknowledged c1"]
            )

        def copies() -> set[str]:
            return {
                each["bookie"]
                for each in tracer.of(topic, "in-a-cluster")[0]["events"]
                if each["event"] == "copy-stored"
            }

        assert wait_until(lambda: (found := copies()) == set(cluster.bookie_ids.values()) and found)
        kinds = [each["event"] for each in tracer.of(topic, "in-a-cluster")[0]["events"]]
        assert kinds[: kinds.index("stored")].count("copy-stored") == 2  # the third answers behind the receipt
