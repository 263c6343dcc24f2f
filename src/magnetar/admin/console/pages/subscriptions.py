"""A subscription: its consumers, Key_Shared as it is now, and skip, reset and clear, each with a preview of what it does."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import urlencode

from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.page import Page, Redirect, page
from magnetar.admin.console.pages.topics import partitions_of, stats_of, topic_crumbs
from magnetar.admin.console.visit import Visit, topic_page, topic_path
from magnetar.broker.naming import TopicName

CONSUMERS_SHOWN = 200
_RANGE = re.compile(r"\[(\d+), (\d+)\]")


async def subscription(visit: Visit) -> Page:
    name, wanted = visit.topic, visit.params["subscription"]
    partitions = await partitions_of(visit, name)
    found = await one(visit, name, wanted, partitions)
    consumers = found["consumers"][:CONSUMERS_SHOWN]
    members = [str(each["consumerName"]) for each in consumers]
    arcs, held = slots_of(consumers)
    draining = {slot: (*who, owner_of(slot, arcs)) for slot, who in held.items()}
    values = {
        "topic": name,
        "subscription": wanted,
        "stats": found,
        "consumers": consumers,
        "members": members,
        "keyed": found["type"] == "Key_Shared" and not partitions,
        "arcs": arcs,
        "shares": {
            member: sum(end + 1 - start for start, end, each in arcs if each == member) / 655.36 for member in members
        },
        "draining": draining,
        "charts": {key: visit.sample(key, found[key]) for key in ("msgBacklog", "msgRateOut", "unackedMessages")},
        "may_act": name.persistent and await visit.may("POST", topic_path(name, "subscription", wanted, "skip_all")),
        "partitions": partitions,
        "address": topic_page(str(name), "subscriptions", wanted),
    }
    return Page("subscription.html", wanted, values, topic_crumbs(visit, name))


async def one(visit: Visit, name: TopicName, wanted: str, partitions: int) -> dict[str, Any]:
    """Its statistics. Raises RefusedError with 404 when the topic has no such subscription."""
    stats = await stats_of(visit, name, partitions)
    found = stats["subscriptions"].get(wanted)
    if found is None:
        raise RefusedError(404, f"{name} has no subscription {wanted}")
    defaults = {"msgDelayed": 0, "unackedMessages": 0, "msgInReplay": 0, "blockedSubscriptionOnUnackedMsgs": False}
    return {**defaults, "keySharedMode": "", **found}


def slots_of(consumers: list[Mapping[str, Any]]) -> tuple[list[tuple[int, int, str]], dict[int, tuple[str, int]]]:
    """Ranges of slots by consumer, ascending; and draining slots with who holds how many entries of them."""
    arcs = [
        (int(start), int(end), str(each["consumerName"]))
        for each in consumers
        for start, end in _RANGE.findall(" ".join(each.get("keyHashRanges") or ()))
    ]
    draining = {
        int(row["hash"]): (str(each["consumerName"]), int(row["unackMsgs"]))
        for each in consumers
        for row in each.get("drainingHashes") or ()
    }
    return sorted(arcs), dict(sorted(draining.items()))


def owner_of(slot: int, arcs: list[tuple[int, int, str]]) -> str:
    """Who gets the keys of a slot once it has drained; empty where nobody does."""
    place = bisect_right(arcs, slot, key=lambda arc: arc[0]) - 1
    return arcs[place][2] if place >= 0 and arcs[place][1] >= slot else ""


# ---- What changes a subscription: the first POST shows what it would do, the second one does it


class _Change(NamedTuple):
    """`path`: the route's end; `body`: its document."""

    sentence: str
    path: tuple[object, ...]
    body: Mapping[str, Any] | None = None
    after: str = ""


async def change(visit: Visit) -> Page | Redirect:
    name, wanted = visit.topic, visit.params["subscription"]
    partitions = await partitions_of(visit, name)
    found = await one(visit, name, wanted, partitions)
    planned = _planned(visit, found)
    route = topic_path(name, "subscription", wanted, *planned.path)
    if visit.form.get("confirm") != "yes":
        if not await visit.may("POST", route):
            raise RefusedError(
                403, f"this role may not change the subscription {wanted}: it needs the right to consume"
            )
        values = {
            "topic": name,
            "subscription": wanted,
            "planned": planned,
            "preview": await _preview(visit, name, wanted, found, partitions),
            "fields": {key: str(value) for key, value in visit.form.items() if key not in ("form_token", "confirm")},
            "back": topic_page(str(name), "subscriptions", wanted),
            "consumers": len(found["consumers"]),
        }
        return Page(
            "confirm.html", f"{visit.params['action'].capitalize()} {wanted}", values, topic_crumbs(visit, name)
        )
    await visit.call("POST", route, body=planned.body)
    text = f"Done: {planned.sentence}"
    return Redirect(topic_page(str(name), "subscriptions", wanted) + "?" + urlencode({"done": text}))


def _planned(visit: Visit, found: Mapping[str, Any]) -> _Change:
    """Raises RefusedError for what the form says wrongly."""
    action, form = visit.params["action"], visit.form
    if action == "clear":
        return _Change("every message that waits now counts as consumed.", ("skip_all",), None, "0 entries")
    if action == "skip":
        count = _number(str(form.get("count", "")), "the number of messages")
        left = max(0, int(found["msgBacklog"]) - count)
        return _Change(
            f"the next {count:,} messages count as consumed.", ("skip", count), None, f"about {left:,} entries"
        )
    if action == "reset":
        if form.get("to") == "message":
            numbers = str(form.get("message", "")).strip().split(":")
            if len(numbers) != 2:
                raise RefusedError(400, "a message is named LEDGER:ENTRY, as in the list of messages")
            ledger, entry = (_number(each, "LEDGER:ENTRY") for each in numbers)
            body = {"ledgerId": ledger, "entryId": entry}
            return _Change(
                f"message {ledger}:{entry} is consumed next.", ("resetcursor",), body, "what lies from there on"
            )
        if form.get("to") == "earliest":
            return _Change(
                "the oldest message that is kept is consumed next.", ("resetcursor", 0), None, "everything kept"
            )
        time_ms = _time_ms(str(form.get("time", "")))
        return _Change(
            f"the first message published at or after {datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC "
            "is consumed next.",
            ("resetcursor", time_ms),
            None,
            "what was published since",
        )
    raise RefusedError(404, f"a subscription can be skipped, reset or cleared; '{action}' is none of these")


def _number(text: str, what: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise RefusedError(400, f"{what} must be a number, not '{text[:40]}'")
    return int(text)


def _time_ms(text: str) -> int:
    """A field of type datetime-local, in UTC."""
    try:
        return int(datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        raise RefusedError(400, f"'{text[:40]}' is not a time like 2026-01-31T12:00") from None


async def _preview(
    visit: Visit, name: TopicName, wanted: str, found: Mapping[str, Any], partitions: int
) -> dict[str, Any]:
    """What waits now, and the first message of it where the reader may see it."""
    shown: dict[str, Any] = {"backlog": found["msgBacklog"], "unacked": found["unackedMessages"], "first": None}
    if not partitions:
        internal = await visit.maybe(topic_path(name, "internalStats"))
        cursor = (internal or {}).get("cursors", {}).get(wanted)
        if cursor is not None:
            ledger, _, entry = str(cursor["markDeletePosition"]).partition(":")
            place = f"{max(0, int(ledger))}:{max(0, int(entry) + 1)}"
            listed = await visit.maybe(topic_path(name, "messages"), **{"from": place, "limit": 1})
            shown["first"] = listed["messages"][0] if listed and listed["messages"] and found["msgBacklog"] else None
    return shown


_SUBSCRIPTION = "/topics/{domain}/{tenant}/{namespace}/{topic}/subscriptions/{subscription}"

PAGES = (
    page("GET", _SUBSCRIPTION, subscription),
    page("POST", _SUBSCRIPTION + "/{action}", change),
)
