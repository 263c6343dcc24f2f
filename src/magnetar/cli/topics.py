"""`magnetar topics`: the names and flags of `pulsar-admin topics` for what people do daily."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from magnetar.broker.naming import NamespaceName
from magnetar.cli.admin_http import admin_url_option, request, topic_path
from magnetar.cli.compaction import compact_command, status_command, terminate_command
from magnetar.cli.output import emit, emit_done, emit_record, json_option, print_json
from magnetar.cli.peek import peek_command

SUBSCRIPTION_COLUMNS = {
    "type": "type",
    "backlog": "msgBacklog",
    "unacked": "unackedMessages",
    "msg_rate_out": "msgRateOut",
}


@click.group("topics")
def topics_group() -> None:
    """List, create, inspect and delete topics.

    A topic is named in full (persistent://tenant/namespace/topic) or by its last part alone, which means public/default.
    """


for command in (peek_command, compact_command, status_command, terminate_command):
    topics_group.add_command(command)


@topics_group.command("list")
@click.argument("namespace", default="public/default")
@click.option("--partitioned", is_flag=True, help="Partitioned topics instead of the topics that hold messages.")
@admin_url_option
@json_option
def list_command(namespace: str, partitioned: bool, admin_url: str, as_json: bool) -> None:
    """Topics of NAMESPACE (tenant/namespace)."""
    path = f"persistent/{NamespaceName.parse(namespace)}" + ("/partitioned" if partitioned else "")
    names = sorted(request("GET", admin_url, path).json())
    if as_json:
        print_json(names)
    else:
        emit([{"topic": name} for name in names], as_json=False, title=namespace)


@topics_group.command("create")
@click.argument("topic")
@admin_url_option
@json_option
def create_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Create TOPIC without partitions."""
    request("PUT", admin_url, topic_path(topic), {})
    emit_done(as_json, created=topic)


@topics_group.command("create-partitioned-topic")
@click.argument("topic")
@click.option("-p", "--partitions", type=click.IntRange(1), required=True, help="How many.")
@admin_url_option
@json_option
def create_partitioned_command(topic: str, partitions: int, admin_url: str, as_json: bool) -> None:
    """Create TOPIC with partitions."""
    request("PUT", admin_url, f"{topic_path(topic)}/partitions", partitions)
    emit_done(as_json, created=topic, partitions=partitions)


@topics_group.command("delete")
@click.argument("topic")
@click.option("--partitioned", is_flag=True, help="TOPIC is partitioned: delete all its partitions.")
@click.option("-f", "--force", is_flag=True, help="Even while clients are connected.")
@admin_url_option
@json_option
def delete_command(topic: str, partitioned: bool, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with all its messages and subscriptions."""
    path = topic_path(topic) + ("/partitions" if partitioned else "")
    request("DELETE", admin_url, f"{path}?force={str(force).lower()}")
    emit_done(as_json, deleted=topic)


@topics_group.command("subscriptions")
@click.argument("topic")
@admin_url_option
@json_option
def subscriptions_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Names of the subscriptions of TOPIC."""
    names = sorted(request("GET", admin_url, f"{topic_path(topic)}/subscriptions").json())
    if as_json:
        print_json(names)
    else:
        emit([{"subscription": name} for name in names], as_json=False, title=topic)


@topics_group.command("unsubscribe")
@click.argument("topic")
@click.option("-s", "--subscription", required=True)
@click.option("-f", "--force", is_flag=True, help="Even while consumers are connected.")
@admin_url_option
@json_option
def unsubscribe_command(topic: str, subscription: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete a subscription of TOPIC."""
    path = f"{topic_path(topic)}/subscription/{quote(subscription, safe='')}"
    request("DELETE", admin_url, f"{path}?force={str(force).lower()}")
    emit_done(as_json, topic=topic, unsubscribed=subscription)


@topics_group.command("stats")
@click.argument("topic")
@click.option("--partitioned", is_flag=True, help="The sum over the partitions; without it found out by itself.")
@admin_url_option
@json_option
def stats_command(topic: str, partitioned: bool, admin_url: str, as_json: bool) -> None:
    """Rates, sizes, producers and subscriptions of TOPIC; --json prints Pulsar's whole document."""
    path = topic_path(topic)
    partitioned = partitioned or request("GET", admin_url, f"{path}/partitions").json()["partitions"] > 0
    document = request("GET", admin_url, path + ("/partitioned-stats" if partitioned else "/stats")).json()
    if as_json:
        print_json(document)
        return
    emit_record(summary(document), as_json=False, title=topic)
    subscriptions = document.get("subscriptions") or {}
    if subscriptions:
        click.echo()
        emit(
            [subscription_row(name, subscriptions[name]) for name in sorted(subscriptions)],
            as_json=False,
            title="subscriptions",
        )


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


def subscription_row(name: str, stats: dict[str, Any]) -> dict[str, object]:
    row: dict[str, object] = {"subscription": name, "consumers": len(stats.get("consumers") or ())}
    return row | {title: stats.get(field) for title, field in SUBSCRIPTION_COLUMNS.items()}
