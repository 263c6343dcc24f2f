"""`magnetar namespaces`: the names and flags of `pulsar-admin namespaces`, beside the commands for its policies."""

from __future__ import annotations

from typing import Any

import click

from magnetar.admin.documents.cluster import BookieAffinity
from magnetar.cli.admin.common import (
    common,
    force_option,
    properties_option,
    show_document,
    show_names,
    show_value,
    shown,
)
from magnetar.cli.admin.http import connected, pairs, words
from magnetar.cli.admin.policy_commands import namespaces_group
from magnetar.cli.errors import CommandError
from magnetar.cli.output import emit_done

_bundle = click.option("-b", "--bundle", help="Only this bundle, such as 0x00000000_0x40000000.")
_role = click.option("--role", required=True, help="Name of the role.")


@namespaces_group.command("list")
@click.argument("tenant")
@shown
def list_command(tenant: str, admin_url: str, as_json: bool) -> None:
    """List the namespaces of TENANT."""
    with connected(admin_url) as admin:
        show_names(admin.namespaces.list(tenant), as_json, "namespace", tenant)


@namespaces_group.command("list-cluster")
@click.argument("cluster")
@shown
def list_cluster_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """List the namespaces that are replicated to CLUSTER."""
    with connected(admin_url) as admin:
        every = [name for tenant in admin.tenants.list() for name in admin.namespaces.list(tenant)]
        found = [name for name in every if cluster in admin.namespaces.policies(name).replication_clusters]
    show_names(found, as_json, "namespace", cluster)


@namespaces_group.command("topics")
@click.argument("namespace")
@click.option(
    "-m",
    "--mode",
    type=click.Choice(["PERSISTENT", "NON_PERSISTENT", "ALL"]),
    default="ALL",
    help="Which topics to list.",
)
@click.option(
    "-ist",
    "--include-system-topic",
    "--system-topic",
    "system_topic",
    is_flag=True,
    help="Include the server's own system topics.",
)
@shown
def topics_command(namespace: str, mode: Any, system_topic: bool, admin_url: str, as_json: bool) -> None:
    """List the topics of NAMESPACE, each partition separately."""
    with connected(admin_url) as admin:
        names = admin.namespaces.topics(namespace, mode=mode, include_system_topics=system_topic)
    show_names(names, as_json, "topic", namespace)


@namespaces_group.command("create")
@click.argument("namespace")
@click.option("-b", "--bundles", type=click.IntRange(0), help="Number of bundles.")
@click.option("-c", "--clusters", help="Replication clusters, separated by commas.")
@common
def create_command(namespace: str, bundles: int | None, clusters: str | None, admin_url: str, as_json: bool) -> None:
    """Create NAMESPACE (tenant/namespace)."""
    policies = {"replication_clusters": words(clusters)} if words(clusters) else None
    with connected(admin_url) as admin:
        admin.namespaces.create(namespace, bundles=bundles, policies=policies)
    emit_done(as_json, created=namespace)


@namespaces_group.command("delete")
@click.argument("namespace")
@force_option
@common
def delete_command(namespace: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete NAMESPACE; with --force including all its topics."""
    with connected(admin_url) as admin:
        admin.namespaces.delete(namespace, force=force)
    emit_done(as_json, deleted=namespace)


# ---- Bundles


@namespaces_group.command("bundles")
@click.argument("namespace")
@shown
def bundles_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """List the bundles of NAMESPACE: the parts of its hash range."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.bundles(namespace), as_json, namespace)


@namespaces_group.command("unload")
@click.argument("namespace")
@_bundle
@click.option(
    "-d",
    "--destinationBroker",
    "--destination-broker",
    "destinationBroker",
    help="Broker that takes over the bundle (host:port).",
)
@common
def unload_command(
    namespace: str, bundle: str | None, destinationBroker: str | None, admin_url: str, as_json: bool
) -> None:
    """Unload the topics of NAMESPACE from their brokers; clients reconnect by themselves."""
    with connected(admin_url) as admin:
        if bundle is None:
            admin.namespaces.unload(namespace, destination_broker=destinationBroker)
        else:
            admin.namespaces.unload_bundle(namespace, bundle, destination_broker=destinationBroker)
    emit_done(as_json, unloaded=namespace)


@namespaces_group.command("split-bundle")
@click.argument("namespace")
@click.option("-b", "--bundle", required=True, help="The bundle, such as 0x00000000_0x40000000.")
@click.option("-u", "--unload", is_flag=True, help="Unload the new bundles, so that the load manager can place them.")
@click.option(
    "-san",
    "--split-algorithm-name",
    "algorithm",
    help="Choice of the boundary: range_equally_divide or topic_count_equally_divide.",
)
@common
def split_command(
    namespace: str, bundle: str, unload: bool, algorithm: str | None, admin_url: str, as_json: bool
) -> None:
    """Split a bundle of NAMESPACE into two."""
    with connected(admin_url) as admin:
        admin.namespaces.split_bundle(namespace, bundle, unload=unload, algorithm=algorithm)
    emit_done(as_json, split=bundle)


# ---- Backlogs of all topics


@namespaces_group.command("clear-backlog")
@click.argument("namespace")
@click.option("-s", "--sub", help="Only this subscription. [default: all]")
@_bundle
@click.option("-f", "-force", "--force", "force", is_flag=True, help="Do not ask for confirmation.")
@common
def clear_command(
    namespace: str, sub: str | None, bundle: str | None, force: bool, admin_url: str, as_json: bool
) -> None:
    """Mark all messages in the topics of NAMESPACE as consumed."""
    if not force and not click.confirm(f"Clear the backlog of {namespace}?"):
        raise CommandError("nothing was cleared; --force does it without asking")
    with connected(admin_url) as admin:
        admin.namespaces.clear_backlog(namespace, subscription=sub, bundle=bundle)
    emit_done(as_json, cleared=namespace)


@namespaces_group.command("unsubscribe")
@click.argument("namespace")
@click.option("-s", "--sub", required=True, help="Name of the subscription.")
@_bundle
@common
def unsubscribe_command(namespace: str, sub: str, bundle: str | None, admin_url: str, as_json: bool) -> None:
    """Delete a subscription from all topics of NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.unsubscribe(namespace, sub, bundle=bundle)
    emit_done(as_json, unsubscribed=sub)


# ---- Permissions


@namespaces_group.command("permissions")
@click.argument("namespace")
@shown
def permissions_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show the roles with permissions in NAMESPACE."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.permissions(namespace), as_json, namespace)


@namespaces_group.command("grant-permission")
@click.argument("namespace")
@_role
@click.option(
    "--actions",
    required=True,
    help="Actions separated by commas: produce, consume, functions, sources, sinks, packages.",
)
@common
def grant_command(namespace: str, role: str, actions: str, admin_url: str, as_json: bool) -> None:
    """Grant a role actions in NAMESPACE; replaces its former actions."""
    with connected(admin_url) as admin:
        admin.namespaces.grant(namespace, role, words(actions))
    emit_done(as_json, granted=role)


@namespaces_group.command("revoke-permission")
@click.argument("namespace")
@_role
@common
def revoke_command(namespace: str, role: str, admin_url: str, as_json: bool) -> None:
    """Revoke all actions of a role in NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.revoke(namespace, role)
    emit_done(as_json, revoked=role)


@namespaces_group.command("subscription-permission")
@click.argument("namespace")
@shown
def subscription_permission_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """List the subscriptions of NAMESPACE that are restricted, with the roles that may use them."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.subscription_permissions(namespace), as_json, namespace)


@namespaces_group.command("grant-subscription-permission")
@click.argument("namespace")
@click.option("-s", "--subscription", required=True, help="Name of the subscription.")
@click.option("-rs", "--roles", required=True, help="Roles, separated by commas.")
@common
def grant_subscription_command(namespace: str, subscription: str, roles: str, admin_url: str, as_json: bool) -> None:
    """Allow only the given roles to use a subscription in NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.grant_subscription(namespace, subscription, words(roles))
    emit_done(as_json, granted=subscription)


@namespaces_group.command("revoke-subscription-permission")
@click.argument("namespace")
@click.option("-s", "--subscription", required=True, help="Name of the subscription.")
@click.option("-r", "--role", required=True, help="Name of the role.")
@common
def revoke_subscription_command(namespace: str, subscription: str, role: str, admin_url: str, as_json: bool) -> None:
    """Remove a role from those that may use a subscription in NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.revoke_subscription(namespace, subscription, role)
    emit_done(as_json, revoked=role)


# ---- Properties, bookie affinity

_key = click.option("-k", "--key", required=True, help="Name of the property.")


@namespaces_group.command("get-properties")
@click.argument("namespace")
@shown
def get_properties_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show the properties of NAMESPACE."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.properties(namespace), as_json, namespace)


@namespaces_group.command("set-properties")
@click.argument("namespace")
@properties_option
@common
def set_properties_command(namespace: str, properties: tuple[str, ...], admin_url: str, as_json: bool) -> None:
    """Add or change properties of NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.add_properties(namespace, dict(pairs(properties)))
    emit_done(as_json, updated=namespace)


@namespaces_group.command("clear-properties")
@click.argument("namespace")
@common
def clear_properties_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Remove all properties of NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.clear_properties(namespace)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("get-property")
@click.argument("namespace")
@_key
@common
def get_property_command(namespace: str, key: str, admin_url: str, as_json: bool) -> None:
    """Show one property of NAMESPACE."""
    with connected(admin_url) as admin:
        show_value(admin.namespaces.property(namespace, key), as_json, key)


@namespaces_group.command("set-property")
@click.argument("namespace")
@_key
@click.option("-v", "--value", required=True, help="Value of the property.")
@common
def set_property_command(namespace: str, key: str, value: str, admin_url: str, as_json: bool) -> None:
    """Set one property of NAMESPACE."""
    with connected(admin_url) as admin:
        admin.namespaces.set_property(namespace, key, value)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("remove-property")
@click.argument("namespace")
@_key
@common
def remove_property_command(namespace: str, key: str, admin_url: str, as_json: bool) -> None:
    """Remove one property of NAMESPACE; prints the value it had."""
    with connected(admin_url) as admin:
        show_value(admin.namespaces.remove_property(namespace, key), as_json, key)


@namespaces_group.command("get-bookie-affinity-group")
@click.argument("namespace")
@shown
def get_affinity_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show the group of bookies that NAMESPACE prefers."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.bookie_affinity(namespace), as_json, namespace)


@namespaces_group.command("set-bookie-affinity-group")
@click.argument("namespace")
@click.option("-pg", "--primary-group", required=True, help="Group whose bookies are used first.")
@click.option("-sg", "--secondary-group", help="Group that is used when the primary one has too few bookies.")
@common
def set_affinity_command(
    namespace: str, primary_group: str, secondary_group: str | None, admin_url: str, as_json: bool
) -> None:
    """Set the group of bookies that NAMESPACE prefers."""
    affinity = BookieAffinity(
        bookkeeper_affinity_group_primary=primary_group, bookkeeper_affinity_group_secondary=secondary_group
    )
    with connected(admin_url) as admin:
        admin.namespaces.set_bookie_affinity(namespace, affinity)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("delete-bookie-affinity-group")
@click.argument("namespace")
@common
def delete_affinity_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Remove the bookie affinity group of NAMESPACE: its ledgers go to any bookie again."""
    with connected(admin_url) as admin:
        admin.namespaces.remove_bookie_affinity(namespace)
    emit_done(as_json, updated=namespace)


# ---- Where it may be, and with whom


@namespaces_group.command("get-topic-positions")
@click.argument("namespace")
@click.option("-b", "--bundle", required=True, help="The bundle, such as 0x00000000_0x40000000.")
@click.option("-tl", "--topic-list", "topics", help="Only these topics, separated by commas.")
@shown
def positions_command(namespace: str, bundle: str, topics: str | None, admin_url: str, as_json: bool) -> None:
    """Show where the topics of a bundle of NAMESPACE stand in the hash range."""
    with connected(admin_url) as admin:
        show_document(admin.namespaces.topic_positions(namespace, bundle, words(topics)), as_json, namespace)


@namespaces_group.command("get-allowed-clusters")
@click.argument("namespace")
@shown
def get_allowed_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """List the clusters that NAMESPACE may be replicated to; none are listed while those of its tenant hold."""
    with connected(admin_url) as admin:
        show_names(admin.namespaces.allowed_clusters(namespace), as_json, "cluster", namespace)


@namespaces_group.command("set-allowed-clusters")
@click.argument("namespace")
@click.option(
    "-c", "--clusters", required=True, help="Clusters separated by commas, those it is replicated to among them."
)
@common
def set_allowed_command(namespace: str, clusters: str, admin_url: str, as_json: bool) -> None:
    """Set the clusters that NAMESPACE may be replicated to."""
    with connected(admin_url) as admin:
        admin.namespaces.set_allowed_clusters(namespace, words(clusters))
    emit_done(as_json, updated=namespace)


@namespaces_group.command("get-anti-affinity-group")
@click.argument("namespace")
@common
def get_anti_affinity_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show the anti-affinity group of NAMESPACE."""
    with connected(admin_url) as admin:
        show_value(admin.namespaces.anti_affinity_group(namespace), as_json, "group")


@namespaces_group.command("set-anti-affinity-group")
@click.argument("namespace")
@click.option("-g", "--group", required=True, help="Group whose namespaces are served apart from each other.")
@common
def set_anti_affinity_command(namespace: str, group: str, admin_url: str, as_json: bool) -> None:
    """Serve NAMESPACE apart from the other namespaces of a group."""
    with connected(admin_url) as admin:
        admin.namespaces.set_anti_affinity_group(namespace, group)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("delete-anti-affinity-group")
@click.argument("namespace")
@common
def delete_anti_affinity_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Serve NAMESPACE anywhere again."""
    with connected(admin_url) as admin:
        admin.namespaces.delete_anti_affinity_group(namespace)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("get-anti-affinity-namespaces")
@click.option("-c", "--cluster", default="standalone", show_default=True, help="Name of the cluster.")
@click.option("-g", "--group", required=True, help="Name of the anti-affinity group.")
@click.option("-p", "--tenant", help="Only namespaces of this tenant. [default: all]")
@shown
def anti_affinity_namespaces_command(
    cluster: str, group: str, tenant: str | None, admin_url: str, as_json: bool
) -> None:
    """List the namespaces of an anti-affinity group."""
    with connected(admin_url) as admin:
        show_names(
            admin.namespaces.anti_affinity_namespaces(cluster, group, tenant=tenant), as_json, "namespace", group
        )


@namespaces_group.command("get-resource-group")
@click.argument("namespace")
@common
def get_resource_group_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Show the resource group of NAMESPACE."""
    with connected(admin_url) as admin:
        show_value(admin.namespaces.resource_group(namespace), as_json, "resourcegroup")


@namespaces_group.command("set-resource-group")
@click.argument("namespace")
@click.option("-rgn", "--resource-group-name", "group", required=True, help="Name of the resource group.")
@common
def set_resource_group_command(namespace: str, group: str, admin_url: str, as_json: bool) -> None:
    """Make NAMESPACE share the rates of a resource group."""
    with connected(admin_url) as admin:
        admin.namespaces.set_resource_group(namespace, group)
    emit_done(as_json, updated=namespace)


@namespaces_group.command("remove-resource-group")
@click.argument("namespace")
@common
def remove_resource_group_command(namespace: str, admin_url: str, as_json: bool) -> None:
    """Take NAMESPACE out of its resource group."""
    with connected(admin_url) as admin:
        admin.namespaces.remove_resource_group(namespace)
    emit_done(as_json, updated=namespace)


namespaces_group.add_command(topics_command, "destinations")

__all__ = ["namespaces_group"]
