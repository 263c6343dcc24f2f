"""`magnetar clusters`: the names and flags of `pulsar-admin clusters`."""

from __future__ import annotations

from typing import Any

import click

from magnetar.admin.documents import ClusterData
from magnetar.cli.admin.common import common, show_document, show_names
from magnetar.cli.admin.http import connected, words
from magnetar.cli.output import emit_done


@click.group("clusters")
def clusters_group() -> None:
    """List and describe clusters, and which of their brokers may fail together."""


def _addresses(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option(
            "--remote-auth-plugin", "authentication_plugin", help="How to prove there who we are, such as token."
        ),
        click.option(
            "--remote-auth-parameters",
            "authentication_parameters",
            help="The credential, such as token:... or file:///path.",
        ),
        click.option(
            "--tls-enable/--tls-disable",
            "broker_client_tls_enabled",
            default=None,
            help="Use its TLS addresses, or not.",
        ),
        click.option(
            "--tls-trust-certs-filepath",
            "broker_client_trust_certs_file_path",
            help="Authorities of its certificates, PEM, on the brokers' machines.",
        ),
        click.option(
            "--tls-allow-insecure",
            "tls_allow_insecure_connection",
            is_flag=True,
            default=None,
            help="Trust any certificate.",
        ),
        click.option("-p", "--peer-clusters", help="Clusters that stand in for it, separated by commas."),
        click.option("--broker-url-secure", "broker_service_url_tls", help="Such as pulsar+ssl://host:6651."),
        click.option("--broker-url", "broker_service_url", help="Such as pulsar://host:6650."),
        click.option("--url-secure", "service_url_tls", help="Such as https://host:8443."),
        click.option("--url", "service_url", help="Such as http://host:8080."),
    ):
        function = option(function)
    return function


def _data(peer_clusters: str | None, **fields: Any) -> ClusterData:
    peers = None if peer_clusters is None else words(peer_clusters)
    return ClusterData(peer_cluster_names=peers, **fields)


@clusters_group.command("list")
@common
def list_command(admin_url: str, as_json: bool) -> None:
    """All clusters."""
    with connected(admin_url) as admin:
        show_names(admin.clusters.list(), as_json, "cluster")


@clusters_group.command("get")
@click.argument("cluster")
@common
def get_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """Addresses of CLUSTER."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.get(cluster), as_json, cluster)


@clusters_group.command("create")
@click.argument("cluster")
@_addresses
@common
def create_command(cluster: str, admin_url: str, as_json: bool, **data: Any) -> None:
    """Make CLUSTER known."""
    with connected(admin_url) as admin:
        admin.clusters.create(cluster, _data(**data))
    emit_done(as_json, created=cluster)


@clusters_group.command("update")
@click.argument("cluster")
@_addresses
@common
def update_command(cluster: str, admin_url: str, as_json: bool, **data: Any) -> None:
    """Change the addresses of CLUSTER that are given."""
    with connected(admin_url) as admin:
        known, given = admin.clusters.get(cluster), _data(**data)
        for name in known.__struct_fields__:
            if getattr(given, name) is not None:
                setattr(known, name, getattr(given, name))
        admin.clusters.update(cluster, known)
    emit_done(as_json, updated=cluster)


@clusters_group.command("delete")
@click.argument("cluster")
@common
def delete_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """Forget CLUSTER. The servers of the cluster itself are not touched."""
    with connected(admin_url) as admin:
        admin.clusters.delete(cluster)
    emit_done(as_json, deleted=cluster)


@clusters_group.command("get-peer-clusters")
@click.argument("cluster")
@common
def get_peers_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """Clusters that stand in for CLUSTER."""
    with connected(admin_url) as admin:
        show_names(admin.clusters.peers(cluster), as_json, "cluster", cluster)


@clusters_group.command("update-peer-clusters")
@click.argument("cluster")
@click.option("--peer-clusters", required=True, help="Separated by commas; empty: none.")
@common
def update_peers_command(cluster: str, peer_clusters: str, admin_url: str, as_json: bool) -> None:
    """Set the clusters that stand in for CLUSTER."""
    with connected(admin_url) as admin:
        admin.clusters.set_peers(cluster, words(peer_clusters))
    emit_done(as_json, updated=cluster)


# ---- Failure domains

_domain = click.option("--domain-name", required=True, help="Name of the domain.")
_brokers = click.option("--broker-list", required=True, help="Brokers (host:port) separated by commas.")


@clusters_group.command("list-failure-domains")
@click.argument("cluster")
@common
def list_domains_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """Failure domains of CLUSTER with their brokers."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.failure_domains(cluster), as_json, cluster)


@clusters_group.command("get-failure-domain")
@click.argument("cluster")
@_domain
@common
def get_domain_command(cluster: str, domain_name: str, admin_url: str, as_json: bool) -> None:
    """Brokers of one failure domain of CLUSTER."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.failure_domain(cluster, domain_name), as_json, domain_name)


@clusters_group.command("create-failure-domain")
@click.argument("cluster")
@_domain
@_brokers
@common
def create_domain_command(cluster: str, domain_name: str, broker_list: str, admin_url: str, as_json: bool) -> None:
    """Name brokers of CLUSTER that may fail together."""
    with connected(admin_url) as admin:
        admin.clusters.set_failure_domain(cluster, domain_name, words(broker_list))
    emit_done(as_json, created=domain_name)


@clusters_group.command("update-failure-domain")
@click.argument("cluster")
@_domain
@_brokers
@common
def update_domain_command(cluster: str, domain_name: str, broker_list: str, admin_url: str, as_json: bool) -> None:
    """Change the brokers of a failure domain of CLUSTER."""
    with connected(admin_url) as admin:
        admin.clusters.failure_domain(cluster, domain_name)
        admin.clusters.set_failure_domain(cluster, domain_name, words(broker_list))
    emit_done(as_json, updated=domain_name)


@clusters_group.command("delete-failure-domain")
@click.argument("cluster")
@_domain
@common
def delete_domain_command(cluster: str, domain_name: str, admin_url: str, as_json: bool) -> None:
    """Remove a failure domain of CLUSTER."""
    with connected(admin_url) as admin:
        admin.clusters.delete_failure_domain(cluster, domain_name)
    emit_done(as_json, deleted=domain_name)
