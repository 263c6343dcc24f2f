"""`magnetar demo geo`, act by act: three clusters, a producer in each, one consumer that fails over twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.cli.admin.http import request
from magnetar.cli.demo import server
from magnetar.cli.demo.screen import Screen
from magnetar.cli.errors import CommandError

CLUSTERS = ("west", "central", "east")
NAMESPACE = "public/world"
TOPIC = f"persistent://{NAMESPACE}/orders"
PATH = f"persistent/{NAMESPACE}/orders"
SUBSCRIPTION = "billing"

STALL_S = 30.0
"""Without any message for so long the demo ends, and its table says what is missing."""

RESTART_AFTER_S = 2.0
"""How long the cluster that is killed stays away."""

TICK_S = 0.1

CLOSE_TIMEOUT_S = 5.0
"""How long clients may take to close; one of a cluster that is gone goes on trying, and is left to the end of the process."""


@dataclass(slots=True)
class Stay:
    """The consumer's time in one cluster. `repeated`: ages in seconds, at the failover, of acknowledgements that were not heard of."""

    cluster: str
    ended: str = "to the end"
    messages: int = 0
    new: int = 0
    repeated: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened, for the table and for --json."""

    published: dict[str, int]
    stays: list[Stay]
    skipped: list[str]
    interval_ms: int
    seconds: float


class Cluster:
    """One `magnetar standalone`, with one client of its own."""

    def __init__(self, name: str, folder: Path, interval_ms: int) -> None:
        self.name = name
        self._folder = folder / name
        self._folder.mkdir()
        self._settings = (
            f"clusterName={name}",
            f"replicatedSubscriptionsSnapshotFrequencyMillis={interval_ms}",
            "replicatedSubscriptionsSnapshotTimeoutSeconds=5",
        )
        self._ports = (0, 0)
        self._stack = ExitStack()
        self.start()
        self.client = self.connect()

    def start(self) -> None:
        self._stack.__enter__()
        self.serving = self._stack.enter_context(server.running(self._folder, *self._settings, ports=self._ports))
        self._ports = (_port(self.serving.url), _port(self.serving.admin_url))

    def connect(self) -> Any:
        import pulsar

        return pulsar.Client(self.serving.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))

    def kill(self) -> None:
        self.serving.process.kill()
        self._stack.close()

    def admin(self, method: str, path: str, body: object = None) -> Any:
        return request(method, self.serving.admin_url, path, body).json()

    def close(self) -> None:
        self._stack.close()


class Producer:
    """A thread that publishes so many messages, or until `stop`; `stored`: what the cluster has."""

    def __init__(self, cluster: Cluster, rate: int, count: int) -> None:
        self.cluster = cluster
        self.stored: set[str] = set()
        self._pause_s = 1 / rate
        self._count = count
        self._producer = cluster.client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=0)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in range(self._count):
            if self._ending.wait(self._pause_s):
                return
            text = f"{self.cluster.name}-{number}"
            self._producer.send_async(text.encode(), lambda result, _, text=text: self._answered(result, text))

    def _answered(self, result: Any, text: str) -> None:
        if result.name == "Ok":
            self.stored.add(text)

    def stop(self) -> None:
        self.end()
        self._producer.flush()

    def end(self) -> None:
        """No more messages; what is under way is not waited for."""
        self._ending.set()
        self._thread.join()


class Application:
    """Consumes in one cluster at a time. `acknowledged`: when each message was, first."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, float] = {}
        self.stays: list[Stay] = []
        self.closing: list[threading.Thread] = []
        self._client: Any = None

    def begin(self, cluster: Cluster) -> None:
        import pulsar

        self.stays.append(Stay(cluster.name))
        self._left_s = time.monotonic()
        self._client = cluster.connect()
        self._consumer = self._client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            initial_position=pulsar.InitialPosition.Earliest,
            replicate_subscription_state_enabled=True,
        )

    def consume(self, until_s: float) -> None:
        """What comes until then."""
        import pulsar

        stay = self.stays[-1]
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                message = self._consumer.receive(max(1, int(left_s * 1000)))
            except pulsar.Timeout:
                return
            text = message.data().decode()
            stay.messages += 1
            if text in self.acknowledged:
                stay.repeated.append(self._left_s - self.acknowledged[text])
            else:
                stay.new += 1
                self.acknowledged[text] = time.monotonic()
            self._consumer.acknowledge(message)

    def leave(self, how: str) -> None:
        self.stays[-1].ended = how
        self.close()

    def close(self) -> None:
        """Begin to: of a cluster that is gone it takes a while."""
        client, self._client = self._client, None
        if client is not None:
            self.closing.append(_closing(client))


def run(folder: Path, seconds: int, rate: int, interval_ms: int, screen: Screen) -> Outcome:
    """The whole demo in `folder`. Raises CommandError when a server fails."""
    started = time.monotonic()
    with ExitStack() as stack:
        clusters = []
        for name in CLUSTERS:
            clusters.append(Cluster(name, folder, interval_ms))
            stack.callback(clusters[-1].close)
            screen.say(f"{name} ready at {clusters[-1].serving.url}")
        _replicate(clusters)
        screen.say(f"{NAMESPACE} is replicated among {', '.join(CLUSTERS)}; snapshots every {interval_ms} ms")
        application = Application()
        stack.callback(_close, clusters, application)
        producers: list[Producer] = []
        stack.callback(_end, producers)
        producers.extend(Producer(cluster, rate, rate * seconds) for cluster in clusters)
        _act(clusters, application, producers, seconds / 3, screen)
        for producer in producers:
            producer.stop()
        screen.say("producers stopped; the rest arrives")
        published = set[str]().union(*(producer.stored for producer in producers))
        _drain(application, published, screen)
        skipped = sorted(published - application.acknowledged.keys())
        counts = {producer.cluster.name: len(producer.stored) for producer in producers}
    return Outcome(counts, application.stays, skipped, interval_ms, time.monotonic() - started)


def _close(clusters: Sequence[Cluster], application: Application) -> None:
    """While the servers are there still: a process that ends while a client has something to say to it is aborted by the library."""
    application.close()
    until_s = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in [*application.closing, *(_closing(cluster.client) for cluster in clusters)]:
        thread.join(max(0.0, until_s - time.monotonic()))


def _end(producers: Sequence[Producer]) -> None:
    for producer in producers:
        producer.end()


def _closing(client: Any) -> threading.Thread:
    thread = threading.Thread(target=client.close, daemon=True)
    thread.start()
    return thread


def _act(
    clusters: Sequence[Cluster], application: Application, producers: list[Producer], stay_s: float, screen: Screen
) -> None:
    west, central, east = clusters
    application.begin(west)
    screen.say(f"{SUBSCRIPTION} consumes in west")
    _consume_for(application, producers, stay_s, screen)
    application.leave("moved")
    screen.say("the consumer leaves west and goes on in central")
    application.begin(central)
    _consume_for(application, producers, stay_s, screen)
    central.kill()
    application.leave("kill -9 of the cluster")
    screen.say("kill -9 central; the consumer goes on in east")
    application.begin(east)
    _consume_for(application, producers, RESTART_AFTER_S, screen)
    central.start()
    screen.say("central is back")
    _consume_for(application, producers, max(0.0, stay_s - RESTART_AFTER_S), screen)


def _consume_for(application: Application, producers: list[Producer], seconds: float, screen: Screen) -> None:
    until_s = time.monotonic() + seconds
    while (now_s := time.monotonic()) < until_s:
        application.consume(min(until_s, now_s + TICK_S))
        stored = sum(len(producer.stored) for producer in producers)
        screen.update({"published": stored, "consumed": len(application.acknowledged)})


def _drain(application: Application, published: set[str], screen: Screen) -> None:
    """Until every message was seen, or nothing moves any more."""
    last, moved_s = len(application.acknowledged), time.monotonic()
    while not application.acknowledged.keys() >= published and time.monotonic() - moved_s < STALL_S:
        application.consume(time.monotonic() + TICK_S)
        if len(application.acknowledged) != last:
            last, moved_s = len(application.acknowledged), time.monotonic()
        screen.update({"published": len(published), "consumed": last})
    application.consume(time.monotonic() + 1.0)
    application.leave("to the end")


def _replicate(clusters: Sequence[Cluster]) -> None:
    """Each knows the others, and the namespace lives in all."""
    for cluster in clusters:
        for other in clusters:
            record = {"serviceUrl": other.serving.admin_url, "brokerServiceUrl": other.serving.url}
            cluster.admin("POST" if other is cluster else "PUT", f"clusters/{other.name}", record)
        cluster.admin("POST", "tenants/public", {"adminRoles": [], "allowedClusters": list(CLUSTERS)})
        cluster.admin("PUT", f"namespaces/{NAMESPACE}")
        cluster.admin("POST", f"namespaces/{NAMESPACE}/replication", list(CLUSTERS))
    for cluster in clusters:
        cluster.client.create_producer(TOPIC).close()
    deadline_s = time.monotonic() + STALL_S
    for cluster in clusters:
        while not all(link["connected"] for link in cluster.admin("GET", f"{PATH}/stats")["replication"].values()):
            if time.monotonic() > deadline_s:
                raise CommandError(f"{cluster.name} does not reach the other clusters; see its server.log")
            time.sleep(TICK_S)


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])
