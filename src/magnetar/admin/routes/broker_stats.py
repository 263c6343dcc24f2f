"""What tools poll of a broker: its topics, its load, its metrics as JSON."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents import AllocatorStats, LoadReport, Metrics
from magnetar.admin.errors import NotFoundError
from magnetar.admin.metrics.exposition import exposition
from magnetar.admin.operation import documented
from magnetar.admin.routes.paths import ADMIN
from magnetar.admin.routing import Route
from magnetar.admin.topic_documents import TopicStats
from magnetar.broker.namespaces.records import broker_fields

STATS = f"{ADMIN}/broker-stats"

ALLOCATORS = ("default", "ml-cache")
"""Pulsar's names."""


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
    """What the broker uses, and what its bundles do. CPU in percent of one core, memory in MiB, bandwidth in kbit/s."""
    broker = call.broker
    report = await broker.load_manager.reporter.current()
    return as_json({**broker_fields(broker.cluster.address), **report})


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
