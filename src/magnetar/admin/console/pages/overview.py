"""The first page: brokers, bookies, rates, backlog, disk, and what needs somebody's attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from magnetar.admin.console.errors import RefusedError
from magnetar.admin.console.page import Page, page
from magnetar.admin.console.visit import Visit

DISK_WARN = 0.8
DISK_ALARM = 0.95
SUMS = (
    "topics",
    "producers",
    "consumers",
    "subscriptions",
    "connections",
    "msgRateIn",
    "msgRateOut",
    "throughputIn",
    "throughputOut",
    "msgBacklog",
    "storageSize",
)


class Alarm(NamedTuple):
    """`level`: `bad` for what stops work, `warn` for what will or may."""

    level: str
    text: str
    fix: str = ""


async def overview(visit: Visit) -> Page:
    try:
        found = await visit.get("/broker-stats/overview")
    except RefusedError as error:
        if error.answer_status != 403:
            raise
        # No superuser: what such a role may see is reached by the name of its tenant.
        return Page("overview_of_role.html", "Overview", {"reason": str(error)})
    brokers = found["brokers"]
    total = {name: sum(broker[name] for broker in brokers) for name in SUMS}
    charts = {name: visit.sample(name, total[name]) for name in ("msgRateIn", "msgRateOut", "msgBacklog")}
    values = {
        "brokers": brokers,
        "bookies": found["bookies"],
        "total": total,
        "charts": charts,
        "alarms": sorted(alarms_of(brokers, found["bookies"])),
        "disks": [
            (broker["broker"], path, used, size) for broker in brokers for path, (used, size) in broker["disks"].items()
        ],
    }
    return Page("overview.html", "Overview", values)


def alarms_of(brokers: list[Mapping[str, Any]], bookies: list[Mapping[str, str]]) -> Iterator[Alarm]:
    """What an operator should know of, with what to do about it."""
    for broker in brokers:
        name = broker["broker"]
        if broker["problem"]:
            yield Alarm("bad", f"{name}: {broker['problem']}")
        if broker["bookieProblem"]:
            yield Alarm("bad", f"{name}: {broker['bookieProblem']}", "Free space on its disk, or look at its log.")
        if broker["damagedEntryLogs"]:
            yield Alarm(
                "bad", f"{name}: {broker['damagedEntryLogs']} damaged entry logs", "Other copies are read instead."
            )
        if broker["blockedSubscriptions"]:
            count = broker["blockedSubscriptions"]
            noun = "subscription gets" if count == 1 else "subscriptions get"
            yield Alarm("warn", f"{name}: {count} {noun} nothing until messages are acknowledged")
        for path, (used, size) in broker["disks"].items():
            if size and used / size > DISK_WARN:
                level = "bad" if used / size > DISK_ALARM else "warn"
                yield Alarm(level, f"{name}: the disk of {path} is {100 * used / size:.0f} % full")
    for bookie in bookies:
        if bookie["state"] == "gone":
            yield Alarm(
                "bad",
                f"bookie {bookie['bookie']} is not there",
                "Start it again, or retire it with `magnetar bookies decommission`.",
            )
        if bookie["state"] == "read-only":
            yield Alarm("warn", f"bookie {bookie['bookie']} is read-only", "Its disk is full, or somebody has said so.")


PAGES = (page("GET", "", overview),)
