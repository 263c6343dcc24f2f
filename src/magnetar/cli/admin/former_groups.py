"""`magnetar persistent` and `non-persistent`: former names of `topics` in pulsar-admin, with the same commands under it."""

from __future__ import annotations

from typing import Final

import click

from magnetar.cli.admin.common import show_names, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.admin.topics import topics_group

PERSISTENT: Final = (
    *(
        "list",
        "list-partitioned-topics",
        "permissions",
        "grant-permission",
        "revoke-permission",
        "lookup",
        "bundle-range",
    ),
    *("delete", "unload", "truncate", "subscriptions", "unsubscribe", "create-subscription", "stats", "stats-internal"),
    *("info-internal", "partitioned-stats", "partitioned-stats-internal", "skip", "expire-messages"),
    *("expire-messages-all-subscriptions", "create-partitioned-topic", "update-partitioned-topic"),
    *("get-partitioned-topic-metadata", "delete-partitioned-topic", "peek-messages", "get-message-by-id"),
    *("last-message-id", "reset-cursor", "terminate", "compact", "compaction-status"),
)
NON_PERSISTENT: Final = (
    "create-partitioned-topic",
    "lookup",
    "stats",
    "stats-internal",
    "get-partitioned-topic-metadata",
)


@click.group("persistent")
def persistent_group() -> None:
    """Do what `topics` does, under a former name of that group."""


@click.group("non-persistent")
def non_persistent_group() -> None:
    """Do what `topics` does, under a former name of that group: topics are named in full, non-persistent://..."""


for _name in PERSISTENT:
    persistent_group.add_command(topics_group.commands[_name], _name)
persistent_group.add_command(topics_group.commands["clear-backlog"], "skip-all")
for _name in NON_PERSISTENT:
    non_persistent_group.add_command(topics_group.commands[_name], _name)


@non_persistent_group.command("list")
@click.argument("namespace")
@shown
def list_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """List the non-persistent topics of NAMESPACE that are in use."""
    with connected(admin_url) as admin:
        show_names(admin.topics.list(namespace, domain="non-persistent"), as_json, "topic", namespace)


@non_persistent_group.command("list-in-bundle")
@click.argument("namespace")
@click.option("-b", "--bundle", required=True, help="The bundle, such as 0x00000000_0x40000000.")
@shown
def list_in_bundle_command(namespace: str, bundle: str, admin_url: str, as_json: bool) -> None:
    """List the non-persistent topics of a bundle of NAMESPACE that are in use."""
    with connected(admin_url) as admin:
        show_names(admin.namespaces.non_persistent_topics(namespace, bundle), as_json, "topic", namespace)
