"""`magnetar transactions`: the names and flags of `pulsar-admin transactions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from magnetar.cli.admin.common import accepted, common, show_document, show_value, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.admin.policy_flags import Amount
from magnetar.cli.output import emit_done

F = TypeVar("F", bound=Callable[..., Any])

MILLISECONDS = Amount("s", unit=0.001)

topic_option = click.option("-t", "--topic", required=True, help="Name of the topic.")
subscription_option = click.option(
    "-s", "--sub-name", "--subscription-name", "subscription", required=True, help="Name of the subscription."
)
coordinator_option = click.option("-c", "--coordinator-id", type=click.IntRange(0), help="Only this coordinator.")
metadata_flag = click.option("-m", "--metadata", is_flag=True, help="Accepted as in pulsar-admin; has no effect.")
low_water_mark_flag = click.option(
    "-l", "--low-water-mark", "low", is_flag=True, help="Accepted as in pulsar-admin; has no effect."
)


def txn_options(function: F) -> F:
    """`-m MOST -l LEAST`: the two numbers of `(most,least)`."""
    most = click.option(
        "-m",
        "--most-sig-bits",
        "most",
        type=click.IntRange(0),
        required=True,
        help="Most significant bits of the transaction id (the coordinator).",
    )
    least = click.option(
        "-l",
        "--least-sig-bits",
        "least",
        type=click.IntRange(0),
        required=True,
        help="Least significant bits of the transaction id.",
    )
    return most(least(function))


@click.group("transactions")
def transactions_group() -> None:
    """Inspect transaction coordinators, open transactions, and what these hold in topics and subscriptions."""


# ---- Coordinators


@transactions_group.command("coordinators-list")
@shown
def coordinators_command(admin_url: str, as_json: bool) -> None:
    """List the coordinators and the brokers that serve them."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.coordinators(), as_json)


@transactions_group.command("coordinator-stats")
@coordinator_option
@shown
def coordinator_stats_command(coordinator_id: int | None, admin_url: str, as_json: bool) -> None:
    """Show ids given out and open transactions, of all coordinators or of one."""
    with connected(admin_url) as admin:
        if coordinator_id is None:
            show_document(admin.transactions.coordinator_stats(), as_json)
        else:
            show_document(admin.transactions.stats_of(coordinator_id), as_json, f"coordinator {coordinator_id}")


@transactions_group.command("coordinator-internal-stats")
@click.option("-c", "--coordinator-id", type=click.IntRange(0), required=True, help="Id of the coordinator.")
@metadata_flag
@shown
def coordinator_internal_command(coordinator_id: int, metadata: bool, admin_url: str, as_json: bool) -> None:
    """Show the log of a coordinator: its ledgers and cursor."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.coordinator_internal_stats(coordinator_id, metadata=metadata), as_json)


@transactions_group.command("scale-transactionCoordinators")
@click.option(
    "-r",
    "--replicas",
    type=click.IntRange(1),
    required=True,
    help="New number of coordinators; it cannot be decreased.",
)
@common
def scale_command(replicas: int, admin_url: str, as_json: bool) -> None:
    """Increase the number of coordinators."""
    with connected(admin_url) as admin:
        admin.transactions.scale(replicas)
    emit_done(as_json, coordinators=replicas)


# ---- Transactions


@transactions_group.command("transaction-metadata")
@txn_options
@shown
def metadata_command(most: int, least: int, admin_url: str, as_json: bool) -> None:
    """Show an open transaction with the topics and subscriptions it concerns."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.metadata(most, least), as_json, f"({most},{least})")


@transactions_group.command("slow-transactions")
@click.option(
    "-t",
    "--time",
    "at_least_ms",
    type=MILLISECONDS,
    required=True,
    help="Minimum duration, such as 1s, 10s, 1m, 5h or 3d.",
)
@coordinator_option
@shown
def slow_command(at_least_ms: int, coordinator_id: int | None, admin_url: str, as_json: bool) -> None:
    """List transactions that have been open for longer than a time."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.slow(at_least_ms, coordinator_id), as_json)


@transactions_group.command("abort-transaction")
@txn_options
@common
def abort_command(most: int, least: int, admin_url: str, as_json: bool) -> None:
    """Abort an open transaction of any client."""
    with connected(admin_url) as admin:
        admin.transactions.abort(most, least)
    emit_done(as_json, aborted=f"({most},{least})")


# ---- In a topic


@transactions_group.command("transaction-buffer-stats")
@accepted("-s", "--segment-stats", is_flag=True, help="Snapshots have no segments.")
@topic_option
@low_water_mark_flag
@shown
def buffer_command(topic: str, low: bool, admin_url: str, as_json: bool) -> None:
    """Show the state of transactions in a topic."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.buffer_stats(topic, low_water_marks=low), as_json, topic)


@transactions_group.command("transaction-buffer-internal-stats")
@topic_option
@metadata_flag
@shown
def buffer_internal_command(topic: str, metadata: bool, admin_url: str, as_json: bool) -> None:
    """Show where a topic stores the state of its transactions."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.buffer_internal_stats(topic, metadata=metadata), as_json, topic)


@transactions_group.command("buffer-snapshot-internal-stats")
@topic_option
@metadata_flag
@shown
def snapshot_command(topic: str, metadata: bool, admin_url: str, as_json: bool) -> None:
    """Show what the topic's last snapshot of ended transactions says, with its other internal statistics."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.buffer_internal_stats(topic, metadata=metadata), as_json, topic)


@transactions_group.command("transaction-in-buffer-stats")
@txn_options
@topic_option
@shown
def in_buffer_command(most: int, least: int, topic: str, admin_url: str, as_json: bool) -> None:
    """Show the state of one transaction in one topic."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.in_buffer_stats(topic, most, least), as_json, topic)


# ---- In a subscription


@transactions_group.command("pending-ack-stats")
@topic_option
@subscription_option
@low_water_mark_flag
@shown
def pending_command(topic: str, subscription: str, low: bool, admin_url: str, as_json: bool) -> None:
    """Show what a subscription holds for open transactions."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.pending_ack_stats(topic, subscription, low_water_marks=low), as_json, topic)


@transactions_group.command("pending-ack-internal-stats")
@topic_option
@subscription_option
@metadata_flag
@shown
def pending_internal_command(topic: str, subscription: str, metadata: bool, admin_url: str, as_json: bool) -> None:
    """Show the log of a subscription's pending acknowledgements."""
    with connected(admin_url) as admin:
        found = admin.transactions.pending_ack_internal_stats(topic, subscription, metadata=metadata)
        show_document(found, as_json, topic)


@transactions_group.command("transaction-in-pending-ack-stats")
@txn_options
@topic_option
@subscription_option
@shown
def in_pending_command(most: int, least: int, topic: str, subscription: str, admin_url: str, as_json: bool) -> None:
    """Show the state of one transaction in one subscription."""
    with connected(admin_url) as admin:
        show_document(admin.transactions.in_pending_ack_stats(topic, subscription, most, least), as_json, topic)


@transactions_group.command("position-stats-in-pending-ack")
@topic_option
@subscription_option
@click.option("-l", "--ledger-id", type=click.IntRange(0), required=True, help="Entry id of the message.")
@click.option("-e", "--entry-id", type=click.IntRange(0), required=True, help="Entry id of the message.")
@click.option("-b", "--batch-index", type=click.IntRange(0), help="Index of the message in its batch.")
@common
def position_command(
    topic: str,
    subscription: str,
    ledger_id: int,
    entry_id: int,
    batch_index: int | None,
    admin_url: str,
    as_json: bool,
) -> None:
    """Show the state of the acknowledgement of one message."""
    with connected(admin_url) as admin:
        found = admin.transactions.position_in_pending_ack(topic, subscription, ledger_id, entry_id, batch_index)
    show_value(found.state, as_json, "state")
