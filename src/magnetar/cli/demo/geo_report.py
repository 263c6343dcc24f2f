"""What `magnetar demo geo` says at its end."""

from __future__ import annotations

import click

from magnetar.cli.demo.geo import Outcome
from magnetar.cli.output import emit, print_json


def as_tables(outcome: Outcome) -> None:
    """For people: the consumer's stays, what each failover repeated, the verdict."""
    emit(stays(outcome), as_json=False, title="the consumer's stays")
    click.echo()
    rows = [{"what": name.replace("_", " "), "value": value} for name, value in verdict(outcome).items()]
    emit(rows, as_json=False, title="verdict")


def as_document(outcome: Outcome) -> None:
    """For programs: the same as one JSON document."""
    print_json(verdict(outcome) | {"published_in": outcome.published, "stays": stays(outcome)})


def stays(outcome: Outcome) -> list[dict[str, object]]:
    """`oldest_repeated_s`: how long before the failover the oldest repeated message had been acknowledged."""
    return [
        {
            "cluster": stay.cluster,
            "messages": stay.messages,
            "new": stay.new,
            "repeated": len(stay.repeated),
            "oldest_repeated_s": round(max(stay.repeated, default=0.0), 2),
            "ended": stay.ended,
        }
        for stay in outcome.stays
    ]


def verdict(outcome: Outcome) -> dict[str, object]:
    return {
        "published": sum(outcome.published.values()),
        "consumed": sum(stay.new for stay in outcome.stays),
        "skipped": len(outcome.skipped),
        "repeated": sum(len(stay.repeated) for stay in outcome.stays),
        "snapshot_interval_ms": outcome.interval_ms,
        "seconds": round(outcome.seconds, 1),
    }
