"""A topic's messages: a page of them, by position, time or key; and one published by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.page import Page, Redirect, page
from magnetar.admin.console.pages.topics import partitions_of, topic_crumbs
from magnetar.admin.console.visit import Visit, topic_page, topic_path
from magnetar.broker.naming import PERSISTENT

MESSAGES_SHOWN = 20
PARTITIONS_LISTED = 1_000


async def messages(visit: Visit) -> Page:
    name = visit.topic
    partitions = await partitions_of(visit, name)
    values: dict[str, Any] = {
        "topic": name,
        "partitions": partitions,
        "parts": [
            (index, topic_page(str(name.partition_name(index)), "messages"))
            for index in range(min(partitions, PARTITIONS_LISTED))
        ],
        "start": visit.query("from", "latest"),
        "time": visit.query("time"),
        "key": visit.query("key"),
        "page": None,
        "refused": "",
        "next": "",
        "before": "",
        "may_publish": False,
        "schema": "",
    }
    if not partitions:
        values["may_publish"] = await visit.may("POST", topic_path(name, "messages"))
        try:
            values |= await _listed(visit) if name.persistent else {}
        except RefusedError as error:
            if error.answer_status != 403 or not values["may_publish"]:
                raise
            values["refused"] = str(error)
        schema = await visit.maybe(
            "/schemas" + topic_path(name.partitioned_name).removeprefix("/" + PERSISTENT) + "/schema"
        )
        values["schema"] = schema["type"] if schema else ""
    return Page("messages.html", f"Messages of {name.local_name}", values, topic_crumbs(visit, name))


async def _listed(visit: Visit) -> dict[str, Any]:
    name, start, key = visit.topic, visit.query("from", "latest"), visit.query("key")
    query: dict[str, object] = {
        "from": "earliest" if key and not visit.query("from") else start,
        "limit": MESSAGES_SHOWN,
    }
    if key:
        query["key"] = key
    if visit.query("time"):
        query["time"] = time_ms(visit.query("time"))
    found = await visit.get(topic_path(name, "messages"), **query)
    kept = {"key": key} if key else {}
    return {
        "page": found,
        "next": "?" + urlencode({"from": found["next"], **kept}) if found["next"] else "",
        "before": "?" + urlencode({"from": found["previous"], **kept}) if found["previous"] else "",
    }


def time_ms(text: str) -> int:
    """A field of type datetime-local, in UTC. Raises RefusedError."""
    try:
        return max(0, int(datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise RefusedError(400, f"'{text[:40]}' is not a time like 2026-01-31T12:00") from None


async def publish(visit: Visit) -> Redirect:
    name, form = visit.topic, visit.form
    body = {
        "payload": str(form.get("payload", "")),
        "key": str(form.get("key", "")) or None,
        "properties": _properties(str(form.get("properties", ""))),
        "bySchema": form.get("by_schema") == "yes",
    }
    found = await visit.call("POST", topic_path(name, "messages"), body=body)
    place = f"{found['ledgerId']}:{found['entryId']}"
    text = f"Published as {place}." if found["entryId"] >= 0 else "Published to those who are connected."
    return Redirect(topic_page(str(name), "messages") + "?" + urlencode({"from": "latest", "done": text}))


def _properties(text: str) -> dict[str, str]:
    """A line each, `name=value`. Raises RefusedError."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and not equals:
            raise RefusedError(400, f"a property is a line NAME=VALUE; '{line[:40]}' has no =")
        if line.strip():
            found[name.strip()] = value
    return found


_MESSAGES = "/topics/{domain}/{tenant}/{namespace}/{topic}/messages"

PAGES = (page("GET", _MESSAGES, messages), page("POST", _MESSAGES, publish))
