"""What tools poll of a broker: its topics, its load, its metrics as JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from magnetar.admin.answers import as_json, as_json_in_pieces, compact_json, members
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import AllocatorStats, LoadReport, Metrics
from magnetar.admin.documents.topics import TopicStats
from magnetar.admin.errors import NotFoundError
from magnetar.admin.metrics.exposition import CONTENT_TYPE, exposition, exposition_json
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.records import broker_fields
from magnetar.broker.topics.registry import AnyTopic

STATS = f"{ADMIN}/broker-stats"

ALLOCATORS = ("default", "ml-cache")
"""Pulsar's names."""


@documented(answer=dict[str, dict[str, dict[str, dict[str, TopicStats]]]], heavy=True)
async def topics(call: Call) -> Response:
    """Stats of all loaded topics by namespace, bundle and domain."""
    found: dict[str, dict[str, dict[str, list[AnyTopic]]]] = {}
    for topic in call.broker.topics.loaded:
        name = topic.name
        bundle = (await call.broker.ownership.bundle_of(name)).range
        bundles = found.setdefault(str(name.namespace_name), {}).setdefault(bundle, {})
        bundles.setdefault(name.domain, []).append(topic)
        await call.pace.breathe()

    async def stats(loaded: list[AnyTopic]) -> AsyncIterator[tuple[str, object]]:
        for topic in loaded:
            yield str(topic.name), dict(topic.stats())
            await call.pace.breathe()

    async def pieces() -> AsyncIterator[str]:
        before = "{"
        for namespace, bundles in found.items():
            for place, (bundle, domains) in enumerate(bundles.items()):
                before += f"{compact_json(namespace)}:{{" if place == 0 else ""
                before += f"{compact_json(bundle)}:{{"
                for domain, loaded in domains.items():
                    yield f"{before}{compact_json(domain)}:"
                    async for piece in members(stats(loaded)):
                        yield piece
                    before = ","
                before = "},"
            before = "}},"
        yield before.removesuffix(",") + "}" if found else "{}"

    return as_json_in_pieces(pieces())


@documented(answer=list[Metrics], heavy=True)
async def metrics(call: Call) -> Response:
    """The numbers of `/metrics`, gathered by what they are about."""

    async def pieces() -> AsyncIterator[str]:
        separator = "["
        async for values, about in exposition_json(call.admin, call.pace):
            yield separator + compact_json({"metrics": values, "dimensions": about})
            separator = ","
        yield "]"

    return as_json_in_pieces(pieces())


@documented(answer=list[Any])
async def mbeans(call: Call) -> Response:
    """Java management beans; empty, since there is no JVM."""
    return as_json([])


@documented(answer=AllocatorStats)
async def allocator(call: Call) -> Response:
    """Statistics of Netty's allocators; all zero, since there are none."""
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


@documented("Metrics in Prometheus' text format.", answer=str, media=TEXT, heavy=True)
async def prometheus(call: Call) -> Response:
    return StreamingResponse(exposition(call.admin, call.pace), media_type=CONTENT_TYPE)


ROUTES = (
    Route("GET", f"{STATS}/topics", Access.SUPERUSER, topics),
    Route("GET", f"{STATS}/metrics", Access.SUPERUSER, metrics),
    Route("GET", f"{STATS}/mbeans", Access.SUPERUSER, mbeans),
    Route("GET", f"{STATS}/load-report", Access.SUPERUSER, load_report),
    Route("GET", f"{STATS}/allocator-stats/{{allocator}}", Access.SUPERUSER, allocator),
    Route("GET", f"{STATS}/broker-resource-availability/{{tenant}}/{{namespace}}", Access.SUPERUSER, availability),
    Route("GET", "/metrics", Access.METRICS, prometheus),
)
