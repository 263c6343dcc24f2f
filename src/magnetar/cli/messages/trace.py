"""`magnetar trace`: the way of one message; `magnetar produce --trace` prints the same."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
import msgspec

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.errors import NotFoundError
from magnetar.admin.documents.trace import MessageTrace
from magnetar.cli.admin.common import shown
from magnetar.cli.admin.http import connected
from magnetar.cli.output import emit, print_json

POLL_S = 0.1

TRACES_TOLD_MAX = 50
"""The most that one answer tells."""


@click.command("trace")
@click.argument("trace_id", metavar="TRACE-ID|MESSAGE-ID", required=False)
@click.option("-t", "--topic", required=True, help="Name of the topic, short or complete.")
@shown
def trace_command(trace_id: str | None, topic: str, admin_url: str, as_json: bool) -> None:
    """Print the way of a message that asked for a trace; without an id those of the newest such messages of the topic.

    A message asks by the property magnetar.trace, whose value is the id of its trace: `magnetar produce --trace`, or any client.
    """
    with connected(admin_url) as admin:
        found = admin.traces.get(topic, trace_id)
    show(found, as_json)


def show(traces: Sequence[MessageTrace], as_json: bool) -> None:
    """A table for each, or JSON."""
    if as_json:
        print_json(msgspec.to_builtins(list(traces)))
        return
    if not traces:
        click.echo("no message of the topic asked for a trace of late; a message asks by the property magnetar.trace")
    for trace in traces:
        emit(_rows(trace), as_json=False, title=_title(trace))


def _title(trace: MessageTrace) -> str:
    stored = f"message {trace.message_id}" if trace.message_id else "trace only" if trace.trace_only else "not stored"
    left_out = f"; {trace.events_left_out} events left out" if trace.events_left_out else ""
    return f"trace {trace.trace_id}: {stored} of {trace.topic}, received {trace.received}{left_out}"


def _rows(trace: MessageTrace) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for event in trace.events:
        consumer = f"{event.consumer} ({event.address})" if event.consumer else ""
        where = [event.bookie, event.cluster, event.subscription, consumer]
        rows.append(
            {
                "ms": f"{event.after_ms:.3f}",
                "event": event.event,
                "where": " ".join(each for each in where if each),
                "what": event.text,
            }
        )
    return rows


def await_complete(admin: AdminClient, topic: str, trace_id: str, count: int, wait_s: float) -> list[MessageTrace]:
    """Ask until all subscriptions and clusters are done with `count` messages, or the time is up; what is known then."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            found = admin.traces.get(topic, trace_id)
        except NotFoundError:
            if time.monotonic() >= until_s:
                raise
            found = []
        if (len(found) >= count and all(trace.complete for trace in found)) or time.monotonic() >= until_s:
            return found
        time.sleep(POLL_S)
