"""Regions: the clusters that there are, and of a topic its replicators and its replicated subscriptions as lanes between them."""

from __future__ import annotations

from typing import Any

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.pages.topics import partitions_of, stats_of, topic_crumbs
from magnetar.admin.console.visit import Visit, path_of, topic_path

PARTITIONS_SHOWN = 20
SUBSCRIPTIONS_SHOWN = 50


async def regions(visit: Visit) -> Page:
    names = await visit.get("/clusters")
    rows = [{"name": name, "data": await visit.maybe(path_of("clusters", name))} for name in names]
    return Page("regions.html", "Regions", {"rows": rows})


async def of_topic(visit: Visit) -> Page:
    name = visit.topic
    partitions = await partitions_of(visit, name)
    stats = await stats_of(visit, name, partitions)
    found = await visit.maybe(topic_path(name, "replicatedSubscriptions")) if name.persistent else None
    parts: list[dict[str, Any]] = []
    for status in (found or [])[:PARTITIONS_SHOWN]:
        internal = None
        if not partitions:
            internal = await visit.maybe(topic_path(name, "internalStats"))
        parts.append(
            {
                **status,
                "ledgers": internal["ledgers"] if internal else [],
                "last": internal["lastConfirmedEntry"] if internal else "",
                "subscriptions": status["subscriptions"][:SUBSCRIPTIONS_SHOWN],
            }
        )
    values = {"topic": name, "partitions": partitions, "replicators": stats.get("replication") or {}, "parts": parts}
    return Page("topic_regions.html", f"Regions of {name.local_name}", values, topic_crumbs(visit, name))


PAGES = (
    page("GET", "/regions", regions),
    page("GET", "/topics/{domain}/{tenant}/{namespace}/{topic}/regions", of_topic),
)
