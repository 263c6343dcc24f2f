"""`magnetar resourcegroups` and `resource-quotas`: the names and flags of pulsar-admin's groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from magnetar.admin.documents.cluster import ResourceGroup, ResourceQuota
from magnetar.cli.admin.common import common, show_document, show_names, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.output import emit_done

F = TypeVar("F", bound=Callable[..., Any])


@click.group("resourcegroups")
def resource_groups_group() -> None:
    """Create and change resource groups: rates that namespaces share at each broker."""


def _rates(function: F) -> F:
    for option in (
        click.option(
            "-bd", "--byte-dispatch-rate", "dispatch_rate_in_bytes", type=int, help="Bytes a second out; -1: any."
        ),
        click.option(
            "-md", "--msg-dispatch-rate", "dispatch_rate_in_msgs", type=int, help="Messages a second out; -1: any."
        ),
        click.option(
            "-bp", "--byte-publish-rate", "publish_rate_in_bytes", type=int, help="Bytes a second in; -1: any."
        ),
        click.option(
            "-mp", "--msg-publish-rate", "publish_rate_in_msgs", type=int, help="Messages a second in; -1: any."
        ),
    ):
        function = option(function)
    return function


@resource_groups_group.command("list")
@shown
def list_command(admin_url: str, as_json: bool) -> None:
    """List the resource groups."""
    with connected(admin_url) as admin:
        show_names(admin.resource_groups.list(), as_json, "resourcegroup")


@resource_groups_group.command("get")
@click.argument("resourcegroup")
@shown
def get_command(resourcegroup: str, admin_url: str, as_json: bool) -> None:
    """Show the rates of RESOURCEGROUP."""
    with connected(admin_url) as admin:
        show_document(admin.resource_groups.get(resourcegroup), as_json, resourcegroup)


def _put(resourcegroup: str, admin_url: str, as_json: bool, **rates: Any) -> None:
    with connected(admin_url) as admin:
        admin.resource_groups.set(resourcegroup, ResourceGroup(**rates))
    emit_done(as_json, updated=resourcegroup)


@resource_groups_group.command("create")
@click.argument("resourcegroup")
@_rates
@common
def create_command(resourcegroup: str, admin_url: str, as_json: bool, **rates: Any) -> None:
    """Create RESOURCEGROUP; namespaces join it with `namespaces set-resource-group`."""
    _put(resourcegroup, admin_url, as_json, **rates)


@resource_groups_group.command("update")
@click.argument("resourcegroup")
@_rates
@common
def update_command(resourcegroup: str, admin_url: str, as_json: bool, **rates: Any) -> None:
    """Change the given rates of RESOURCEGROUP, in effect at once."""
    _put(resourcegroup, admin_url, as_json, **rates)


@resource_groups_group.command("delete")
@click.argument("resourcegroup")
@common
def delete_command(resourcegroup: str, admin_url: str, as_json: bool) -> None:
    """Delete RESOURCEGROUP, which no namespace may belong to."""
    with connected(admin_url) as admin:
        admin.resource_groups.delete(resourcegroup)
    emit_done(as_json, deleted=resourcegroup)


# ---- Quotas of bundles


@click.group("resource-quotas")
def resource_quotas_group() -> None:
    """Show and set what bundles are expected to use; without a bundle, what any bundle is."""


def _of_bundle(function: F) -> F:
    namespace = click.option("-n", "--namespace", help="Namespace of the bundle; goes with --bundle.")
    return namespace(click.option("-b", "--bundle", help="The bundle, such as 0x00000000_0x40000000.")(function))


def _checked(namespace: str | None, bundle: str | None) -> tuple[str, str] | None:
    if (namespace is None) != (bundle is None):
        raise click.UsageError("say both --namespace and --bundle, or neither for the default quota")
    return None if namespace is None or bundle is None else (namespace, bundle)


@resource_quotas_group.command("get")
@_of_bundle
@shown
def get_quota_command(namespace: str | None, bundle: str | None, admin_url: str, as_json: bool) -> None:
    """Show the quota of a bundle, or the default."""
    of = _checked(namespace, bundle)
    with connected(admin_url) as admin:
        quotas = admin.resource_quotas
        show_document(quotas.get_default() if of is None else quotas.get(*of), as_json)


@resource_quotas_group.command("set")
@_of_bundle
@click.option("-mi", "--msgRateIn", "msg_rate_in", type=float, required=True, help="Expected messages a second in.")
@click.option("-mo", "--msgRateOut", "msg_rate_out", type=float, required=True, help="Expected messages a second out.")
@click.option("-bi", "--bandwidthIn", "bandwidth_in", type=float, required=True, help="Expected bytes a second in.")
@click.option("-bo", "--bandwidthOut", "bandwidth_out", type=float, required=True, help="Expected bytes a second out.")
@click.option("-mem", "--memory", type=float, required=True, help="Expected memory in MiB.")
@click.option("-d", "--dynamic", is_flag=True, help="Let the load manager adapt the quota.")
@common
def set_quota_command(namespace: str | None, bundle: str | None, admin_url: str, as_json: bool, **numbers: Any) -> None:
    """Set the quota of a bundle, or the default."""
    of, quota = _checked(namespace, bundle), ResourceQuota(**numbers)
    with connected(admin_url) as admin:
        if of is None:
            admin.resource_quotas.set_default(quota)
        else:
            admin.resource_quotas.set(*of, quota)
    emit_done(as_json, updated=bundle or "default")


@resource_quotas_group.command("reset-namespace-bundle-quota")
@click.option("-n", "--namespace", required=True, help="Namespace of the bundle.")
@click.option("-b", "--bundle", required=True, help="The bundle, such as 0x00000000_0x40000000.")
@common
def reset_quota_command(namespace: str, bundle: str, admin_url: str, as_json: bool) -> None:
    """Reset the quota of a bundle to the default."""
    with connected(admin_url) as admin:
        admin.resource_quotas.reset(namespace, bundle)
    emit_done(as_json, reset=bundle)
