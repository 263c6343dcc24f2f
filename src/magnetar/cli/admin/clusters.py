"""`magnetar clusters`: the names and flags of `pulsar-admin clusters`."""

from __future__ import annotations

from typing import Any

import click

from magnetar.admin.documents.cluster import ClusterData
from magnetar.cli.admin.common import common, show_document, show_names, shown
from magnetar.cli.admin.http import connected, words
from magnetar.cli.output import emit_done


@click.group("clusters")
def clusters_group() -> None:
    """List, create and change clusters, their peers and their failure domains."""


def _addresses(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option(
            "--remote-auth-plugin", "authentication_plugin", help="Authentication plugin for CLUSTER, such as token."
        ),
        click.option(
            "--auth-parameters",
            "--remote-auth-parameters",
            "authentication_parameters",
            help="Credential for CLUSTER, such as token:... or file:///path.",
        ),
        click.option(
            "--tls-enable/--tls-disable",
            "broker_client_tls_enabled",
            default=None,
            help="Whether to use the TLS addresses of CLUSTER.",
        ),
        click.option(
            "--tls-trust-certs-filepath",
            "broker_client_trust_certs_file_path",
            help="File of the authorities trusted for its certificates (PEM, on the brokers' machines).",
        ),
        click.option(
            "--tls-allow-insecure",
            "tls_allow_insecure_connection",
            is_flag=True,
            default=None,
            help="Accept any certificate of CLUSTER.",
        ),
        click.option(
            "-p", "--peer-clusters", help="Peer clusters, which clients may use in its place, separated by commas."
        ),
        click.option(
            "--broker-url-secure",
            "broker_service_url_tls",
            help="Address of its binary protocol with TLS, such as pulsar+ssl://host:6651.",
        ),
        click.option(
            "--broker-url", "broker_service_url", help="Address of its binary protocol, such as pulsar://host:6650."
        ),
        click.option(
            "--url-secure", "service_url_tls", help="Address of its admin API with TLS, such as https://host:8443."
        ),
        click.option("--url", "service_url", help="Address of its admin API, such as http://host:8080."),
    ):
        function = option(function)
    return function


def _data(peer_clusters: str | None, **fields: Any) -> ClusterData:
    peers = None if peer_clusters is None else words(peer_clusters)
    return ClusterData(peer_cluster_names=peers, **fields)


@clusters_group.command("list")
@click.option("-c", "--current", is_flag=True, help="Mark the cluster of the server with (*).")
@shown
def list_command(current: bool, admin_url: str, as_json: bool) -> None:
    """List all clusters."""
    with connected(admin_url) as admin:
        own = admin.brokers.runtime_configuration().get("clusterName") if current else None
        show_names([f"{name}(*)" if name == own else name for name in admin.clusters.list()], as_json, "cluster")


@clusters_group.command("get")
@click.argument("cluster")
@shown
def get_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """Show the addresses of CLUSTER."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.get(cluster), as_json, cluster)


@clusters_group.command("create")
@click.argument("cluster")
@_addresses
@common
def create_command(cluster: str, admin_url: str, as_json: bool, **data: Any) -> None:
    """Register CLUSTER with the addresses of its brokers."""
    with connected(admin_url) as admin:
        admin.clusters.create(cluster, _data(**data))
    emit_done(as_json, created=cluster)


@clusters_group.command("update")
@click.argument("cluster")
@_addresses
@common
def update_command(cluster: str, admin_url: str, as_json: bool, **data: Any) -> None:
    """Change the given addresses of CLUSTER; the others stay."""
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
    """Remove the registration of CLUSTER. Its servers are not touched."""
    with connected(admin_url) as admin:
        admin.clusters.delete(cluster)
    emit_done(as_json, deleted=cluster)


@clusters_group.command("get-peer-clusters")
@click.argument("cluster")
@shown
def get_peers_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """List the peer clusters of CLUSTER, which clients may use in its place."""
    with connected(admin_url) as admin:
        show_names(admin.clusters.peers(cluster), as_json, "cluster", cluster)


@clusters_group.command("update-peer-clusters")
@click.argument("cluster")
@click.option("--peer-clusters", required=True, help="Cluster names separated by commas; an empty value removes all.")
@common
def update_peers_command(cluster: str, peer_clusters: str, admin_url: str, as_json: bool) -> None:
    """Set the peer clusters of CLUSTER, which clients may use in its place."""
    with connected(admin_url) as admin:
        admin.clusters.set_peers(cluster, words(peer_clusters))
    emit_done(as_json, updated=cluster)


# ---- Failure domains

_domain = click.option("--domain-name", required=True, help="Name of the failure domain.")
_brokers = click.option("--broker-list", required=True, help="Brokers (host:port) separated by commas.")


@clusters_group.command("list-failure-domains")
@click.argument("cluster")
@shown
def list_domains_command(cluster: str, admin_url: str, as_json: bool) -> None:
    """List the failure domains of CLUSTER with their brokers."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.failure_domains(cluster), as_json, cluster)


@clusters_group.command("get-failure-domain")
@click.argument("cluster")
@_domain
@shown
def get_domain_command(cluster: str, domain_name: str, admin_url: str, as_json: bool) -> None:
    """List the brokers of one failure domain of CLUSTER."""
    with connected(admin_url) as admin:
        show_document(admin.clusters.failure_domain(cluster, domain_name), as_json, domain_name)


@clusters_group.command("create-failure-domain")
@click.argument("cluster")
@_domain
@_brokers
@common
def create_domain_command(cluster: str, domain_name: str, broker_list: str, admin_url: str, as_json: bool) -> None:
    """Create a failure domain: brokers of CLUSTER that may fail together."""
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
    """Delete a failure domain of CLUSTER."""
    with connected(admin_url) as admin:
        admin.clusters.delete_failure_domain(cluster, domain_name)
    emit_done(as_json, deleted=domain_name)
