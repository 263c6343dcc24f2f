"""Whole clusters that replicate to each other: one real `magnetar standalone` process each, and the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pulsar

from magnetar.testing.server import ServerProcess
from tests.support.waiting import wait_until

NAMESPACE = "public/geo"

FAST: Mapping[str, object] = {}


class Region:
    """A cluster called `name`. `address` is where it says that it is: other clusters' connections go through a proxy there, if any."""

    def __init__(self, name: str, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self.name = name
        self.server = ServerProcess(directory / name, {"clusterName": name, **(settings or {})})
        self._client: pulsar.Client | None = None

    def start(self) -> Region:
        self.server.start()
        return self

    @property
    def running(self) -> bool:
        return self.server.running

    def admin(self, method: str, path: str, body: object = None, expected: Sequence[int] = (200, 204)) -> Any:
        """`path` below /admin/v2/; the answer's JSON, None without any."""
        connection = HTTPConnection("127.0.0.1", self.server.http_port, timeout=30)
        try:
            text = json.dumps(body) if body is not None else None
            connection.request(method, f"/admin/v2/{path}", text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        assert response.status in expected, f"{self.name}: {method} {path}: {response.status} {answer}"
        return json.loads(answer) if answer and response.status < 300 else None

    @property
    def client(self) -> pulsar.Client:
        if self._client is None:
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            self._client = pulsar.Client(f"pulsar://127.0.0.1:{self.server.port}", logger=quiet)
        return self._client

    def record(self) -> dict[str, str]:
        """As other clusters know it."""
        return {"serviceUrl": self.server.http_url, "brokerServiceUrl": self.server.service_url}

    def know(self, *others: Region) -> None:
        """Register the others here."""
        for other in others:
            known = self.admin("GET", f"clusters/{other.name}", expected=(200, 404))
            self.admin("POST" if known is not None else "PUT", f"clusters/{other.name}", other.record())

    def replicate(self, *clusters: str, namespace: str = NAMESPACE) -> None:
        """The namespace's clusters from now on; the namespace is made when it is missing."""
        names = sorted({self.name, *clusters})
        tenant = f"tenants/{namespace.split('/')[0]}"
        known = set(self.admin("GET", "clusters"))
        allowed = {*names, *self.admin("GET", tenant)["allowedClusters"]} & known
        self.admin("POST", tenant, {"adminRoles": [], "allowedClusters": sorted(allowed)})
        self.admin("PUT", f"namespaces/{namespace}", expected=(204, 409))
        self.admin("POST", f"namespaces/{namespace}/replication", names)

    def stats(self, topic: str) -> dict[str, Any]:
        """Of a persistent topic, tenant/namespace/name."""
        found: dict[str, Any] = self.admin("GET", f"persistent/{topic}/stats")
        return found

    def wait_connected(self, topic: str, *clusters: str, timeout_s: float = 60.0) -> None:
        """Until the topic's replicators to these clusters are connected."""

        def connected() -> bool:
            replication = self.stats(topic)["replication"]
            return all(replication.get(name, {}).get("connected") for name in clusters)

        wait_until(connected, timeout_s, f"replicators of {topic} from {self.name} to {clusters}")

    def wait_drained(self, topic: str, *clusters: str, timeout_s: float = 60.0) -> None:
        """Until nothing waits to be sent to these clusters."""

        def drained() -> bool:
            replication = self.stats(topic)["replication"]
            return all(name in replication and not replication[name]["replicationBacklog"] for name in clusters)

        wait_until(drained, timeout_s, f"the backlog of {topic} from {self.name} to {clusters}")

    def disconnect_client(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        try:
            self.disconnect_client()
        finally:
            self.server.close()


@contextmanager
def regions(directory: Path, *names: str, settings: Mapping[str, object] | None = None) -> Iterator[list[Region]]:
    """Clusters that know each other and replicate `NAMESPACE` among all of them."""
    all_of_them = [Region(name, directory, {**FAST, **(settings or {})}) for name in names]
    try:
        for region in all_of_them:
            region.server.spawn()
        for region in all_of_them:
            region.server.wait_ready()
        mesh(all_of_them)
        yield all_of_them
    finally:
        for region in all_of_them:
            region.close()


def mesh(all_of_them: Sequence[Region], namespace: str = NAMESPACE) -> None:
    for region in all_of_them:
        others = [other for other in all_of_them if other is not region]
        region.know(*others)
        region.replicate(*(other.name for other in others), namespace=namespace)


def read_all(region: Region, topic: str, timeout_s: float = 60.0) -> list[pulsar.Message]:
    """Everything that the topic holds, in order."""
    reader = region.client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(timeout_millis=int(timeout_s * 1000)))
    reader.close()
    return found


def receive(consumer: pulsar.Consumer, count: int, timeout_s: float = 60.0) -> list[pulsar.Message]:
    """So many messages, acknowledged. Fails when one of them takes longer than `timeout_s`."""
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=int(timeout_s * 1000))
        consumer.acknowledge(message)
        found.append(message)
    return found


def nothing_more(consumer: pulsar.Consumer, for_s: float = 1.0) -> bool:
    """No message arrives for a while."""
    try:
        message = consumer.receive(timeout_millis=int(for_s * 1000))
    except pulsar.Timeout:
        return True
    raise AssertionError(f"not expected: {message.data()!r} {message.properties()}")
