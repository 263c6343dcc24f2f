"""`magnetar topics compact`, `compaction-status`, `terminate`: what changes how a topic is kept."""

from __future__ import annotations

import time
from typing import Any

import click

from magnetar.cli.admin_http import admin_url_option, request, topic_path
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, emit_record, json_option

POLL_INTERVAL_S = 0.2


@click.command("compact")
@click.argument("topic")
@admin_url_option
@json_option
def compact_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Begin to compact TOPIC: keep the last message of each key for those who read compacted."""
    request("PUT", admin_url, f"{topic_path(topic)}/compaction")
    emit_done(as_json, compacting=topic)


@click.command("compaction-status")
@click.argument("topic")
@click.option("-w", "--wait-complete", "--wait", "wait", is_flag=True, help="Until it has ended; fails if it did.")
@admin_url_option
@json_option
def status_command(topic: str, wait: bool, admin_url: str, as_json: bool) -> None:
    """NOT_RUN, RUNNING, SUCCESS or ERROR since the server has loaded TOPIC."""
    found = status(topic, admin_url)
    while wait and found["status"] == "RUNNING":
        time.sleep(POLL_INTERVAL_S)
        found = status(topic, admin_url)
    emit_record(found, as_json=as_json, title=topic)
    if wait and found["status"] == "ERROR":
        raise CommandError(f"the compaction of {topic} failed: {found['lastError']}")


def status(topic: str, admin_url: str) -> dict[str, Any]:
    """The server's document: `status` and `lastError`."""
    found = request("GET", admin_url, f"{topic_path(topic)}/compaction").json()
    return {"status": found["status"], "lastError": found.get("lastError") or ""}


@click.command("terminate")
@click.argument("topic")
@admin_url_option
@json_option
def terminate_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Let TOPIC take no more messages, for good. Consumers get what is there. Prints the id of the last message."""
    last = request("POST", admin_url, f"{topic_path(topic)}/terminate").json()
    emit_record({"last message": f"{last['ledgerId']}:{last['entryId']}"}, as_json=as_json, title=topic)
