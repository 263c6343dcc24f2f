"""`magnetar scalable-topics`: the names and flags of `pulsar-admin scalable-topics`."""

from __future__ import annotations

import json
import time

import click

from magnetar.admin.documents.scalable import ScalableTopicMetadata, SegmentInfo
from magnetar.cli.admin.common import (
    common,
    force_option,
    properties_option,
    show_document,
    show_names,
    shown,
    subscription_option,
)
from magnetar.cli.admin.http import connected, pairs
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit, emit_done


@click.group("scalable-topics")
def scalable_topics_group() -> None:
    """Create, inspect, split, merge and delete scalable topics, which clients of Pulsar 5 open.

    A topic is named in full (topic://tenant/namespace/topic) or by its last part alone, which means public/default.
    """


@scalable_topics_group.command("list")
@click.argument("namespace", default="public/default")
@properties_option
@shown
def list_command(namespace: str, properties: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """List the scalable topics of NAMESPACE (tenant/namespace), with -p only those that have all these properties."""
    wanted = pairs(properties)
    with connected(admin_url) as admin:
        scalable = admin.scalable_topics
        found = set(scalable.list(namespace))
        for name, value in wanted.items():
            found &= set(scalable.list_by_property(namespace, name, value))
    show_names(found, as_json, "topic", namespace)


@scalable_topics_group.command("create")
@click.argument("topic")
@click.option(
    "-s", "--segments", type=click.IntRange(1), default=1, show_default=True, help="Number of segments at first."
)
@properties_option
@common
def create_command(topic: str, segments: int, properties: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """Create TOPIC."""
    with connected(admin_url) as admin:
        admin.scalable_topics.create(topic, segments, dict(pairs(properties)) or None)
    emit_done(as_json, created=topic)


@scalable_topics_group.command("get-metadata")
@click.argument("topic")
@shown
def metadata_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the layout of TOPIC: its segments, where they come from and what became of them."""
    with connected(admin_url) as admin:
        found = admin.scalable_topics.metadata(topic)
    if as_json:
        show_document(found, as_json)
        return
    emit(_rows(found), as_json=False, title=f"{topic}, epoch {found.epoch}")
    if found.pending_change is not None:
        click.echo(f"a change of segments {found.pending_change.get('segmentIds')} has begun", err=True)


def _rows(found: ScalableTopicMetadata) -> list[dict[str, object]]:
    """Active segments first, each by its range."""

    def order(segment: SegmentInfo) -> tuple[str, int, int]:
        return segment.state, segment.hash_range.start, segment.segment_id

    return [
        {
            "segment": each.segment_id,
            "range": f"{each.hash_range.start:04x}-{each.hash_range.end:04x}",
            "state": each.state,
            "parents": " ".join(map(str, each.parent_ids)),
            "children": " ".join(map(str, each.child_ids)),
        }
        for each in sorted(found.segments.values(), key=order)
    ]


@scalable_topics_group.command("explain")
@click.argument("topic")
@shown
def explain_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Say whether TOPIC would be split or merged now, and why; and which segments wait for acknowledgements."""
    with connected(admin_url) as admin:
        show_document(admin.scalable_topics.explain(topic), as_json, topic)


@scalable_topics_group.command("get-auto-scale-policy")
@click.argument("topic")
@shown
def get_policy_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show TOPIC's own policy of splits and merges."""
    with connected(admin_url) as admin:
        show_document(admin.scalable_topics.policy(topic), as_json, topic)


@scalable_topics_group.command("set-auto-scale-policy")
@click.argument("topic")
@click.option("--policy", "text", required=True, help='JSON of what differs from the broker: {"maxSegments": 8}.')
@common
def set_policy_command(topic: str, text: str, admin_url: str, as_json: bool) -> None:
    """Set TOPIC's own policy of splits and merges; what it leaves out is as in the broker's settings."""
    try:
        policy = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--policy is not JSON: {error}") from None
    if not isinstance(policy, dict):
        raise CommandError('--policy must be a JSON object, such as {"maxSegments": 8}')
    with connected(admin_url) as admin:
        admin.scalable_topics.set_policy(topic, policy)
    emit_done(as_json, updated=topic)


@scalable_topics_group.command("remove-auto-scale-policy")
@click.argument("topic")
@common
def remove_policy_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Remove TOPIC's own policy of splits and merges."""
    with connected(admin_url) as admin:
        admin.scalable_topics.remove_policy(topic)
    emit_done(as_json, updated=topic)


@scalable_topics_group.command("stats")
@click.argument("topic")
@shown
def stats_command(topic: str, admin_url: str, as_json: bool) -> None:
    """Show the segments and consumers of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.scalable_topics.stats(topic), as_json, topic)


@scalable_topics_group.command("segment-stats")
@click.argument("topic")
@click.option(
    "--segment-id", type=click.IntRange(0), required=True, help="Id of the segment, as get-metadata shows it."
)
@shown
def segment_stats_command(topic: str, segment_id: int, admin_url: str, as_json: bool) -> None:
    """Show rates, clients and backlog of one segment of TOPIC."""
    with connected(admin_url) as admin:
        show_document(admin.scalable_topics.segment_stats(topic, segment_id), as_json, topic)


@scalable_topics_group.command("split-segment")
@click.argument("topic")
@click.option("--segment-id", type=click.IntRange(0), required=True, help="Id of an active segment.")
@common
def split_command(topic: str, segment_id: int, admin_url: str, as_json: bool) -> None:
    """Split a segment of TOPIC into two halves. Producers and consumers follow by themselves."""
    with connected(admin_url) as admin:
        admin.scalable_topics.split(topic, segment_id)
    emit_done(as_json, topic=topic, split=segment_id)


@scalable_topics_group.command("merge-segments")
@click.argument("topic")
@click.option("--segment-id-1", type=click.IntRange(0), required=True, help="Id of an active segment.")
@click.option("--segment-id-2", type=click.IntRange(0), required=True, help="Id of its neighbour.")
@common
def merge_command(topic: str, segment_id_1: int, segment_id_2: int, admin_url: str, as_json: bool) -> None:
    """Merge two adjacent segments of TOPIC into one."""
    with connected(admin_url) as admin:
        admin.scalable_topics.merge(topic, segment_id_1, segment_id_2)
    emit_done(as_json, topic=topic, merged=[segment_id_1, segment_id_2])


@scalable_topics_group.command("migrate")
@click.argument("topic")
@click.option("-f", "--force", is_flag=True, help="Disconnect classic clients, which cannot use the topic any more.")
@common
def migrate_command(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Make the classic topic of that name the scalable topic TOPIC, without copying its messages."""
    with connected(admin_url) as admin:
        admin.scalable_topics.migrate(topic, force=force)
    emit_done(as_json, migrated=topic)


@scalable_topics_group.command("create-subscription")
@click.argument("topic")
@subscription_option
@click.option(
    "--type",
    "kind",
    type=click.Choice(["STREAM", "QUEUE"]),
    default="QUEUE",
    show_default=True,
    help="Kind of its consumers.",
)
@common
def create_subscription_command(topic: str, subscription: str, kind: str, admin_url: str, as_json: bool) -> None:
    """Create a subscription of TOPIC, which begins with the next message."""
    with connected(admin_url) as admin:
        admin.scalable_topics.create_subscription(topic, subscription, "STREAM" if kind == "STREAM" else "QUEUE")
    emit_done(as_json, topic=topic, subscription=subscription)


@scalable_topics_group.command("delete-subscription")
@click.argument("topic")
@subscription_option
@common
def delete_subscription_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Delete a subscription of TOPIC; its consumers are disconnected."""
    with connected(admin_url) as admin:
        admin.scalable_topics.delete_subscription(topic, subscription)
    emit_done(as_json, topic=topic, deleted=subscription)


@scalable_topics_group.command("seek")
@click.argument("topic")
@subscription_option
@click.option("--time", "-t", "timestamp", required=True, help="Milliseconds since 1970, or `2026-01-31T12:00:00`.")
@common
def seek_command(topic: str, subscription: str, timestamp: str, admin_url: str, as_json: bool) -> None:
    """Move a subscription to the first messages published at or after a time."""
    with connected(admin_url) as admin:
        admin.scalable_topics.seek(topic, subscription, _milliseconds(timestamp))
    emit_done(as_json, topic=topic, subscription=subscription)


def _milliseconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) * 1000)
    except (ValueError, OverflowError):
        raise CommandError(f"{text!r} is not a time; write milliseconds since 1970, or 2026-01-31T12:00:00") from None


@scalable_topics_group.command("clear-backlog")
@click.argument("topic")
@subscription_option
@common
def clear_backlog_command(topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Acknowledge everything in TOPIC."""
    with connected(admin_url) as admin:
        admin.scalable_topics.clear_backlog(topic, subscription)
    emit_done(as_json, topic=topic, subscription=subscription)


@scalable_topics_group.command("delete")
@click.argument("topic")
@force_option
@common
def delete_command(topic: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TOPIC with all its messages."""
    with connected(admin_url) as admin:
        admin.scalable_topics.delete(topic, force=force)
    emit_done(as_json, deleted=topic)
