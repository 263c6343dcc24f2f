"""`magnetar topics replicated-subscription`: how far other clusters follow, and what to do when they do not."""

from __future__ import annotations

import time

import click

from magnetar.admin.client.client import AdminClient
from magnetar.admin.client.scalable import ScalableTopics
from magnetar.admin.client.subscriptions import Subscriptions
from magnetar.admin.documents.topics import ReplicatedSubscriptionsStatus
from magnetar.cli.admin.common import common, show_document, shown, subscription_option
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_done

POLL_INTERVAL_S = 0.1


@click.group("replicated-subscription")
def group() -> None:
    """Inspect replicated subscriptions of TOPIC: status, snapshots, excluded clusters."""


def _at(admin: AdminClient, topic: str) -> Subscriptions | ScalableTopics:
    """What asks for the subscriptions of a topic: a scalable one is named topic://..."""
    return admin.scalable_topics if topic.startswith("topic://") else admin.subscriptions


@group.command("status")
@click.argument("topic")
@shown
def status_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the last snapshot of TOPIC, the clusters that are missing for the next one, and what a failover would repeat now."""
    with connected(admin_url) as admin:
        found = _at(admin, topic).replication_status(topic)
    if as_json:
        show_document(found, True)
        return
    emit([_of_topic(each) for each in found], as_json=False, title="snapshots")
    emit([row for each in found for row in _of_subscriptions(each)], as_json=False, title="replicated subscriptions")


def _of_topic(status: ReplicatedSubscriptionsStatus) -> dict[str, object]:
    age_ms = status.last_snapshot_age_millis
    return {
        "topic": status.topic,
        "last snapshot": status.last_snapshot_position or "none yet",
        "age s": "" if age_ms is None else round(age_ms / 1000, 1),
        "every s": status.snapshot_frequency_millis / 1000,
        "connected": ", ".join(each.cluster for each in status.clusters if each.connected),
        "missing": ", ".join(each.cluster for each in status.clusters if each.missing),
        "excluded": ", ".join(each.cluster for each in status.clusters if each.excluded),
    }


def _of_subscriptions(status: ReplicatedSubscriptionsStatus) -> list[dict[str, object]]:
    return [
        {
            "topic": status.topic,
            "subscription": each.subscription,
            "consumed": each.mark_delete_position,
            "others follow to": each.told_position or "unknown",
            "would repeat": "unknown" if each.would_repeat_messages is None else each.would_repeat_messages,
            "why": each.reason,
        }
        for each in status.subscriptions
    ]


@group.command("force-snapshot")
@click.argument("topic")
@click.option(
    "--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds to wait for the snapshot."
)
@common
def force_command(topic: str, timeout_s: float, admin_url: str, as_json: bool) -> None:
    """Take a snapshot of TOPIC now and wait until it is complete."""
    deadline_s = time.monotonic() + timeout_s
    with connected(admin_url) as admin:
        before = {each.topic: each.last_snapshot_position for each in admin.subscriptions.replication_status(topic)}
        admin.subscriptions.force_snapshot(topic)
        while True:
            found = admin.subscriptions.replication_status(topic)
            waiting = [each for each in found if each.last_snapshot_position == before.get(each.topic)]
            if not waiting:
                break
            if time.monotonic() > deadline_s:
                missing = sorted({cluster.cluster for each in waiting for cluster in each.clusters if cluster.missing})
                raise CommandError(f"no snapshot within {timeout_s:g} s; missing: {', '.join(missing) or 'nobody'}")
            time.sleep(POLL_INTERVAL_S)
    emit_done(as_json, topic=topic, snapshots=[each.last_snapshot_position for each in found])


@group.command("exclude")
@click.argument("topic")
@click.argument("cluster")
@common
def exclude_command(topic: str, cluster: str, admin_url: str, as_json: bool) -> None:
    """Take snapshots of TOPIC without CLUSTER while that cluster is unreachable.

    Messages that it sent to some clusters but not to others may then be skipped after a failover.
    """
    with connected(admin_url) as admin:
        admin.subscriptions.exclude(topic, cluster)
    emit_done(as_json, topic=topic, excluded=cluster)


@click.command("set-replicated-subscription-status")
@click.argument("topic")
@subscription_option
@click.option("-e/-d", "--enable/--disable", "enable", default=None, required=True, help="Whether it is replicated.")
@common
def set_command(topic: str, subscription: str, enable: bool, admin_url: str, as_json: bool) -> None:
    """Start or stop replicating the position of a subscription of TOPIC to its other clusters."""
    with connected(admin_url) as admin:
        _at(admin, topic).set_replicated(topic, subscription, enable)
    emit_done(as_json, topic=topic, subscription=subscription, replicated=enable)


@click.command("get-replicated-subscription-status")
@click.argument("topic")
@subscription_option
@shown
def get_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Show whether a subscription of TOPIC is replicated, for each partition."""
    with connected(admin_url) as admin:
        show_document(_at(admin, topic).replicated(topic, subscription), as_json, topic)


COMMANDS = (group, set_command, get_command)
