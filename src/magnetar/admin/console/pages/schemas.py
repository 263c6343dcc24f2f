"""The versions of a topic's schema, and what changed from one to the next."""

from __future__ import annotations

import json
from difflib import unified_diff
from typing import Any

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.pages.topics import topic_crumbs
from magnetar.admin.console.visit import Visit, path_of

VERSIONS_SHOWN = 50
DIFF_LINES_MAX = 2_000
CONTEXT_LINES = 3


async def schemas(visit: Visit) -> Page:
    name = visit.topic.partitioned_name
    found = await visit.get(path_of("schemas", name.tenant, name.namespace, name.local_name, "schemas"))
    versions = found["getSchemaResponses"]
    numbers = [each["version"] for each in versions]
    new = _chosen(visit, "new", numbers, -1)
    old = _chosen(visit, "old", numbers, max(-len(numbers), -2))
    texts = {each["version"]: pretty(each) for each in versions if each["version"] in (old, new)}
    values: dict[str, Any] = {
        "topic": visit.topic,
        "versions": list(reversed(versions))[:VERSIONS_SHOWN],
        "count": len(versions),
        "old": old,
        "new": new,
        "latest": texts.get(new, ""),
        "diff": difference(texts[old], texts[new]) if old != new else [],
    }
    return Page("schemas.html", f"Schemas of {name.local_name}", values, topic_crumbs(visit, visit.topic))


def _chosen(visit: Visit, which: str, numbers: list[int], otherwise: int) -> int | None:
    text = visit.query(which)
    if text.isascii() and text.isdigit() and int(text[:18]) in numbers:
        return int(text)
    return numbers[otherwise] if numbers else None


def pretty(schema: dict[str, Any]) -> str:
    """Its definition, laid out where it is JSON, behind its type and properties."""
    head = [f"type: {schema['type']}", *(f"{key}: {value}" for key, value in sorted(schema["properties"].items()))]
    try:
        body = json.dumps(json.loads(schema["data"]), indent=2, ensure_ascii=False)
    except ValueError:
        body = schema["data"]
    return "\n".join([*head, "", *body.splitlines()]).rstrip()


def difference(old: str, new: str) -> list[tuple[str, str]]:
    """(add, del, at or nothing; the line)."""
    kinds = {"+": "add", "-": "del", "@": "at"}
    lines = list(unified_diff(old.splitlines(), new.splitlines(), n=CONTEXT_LINES, lineterm=""))[2:DIFF_LINES_MAX]
    return [(kinds.get(line[:1], ""), line) for line in lines]


PAGES = (page("GET", "/topics/{domain}/{tenant}/{namespace}/{topic}/schemas", schemas),)
