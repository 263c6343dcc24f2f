"""The page behind every "why?": what `explain` answers, in sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.page import Page, page
from magnetar.admin.console.visit import Visit, path_of, topic_page
from magnetar.broker.naming import TopicName

ASKED = ("topic", "subscription", "producer", "key", "id", "cluster", "pipeline", "view", "ifUnits")
"""What the address may name; it goes to the route as it is."""

FACTS_SHOWN = 50


async def explain(visit: Visit) -> Page:
    kind = visit.params["kind"]
    if not visit.explains(kind):
        raise RefusedError(404, f"this server explains no {kind}")
    query = {name: visit.query(name) for name in ASKED if visit.query(name)}
    found = await visit.get(f"/explain/{kind}", **query)
    subject = (
        query.get("subscription")
        or query.get("producer")
        or query.get("key")
        or query.get("id")
        or query.get("view")
        or kind
    )
    values = {
        "kind": kind,
        "query": query,
        "verdict": found["verdict"],
        "moving": found["moving"],
        "reasons": [
            {**reason, "since": reason.get("since"), "facts": list(flat(reason.get("facts")))[:FACTS_SHOWN]}
            for reason in found["reasons"]
        ],
        "details": list(flat(found.get("details")))[:FACTS_SHOWN],
    }
    return Page("explain.html", f"Why: {subject}", values, _crumbs(query))


def _crumbs(query: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if "pipeline" in query:
        name = query["pipeline"]
        return (("Pipelines", "/console/pipelines"), (name, "/console/pipelines" + path_of(name)))
    topic = query.get("topic", "")
    return ((TopicName.parse(topic).local_name, topic_page(topic)),) if topic else ()


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of a document, `outer.inner` for what is inside of something."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flat(each, f"{name}.{key}" if name else str(key))
    elif value not in (None, [], ""):
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


PAGES = (page("GET", "/explain/{kind}", explain),)
