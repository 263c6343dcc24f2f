"""`magnetar ns-isolation-policy`: the names and flags of pulsar-admin's group."""

from __future__ import annotations

import click

from magnetar.admin.documents.cluster import AutoFailoverPolicy, IsolationPolicy
from magnetar.cli.admin.common import accepted, common, show_document, shown
from magnetar.cli.admin.http import connected, pairs, words
from magnetar.cli.output import emit_done


@click.group("ns-isolation-policy")
def isolation_group() -> None:
    """Say which brokers serve which namespaces."""


@isolation_group.command("set")
@click.argument("cluster")
@click.argument("policy")
@click.option("--namespaces", required=True, help="Regular expressions of namespaces, separated by commas.")
@click.option("--primary", required=True, help="Regular expressions of the brokers that serve them.")
@click.option("--secondary", help="Regular expressions of the brokers that stand in.")
@click.option(
    "--auto-failover-policy-type",
    "kind",
    required=True,
    type=click.Choice(["min_available"]),
    help="When the secondary brokers stand in: min_available.",
)
@click.option(
    "--auto-failover-policy-params",
    "parameters",
    required=True,
    multiple=True,
    help="Parameters of that, such as min_limit=1,usage_threshold=80.",
)
@accepted("--unload-scope", help="Bundles move with the next decision of the load manager, or by namespaces unload.")
@common
def set_command(
    cluster: str,
    policy: str,
    namespaces: str,
    primary: str,
    secondary: str | None,
    kind: str,
    parameters: tuple[str, ...],
    admin_url: str,
    as_json: bool,
) -> None:
    """Create or replace POLICY in CLUSTER."""
    document = IsolationPolicy(
        namespaces=words(namespaces),
        primary=words(primary),
        secondary=words(secondary),
        auto_failover_policy=AutoFailoverPolicy(policy_type=kind, parameters=dict(pairs(parameters))),
    )
    with connected(admin_url) as admin:
        admin.clusters.set_isolation_policy(cluster, policy, document)
    emit_done(as_json, updated=policy)


@isolation_group.command("get")
@click.argument("cluster")
@click.argument("policy")
@shown
def get_command(cluster: str, policy: str, admin_url: str, as_json: bool) -> None:
    """Show POLICY of CLUSTER."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.isolation_policy(cluster, policy), as_json, policy)


@isolation_group.command("list")
@click.argument("cluster")
@shown
def list_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """List the policies of CLUSTER with what they say."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.isolation_policies(cluster), as_json, cluster)


@isolation_group.command("delete")
@click.argument("cluster")
@click.argument("policy")
@common
def delete_command(cluster: str, policy: str, admin_url: str, as_json: bool) -> None:
    """Delete POLICY of CLUSTER."""
    with connected(admin_url) as admin:
        admin.clusters.delete_isolation_policy(cluster, policy)
    emit_done(as_json, deleted=policy)


@isolation_group.command("brokers")
@click.argument("cluster")
@shown
def brokers_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """List the brokers of CLUSTER that policies name."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.isolated_brokers(cluster), as_json, cluster)


@isolation_group.command("broker")
@click.argument("cluster")
@click.option("--broker", required=True, help="Name of the broker (host:port).")
@shown
def broker_command(cluster: str, broker: str, admin_url: str, as_json: bool) -> None:
    """Show the policy of CLUSTER that names a broker."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.isolated_broker(cluster, broker), as_json, broker)
