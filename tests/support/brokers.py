"""What tests of several brokers ask: who owns a topic, which broker process that is, how to move a bundle."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any

from magnetar.testing.cluster import ClusterProcesses

BROKER = "broker"

STEADY = ("broker.metadataStoreSessionTimeoutMillis=20000", "broker.loadBalancerSheddingEnabled=false")
"""Settings of clusters in which ownership has to stay as a test made it. With the two seconds of a cluster on one machine a broker that
finds no core or no disk for so long has lost its session, and with it its topics; and after a minute the load decides who serves what."""


def get(url: str) -> Any:
    """JSON; redirects are followed."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def send(method: str, url: str, body: object = None) -> int:
    """The status; redirects are followed with method and body, as Pulsar's clients do it."""
    data = None if body is None else json.dumps(body).encode()
    while True:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _opener.open(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            if error.code != 307:
                raise AssertionError(f"{method} {url}: {error.code} {error.read().decode()}") from error
            url = error.headers["Location"]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def broker_names(cluster: ClusterProcesses) -> list[str]:
    return [name for name, status in cluster.status().items() if status.role == BROKER]


def live_broker(cluster: ClusterProcesses) -> str:
    """The admin URL of a broker that runs."""
    name = next(
        name for name, status in cluster.status().items() if status.role == BROKER and status.state == "running"
    )
    return cluster.broker(name)[1]


def owner_of(cluster: ClusterProcesses, topic: str) -> str:
    """The name of the broker process that serves `public/default/<topic>`."""
    found = get(f"{live_broker(cluster)}/lookup/v2/topic/persistent/public/default/{urllib.parse.quote(topic)}")
    return next(name for name in broker_names(cluster) if cluster.broker(name)[0] == found["brokerUrl"])


def spread_out(cluster: ClusterProcesses, topics: list[str]) -> None:
    """Have the topics served by more than one broker, whatever the placement has made of them."""
    owners = {owner_of(cluster, topic) for topic in topics}
    if len(owners) == 1:
        unload(cluster, topics[0], next(name for name in broker_names(cluster) if name not in owners))


def bundle_of(cluster: ClusterProcesses, topic: str) -> str:
    return text(f"{live_broker(cluster)}/lookup/v2/topic/persistent/public/default/{topic}/bundle")


def unload(cluster: ClusterProcesses, topic: str, destination: str = "") -> None:
    """The topic's bundle leaves its broker; `destination`: a broker process's name."""
    query = ""
    if destination:
        query = "?destinationBroker=" + cluster.broker(destination)[1].removeprefix("http://")
    send("PUT", f"{live_broker(cluster)}/admin/v2/namespaces/public/default/{bundle_of(cluster, topic)}/unload{query}")
