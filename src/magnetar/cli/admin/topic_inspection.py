"""`magnetar topics`: what topics say about themselves, and their single messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import click

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.errors import AdminClientError
from magnetar.admin.documents.topics import MessageId
from magnetar.cli.admin.common import MESSAGE_ID, accepted, common, show_document, show_value, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.admin.peek import messages_of
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_record, print_json

F = TypeVar("F", bound=Callable[..., Any])

SUBSCRIPTION_COLUMNS = {
    "type": "type",
    "backlog": "msgBacklog",
    "unacked": "unackedMessages",
    "msg_rate_out": "msgRateOut",
}


def _switches(function: F) -> F:
    """Parts of the statistics that cost more than the others."""
    for option in (
        click.option(
            "-etb",
            "--get-earliest-time-in-backlog",
            "earliest",
            is_flag=True,
            help="Include the publish time of the oldest message of each backlog.",
        ),
        click.option(
            "-sbs", "--get-subscription-backlog-size", "sizes", is_flag=True, help="Include the size of each backlog."
        ),
        accepted("-gpb", "--get-precise-backlog", is_flag=True, help="Backlogs are always precise."),
    ):
        function = option(function)
    return function


@click.command("stats")
@click.argument("topic")
@_switches
@click.option(
    "--partitioned",
    is_flag=True,
    help="TOPIC is a partitioned topic: show the sum over its partitions. [default: detected]",
)
@shown
def stats_command(topic: str, partitioned: bool, sizes: bool, earliest: bool, admin_url: str, as_json: bool) -> None:
    """Show rates, sizes, producers and subscriptions of TOPIC; --json prints Pulsar's complete document."""
    with connected(admin_url) as admin:
        partitioned = partitioned or admin.topics.partitions(topic).partitions > 0
    show_stats(topic, partitioned, True, switches(sizes, earliest), admin_url, as_json)


@click.command("partitioned-stats")
@click.argument("topic")
@click.option("--per-partition", is_flag=True, help="Include the statistics of each partition (with --json).")
@_switches
@shown
def partitioned_stats_command(
    topic: str, per_partition: bool, sizes: bool, earliest: bool, admin_url: str, as_json: bool
) -> None:
    """Show the statistics of TOPIC, summed over its partitions."""
    show_stats(topic, True, per_partition, switches(sizes, earliest), admin_url, as_json)


def switches(sizes: bool, earliest: bool) -> dict[str, object]:
    """The query of a request for statistics."""
    return {"subscriptionBacklogSize": sizes or None, "getEarliestTimeInBacklog": earliest or None}


def show_stats(
    topic: str, partitioned: bool, per_partition: bool, query: dict[str, object], admin_url: str, as_json: bool
) -> None:
    """The whole document as JSON, or the lines that are looked at first."""
    from magnetar.admin.client.noun import ADMIN, TOPIC, topic_names

    leaf, more = ("/partitioned-stats", {"perPartition": per_partition}) if partitioned else ("/stats", {})
    with connected(admin_url) as admin:
        document = admin.call("GET", ADMIN + TOPIC + leaf, topic_names(topic), {**query, **more}).json()
        causes = {} if as_json or partitioned else standing_still(admin, topic)
    if as_json:
        print_json(document)
        return
    emit_record(summary(document), as_json=False, title=topic)
    subscriptions = document.get("subscriptions") or {}
    if subscriptions:
        click.echo()
        rows = [subscription_row(name, subscriptions[name], causes) for name in sorted(subscriptions)]
        emit(rows, as_json=False, title="subscriptions")
        consumers = [
            consumer_row(name, each)
            for name in sorted(subscriptions)
            for each in subscriptions[name].get("consumers") or ()
        ]
        if consumers:
            click.echo()
            emit(consumers, as_json=False, title="consumers")


def standing_still(admin: AdminClient, topic: str) -> dict[str, str]:
    """By subscription the code of what it stands still for; nothing from a server that does not explain, such as Apache Pulsar's."""
    try:
        rows = admin.explain.topic(topic).details.get("subscriptions", [])
    except AdminClientError:
        return {}
    return {row["subscription"]: row["cause"] for row in rows if row["moving"] is False and row["cause"]}


def summary(document: dict[str, Any]) -> dict[str, object]:
    """The lines of a topic's stats that are looked at first."""
    return {
        "producers": len(document.get("publishers") or ()),
        "subscriptions": len(document.get("subscriptions") or ()),
        "messages in": document.get("msgInCounter", 0),
        "bytes in": document.get("bytesInCounter", 0),
        "messages/s in": document.get("msgRateIn", 0.0),
        "messages/s out": document.get("msgRateOut", 0.0),
        "stored bytes": document.get("storageSize", 0),
        "backlog bytes": document.get("backlogSize", 0),
    }


def subscription_row(name: str, stats: dict[str, Any], causes: Mapping[str, str]) -> dict[str, object]:
    """`stands still`: the code of the cause; `magnetar explain subscription` says more."""
    row: dict[str, object] = {"subscription": name, "consumers": len(stats.get("consumers") or ())}
    row |= {title: stats.get(field) for title, field in SUBSCRIPTION_COLUMNS.items()}
    return row | {"stands still": causes.get(name, "")}


def consumer_row(subscription: str, stats: dict[str, Any]) -> dict[str, object]:
    return {
        "subscription": subscription,
        "consumer": stats.get("consumerName"),
        "address": stats.get("address"),
        "permits": stats.get("availablePermits"),
        "unacked": stats.get("unackedMessages"),
        "blocked": stats.get("blockedConsumerOnUnackedMsgs"),
        "msg_rate_out": stats.get("msgRateOut"),
    }


@click.command("stats-internal")
@click.argument("topic")
@accepted("-m", "--metadata", is_flag=True, help="`magnetar ledger show` has the metadata of each ledger.")
@shown
def internal_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the ledgers and cursors of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.topics.internal_stats(topic), as_json, topic)


@click.command("partitioned-stats-internal")
@click.argument("topic")
@shown
def partitioned_internal_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the ledgers and cursors of every partition of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.topics.partitioned_internal_stats(topic).partitions, as_json, topic)


@click.command("info-internal")
@click.argument("topic")
@shown
def info_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the stored metadata of TOPIC: its ledgers and cursors."""
    with connected(admin_url) as admin:
        show_document(admin.topics.internal_info(topic), as_json, topic)


@click.command("get-backlog-size")
@click.argument("topic")
@click.option(
    "-m", "--messageId", "after", type=MESSAGE_ID, help="Count from after this message. [default: the beginning]"
)
@common
def backlog_size_command(topic: str, after: MessageId | None, admin_url: str, as_json: bool) -> None:
    """Show the number of bytes stored after a message of TOPIC."""
    with connected(admin_url) as admin:
        show_value(admin.topics.backlog_size(topic, after), as_json, "bytes")


# ---- Where it is served


@click.command("lookup")
@click.argument("topic")
@common
def lookup_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the address of the broker that serves TOPIC."""
    with connected(admin_url) as admin:
        show_value(admin.lookups.topic(topic).broker_url, as_json, "brokerUrl")


@click.command("partitioned-lookup")
@click.argument("topic")
@click.option(
    "-s", "--sort-by-broker", "by_broker", is_flag=True, help="Show for each broker the partitions that it serves."
)
@shown
def partitioned_lookup_command(topic: str, by_broker: bool, admin_url: str, as_json: bool) -> None:
    """Show the address of the broker of each partition of TOPIC."""
    with connected(admin_url) as admin:
        count = admin.topics.partitions(topic).partitions
        parts = [f"{topic}-partition-{index}" for index in range(count)] or [topic]
        rows = [{"topic": part, "brokerUrl": admin.lookups.topic(part).broker_url} for part in parts]
    if by_broker:
        served: dict[str, list[str]] = {}
        for row in rows:
            served.setdefault(row["brokerUrl"], []).append(row["topic"])
        rows = [{"brokerUrl": broker, "topic": ",".join(names)} for broker, names in sorted(served.items())]
    emit(rows, as_json=as_json, title=topic)


@click.command("bundle-range")
@click.argument("topic")
@common
def bundle_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the bundle of TOPIC: its part of the namespace's hash range."""
    with connected(admin_url) as admin:
        show_value(admin.lookups.bundle(topic), as_json, "bundle")


# ---- Messages


@click.command("last-message-id")
@click.argument("topic")
@common
def last_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the id of the last message of TOPIC."""
    with connected(admin_url) as admin:
        show_value(_text(admin.topics.last_message_id(topic)), as_json, "messageId")


@click.command("get-message-id")
@click.argument("topic")
@click.option(
    "-d", "--datetime", "moment", required=True, help="Time such as 2026-01-31T12:00:00Z, or milliseconds since 1970."
)
@common
def message_id_command(topic: str, moment: str, admin_url: str, as_json: bool) -> None:
    """Show the id of the first message of TOPIC published at or after a time."""
    with connected(admin_url) as admin:
        show_value(_text(admin.topics.message_id_at(topic, timestamp_ms(moment))), as_json, "messageId")


def timestamp_ms(text: str) -> int:
    """Raises CommandError."""
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(f"{text!r} is not a time; write 2026-01-31T12:00:00Z, or ms since 1970") from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, round(aware.timestamp() * 1000))


def _text(found: MessageId) -> str:
    return f"{found.ledger_id}:{found.entry_id}"


@click.command("get-message-by-id")
@click.argument("topic")
@click.option("-l", "--ledgerId", "ledger", type=click.IntRange(0), required=True, help="Id of the ledger.")
@click.option("-e", "--entryId", "entry", type=click.IntRange(0), required=True, help="Id of the entry in the ledger.")
@shown
def by_id_command(topic: str, ledger: int, entry: int, admin_url: str, as_json: bool) -> None:
    """Show one stored message of TOPIC; a batch is unpacked."""
    with connected(admin_url) as admin:
        emit(list(messages_of(admin.topics.message_by_id(topic, ledger, entry))), as_json=as_json, title=topic)


@click.command("examine-messages")
@click.argument("topic")
@click.option(
    "-i",
    "--initialPosition",
    "origin",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    help="Where counting starts.",
)
@click.option(
    "-m",
    "--messagePosition",
    "position",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of the message, counted from 1.",
)
@shown
def examine_command(
    topic: str, origin: Literal["earliest", "latest"], position: int, admin_url: str, as_json: bool
) -> None:
    """Show the n-th message of TOPIC, counted from its beginning or its end."""
    with connected(admin_url) as admin:
        answer = admin.topics.examine_message(topic, position=position, origin=origin)
    emit(list(messages_of(answer)), as_json=as_json, title=topic)


COMMANDS = (
    stats_command,
    partitioned_stats_command,
    internal_command,
    partitioned_internal_command,
    info_command,
    backlog_size_command,
    lookup_command,
    partitioned_lookup_command,
    bundle_command,
    last_command,
    message_id_command,
    by_id_command,
    examine_command,
)
