"""Commands for subscriptions: in `magnetar topics` under pulsar-admin's names, in `magnetar subscriptions` under short ones."""

from __future__ import annotations

import time

import click

from magnetar.admin.documents.topics import MessageId
from magnetar.cli.admin.common import (
    LATEST,
    MESSAGE_ID,
    common,
    force_option,
    properties_option,
    show_document,
    show_names,
    shown,
)
from magnetar.cli.admin.common import subscription_option as _subscription
from magnetar.cli.admin.http import connected, pairs
from magnetar.cli.admin.peek import peek_command
from magnetar.cli.admin.policy_flags import SECONDS
from magnetar.cli.output import emit_done


@click.command("subscriptions")
@click.argument("topic")
@shown
def list_command(topic: str, admin_url: str, as_json: bool) -> None:
    """List the subscriptions of TOPIC."""
    with connected(admin_url) as admin:
        show_names(admin.subscriptions.list(topic), as_json, "subscription", topic)


@click.command("create-subscription")
@click.argument("topic")
@_subscription
@click.option(
    "-m",
    "--messageId",
    "start",
    type=MESSAGE_ID,
    default=LATEST,
    show_default=True,
    help="First message of the subscription: ledger:entry, earliest or latest.",
)
@properties_option
@click.option(
    "-r", "--replicated", is_flag=True, help="Replicate the subscription's position to the topic's other clusters."
)
@common
def create_command(
    topic: str,
    subscription: str,
    start: MessageId,
    properties: tuple[str, ...],
    replicated: bool,
    admin_url: str,
    as_json: bool,
) -> None:
    """Create a subscription on TOPIC (on every partition)."""
    with connected(admin_url) as admin:
        admin.subscriptions.create(topic, subscription, start, dict(pairs(properties)) or None, replicated)
    emit_done(as_json, topic=topic, created=subscription)


@click.command("unsubscribe")
@click.argument("topic")
@_subscription
@force_option
@common
def delete_command(topic: str, subscription: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete a subscription of TOPIC."""
    with connected(admin_url) as admin:
        admin.subscriptions.delete(topic, subscription, force=force)
    emit_done(as_json, topic=topic, unsubscribed=subscription)


@click.command("skip")
@click.argument("topic")
@_subscription
@click.option("-n", "--count", type=click.IntRange(0), required=True, help="Number of entries; a batch is one entry.")
@common
def skip_command(topic: str, subscription: str, count: int, admin_url: str, as_json: bool) -> None:
    """Skip the next messages of a subscription of TOPIC: they count as consumed."""
    with connected(admin_url) as admin:
        admin.subscriptions.skip(topic, subscription, count)
    emit_done(as_json, topic=topic, skipped=count)


@click.command("clear-backlog")
@click.argument("topic")
@_subscription
@common
def clear_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Mark all messages of TOPIC as consumed by a subscription."""
    with connected(admin_url) as admin:
        admin.subscriptions.clear_backlog(topic, subscription)
    emit_done(as_json, topic=topic, cleared=subscription)


@click.command("expire-messages")
@click.argument("topic")
@_subscription
@click.option("-t", "--expireTime", "age_s", type=SECONDS, help="Age such as 1h (plain numbers are seconds).")
@click.option("-p", "--position", type=MESSAGE_ID, help="Expire this message and everything before it.")
@click.option("-e", "--exclude-reset-position", "excluded", is_flag=True, help="Exclude the message itself.")
@common
def expire_command(
    topic: str,
    subscription: str,
    age_s: int | None,
    position: MessageId | None,
    excluded: bool,
    admin_url: str,
    as_json: bool,
) -> None:
    """Mark messages of TOPIC that are older than an age, or before a message, as consumed by a subscription."""
    if (age_s is None) == (position is None):
        raise click.UsageError("say either --expireTime or --position")
    with connected(admin_url) as admin:
        if age_s is not None:
            admin.subscriptions.expire(topic, subscription, age_s)
        elif position is not None:
            admin.subscriptions.expire_to(topic, subscription, position, excluded=excluded)
    emit_done(as_json, topic=topic, expired=subscription)


@click.command("expire-messages-all-subscriptions")
@click.argument("topic")
@click.option("-t", "--expireTime", "age_s", type=SECONDS, required=True, help="Age such as 1h.")
@common
def expire_all_command(topic: str, age_s: int, admin_url: str, as_json: bool) -> None:
    """Mark messages of TOPIC that are older than an age as consumed by every subscription."""
    with connected(admin_url) as admin:
        admin.subscriptions.expire_all(topic, age_s)
    emit_done(as_json, expired=topic)


@click.command("reset-cursor")
@click.argument("topic")
@_subscription
@click.option(
    "-t", "--time", "back_s", type=SECONDS, help="Move to this long ago, such as 10m or 2h (plain numbers are seconds)."
)
@click.option("-m", "--messageId", "position", type=MESSAGE_ID, help="ledger:entry, earliest or latest.")
@click.option("-e", "--exclude-reset-position", "excluded", is_flag=True, help="Start after the message, not at it.")
@common
def reset_command(
    topic: str,
    subscription: str,
    back_s: int | None,
    position: MessageId | None,
    excluded: bool,
    admin_url: str,
    as_json: bool,
) -> None:
    """Move a subscription of TOPIC to a time or a message. Its consumers are disconnected and reconnect by themselves."""
    if (back_s is None) == (position is None):
        raise click.UsageError("say either --time or --messageId")
    with connected(admin_url) as admin:
        if back_s is not None:
            admin.subscriptions.reset_to_time(topic, subscription, max(0, round((time.time() - back_s) * 1000)))
        elif position is not None:
            admin.subscriptions.reset_to(topic, subscription, position, excluded=excluded)
    emit_done(as_json, topic=topic, reset=subscription)


@click.command("get-subscription-properties")
@click.argument("topic")
@_subscription
@shown
def get_properties_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Show the properties of a subscription of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.subscriptions.properties(topic, subscription), as_json, subscription)


@click.command("update-subscription-properties")
@click.argument("topic")
@_subscription
@properties_option
@click.option("-c", "--clear", is_flag=True, help="Remove all properties.")
@common
def set_properties_command(
    topic: str, subscription: str, properties: tuple[str, ...], clear: bool, admin_url: str, as_json: bool
) -> None:
    """Replace the properties of a subscription of TOPIC."""
    if clear == bool(properties):
        raise click.UsageError("say either --property or --clear")
    with connected(admin_url) as admin:
        admin.subscriptions.set_properties(topic, subscription, dict(pairs(properties)))
    emit_done(as_json, topic=topic, updated=subscription)


@click.command("analyze-backlog")
@click.argument("topic")
@_subscription
@shown
def analyze_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Count the messages that a subscription of TOPIC has not consumed, by reading them."""
    with connected(admin_url) as admin:
        show_document(admin.subscriptions.analyze_backlog(topic, subscription), as_json, subscription)


COMMANDS: tuple[tuple[str, str, click.Command], ...] = (
    ("subscriptions", "list", list_command),
    ("create-subscription", "create", create_command),
    ("unsubscribe", "delete", delete_command),
    ("peek-messages", "peek", peek_command),
    ("skip", "skip", skip_command),
    ("clear-backlog", "clear-backlog", clear_command),
    ("expire-messages", "expire-messages", expire_command),
    ("expire-messages-all-subscriptions", "expire-all", expire_all_command),
    ("reset-cursor", "reset-cursor", reset_command),
    ("get-subscription-properties", "get-properties", get_properties_command),
    ("update-subscription-properties", "update-properties", set_properties_command),
    ("analyze-backlog", "analyze-backlog", analyze_command),
)
"""Name in `topics`, name in `subscriptions`, command."""


@click.group("subscriptions")
def subscriptions_group() -> None:
    """List, create, move and delete subscriptions of topics (in pulsar-admin these commands are under `topics`)."""


def add_to(group: click.Group, *, short: bool) -> None:
    """Under the names of `topics`, or under short ones."""
    for long_name, short_name, command in COMMANDS:
        group.add_command(command, short_name if short else long_name)


add_to(subscriptions_group, short=True)
