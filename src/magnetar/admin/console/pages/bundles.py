"""A namespace's bundles over the brokers that serve them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.pages.namespaces import crumbs_to
from magnetar.admin.console.visit import Visit, path_of
from magnetar.hashing.bundles import LAST_BOUNDARY

BUNDLES_SHOWN = 512


async def bundles(visit: Visit) -> Page:
    names = visit.namespace.split("/")
    found = await visit.get(path_of("namespaces", *names, "bundles"))
    owners = await owners_of(visit)
    rows: list[dict[str, Any]] = []
    for low, high in pairwise(found["boundaries"]):
        bundle = f"{low}_{high}"
        rows.append(
            {
                "bundle": bundle,
                "low": int(low, 16),
                "high": int(high, 16),
                "owner": owners.get(f"{visit.namespace}/{bundle}", ""),
            }
        )
    members = sorted({row["owner"] for row in rows if row["owner"]})
    values = {
        "namespace": visit.namespace,
        "rows": rows[:BUNDLES_SHOWN],
        "count": len(rows),
        "members": members,
        "known": owners is not NOT_KNOWN,
        "stretches": [(row["low"], row["high"], row["owner"]) for row in rows],
        "size": LAST_BOUNDARY,
        "shares": {
            member: 100 * sum(row["high"] - row["low"] for row in rows if row["owner"] == member) / LAST_BOUNDARY
            for member in members
        },
    }
    return Page("bundles.html", f"Bundles of {visit.namespace}", values, crumbs_to(visit))


NOT_KNOWN: dict[str, str] = {}
"""Who serves what is for superusers."""


async def owners_of(visit: Visit) -> dict[str, str]:
    """Broker by complete name of the bundle."""
    brokers = await visit.maybe("/load-balance/brokers")
    if brokers is None:
        return NOT_KNOWN
    clusters = await visit.maybe("/clusters") or []
    found: dict[str, str] = {}
    for row in brokers:
        for cluster in clusters:
            owned = await visit.maybe(path_of("brokers", cluster, row["broker"], "ownedNamespaces"))
            if owned is not None:
                found |= dict.fromkeys(owned, row["broker"])
                break
    return found


PAGES = (page("GET", "/tenants/{tenant}/{namespace}/bundles", bundles),)
