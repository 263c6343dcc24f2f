"""`magnetar tenants`: the names and flags of `pulsar-admin tenants`."""

from __future__ import annotations

import click

from magnetar.cli.admin.common import common, force_option, show_document, show_names, shown
from magnetar.cli.admin.http import connected, words
from magnetar.cli.output import emit_done


@click.group("tenants")
def tenants_group() -> None:
    """List, create, change and delete tenants."""


def _options(function: click.decorators.FC) -> click.decorators.FC:
    roles = click.option("-r", "--admin-roles", help="Roles that administer the tenant, separated by commas.")
    clusters = click.option("-c", "--allowed-clusters", help="Allowed clusters, separated by commas.  [default: all]")
    return roles(clusters(function))


@tenants_group.command("list")
@shown
def list_command(admin_url: str, as_json: bool) -> None:
    """All tenants."""
    with connected(admin_url) as admin:
        show_names(admin.tenants.list(), as_json, "tenant")


@tenants_group.command("get")
@click.argument("tenant")
@shown
def get_command(tenant: str, admin_url: str, as_json: bool) -> None:
    """Show the administrators and allowed clusters of TENANT."""
    with connected(admin_url) as admin:
        show_document(admin.tenants.get(tenant), as_json, tenant)


@tenants_group.command("create")
@click.argument("tenant")
@_options
@common
def create_command(
    tenant: str, admin_roles: str | None, allowed_clusters: str | None, admin_url: str, as_json: bool
) -> None:
    """Create TENANT."""
    with connected(admin_url) as admin:
        clusters = words(allowed_clusters) or admin.clusters.list()
        admin.tenants.create(tenant, admin_roles=words(admin_roles), allowed_clusters=clusters)
    emit_done(as_json, created=tenant)


@tenants_group.command("update")
@click.argument("tenant")
@_options
@common
def update_command(
    tenant: str, admin_roles: str | None, allowed_clusters: str | None, admin_url: str, as_json: bool
) -> None:
    """Change the given properties of TENANT; the others stay."""
    with connected(admin_url) as admin:
        known = admin.tenants.get(tenant)
        roles = known.admin_roles if admin_roles is None else words(admin_roles)
        admin.tenants.update(
            tenant, admin_roles=roles, allowed_clusters=words(allowed_clusters) or known.allowed_clusters
        )
    emit_done(as_json, updated=tenant)


@tenants_group.command("delete")
@click.argument("tenant")
@force_option
@common
def delete_command(tenant: str, force: bool, admin_url: str, as_json: bool) -> None:
    """Delete TENANT; with --force including its namespaces and all their topics."""
    with connected(admin_url) as admin:
        admin.tenants.delete(tenant, force=force)
    emit_done(as_json, deleted=tenant)
