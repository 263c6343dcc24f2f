"""What tools poll of a broker: its topics, its load, its metrics as JSON."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from starlette.responses import Response

from magnetar import __version__
from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents import AllocatorStats, LoadReport, Metrics
from magnetar.admin.errors import NotFoundError
from magnetar.admin.metrics.exposition import exposition
from magnetar.admin.operation import documented
from magnetar.admin.routes.paths import ADMIN
from magnetar.admin.routing import Route
from magnetar.admin.topic_documents import TopicStats
from magnetar.broker.topics.persistent import PersistentTopic

STATS = f"{ADMIN}/broker-stats"

ALLOCATORS = ("default", "ml-cache")
"""Pulsar's names."""

_MIB = 1024 * 1024


@documented(answer=dict[str, dict[str, dict[str, dict[str, TopicStats]]]])
async def topics(call: Call) -> Response:
    """Stats of all loaded topics by namespace, bundle and domain."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for topic in call.broker.topics.loaded:
        name = topic.name
        bundle = (await call.broker.ownership.bundle_of(name)).range
        bundles = found.setdefault(str(name.namespace_name), {}).setdefault(bundle, {})
        bundles.setdefault(name.domain, {})[str(name)] = dict(topic.stats())
    return as_json(found)


@documented(answer=list[Metrics])
async def metrics(call: Call) -> Response:
    """The numbers of `/metrics`, gathered by what they are about."""
    from prometheus_client.parser import text_string_to_metric_families  # as late as in `metrics.exposition`

    text = "".join([part async for part in exposition(call.admin)])
    gathered: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            about = tuple(sorted(sample.labels.items()))
            if sample.value == sample.value and abs(sample.value) != float("inf"):
                gathered.setdefault(about, {})[sample.name] = sample.value
    return as_json([{"metrics": values, "dimensions": dict(about)} for about, values in gathered.items()])


@documented(answer=list[Any])
async def mbeans(call: Call) -> Response:
    """Of Java's management interface; empty, there is no JVM here."""
    return as_json([])


@documented(answer=AllocatorStats)
async def allocator(call: Call) -> Response:
    """Of Netty's allocators; there are none here."""
    if call.params["allocator"] not in ALLOCATORS:
        raise NotFoundError(f"the allocators are {', '.join(ALLOCATORS)}")
    numbers = ("numDirectArenas", "numHeapArenas", "numThreadLocalCaches", "normalCacheSize", "smallCacheSize")
    return as_json({**dict.fromkeys(numbers, 0), "directArenas": [], "heapArenas": []})


@documented(answer=LoadReport)
async def load_report(call: Call) -> Response:
    """Load of this machine and process, and what the broker serves. CPU in percent of one core, memory in MiB."""
    broker = call.broker
    config, loaded = broker.config, broker.topics.loaded
    cores = os.cpu_count() or 1
    documents: list[dict[str, Any]] = [dict(topic.stats()) for topic in loaded]
    persistent = [topic for topic in loaded if isinstance(topic, PersistentTopic)]
    return as_json(
        {
            "webServiceUrl": config.web_service_url,
            "webServiceUrlTls": config.web_service_url_tls,
            "pulsarServiceUrl": config.service_url,
            "pulsarServiceUrlTls": config.service_url_tls,
            "brokerVersionString": __version__,
            "loadReportType": "LocalBrokerData",
            "lastUpdate": broker.clock.now_ms(),
            "startTimestamp": broker.started_ms,
            "cpu": {"usage": min(os.getloadavg()[0], cores) * 100, "limit": cores * 100},
            "memory": {"usage": _resident_bytes() / _MIB, "limit": _physical_bytes() / _MIB},
            **{
                name: sum(document.get(name, 0.0) for document in documents)
                for name in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
            },
            "numTopics": len(loaded),
            "numBundles": len(broker.ownership.owned_bundles),
            "numConsumers": sum(topic.subscriptions.consumers_count for topic in persistent),
            "numProducers": sum(len(topic.publishers.producers) for topic in loaded),
            "bundles": broker.ownership.owned_bundles,
        }
    )


def _resident_bytes() -> int:
    """The most that this process has held in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@documented(answer=dict[str, Any])
async def availability(call: Call) -> Response:
    """Pulsar's modular load manager keeps no such units either: empty."""
    await call.broker.namespaces.policies(call.namespace)
    return as_json({})


ROUTES = (
    Route("GET", f"{STATS}/topics", topics),
    Route("GET", f"{STATS}/metrics", metrics),
    Route("GET", f"{STATS}/mbeans", mbeans),
    Route("GET", f"{STATS}/load-report", load_report),
    Route("GET", f"{STATS}/allocator-stats/{{allocator}}", allocator),
    Route("GET", f"{STATS}/broker-resource-availability/{{tenant}}/{{namespace}}", availability),
)
