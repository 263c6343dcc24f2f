"""The official client proves who it is by token, password and certificate, over TCP and TLS."""

from __future__ import annotations

import time
from collections.abc import Callable

import pulsar
import pytest

from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.integration.security.conftest import PASSWORD, Secured
from tests.support.raw import RawClient
from tests.support.tokens import token

Connect = Callable[..., pulsar.Client]


def round_trip(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "sub")
    producer = client.create_producer(topic)
    producer.send(b"hello")
    message = consumer.receive(30_000)
    assert message.data() == b"hello"
    consumer.acknowledge(message)


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_token(connect: Connect, tls: bool) -> None:
    round_trip(connect(pulsar.AuthenticationToken(token("tenant-admin")), tls=tls), f"t/ns/token-{tls}")


def test_token_supplier(connect: Connect) -> None:
    round_trip(connect(pulsar.AuthenticationToken(lambda: token("tenant-admin"))), "t/ns/supplier")


def test_a_token_with_the_end_of_its_line(secured: Secured) -> None:
    """As clients send it that read a file and do no more."""
    with RawClient(secured.process.port) as client:
        client.connect(auth_method_name="token", auth_data=f"{token('tenant-admin')}\n".encode())
        assert client.producer("persistent://t/ns/line").type == BaseCommand.PRODUCER_SUCCESS


def test_basic(connect: Connect) -> None:
    round_trip(connect(pulsar.AuthenticationBasic("admin", PASSWORD)), "t/ns/basic")


def test_certificate(connect: Connect, secured: Secured) -> None:
    certificate, key = secured.authority.sign("tenant-admin")
    round_trip(connect(pulsar.AuthenticationTLS(certificate, key), tls=True), "t/ns/certificate")


def test_tls_without_a_certificate_is_anonymous(connect: Connect) -> None:
    with pytest.raises(pulsar.AuthorizationError):
        connect(tls=True).create_producer("t/ns/x")


@pytest.mark.parametrize(
    "authentication",
    [
        pulsar.AuthenticationToken(token("tenant-admin", lifetime_s=-5)),
        pulsar.AuthenticationToken(token("tenant-admin", aud="another")),
        pulsar.AuthenticationToken("nonsense"),
        pulsar.AuthenticationBasic("admin", "wrong"),
        pulsar.AuthenticationBasic("nobody", PASSWORD),
    ],
    ids=["expired", "audience", "nonsense", "wrong password", "unknown user"],
)
def test_a_wrong_credential_ends_the_call_at_once(connect: Connect, authentication: object) -> None:
    client = connect(authentication)
    started = time.monotonic()
    with pytest.raises(pulsar.AuthenticationError):
        client.create_producer("t/ns/x")
    with pytest.raises(pulsar.AuthenticationError):
        client.subscribe("t/ns/x", "sub")
    assert time.monotonic() - started < 15.0


def test_a_method_that_nobody_configured_is_anonymous(connect: Connect) -> None:
    with pytest.raises(pulsar.AuthorizationError):
        connect(pulsar.AuthenticationBasic("admin", PASSWORD, "other-method")).create_producer("t/ns/x")


def test_permissions(connect: Connect, secured: Secured) -> None:
    producer, consumer = (connect(pulsar.AuthenticationToken(token(role))) for role in ("producer", "consumer"))
    sending = producer.create_producer("t/ns/permitted")
    receiving = consumer.subscribe("t/ns/permitted", "sub")
    sending.send(b"x")
    assert receiving.receive(30_000).data() == b"x"
    for call in (
        lambda: producer.subscribe("t/ns/permitted", "sub"),
        lambda: consumer.create_producer("t/ns/permitted"),
        lambda: producer.create_producer("other/ns/x"),
        lambda: producer.create_producer("persistent://public/default/x"),
    ):
        with pytest.raises(pulsar.AuthorizationError):
            call()


def test_a_tenant_that_does_not_exist_is_told_as_such(connect: Connect) -> None:
    with pytest.raises(pulsar.TopicNotFound):
        connect(pulsar.AuthenticationToken(token("stranger"))).create_producer("no-such-tenant/ns/x")


def test_permission_on_one_topic_holds_for_its_partitions(connect: Connect, secured: Secured) -> None:
    secured.admin("PUT", "persistent/t/ns/parts/partitions", 2)
    secured.admin("POST", "persistent/t/ns/parts/permissions/stranger", ["produce", "consume"])
    client = connect(pulsar.AuthenticationToken(token("stranger")))
    round_trip(client, "t/ns/parts")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("t/ns/parts2")
    secured.admin("DELETE", "persistent/t/ns/parts/permissions/stranger")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("t/ns/parts")


def test_subscription_roles_and_prefix(connect: Connect, secured: Secured) -> None:
    secured.admin("PUT", "namespaces/t/strict")
    for role in ("app", "app2"):
        secured.admin("POST", f"namespaces/t/strict/permissions/{role}", ["consume", "produce"])
    app, app2 = (connect(pulsar.AuthenticationToken(token(role))) for role in ("app", "app2"))
    secured.admin("POST", "namespaces/t/strict/permissions/subscription/reserved", ["app2"])
    with pytest.raises(pulsar.AuthorizationError):
        app.subscribe("t/strict/x", "reserved")
    app2.subscribe("t/strict/x", "reserved").close()
    secured.admin("POST", "namespaces/t/strict/subscriptionAuthMode", "Prefix")
    for name in ("free", "app2-sub", "application"):
        with pytest.raises(pulsar.AuthorizationError):
            app.subscribe("t/strict/x", name)
    app.subscribe("t/strict/x", "app-sub").close()
    # what a producer makes on the way takes the same right
    policy = pulsar.ConsumerDeadLetterPolicy(1, "t/strict/dlq", "free")
    dead = app.subscribe("t/strict/x", "app-dead", dead_letter_policy=policy, consumer_type=pulsar.ConsumerType.Shared)
    dead.close()


def test_a_token_is_refreshed_while_the_connection_lives(connect: Connect, secured: Secured) -> None:
    made = []

    def supplier() -> str:
        made.append(token("tenant-admin", lifetime_s=3))
        return made[-1]

    producer = connect(pulsar.AuthenticationToken(supplier)).create_producer("t/ns/refreshed")
    opened = secured.process.log().count("client authenticated")
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline:
        producer.send(b"x")
        time.sleep(0.2)
    assert len(made) > 2
    assert secured.process.log().count("client authenticated") == opened, "it was connected again instead"
