"""Two brokers that ask everybody who they are, each other too: with tokens in the clear, and with certificates over TLS.

What one broker asks of another must be let in there, and nobody must get more by asking through another broker.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
import requests

from magnetar.testing.cluster import ClusterProcesses
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand
from tests.support.brokers import STEADY, broker_names
from tests.support.certificates import Authority
from tests.support.raw_client import message
from tests.support.raw_transactions import RawTransactions, TransactionRefused, Txn
from tests.support.tokens import AUDIENCE, SECRET, token

Connect = Callable[..., pulsar.Client]

NAMESPACE = "t/ns"
PARTITIONS = 8
ASSIGN = "pulsar/system/transaction_coordinator_assign-partition-0"

_names = itertools.count()


@dataclass
class Asking:
    """The cluster, and how to reach its brokers as one role or another. `tls`: by certificates over TLS, else by tokens."""

    cluster: ClusterProcesses
    authority: Authority
    tls: bool
    urls: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the broker process's name: service URL and admin URL."""

    def learn_urls(self) -> None:
        for name in broker_names(self.cluster):
            service, web = (url.replace("127.0.0.1", "localhost") for url in self.cluster.broker(name))
            self.urls[name] = service, web
            if self.tls:
                service, web = re.findall(r"serving TLS url=(\S+)", self.cluster.log(name))[-2:]
                self.urls[name] = service, web

    def request(
        self, method: str, url: str, role: str = "root", body: object = None, headers: Mapping[str, str] | None = None
    ) -> requests.Response:
        """Redirects are followed with everything, as Pulsar's clients do it. `role` empty: nobody in particular."""
        shown = {**({"Authorization": f"Bearer {token(role)}"} if role and not self.tls else {}), **(headers or {})}
        options: dict[str, Any] = {"verify": str(self.authority.file)} if self.tls else {}
        if role and self.tls:
            options["cert"] = self.authority.sign(role)
        while True:
            answer = requests.request(
                method, url, json=body, headers=shown, timeout=60, allow_redirects=False, **options
            )
            if answer.status_code != 307:
                return answer
            url = answer.headers["Location"]

    def admin(self, broker: str, method: str, path: str, role: str = "root", body: object = None) -> Any:
        """Asked at one broker, done wherever it has to be."""
        answer = self.request(method, f"{self.urls[broker][1]}/admin/v2/{path}", role, body)
        assert answer.status_code in (200, 204), f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.status_code == 200 and answer.text else None

    def status(self, broker: str, method: str, path: str, role: str, body: object = None) -> int:
        return self.request(method, f"{self.urls[broker][1]}/admin/v2/{path}", role, body).status_code

    def owner(self, topic: str) -> str:
        """The name of the broker process that serves `tenant/namespace/topic`."""
        found = self.request("GET", f"{self.urls[self.names[0]][1]}/lookup/v2/topic/persistent/{topic}").json()
        url = found["brokerUrlTls" if self.tls else "brokerUrl"]
        return next(name for name, (service, _) in self.urls.items() if service == url)

    @property
    def names(self) -> list[str]:
        return list(self.urls)

    def other(self, broker: str) -> str:
        return next(name for name in self.names if name != broker)

    def client(self, connect: Connect, broker: str, role: str) -> pulsar.Client:
        """It knows this one broker; the other it has to be told of."""
        if not self.tls:
            return connect(self.urls[broker][0], authentication=pulsar.AuthenticationToken(token(role)))
        return connect(
            self.urls[broker][0],
            authentication=pulsar.AuthenticationTLS(*self.authority.sign(role)),
            tls_trust_certs_file_path=str(self.authority.file),
            tls_validate_hostname=True,
        )

    def unload(self, through: str, topic: str, to: str) -> None:
        """The topic's bundle goes to another broker; asked for at whichever broker."""
        bundle = self.request("GET", f"{self.urls[through][1]}/lookup/v2/topic/persistent/{topic}/bundle").text
        destination = urlsplit(self.cluster.broker(to)[1]).port
        self.admin(through, "PUT", f"namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker=localhost:{destination}")


def settings(directory: Path, authority: Authority, tls: bool) -> list[str]:
    secret, own = directory / "secret", directory / "broker.token"
    secret.write_bytes(SECRET)
    own.write_text(token("broker"))
    words = {
        "advertisedAddress": "localhost",
        "authenticationEnabled": "true",
        "authenticationProviders": "token,tls",
        "tokenSecretKey": f"file://{secret}",
        "tokenAudience": AUDIENCE,
        "authorizationEnabled": "true",
        "superUserRoles": "root,broker",
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"file://{own}",
    }
    if tls:
        certificate, key = authority.sign("localhost", "server")
        own_certificate, own_key = authority.sign("broker")
        words |= {
            "brokerServicePortTls": "0",
            "webServicePortTls": "0",
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": str(authority.file),
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": str(authority.file),
            "brokerClientAuthenticationPlugin": "tls",
            "brokerClientAuthenticationParameters": f"tlsCertFile:{own_certificate},tlsKeyFile:{own_key}",
        }
    return [f"broker.{key}={value}" for key, value in words.items()]


@pytest.fixture(scope="module", params=["tokens", "tls"])
def asking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    directory, tls = tmp_path_factory.mktemp("asking"), request.param == "tls"
    authority = Authority(directory / "certificates")
    words = settings(directory, authority, tls)
    with ClusterProcesses(directory / "c", bookies=1, brokers=2, settings=[*words, *STEADY]) as cluster:
        found = Asking(cluster, authority, tls)
        found.learn_urls()
        first = found.names[0]
        tenant = {"adminRoles": ["tenant-admin"], "allowedClusters": found.admin(first, "GET", "clusters")}
        found.admin(first, "PUT", "tenants/t", body=tenant)
        found.admin(first, "PUT", f"namespaces/{NAMESPACE}")
        found.admin(first, "POST", f"namespaces/{NAMESPACE}/permissions/app", body=["produce", "consume"])
        yield found
        assert "does not let this one in" not in "".join(cluster.log(name) for name in found.names)


@pytest.fixture
def spread(asking: Asking) -> str:
    """A partitioned topic whose partitions are at both brokers."""
    topic = f"{NAMESPACE}/spread-{next(_names)}"
    asking.admin(asking.names[0], "PUT", f"persistent/{topic}/partitions", body=PARTITIONS)
    parts = [f"{topic}-partition-{number}" for number in range(PARTITIONS)]
    owners = {asking.owner(part) for part in parts}
    if len(owners) == 1:
        asking.unload(asking.names[0], parts[0], asking.other(owners.pop()))
    assert {asking.owner(part) for part in parts} == set(asking.names)
    return topic


def test_lookups_lead_from_either_broker_to_both(asking: Asking, connect: Connect, spread: str) -> None:
    first, second = asking.names
    producer = asking.client(connect, first, "app").create_producer(
        spread, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution, batching_enabled=False
    )
    consumer = asking.client(connect, second, "app").subscribe(
        spread, "s", initial_position=pulsar.InitialPosition.Earliest
    )
    for number in range(32):
        producer.send(str(number).encode())
    assert {int(consumer.receive(30_000).data()) for _ in range(32)} == set(range(32))
    for broker in asking.names:
        with pytest.raises(pulsar.AuthorizationError):
            asking.client(connect, broker, "stranger").create_producer(f"{spread}-partition-0")


def test_what_concerns_partitions_of_both_is_asked_in_the_callers_name(asking: Asking, spread: str) -> None:
    for broker, role in itertools.product(asking.names, ("tenant-admin", "root")):
        name = f"{role}-{broker}"
        asking.admin(broker, "PUT", f"persistent/{spread}/subscription/{name}", role)
        stats = asking.admin(broker, "GET", f"persistent/{spread}/partitioned-stats", role)
        assert len(stats["partitions"]) == PARTITIONS
        assert all(name in part["subscriptions"] for part in stats["partitions"].values())
        assert name in asking.admin(asking.other(broker), "GET", f"persistent/{spread}/subscriptions", "app")
    for broker, role in itertools.product(asking.names, ("stranger", "app")):
        assert asking.status(broker, "DELETE", f"persistent/{spread}/partitions", role) == 403
        assert asking.status(broker, "PUT", f"persistent/{spread}/unload", role) == 403
        assert asking.status(broker, "GET", f"persistent/{spread}/partitioned-stats", "") == 401
    asking.admin(asking.names[1], "PUT", f"persistent/{spread}/unload", "tenant-admin")
    asking.admin(asking.names[0], "DELETE", f"persistent/{spread}/partitions?force=true", "tenant-admin")
    assert not [name for name in asking.admin(asking.names[1], "GET", f"persistent/{NAMESPACE}") if spread in name]


def test_a_superuser_may_ask_for_another_role_and_gets_no_more_than_that_one(asking: Asking, spread: str) -> None:
    url = f"{asking.urls[asking.names[0]][1]}/admin/v2/persistent/{spread}/partitions"
    for role, original, status in (
        ("root", "stranger", 403),
        ("root", "app", 403),
        ("app", "root", 401),
        ("tenant-admin", "root", 401),
    ):
        assert asking.request("DELETE", url, role, headers={"X-Original-Principal": original}).status_code == status
    assert asking.request("GET", url, "root", headers={"X-Original-Principal": "app"}).status_code == 200


def test_bundles_move_when_either_broker_is_asked(asking: Asking, spread: str) -> None:
    part = f"{spread}-partition-0"
    for through in asking.names:
        owner = asking.owner(part)
        asking.unload(through, part, asking.other(owner))
        assert asking.owner(part) == asking.other(owner)
        asking.admin(through, "PUT", f"namespaces/{NAMESPACE}/unload")
        assert asking.status(through, "PUT", f"namespaces/{NAMESPACE}/unload", "tenant-admin") == 403


def test_a_namespace_with_topics_at_both_is_deleted_through_either(asking: Asking, connect: Connect) -> None:
    for broker in asking.names:
        namespace = f"t/gone-{next(_names)}"
        asking.admin(broker, "PUT", f"namespaces/{namespace}", "tenant-admin")
        client = asking.client(connect, broker, "root")
        for number in range(8):
            client.create_producer(f"{namespace}/t{number}").send(b"x")
        client.close()
        asking.admin(asking.other(broker), "POST", f"namespaces/{namespace}/clearBacklog", "tenant-admin")
        asking.admin(asking.other(broker), "DELETE", f"namespaces/{namespace}?force=true", "tenant-admin")
        assert namespace not in asking.admin(broker, "GET", "namespaces/t", "tenant-admin")


def test_load_of_both_is_shown_by_either(asking: Asking) -> None:
    for broker in asking.names:
        assert len(asking.admin(broker, "GET", "brokers")) == 2
        assert len(asking.admin(broker, "GET", "load-balance/brokers")) == 2
        asking.admin(broker, "GET", "load-balance/plan")
        assert asking.admin(broker, "GET", "brokers/leaderBroker")["serviceUrl"]
        assert asking.status(broker, "GET", "load-balance/plan", "tenant-admin") == 403


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_topics_of_both(asking: Asking, connect: Connect, commit: bool) -> None:
    """Its coordinator is at one of them and ends it at the other as the brokers' own role."""
    names = [f"persistent://{_topic_at(asking, owner)}" for owner in asking.names]
    ports = {name: int(asking.cluster.broker(name)[0].rpartition(":")[2]) for name in asking.names}
    coordinator = RawTransactions(ports[asking.owner(ASSIGN)], token=token("app"))
    raws = [RawTransactions(ports[name], token=token("app")) for name in asking.names]
    consumers = []
    for name, raw, broker in zip(names, raws, asking.names, strict=True):
        raw.producer(name)
        client = asking.client(connect, asking.other(broker), "app")
        consumers.append(client.subscribe(name, "output"))
        client.create_producer(name).send(b"plain")
    coordinator.connect_coordinator()
    txn = coordinator.begin()
    coordinator.add_partitions(txn, *names)
    for raw in raws:
        raw.publish_in(txn, b"inside")
    (coordinator.commit if commit else coordinator.abort)(txn)
    for name, consumer in zip(names, consumers, strict=True):
        assert consumer.receive(30_000).data() == b"plain"
        if commit:
            assert consumer.receive(30_000).data() == b"inside"
        stats = asking.admin(asking.names[0], "GET", f"{name.replace('://', '/')}/stats", "app")
        assert stats["ongoingTxnCount"] == 0
    for raw in (coordinator, *raws):
        raw.close()


def _topic_at(asking: Asking, owner: str) -> str:
    """A new topic that this broker serves."""
    while True:
        topic = f"{NAMESPACE}/txn-{next(_names)}"
        if asking.owner(topic) == owner:
            return topic


def test_a_transaction_is_its_owners_at_every_broker(asking: Asking) -> None:
    """Its coordinator is at one broker. At the other, another role that may publish and consume there gets nothing into it.

    One topic is there from the start, so that the coordinator tells its broker; the other moves there in the middle of the
    transaction, so that its broker asks the coordinator.
    """
    home = asking.owner(ASSIGN)
    away = asking.other(home)
    asking.admin(home, "POST", f"namespaces/{NAMESPACE}/permissions/rival", body=["produce", "consume"])
    ports = {name: int(asking.cluster.broker(name)[0].rpartition(":")[2]) for name in asking.names}
    there, moving = (f"persistent://{_topic_at(asking, broker)}" for broker in (away, home))
    coordinator = RawTransactions(ports[home], token=token("app"))
    coordinator.connect_coordinator()
    txn = coordinator.begin()

    for topic, broker in ((there, away), (moving, home)):
        before = RawTransactions(ports[broker], token=token("app"))
        before.producer(topic)
        before.subscribe(topic, "input")
        before.publish(message(b"before"))
        before.receipt()
        coordinator.add_partitions(txn, topic)
        coordinator.add_subscription(txn, topic, "input")
        before.close()
    asking.unload(home, moving.removeprefix("persistent://"), away)
    for topic in (there, moving):
        rival, owner = (RawTransactions(ports[away], token=token(role)) for role in ("rival", "app"))
        for raw in (rival, owner):
            _registered(raw, topic)
            raw.subscribe(topic, "input", permits=0)
        refused = _sent(rival, topic, txn, b"slipped in")
        assert refused.type == BaseCommand.SEND_ERROR
        assert "another role" in refused.send_error.message
        owner.flow(10)
        position = owner.message()[0].message.message_id
        with pytest.raises(TransactionRefused, match="another role"):
            rival.ack_in(txn, position)
        assert _sent(owner, topic, (txn[0], txn[1] + 1_000_000), b"of none").type == BaseCommand.SEND_ERROR
        assert _sent(owner, topic, (77, 1), b"of no coordinator").type == BaseCommand.SEND_ERROR
        assert _sent(owner, topic, txn, b"inside").type == BaseCommand.SEND_RECEIPT
        owner.ack_in(txn, position)
        rival.close()
        owner.close()
    coordinator.commit(txn)
    coordinator.close()
    for topic in (there, moving):
        with RawTransactions(ports[away], token=token("app")) as reader:
            reader.subscribe(topic, "all", permits=10)
            assert [reader.payload() for _ in range(2)] == [b"before", b"inside"]
            assert reader.no_message()
            _registered(reader, topic)
            assert _sent(reader, topic, txn, b"too late").type == BaseCommand.SEND_ERROR
        stats = asking.admin(home, "GET", f"{topic.replace('://', '/')}/stats", "app")
        assert stats["subscriptions"]["input"]["msgBacklog"] == 1


def _registered(raw: RawTransactions, topic: str) -> None:
    answer = raw.producer(topic)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer


def _sent(raw: RawTransactions, topic: str, txn: Txn, payload: bytes) -> BaseCommand:
    """As clients do: a producer that the server closes registers anew and sends again what has no receipt."""
    named = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
    for _ in range(20):
        raw.publish(message(payload, **named), **named)
        answer = raw.expect(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER)[0]
        if answer.type != BaseCommand.CLOSE_PRODUCER:
            return answer
        time.sleep(0.1)
        _registered(raw, topic)
    raise AssertionError("the broker never learns who the transaction belongs to")
