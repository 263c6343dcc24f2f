"""`magnetar brokers`: the names and flags of `pulsar-admin brokers`."""

from __future__ import annotations

import click

from magnetar.cli.admin.common import common, show_document, show_names, show_value
from magnetar.cli.admin.http import connected
from magnetar.cli.output import emit_done


@click.group("brokers")
def brokers_group() -> None:
    """List brokers, check their health, show and change their settings."""


@brokers_group.command("list")
@click.argument("cluster", required=False)
@common
def list_command(cluster: str | None, admin_url: str, as_json: bool) -> None:
    """Brokers that are there, of CLUSTER or of the server's own."""
    with connected(admin_url) as admin:
        show_names(admin.brokers.list(cluster), as_json, "broker")


@brokers_group.command("leader-broker")
@common
def leader_command(admin_url: str, as_json: bool) -> None:
    """The broker that decides about load."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.leader(), as_json)


@brokers_group.command("namespaces")
@click.argument("cluster", default="standalone")
@click.option("--url", "broker", required=True, help="The broker (host:port).")
@common
def namespaces_command(cluster: str, broker: str, admin_url: str, as_json: bool) -> None:
    """Bundles that a broker of CLUSTER serves."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.owned_namespaces(cluster, broker), as_json, broker)


@brokers_group.command("healthcheck")
@click.option("--topic-version", type=click.Choice(["V1", "V2"]), help="As in pulsar-admin; makes no difference here.")
@common
def healthcheck_command(topic_version: str | None, admin_url: str, as_json: bool) -> None:
    """`ok` if the broker can do its work; else fails with the reason."""
    with connected(admin_url) as admin:
        show_value(admin.brokers.health(), as_json, "health")


@brokers_group.command("version")
@common
def version_command(admin_url: str, as_json: bool) -> None:
    """The server's version."""
    with connected(admin_url) as admin:
        show_value(admin.brokers.version(), as_json, "version")


@brokers_group.command("backlog-quota-check")
@common
def quota_command(admin_url: str, as_json: bool) -> None:
    """Measure all backlogs against their quotas now."""
    with connected(admin_url) as admin:
        admin.brokers.check_backlog_quotas()
    emit_done(as_json, checked=True)


@brokers_group.command("shutdown")
@common
def shutdown_command(admin_url: str, as_json: bool) -> None:
    """Stop the broker cleanly."""
    with connected(admin_url) as admin:
        admin.brokers.shut_down()
    emit_done(as_json, stopping=admin_url)


# ---- Settings

_config = click.option("--config", "key", required=True, help="Name of the setting.")


@brokers_group.command("list-dynamic-config")
@common
def list_dynamic_command(admin_url: str, as_json: bool) -> None:
    """Settings that can be changed while the broker runs."""
    with connected(admin_url) as admin:
        show_names(admin.brokers.dynamic_names(), as_json, "setting")


@brokers_group.command("get-all-dynamic-config")
@common
def get_dynamic_command(admin_url: str, as_json: bool) -> None:
    """Settings that have been changed."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.dynamic_values(), as_json)


@brokers_group.command("update-dynamic-config")
@_config
@click.option("--value", required=True, help="Its new value.")
@common
def update_dynamic_command(key: str, value: str, admin_url: str, as_json: bool) -> None:
    """Change a setting, at once and for good."""
    with connected(admin_url) as admin:
        admin.brokers.set_dynamic(key, value)
    emit_done(as_json, updated=key, value=value)


@brokers_group.command("delete-dynamic-config")
@_config
@common
def delete_dynamic_command(key: str, admin_url: str, as_json: bool) -> None:
    """Back to the value that the broker was started with."""
    with connected(admin_url) as admin:
        admin.brokers.unset_dynamic(key)
    emit_done(as_json, deleted=key)


@brokers_group.command("get-runtime-config")
@common
def runtime_command(admin_url: str, as_json: bool) -> None:
    """Every setting with the value that holds."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.runtime_configuration(), as_json)


@brokers_group.command("get-internal-config")
@common
def internal_command(admin_url: str, as_json: bool) -> None:
    """Where the cluster keeps its metadata."""
    with connected(admin_url) as admin:
        show_document(admin.brokers.internal_configuration(), as_json)


# ---- What they do (pulsar-admin broker-stats)


@brokers_group.command("load-report")
@common
def load_report_command(admin_url: str, as_json: bool) -> None:
    """CPU (percent of one core), memory (MiB), rates, and what the broker serves."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.load_report(), as_json)
