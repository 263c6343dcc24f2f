"""Scalable topics under authorization and TLS: a topic's rights hold for its segments, and every address is told in both forms."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, ServerError
from tests.integration.security.conftest import Secured
from tests.support.raw_scalable import ScalableClient
from tests.support.tokens import token

TOPIC = "topic://t/ns/one"
SEGMENT = "segment://t/ns/one/0000-7fff-0"


def connected(secured: Secured, role: str) -> ScalableClient:
    client = ScalableClient(secured.process.port)
    client.connect(auth_method_name="token", auth_data=token(role).encode())
    return client


@pytest.fixture(scope="module", autouse=True)
def topic(secured: Secured) -> None:
    assert secured.http("PUT", "/admin/v2/scalable/t/ns/one?numInitialSegments=2", "tenant-admin").status_code == 204


@pytest.mark.parametrize("role", ["topic-role", "producer", "consumer", "stranger", "other-admin"])
def test_what_is_granted_on_the_topic_holds_for_its_segments(secured: Secured, role: str) -> None:
    may_produce, may_consume = role in ("topic-role", "producer"), role in ("topic-role", "consumer")
    refused = ServerError.AuthorizationError

    def code(answer: BaseCommand) -> int:
        return answer.error.error if answer.type == BaseCommand.ERROR else 0

    with connected(secured, role) as client:
        assert (client.layout(TOPIC).error == refused) == (not may_produce and not may_consume)
        assert (code(client.producer(SEGMENT)) == refused) == (not may_produce)
        assert (code(client.subscribe(SEGMENT, role)) == refused) == (not may_consume)
        answer = client.consume(TOPIC, role, subscription=role)
        assert (answer.HasField("error") and answer.error == refused) == (not may_consume)


def test_layouts_are_changed_by_superusers_only(secured: Secured) -> None:
    for role in ("tenant-admin", "topic-role", "producer"):
        assert secured.http("POST", "/admin/v2/scalable/t/ns/one/split/0", role).status_code == 403
        assert secured.http("POST", "/admin/v2/scalable/t/ns/classic/migrate", role).status_code == 403
        assert secured.http("POST", "/admin/v2/segments/t/ns/one/0000-7fff-0/terminate", role).status_code == 403
    assert secured.http("GET", "/admin/v2/scalable/t/ns/one", "consumer").status_code == 200


def test_every_address_is_told_for_tls_as_well(secured: Secured) -> None:
    """Apache's broker leaves them out."""
    with connected(secured, "topic-role") as client:
        found = client.layout(TOPIC).dag
    plain, tls = f"pulsar://localhost:{secured.process.port}", f"pulsar+ssl://localhost:{secured.port_tls}"
    assert (found.controller_broker_url, found.controller_broker_url_tls) == (plain, tls)
    assert [(each.broker_url, each.broker_url_tls) for each in found.segment_brokers] == [(plain, tls)] * 2


def test_what_needs_no_right_reaches_nothing_of_others(secured: Secured) -> None:
    """Closing and leaving name numbers of one's own connection."""
    with connected(secured, "topic-role") as owner, connected(secured, "stranger") as stranger:
        owner.layout(TOPIC, 5)
        owner.consume(TOPIC, "mine", 6, "topic-role")
        stranger.send(BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE, scalableTopicClose={"session_id": 5}))
        stranger.leave(6)
        stranger.ping()
        secured.admin("POST", "scalable/t/ns/one/split/1")
        assert owner.pushed_layout().dag.epoch == 1
