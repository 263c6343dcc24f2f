"""A topic: rates, its chain of ledgers with the cursors in it, producers, subscriptions, consumers, partitions."""

from __future__ import annotations

from typing import Any

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.pages.namespaces import crumbs_to
from magnetar.admin.console.visit import Visit, topic_page, topic_path
from magnetar.broker.naming import TopicName

ROWS_SHOWN = 100
"""Producers, subscriptions, consumers or partitions of one page; the text says how many there are."""


async def topic(visit: Visit) -> Page:
    name = visit.topic
    partitions = await partitions_of(visit, name)
    stats = await stats_of(visit, name, partitions)
    charts = {key: visit.sample(key, stats[key]) for key in ("msgRateIn", "msgRateOut", "backlog")}
    internal = None
    if not partitions and name.persistent:
        internal = await visit.maybe(topic_path(name, "internalStats"))
    values = {
        "topic": name,
        "stats": stats,
        "charts": charts,
        "internal": internal,
        "partitions": partitions,
        "parts": [str(name.partition_name(index)) for index in range(min(partitions, ROWS_SHOWN))],
        "publishers": stats["publishers"][:ROWS_SHOWN],
        "subscriptions": sorted(stats["subscriptions"].items())[:ROWS_SHOWN],
        "shown_max": ROWS_SHOWN,
    }
    return Page("topic.html", name.local_name, values, crumbs_to(visit))


async def partitions_of(visit: Visit, name: TopicName) -> int:
    """0 for a topic without partitions."""
    if name.partition >= 0:
        return 0
    found = await visit.maybe(topic_path(name, "partitions"))
    return int(found["partitions"]) if found else 0


async def stats_of(visit: Visit, name: TopicName, partitions: int) -> dict[str, Any]:
    """With the sum of its subscriptions' `backlog`."""
    if partitions:
        stats = await visit.get(topic_path(name, "partitioned-stats"), perPartition=False)
    else:
        stats = await visit.get(topic_path(name, "stats"))
    stats["backlog"] = sum(each["msgBacklog"] for each in stats["subscriptions"].values())
    return dict(stats)


def topic_crumbs(visit: Visit, name: TopicName) -> tuple[tuple[str, str], ...]:
    """The pages above one below a topic."""
    return (*crumbs_to(visit), (name.local_name, topic_page(str(name))))


PAGES = (page("GET", "/topics/{domain}/{tenant}/{namespace}/{topic}", topic),)
