"""Two clusters that ask who one is, over TLS: one shows the other what its record says, the other shows what its own configuration says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests

from tests.support.certificates import Authority
from tests.support.geo import NAMESPACE, Region, receive
from tests.support.tokens import AUDIENCE, SECRET, token
from tests.support.waiting import wait_until


class AskingRegion(Region):
    """A cluster that lets in tokens and certificates; its own admin calls are the superuser's."""

    def __init__(self, name: str, directory: Path, authority: Authority, more: dict[str, object]) -> None:
        secret = directory / "secret"
        secret.write_bytes(SECRET)
        certificate, key = authority.sign("localhost", f"server-{name}")
        settings: dict[str, object] = {
            "advertisedAddress": "localhost",
            "authenticationEnabled": "true",
            "authenticationProviders": "token,tls",
            "tokenSecretKey": f"file://{secret}",
            "tokenAudience": AUDIENCE,
            "authorizationEnabled": "true",
            "superUserRoles": "root",
            "replicatorRoles": "west:from-west,east:from-east",
            "brokerServicePortTls": 0,
            "webServicePortTls": 0,
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": authority.file,
        }
        super().__init__(name, directory, settings | more)

    def admin(self, method: str, path: str, body: object = None, expected: Any = (200, 204)) -> Any:
        answer = requests.request(
            method,
            f"{self.server.http_url}/admin/v2/{path}",
            json=body,
            headers={"Authorization": f"Bearer {token('root')}"},
            timeout=30,
        )
        assert answer.status_code in expected, f"{self.name}: {method} {path}: {answer.status_code} {answer.text}"
        return json.loads(answer.text) if answer.text and answer.status_code < 300 else None

    @property
    def client(self) -> pulsar.Client:
        if self._client is None:
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            own = pulsar.AuthenticationToken(token("root"))
            self._client = pulsar.Client(self.server.service_url, authentication=own, logger=quiet)
        return self._client

    def record(self) -> dict[str, str]:
        """Only addresses over TLS: nothing else may be used."""
        service, web = re.findall(r"serving TLS url=(\S+)", self.server.log())[-2:]
        return {"serviceUrlTls": web, "brokerServiceUrlTls": service}

    @property
    def service_url(self) -> str:
        return self.server.service_url


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AskingRegion, AskingRegion]]:
    """`west` is told in `east`'s record what to show (a token); `east` shows what its own configuration says (a certificate)."""
    directory = tmp_path_factory.mktemp("asking")
    authority = Authority(directory / "certificates")
    certificate, key = authority.sign("from-east")
    own = {
        "brokerClientTlsEnabled": "true",
        "brokerClientTrustCertsFilePath": authority.file,
        "brokerClientAuthenticationPlugin": "tls",
        "brokerClientAuthenticationParameters": f"tlsCertFile:{certificate},tlsKeyFile:{key}",
    }
    west, east = AskingRegion("west", directory, authority, {}), AskingRegion("east", directory, authority, own)
    try:
        for region in (west, east):
            region.server.spawn()
        for region in (west, east):
            region.server.wait_ready()
        east.admin("PUT", "clusters/west", west.record())
        west.admin("PUT", "clusters/east", east.record() | shown(authority, "from-west"))
        for region, other, role in ((west, "east", "from-east"), (east, "west", "from-west")):
            tenant = {"adminRoles": [role], "allowedClusters": ["west", "east"]}
            region.admin("POST", "tenants/public", tenant)
            region.admin("PUT", f"namespaces/{NAMESPACE}")
            region.admin("POST", f"namespaces/{NAMESPACE}/permissions/{role}", ["produce"])
            region.admin("POST", f"namespaces/{NAMESPACE}/replication", sorted([region.name, other]))
        yield west, east
    finally:
        for region in (west, east):
            region.close()


def shown(authority: Authority, role: str) -> dict[str, object]:
    """Of a cluster's record: what to show there."""
    return {
        "brokerClientTlsEnabled": True,
        "brokerClientTrustCertsFilePath": str(authority.file),
        "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "authenticationParameters": f"token:{token(role)}",
    }


def test_topics_partitions_and_schemas_follow_both_ways(pair: tuple[AskingRegion, AskingRegion]) -> None:
    for here, there in (pair, pair[::-1]):
        name = f"{NAMESPACE}/from-{here.name}"
        here.admin("PUT", f"persistent/{name}/partitions", 2)
        producer = here.client.create_producer(
            f"persistent://{name}",
            schema=pulsar.schema.StringSchema(),
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for number in range(20):
            producer.send(str(number))
        for part in range(2):
            here.wait_drained(f"{name}-partition-{part}", there.name)
        assert there.admin("GET", f"persistent/{name}/partitions")["partitions"] == 2
        consumer = there.client.subscribe(f"persistent://{name}", "s", initial_position=pulsar.InitialPosition.Earliest)
        assert {int(message.data()) for message in receive(consumer, 20)} == set(range(20))


def test_a_credential_that_does_not_hold_stops_the_link_until_it_is_replaced(
    pair: tuple[AskingRegion, AskingRegion], tmp_path: Path
) -> None:
    west, east = pair
    name = f"{NAMESPACE}/doubted"
    good = west.admin("GET", "clusters/east")
    assert token("from-west") not in json.dumps(good), "the record shows no credential"
    record = east.record() | {key: good[key] for key in ("brokerClientTlsEnabled", "brokerClientTrustCertsFilePath")}
    plugin = {"authenticationPlugin": "token"}
    west.admin("POST", "clusters/east", record | plugin | {"authenticationParameters": f"token:{token('nobody')}"})
    producer = west.client.create_producer(f"persistent://{name}")
    for number in range(5):
        producer.send(str(number).encode())
    wait_until(lambda: "east" in west.stats(name)["replication"], 60, what="the link is there")
    wait_until(lambda: "nobody" in east.server.log(), 60, what="it has been refused")
    link = west.stats(name)["replication"]["east"]
    assert not link["connected"]
    assert link["replicationBacklog"] == 5
    own = tmp_path / "token"
    own.write_text(token("from-west"))
    west.admin("POST", "clusters/east", record | plugin | {"authenticationParameters": f"file://{own}"})
    west.wait_drained(name, "east")
    consumer = east.client.subscribe(f"persistent://{name}", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [int(message.data()) for message in receive(consumer, 5)] == list(range(5))


def test_a_role_that_may_produce_but_not_replicate_stops_the_link(pair: tuple[AskingRegion, AskingRegion]) -> None:
    """It is refused with what it lacks, which the statistics show; the role of replicatorRoles goes on where it stopped."""
    west, east = pair
    name = f"{NAMESPACE}/not-a-peer"
    east.admin("POST", f"namespaces/{NAMESPACE}/permissions/only-producer", ["produce"])
    good = west.admin("GET", "clusters/east")
    record = east.record() | {key: good[key] for key in ("brokerClientTlsEnabled", "brokerClientTrustCertsFilePath")}
    record["authenticationPlugin"] = "token"
    west.admin("POST", "clusters/east", record | {"authenticationParameters": f"token:{token('only-producer')}"})
    producer = west.client.create_producer(f"persistent://{name}")
    for number in range(5):
        producer.send(str(number).encode())

    def refused() -> bool:
        link = west.stats(name)["replication"].get("east", {})
        return "replicatorRoles" in (link.get("lastError") or "")

    wait_until(refused, 60, what="the link to have been refused")
    assert west.stats(name)["replication"]["east"]["replicationBacklog"] == 5
    west.admin("POST", "clusters/east", record | {"authenticationParameters": f"token:{token('from-west')}"})
    west.wait_drained(name, "east")
    consumer = east.client.subscribe(f"persistent://{name}", "s", initial_position=pulsar.InitialPosition.Earliest)
    assert [int(message.data()) for message in receive(consumer, 5)] == list(range(5))
