"""`magnetar broker-stats` and `proxy-stats`: the names of pulsar-admin's groups of one broker's numbers, as documents."""

from __future__ import annotations

from typing import NoReturn

import click

from magnetar.cli.admin.common import accepted, common, show_document, shown
from magnetar.cli.admin.http import connected
from magnetar.cli.errors import CommandError

_indent = accepted("-i", "--indent", is_flag=True, help="JSON is indented on a terminal.")


@click.group("broker-stats")
def broker_stats_group() -> None:
    """Show what a broker does: metrics, topics, load."""


@broker_stats_group.command("monitoring-metrics")
@_indent
@shown
def metrics_command(admin_url: str, as_json: bool) -> None:
    """Show the broker's metrics as JSON, gathered by what they are about."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.metrics(), as_json)


@broker_stats_group.command("mbeans")
@_indent
@shown
def mbeans_command(admin_url: str, as_json: bool) -> None:
    """Show Java management beans: none, since there is no JVM."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.mbeans(), as_json)


@broker_stats_group.command("topics")
@_indent
@shown
def topics_command(admin_url: str, as_json: bool) -> None:
    """Show the statistics of all topics that the broker serves, by namespace, bundle and domain."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.topics(), as_json)


@broker_stats_group.command("allocator-stats")
@click.argument("allocator")
@shown
def allocator_command(allocator: str, admin_url: str, as_json: bool) -> None:
    """Show the statistics of ALLOCATOR (default or ml-cache): zero, since there are no such allocators."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.allocator(allocator), as_json)


@broker_stats_group.command("load-report")
@shown
def load_report_command(admin_url: str, as_json: bool) -> None:
    """Show the broker's CPU (percent of one core), memory (MiB), rates and bundles."""
    with connected(admin_url) as admin:
        show_document(admin.broker_stats.load_report(), as_json)


@click.group("proxy-stats")
def proxy_stats_group() -> None:
    """Refuse to show statistics of a proxy: there is none."""


def _no_proxy() -> NoReturn:
    raise CommandError("there is no proxy: clients connect to brokers directly; see `magnetar broker-stats topics`")


@proxy_stats_group.command("connections")
@_indent
@common
def connections_command(admin_url: str, as_json: bool) -> None:
    """Refuse to list the connections of a proxy: there is none."""
    _no_proxy()


@proxy_stats_group.command("topics")
@_indent
@common
def proxy_topics_command(admin_url: str, as_json: bool) -> None:
    """Refuse to list the topics of a proxy: there is none."""
    _no_proxy()
