"""A trace goes on in other clusters, under its id."""

from __future__ import annotations

import pulsar

from tests.integration.trace.conftest import Tracer
from tests.support.geo import NAMESPACE, Region


def test_a_message_is_followed_to_other_clusters(mesh_of_three: list[Region]) -> None:
    a, b, _ = mesh_of_three
    topic, trace_id = f"persistent://{NAMESPACE}/traced", "over-there"
    consumer = b.client.subscribe(topic, "sub", consumer_name="c-b", initial_position=pulsar.InitialPosition.Earliest)
    a.client.create_producer(topic).send(b"x", properties={"magnetar.trace": trace_id})
    consumer.acknowledge(consumer.receive(30_000))
    here, there = Tracer(a.server.http_url), Tracer(b.server.http_url)
    here.sees(topic, trace_id, ["received", "stored", "replicated b"])
    here.sees(topic, trace_id, ["stored", "replicated c"])
    there.sees(topic, trace_id, ["received", "copy-stored", "stored", "delivered c-b", "acknowledged c-b"])
    assert "from cluster a" in there.of(topic, trace_id)[0]["events"][0]["text"]
