"""Replicated subscriptions of a scalable topic between clusters of two brokers each, which ask who one is: what one cluster asks of another
arrives at a broker that does not control the topic, and leads to segments at both."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from magnetar.admin.client import AdminClient
from magnetar.client.scalable import Client
from magnetar.client.scalable.consumers import QueueConsumer
from magnetar.testing.cluster import ClusterProcesses
from tests.support.brokers import STEADY, broker_names
from tests.support.tokens import AUDIENCE, SECRET, token
from tests.support.waiting import wait_until

NAMESPACE = "t/ns"
TOPIC = f"topic://{NAMESPACE}/shared"
KEYS = [f"key-{number}" for number in range(16)]


@dataclass
class Cluster:
    """`controlling` makes the topic, so it controls it; `asked` is the broker that the other cluster knows."""

    name: str
    processes: ClusterProcesses
    controlling: str = ""
    asked: str = ""

    def learn_brokers(self) -> None:
        self.controlling, self.asked = broker_names(self.processes)

    def url(self, broker: str) -> str:
        return self.processes.broker(broker)[1]

    def request(
        self, method: str, path: str, body: object = None, role: str = "root", broker: str = ""
    ) -> requests.Response:
        """At the broker that the other cluster knows; redirects are followed."""
        url = f"{self.url(broker or self.asked)}/admin/v2/{path}"
        shown = {"Authorization": f"Bearer {token(role)}"}
        while True:
            answer = requests.request(method, url, json=body, headers=shown, timeout=60, allow_redirects=False)
            if answer.status_code != 307:
                return answer
            url = answer.headers["Location"]

    def do(self, method: str, path: str, body: object = None) -> Any:
        answer = self.request(method, path, body)
        assert answer.status_code in (200, 204), f"{self.name}: {method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.text else None

    def admin(self) -> AdminClient:
        return AdminClient(self.url(self.controlling), token=token("root"))

    def client(self) -> Client:
        return Client(self.processes.service_urls, token=token("app"))

    def backlog(self) -> int | None:
        """None while the subscription is not in every segment."""
        with self.admin() as admin:
            found = [
                admin.scalable_topics.segment_stats(TOPIC, int(each)).backlog
                for each in admin.scalable_topics.metadata(TOPIC).segments
            ]
        return sum(each["s"] for each in found) if all("s" in each for each in found) else None


def settings(directory: Path, name: str) -> list[str]:
    secret, own = directory / "secret", directory / f"{name}.token"
    secret.write_bytes(SECRET)
    own.write_text(token("broker"))
    words = {
        "clusterName": name,
        "authenticationEnabled": "true",
        "authenticationProviders": "token",
        "tokenSecretKey": f"file://{secret}",
        "tokenAudience": AUDIENCE,
        "authorizationEnabled": "true",
        "superUserRoles": "root,broker",
        "replicatorRoles": "west:from-west,east:from-east",
        "brokerClientAuthenticationPlugin": "token",
        "brokerClientAuthenticationParameters": f"file://{own}",
        "loadBalancerEnabled": "false",
        "scalableTopicAutoScaleEnabled": "false",
        "replicatedSubscriptionsSnapshotFrequencyMillis": "250",
    }
    return [*(f"broker.{key}={value}" for key, value in words.items()), *STEADY]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[list[Cluster]]:
    found = [
        Cluster(name, ClusterProcesses(tmp_path / name, bookies=1, brokers=2, settings=settings(tmp_path, name)))
        for name in ("west", "east")
    ]
    try:
        for each in found:
            each.processes.start()
            each.learn_brokers()
        for here, there in (found, found[::-1]):
            introduce(here, there)
        for each, segments in zip(found, (3, 5), strict=True):
            with each.admin() as admin:  # before the other one makes it here
                admin.scalable_topics.create(TOPIC, segments)
        for each in found:
            each.do("POST", f"namespaces/{NAMESPACE}/replication", ["east", "west"])
        yield found
    finally:
        for each in found:
            each.processes.close()


def introduce(here: Cluster, there: Cluster) -> None:
    service_url, http_url = there.processes.broker(there.asked)
    shown = {"authenticationPlugin": "token", "authenticationParameters": f"token:{token(f'from-{here.name}')}"}
    here.do("PUT", f"clusters/{there.name}", {"serviceUrl": http_url, "brokerServiceUrl": service_url, **shown})
    here.do("PUT", "tenants/t", {"adminRoles": [], "allowedClusters": ["east", "west"]})
    here.do("PUT", f"namespaces/{NAMESPACE}", {"bundles": {"numBundles": 16}})
    here.do("POST", f"namespaces/{NAMESPACE}/permissions/app", ["produce", "consume"])
    here.do("POST", f"namespaces/{NAMESPACE}/permissions/from-{there.name}", ["produce"])


async def send(cluster: Cluster, numbers: range) -> None:
    async with cluster.client() as client:
        producer = await client.producer(TOPIC, batching=False)  # an entry each, which is what a backlog counts
        await asyncio.gather(*(producer.send(b"%d" % number, key=key) for number in numbers for key in KEYS))


async def consume(cluster: Cluster, count: int) -> set[tuple[str, int]]:
    """So many messages, each acknowledged."""
    async with cluster.client() as client:
        consumer = await client.queue_consumer(TOPIC, "s", earliest=True, replicated=True)
        return {await received(consumer) for _ in range(count)}


async def received(consumer: QueueConsumer) -> tuple[str, int]:
    message = await consumer.receive(timeout_s=60)
    await consumer.acknowledge(message)
    return message.key or "", int(message.value or b"")


@pytest.mark.timeout(900)
def test_a_place_follows_through_brokers_that_do_not_control_the_topic(clusters: list[Cluster]) -> None:
    west, east = clusters
    for each in clusters:
        with each.admin() as admin:
            segments = [found.name for found in admin.scalable_topics.stats(TOPIC).segments.values()]
        paths = [f"segments/{name.removeprefix('segment://')}/broker" for name in segments]
        assert len({each.request("GET", path).json() for path in paths}) == 2, "segments are at both brokers"

    asyncio.run(send(west, range(5)))
    assert asyncio.run(consume(west, 5 * len(KEYS))) == set(itertools.product(KEYS, range(5)))
    wait_until(lambda: east.backlog() == 0, 120, "the subscription has followed")
    asyncio.run(send(east, range(5, 8)))
    wait_until(lambda: west.backlog() == 3 * len(KEYS), 120, "what is written there has arrived here")
    assert asyncio.run(consume(east, 3 * len(KEYS))) == set(itertools.product(KEYS, range(5, 8)))
    wait_until(lambda: west.backlog() == 0, 120, "and it follows back")

    path = f"scalable/{NAMESPACE}/shared/clusters/west"
    places = east.request("POST", f"{path}/places", role="from-west").json()["places"]
    assert len(places) == 5
    for role, status in (("app", 403), ("from-west", 204)):
        answer = east.request("POST", f"{path}/subscriptions/s?type=QUEUE", places, role)
        assert answer.status_code == status, (role, answer.text)
    assert east.request("POST", f"{path}/places", role="app").status_code == 403

    # the other broker takes over, in the cluster that asks and in the one that is asked
    for each in clusters:
        each.processes.stop(each.controlling)
        each.controlling = each.asked
    asyncio.run(send(west, range(8, 10)))
    assert asyncio.run(consume(west, 2 * len(KEYS))) == set(itertools.product(KEYS, range(8, 10)))
    wait_until(lambda: east.backlog() == 0, 180, "the subscription has followed once more")
    assert not [name for name in broker_names(west.processes) if "does not let this one in" in west.processes.log(name)]
