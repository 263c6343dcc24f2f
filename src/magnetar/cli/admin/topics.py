"""`magnetar topics`: the names and flags of `pulsar-admin topics`."""

from __future__ import annotations

import copy
import time
from typing import Any, Final

import click

from magnetar.cli.admin import replicated_subscriptions, topic_inspection
from magnetar.cli.admin import subscriptions as subscription_commands
from magnetar.cli.admin.common import (
    accepted,
    common,
    force_option,
    properties_option,
    show_document,
    show_names,
    shown,
)
from magnetar.cli.admin.http import admin_url_option, connected, pairs, words
from magnetar.cli.admin.peek import peek_command
from magnetar.cli.admin.policy_commands import topic_policies_group
from magnetar.cli.admin.scalable_topics import scalable_topics_group
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done, emit_record, json_option, output_options

_domain = click.option(
    "-td",
    "--topic-domain",
    type=click.Choice(["persistent", "non-persistent"]),
    default="persistent",
    show_default=True,
    help="persistent or non-persistent; non-persistent topics exist only while they are used.",
)
_system = accepted(
    "-ist",
    "--include-system-topic",
    is_flag=True,
    help="Topics of the server itself lie in pulsar/system and are listed there.",
)
_schema = accepted("-d", "--deleteSchema", is_flag=True, help="The schema goes with its topic.")
_partitions = click.option("-p", "--partitions", type=click.IntRange(1), required=True, help="Number of partitions.")
_metadata = click.option(
    "-m", "--metadata", "properties", multiple=True, help="Property name=value; may be given several times."
)


@click.group("topics")
def topics_group() -> None:
    """List, create, inspect and delete topics.

    A topic is named in full (persistent://tenant/namespace/topic) or by its last part alone, which means public/default.
    """


@topics_group.command("list")
@click.argument("namespace", default="public/default")
@click.option("--partitioned", is_flag=True, help="List partitioned topics instead of the topics that store messages.")
@click.option("-b", "--bundle", help="Only topics of this bundle, such as 0x00000000_0x40000000.")
@_system
@_domain
@shown
def list_command(
    namespace: str, partitioned: bool, bundle: str | None, topic_domain: Any, admin_url: str, as_json: bool
) -> None:
    """List the topics of NAMESPACE (tenant/namespace)."""
    with connected(admin_url) as admin:
        found = (admin.topics.list_partitioned if partitioned else admin.topics.list)(namespace, domain=topic_domain)
        if bundle is not None and found:
            found = list(admin.namespaces.topic_positions(namespace, bundle, found).topic_hash_positions)
        show_names(found, as_json, "topic", namespace)


@topics_group.command("list-partitioned-topics")
@click.argument("namespace", default="public/default")
@_system
@_domain
@shown
def list_partitioned_command(namespace: str, topic_domain: Any, admin_url: str, as_json: bool) -> None:
    """List the partitioned topics of NAMESPACE (tenant/namespace)."""
    with connected(admin_url) as admin:
        names = admin.topics.list_partitioned(namespace, domain=topic_domain)
    show_names(names, as_json, "topic", namespace)


@topics_group.command("create")
@click.argument("topic")
@_metadata
@common
def create_command(topic: str, properties: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """Create TOPIC without partitions."""
    with connected(admin_url) as admin:
        admin.topics.create(topic, properties=dict(pairs(properties)))
    emit_done(as_json, created=topic)


@topics_group.command("create-partitioned-topic")
@click.argument("topic")
@_partitions
@_metadata
@common
def create_partitioned_command(
    topic: str, partitions: int, properties: tuple[str, ...], admin_url: str, as_json: bool
) -> None:
    """Create TOPIC with partitions."""
    with connected(admin_url) as admin:
        admin.topics.create_partitioned(topic, partitions, properties=dict(pairs(properties)))
    emit_done(as_json, created=topic, partitions=partitions)


@topics_group.command("update-partitioned-topic")
@click.argument("topic")
@accepted("-ulo", "--update-local-only", is_flag=True, help="Each cluster makes its own partitions.")
@accepted("-f", "--force", is_flag=True, help="Topics that are named like the new partitions are taken as these.")
@_partitions
@common
def update_partitioned_command(topic: str, partitions: int, admin_url: str, as_json: bool) -> None:
    """Increase the number of partitions of TOPIC; it cannot be decreased."""
    with connected(admin_url) as admin:
        admin.topics.update_partitioned(topic, partitions)
    emit_done(as_json, updated=topic, partitions=partitions)


@topics_group.command("get-partitioned-topic-metadata")
@click.argument("topic")
@shown
def partitions_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the number of partitions of TOPIC; 0 means that it is not partitioned."""
    with connected(admin_url) as admin:
        show_document(admin.topics.partitions(topic), as_json, topic)


@topics_group.command("delete")
@click.argument("topic")
@_schema
@click.option("--partitioned", is_flag=True, help="TOPIC is a partitioned topic: delete all its partitions.")
@force_option
@common
def delete_command(topic: str, partitioned: bool, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with all its messages and subscriptions."""
    with connected(admin_url) as admin:
        (admin.topics.delete_partitioned if partitioned else admin.topics.delete)(topic, force=force)
    emit_done(as_json, deleted=topic)


@topics_group.command("delete-partitioned-topic")
@click.argument("topic")
@_schema
@force_option
@common
def delete_partitioned_command(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with all its partitions."""
    with connected(admin_url) as admin:
        admin.topics.delete_partitioned(topic, force=force)
    emit_done(as_json, deleted=topic)


@topics_group.command("create-missed-partitions")
@click.argument("topic")
@common
def create_missed_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Create the partitions of TOPIC that are missing."""
    with connected(admin_url) as admin:
        admin.topics.create_missed_partitions(topic)
    emit_done(as_json, updated=topic)


@topics_group.command("unload")
@click.argument("topic")
@common
def unload_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Unload TOPIC from its broker; clients reconnect by themselves."""
    with connected(admin_url) as admin:
        admin.topics.unload(topic)
    emit_done(as_json, unloaded=topic)


@topics_group.command("trim-topic")
@click.argument("topic")
@common
def trim_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Delete ledgers of TOPIC that are consumed and no longer retained."""
    with connected(admin_url) as admin:
        admin.topics.trim(topic)
    emit_done(as_json, trimmed=topic)


@topics_group.command("truncate")
@click.argument("topic")
@common
def truncate_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Mark all messages of TOPIC as consumed by every subscription; what retention does not keep is deleted."""
    with connected(admin_url) as admin:
        admin.topics.truncate(topic)
    emit_done(as_json, truncated=topic)


@topics_group.command("terminate-partitions")
@click.argument("topic")
@shown
def terminate_partitions_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Close all partitions of TOPIC for new messages permanently. Prints the ids of the last messages."""
    with connected(admin_url) as admin:
        last = admin.topics.terminate_partitions(topic)
    ids = {partition: f"{found.ledger_id}:{found.entry_id}" for partition, found in last.items()}
    show_document(ids, as_json, topic)


topics_group.add_command(terminate_partitions_command, "partitioned-terminate")


# ---- Properties and permissions


@topics_group.command("get-properties")
@click.argument("topic")
@shown
def get_properties_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the properties of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.topics.properties(topic), as_json, topic)


@topics_group.command("update-properties")
@click.argument("topic")
@properties_option
@common
def update_properties_command(topic: str, properties: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """Add or change properties of TOPIC."""
    with connected(admin_url) as admin:
        admin.topics.update_properties(topic, dict(pairs(properties)))
    emit_done(as_json, updated=topic)


@topics_group.command("remove-properties")
@click.argument("topic")
@click.option("-k", "--key", required=True, help="Name of the property.")
@common
def remove_properties_command(topic: str, key: str, admin_url: str, as_json: bool) -> None:
    """Remove a property of TOPIC."""
    with connected(admin_url) as admin:
        admin.topics.remove_property(topic, key)
    emit_done(as_json, updated=topic)


@topics_group.command("permissions")
@click.argument("topic")
@shown
def permissions_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the roles with permissions on TOPIC, including those of its namespace."""
    with connected(admin_url) as admin:
        show_document(admin.topics.permissions(topic), as_json, topic)


@topics_group.command("grant-permission")
@click.argument("topic")
@click.option("-r", "--role", required=True, help="Name of the role.")
@click.option(
    "-a",
    "--actions",
    required=True,
    help="Actions separated by commas: produce, consume, functions, sources, sinks, packages.",
)
@common
def grant_command(topic: str, role: str, actions: str, admin_url: str, as_json: bool) -> None:
    """Grant a role actions on TOPIC; replaces its former actions there."""
    with connected(admin_url) as admin:
        admin.topics.grant(topic, role, words(actions))
    emit_done(as_json, granted=role)


@topics_group.command("revoke-permission")
@click.argument("topic")
@click.option("-r", "--role", required=True, help="Name of the role.")
@common
def revoke_command(topic: str, role: str, admin_url: str, as_json: bool) -> None:
    """Revoke all actions that a role was granted on TOPIC itself."""
    with connected(admin_url) as admin:
        admin.topics.revoke(topic, role)
    emit_done(as_json, revoked=role)


POLL_INTERVAL_S = 0.2


@click.command("compact")
@click.argument("topic")
@admin_url_option
@json_option
def compact_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Start a compaction of TOPIC: readers of the compacted topic see the last message of each key."""
    with connected(admin_url) as admin:
        admin.topics.compact(topic)
    emit_done(as_json, compacting=topic)


@click.command("compaction-status")
@click.argument("topic")
@click.option(
    "-w",
    "--wait-complete",
    "--wait",
    "wait",
    is_flag=True,
    help="Wait until the compaction has ended; exit with an error if it failed.",
)
@admin_url_option
@output_options
def status_command(topic: str, wait: bool, admin_url: str, as_json: bool) -> None:
    """Show the state of the last compaction of TOPIC: NOT_RUN, RUNNING, SUCCESS or ERROR."""
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
@output_options
def terminate_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Close TOPIC for new messages permanently; consumers still receive the stored ones. Prints the id of the last message."""
    with connected(admin_url) as admin:
        last = admin.topics.terminate(topic)
    emit_record({"last message": f"{last.ledger_id}:{last.entry_id}"}, as_json=as_json, title=topic)


for command in (
    peek_command,
    compact_command,
    status_command,
    terminate_command,
    *topic_inspection.COMMANDS,
    *replicated_subscriptions.COMMANDS,
):
    topics_group.add_command(command)
topics_group.add_command(scalable_topics_group, "scalable")
subscription_commands.add_to(topics_group, short=False)
for verb in ("get", "set", "remove"):  # pulsar-admin has them here
    topics_group.add_command(topic_policies_group.commands[f"{verb}-replication-clusters"])

FORMER_NAMES: Final = {
    "backlog-quotas": "backlog-quota",
    "deduplication-enabled": "deduplication",
    "max-subscriptions": "max-subscriptions-per-topic",
    "max-unacked-messages-on-consumer": "max-unacked-messages-per-consumer",
    "max-unacked-messages-on-subscription": "max-unacked-messages-per-subscription",
    "maxProducers": "max-producers",
}
"""Of policies, from before they had a group of their own."""


def _add_former_commands() -> None:
    """Policies could be set here as well: scripts still do."""
    policies = topic_policies_group.commands
    former = {
        f"{verb}-{name}": policies[f"{verb}-{today}"]
        for name, today in FORMER_NAMES.items()
        for verb in ("get", "set", "remove")
        if f"{verb}-{today}" in policies
    }
    for name, command in {**policies, **former}.items():
        if name not in topics_group.commands:
            hidden = copy.copy(command)
            hidden.hidden = True
            topics_group.add_command(hidden, name)


_add_former_commands()
