"""`magnetar brokers`: the names and flags of `pulsar-admin brokers`."""

from __future__ import annotations

import click

from magnetar.cli.admin.common import accepted, common, show_document, show_names, show_value, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.output import emit_done


@click.group("brokers")
def brokers_group() -> None:
    """List brokers, check their health, show and change their settings."""


@brokers_group.command("list")
@click.argument("cluster", required=False)
@shown
def list_command(cluster: str | None, admin_url: str, as_json: bool) -> None:
    """List the running brokers of CLUSTER (by default the server's own cluster)."""
    with connected(admin_url) as admin:
        show_names(admin.brokers.list(cluster), as_json, "broker")


@brokers_group.command("leader-broker")
@shown
def leader_command(admin_url: str, as_json: bool) -> None:
    """Show the leader broker, which balances the load."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.leader(), as_json)


@brokers_group.command("namespaces")
@click.argument("cluster", default="standalone")
@click.option("-u", "--url", "broker", required=True, help="Address of the broker (host:port).")
@shown
def namespaces_command(cluster: str, broker: str, admin_url: str, as_json: bool) -> None:
    """List the bundles that a broker of CLUSTER serves."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.owned_namespaces(cluster, broker), as_json, broker)


@brokers_group.command("healthcheck")
@click.option(
    "-tv", "--topic-version", type=click.Choice(["V1", "V2"]), help="Accepted as in pulsar-admin; has no effect."
)
@common
def healthcheck_command(topic_version: str | None, admin_url: str, as_json: bool) -> None:
    """Print `ok` if the broker can store and deliver messages; fail with the reason otherwise."""
    with connected(admin_url) as admin:
        show_value(admin.brokers.health(), as_json, "health")


@brokers_group.command("version")
@common
def version_command(admin_url: str, as_json: bool) -> None:
    """Show the version of the server."""
    with connected(admin_url) as admin:
        show_value(admin.brokers.version(), as_json, "version")


@brokers_group.command("backlog-quota-check")
@common
def quota_command(admin_url: str, as_json: bool) -> None:
    """Check all backlogs against their quotas now."""
    with connected(admin_url) as admin:
        admin.brokers.check_backlog_quotas()
    emit_done(as_json, checked=True)


@brokers_group.command("shutdown")
@accepted("-m", "--max-concurrent-unload-per-sec", help="Bundles are handed over one after the other.")
@accepted("-f", "--forced-terminate-topic", help="Topics are closed after brokerShutdownTimeoutMs at the latest.")
@common
def shutdown_command(admin_url: str, as_json: bool) -> None:
    """Stop the broker cleanly."""
    with connected(admin_url) as admin:
        admin.brokers.shut_down()
    emit_done(as_json, stopping=admin_url)


# ---- Settings

_config = click.option("-c", "--config", "key", required=True, help="Name of the setting.")


@brokers_group.command("list-dynamic-config")
@shown
def list_dynamic_command(admin_url: str, as_json: bool) -> None:
    """List the settings that can be changed while the broker runs."""
    with connected(admin_url) as admin:
        show_names(admin.brokers.dynamic_names(), as_json, "setting")


@brokers_group.command("get-all-dynamic-config")
@shown
def get_dynamic_command(admin_url: str, as_json: bool) -> None:
    """List the settings that were changed while the broker runs."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.dynamic_values(), as_json)


@brokers_group.command("update-dynamic-config")
@_config
@click.option("-v", "--value", required=True, help="New value.")
@common
def update_dynamic_command(key: str, value: str, admin_url: str, as_json: bool) -> None:
    """Change a setting of all brokers. It takes effect at once and survives restarts."""
    with connected(admin_url) as admin:
        admin.brokers.set_dynamic(key, value)
    emit_done(as_json, updated=key, value=value)


@brokers_group.command("delete-dynamic-config")
@_config
@common
def delete_dynamic_command(key: str, admin_url: str, as_json: bool) -> None:
    """Reset a setting to the value that the broker was started with."""
    with connected(admin_url) as admin:
        admin.brokers.unset_dynamic(key)
    emit_done(as_json, deleted=key)


@brokers_group.command("get-runtime-config")
@shown
def runtime_command(admin_url: str, as_json: bool) -> None:
    """List all settings with their effective values."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.runtime_configuration(), as_json)


@brokers_group.command("get-internal-config")
@shown
def internal_command(admin_url: str, as_json: bool) -> None:
    """Show where the cluster keeps its metadata."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.internal_configuration(), as_json)


# ---- What they do (pulsar-admin broker-stats)


@brokers_group.command("load-report")
@shown
def load_report_command(admin_url: str, as_json: bool) -> None:
    """Show the broker's CPU (percent of one core), memory (MiB), rates and bundles."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.load_report(), as_json)
