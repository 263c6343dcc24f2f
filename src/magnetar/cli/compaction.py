"""`magnetar topics compact`, `compaction-status`, `terminate`: what changes how a topic is kept."""

from __future__ import annotations

import time

import click

from magnetar.cli.admin_http import admin_url_option, connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, emit_record, json_option

POLL_INTERVAL_S = 0.2


@click.command("compact")
@click.argument("topic")
@admin_url_option
@json_option
def compact_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Begin to compact TOPIC: keep the last message of each key for those who read compacted."""
    with connected(admin_url) as admin:
        admin.topics.compact(topic)
    emit_done(as_json, compacting=topic)


@click.command("compaction-status")
@click.argument("topic")
@click.option("-w", "--wait-complete", "--wait", "wait", is_flag=True, help="Until it has ended; fails if it did.")
@admin_url_option
@json_option
def status_command(topic: str, wait: bool, admin_url: str, as_json: bool) -> None:
    """NOT_RUN, RUNNING, SUCCESS or ERROR since the server has loaded TOPIC."""
    with connected(admin_url) as admin:
        found = admin.topics.compaction_status(topic)
        while wait and found.status == "RUNNING":
            time.sleep(POLL_INTERVAL_S)
            found = admin.topics.compaction_status(topic)
    emit_record({"status": found.status, "lastError": found.last_error or ""}, as_json=as_json, title=topic)
    if wait and found.status == "ERROR":
        raise CommandError(f"the compaction of {topic} failed: {found.last_error}")


@click.command("terminate")
@click.argument("topic")
@admin_url_option
@json_option
def terminate_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Let TOPIC take no more messages, for good. Consumers get what is there. Prints the id of the last message."""
    with connected(admin_url) as admin:
        last = admin.topics.terminate(topic)
    emit_record({"last message": f"{last.ledger_id}:{last.entry_id}"}, as_json=as_json, title=topic)
