"""The policies in effect, and the level that each comes from."""

from __future__ import annotations

import json
from typing import Any

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.pages.namespaces import crumbs_to
from magnetar.admin.console.pages.topics import topic_crumbs
from magnetar.admin.console.visit import Visit, path_of, topic_path


async def of_topic(visit: Visit) -> Page:
    found = await visit.get(topic_path(visit.topic, "policySources"))
    values = {
        "rows": rows(found),
        "topic": visit.topic,
        "namespace": visit.namespace,
        "levels": ("topic", "namespace", "broker"),
    }
    return Page("policies.html", f"Policies of {visit.topic.local_name}", values, topic_crumbs(visit, visit.topic))


async def of_namespace(visit: Visit) -> Page:
    found = await visit.get(path_of("namespaces", *visit.namespace.split("/"), "policySources"))
    values = {"rows": rows(found), "topic": None, "namespace": visit.namespace, "levels": ("namespace", "broker")}
    return Page("policies.html", f"Policies of {visit.namespace}", values, crumbs_to(visit))


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that somebody has set come first."""
    listed = [
        {
            "name": name.replace("_", " "),
            "level": each["level"],
            "value": text(each["effective"]),
            **{level: text(each[level]) for level in ("topic", "namespace", "broker")},
        }
        for name, each in found.items()
    ]
    order = {"topic": 0, "namespace": 1, "broker": 2}
    return sorted(listed, key=lambda row: (order[row["level"]], row["name"]))


def text(value: Any) -> str:
    """`-` for nothing; of objects `name value, name value`."""
    if value is None or value == [] or value == {}:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(text(each) for each in value)
    return json.dumps(value, ensure_ascii=False).strip('"')


PAGES = (
    page("GET", "/topics/{domain}/{tenant}/{namespace}/{topic}/policies", of_topic),
    page("GET", "/tenants/{tenant}/{namespace}/policies", of_namespace),
)
