"""The way of a message that was traced."""

from __future__ import annotations

from magnetar.admin.console.page import Page, page
from magnetar.admin.console.visit import Visit, topic_page
from magnetar.broker.naming import TopicName


async def trace(visit: Visit) -> Page:
    topic, asked = visit.query("topic"), visit.query("id")
    found = await visit.get("/trace", **{"topic": topic, "id": asked} if asked else {"topic": topic})
    name = TopicName.parse(topic)
    return Page("traces.html", f"Trace {asked}", {"traces": found}, ((name.local_name, topic_page(name)),))


PAGES = (page("GET", "/trace", trace),)
