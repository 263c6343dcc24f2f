"""Brokers: which there are, whether this one is healthy, how it is configured."""

from __future__ import annotations

from typing import Literal

from starlette.responses import Response

from magnetar import __version__
from magnetar.admin.answers import as_json, done, text
from magnetar.admin.call import Call, parse_json
from magnetar.admin.context import check_storage, runtime_settings
from magnetar.admin.documents.cluster import InternalConfiguration, LeaderBroker, NamespaceOwnership
from magnetar.admin.errors import NotFoundError, UnhealthyError
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import ADMIN, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.dynamic_configuration import DYNAMIC
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.metadata import paths

BROKERS = f"{ADMIN}/brokers"


@documented(
    "`ok` when the metadata store answers and the bookie works.",
    answer=str,
    media=TEXT,
    query={"topicVersion": Literal["V1", "V2"]},
)
async def health(call: Call) -> Response:
    """Raises UnhealthyError (503), or what the store raised."""
    broker = call.broker
    if await broker.metadata.get(paths.broker_path(broker.ownership.broker_id)) is None:
        raise UnhealthyError("this broker's registration is gone from the metadata store")
    check_storage(call.admin.storage)
    return text("ok")


@documented(
    "`ok` while it takes part in the cluster: neither without a session nor about to leave.", answer=str, media=TEXT
)
async def ready(call: Call) -> Response:
    """Raises UnhealthyError (503)."""
    if not call.broker.cluster.registration.registered:
        raise UnhealthyError("this broker does not take part in the cluster")
    return text("ok")


@documented("`ok` while the process works.", answer=str, media=TEXT)
async def alive(call: Call) -> Response:
    """Nothing else is asked: whoever restarts a process because its metadata store is gone makes it worse."""
    return text("ok\n")


@documented(
    "`ok` while clients can be served: this broker takes part in the cluster, and entries can be stored.",
    answer=str,
    media=TEXT,
)
async def ready_for_clients(call: Call) -> Response:
    """Raises UnhealthyError (503); with authentication on, the reason is for those who may ask `brokers/health`."""
    await ready(call)
    if call.broker.security.authentication is None:
        check_storage(call.admin.storage)
    elif call.admin.storage.problem() is not None:
        raise UnhealthyError("nothing new can be stored; brokers/health says why")
    return text("ok\n")


@documented(answer=str, media=TEXT)
async def status_page(call: Call) -> Response:
    """Health page that load balancers poll."""
    return text("OK")


@documented("Names of the brokers that are there.", answer=list[str])
async def active(call: Call) -> Response:
    return as_json(await call.broker.metadata.children(paths.BROKERS_PATH))


@documented("Names of the brokers of a cluster.", answer=list[str])
async def active_in_cluster(call: Call) -> Response:
    if call.params["cluster"] != call.broker.config.settings.cluster_name:
        raise NotFoundError("Cluster does not exist")
    return await active(call)


@documented("The broker that decides about load.", answer=LeaderBroker, errors=(404,))
async def leader(call: Call) -> Response:
    node = await call.broker.metadata.get(paths.LEADER_PATH)
    if node is None:
        raise NotFoundError("Couldn't find leader broker")
    found = parse_json(node.value)
    return as_json({"brokerId": found["brokerId"], "serviceUrl": found["serviceUrl"]})


@documented("The server's version.", answer=str, media=TEXT)
async def version(call: Call) -> Response:
    return text(__version__)


@documented("Where the cluster keeps its metadata.", answer=InternalConfiguration)
async def internal_configuration(call: Call) -> Response:
    url = runtime_settings(call.broker.config.settings).get("metadataStoreUrl", "")  # empty: a file of the one process
    return as_json(
        {
            "metadataStoreUrl": url,
            "configurationMetadataStoreUrl": url,
            "ledgersRootPath": paths.LEDGERS_ROOT,
            "bookkeeperMetadataServiceUri": f"metadata-store:{url}{paths.LEDGERS_ROOT}" if url else "",
            "stateStorageServiceUrl": None,
        }
    )


@documented(answer=dict[str, NamespaceOwnership])
async def owned_namespaces(call: Call) -> Response:
    """The bundles that a broker serves."""
    await active_in_cluster(call)
    name, cluster = call.params["broker"], call.broker.cluster
    if await cluster.brokers.get(name) is None:
        raise NotFoundError("the broker is not part of this cluster")
    policies = (await cluster.load_placement.view()).isolation
    found = {}
    for bundle in await cluster.owners.of_broker(name):
        policy = policies.policy_of(str(bundle.namespace))
        kind = "shared" if policy is None else "primary" if policy.is_primary(name) else "secondary"
        found[str(bundle)] = {"broker_assignment": kind, "is_controlled": policy is not None, "is_active": True}
    return as_json(found)


@documented(errors=(405,))
async def shut_down(call: Call) -> Response:
    """Stop this broker as SIGTERM does: clients go elsewhere, everything is stored. 204 leaves before it begins."""
    if call.admin.shut_down is None:
        raise NotAllowedError("this broker cannot be stopped over HTTP")
    call.admin.shut_down()
    return done()


@documented(heavy=True, effect=True)
async def check_backlog_quotas(call: Call) -> Response:
    """Measure all backlogs now rather than at the next interval."""
    for topic in call.broker.topics.loaded:
        if isinstance(topic, PersistentTopic):
            await topic.upkeep.check_backlog_quota()
        await call.pace.breathe()
    return done()


@documented(always_fails=True)
async def no_worker(call: Call) -> Response:
    """Always 503."""
    raise UnhealthyError("Function worker service is not done initializing: Pulsar Functions are unsupported")


CONFIGURATION = f"{BROKERS}/configuration"


@documented(answer=list[str])
async def configuration_names(call: Call) -> Response:
    """Names of the settings that can be changed."""
    return as_json(sorted(DYNAMIC))


@documented(answer=dict[str, str])
async def configuration_values(call: Call) -> Response:
    """The settings that have been changed, as texts."""
    return as_json(call.broker.dynamic.values)


@documented(answer=dict[str, str])
async def configuration_runtime(call: Call) -> Response:
    """Every setting with the value that holds now, as texts. Secrets are hidden."""
    return as_json(runtime_settings(call.broker.config.settings))


@documented()
async def put_configuration(call: Call) -> Response:
    """Change a setting; loaded topics follow before the answer leaves. 412 for other settings and for wrong values."""
    await call.broker.dynamic.put(call.params["key"], call.params["value"])
    return done()


@documented()
async def delete_configuration(call: Call) -> Response:
    """Reset a setting to the value that the broker was started with."""
    await call.broker.dynamic.remove(call.params["key"])
    return done()


ROUTES = (
    Route("GET", "/status.html", Access.OPEN, status_page),
    Route("GET", "/healthz", Access.OPEN, alive),
    Route("GET", "/readyz", Access.OPEN, ready_for_clients),
    Route("GET", BROKERS, Access.SUPERUSER, active),
    Route("GET", f"{BROKERS}/health", Access.SUPERUSER, health),
    Route("GET", f"{BROKERS}/ready", Access.OPEN, ready),
    Route("GET", f"{BROKERS}/leaderBroker", Access.SUPERUSER, leader),
    Route("GET", f"{BROKERS}/version", Access.AUTHENTICATED, version),
    Route("GET", f"{BROKERS}/internal-configuration", Access.SUPERUSER, internal_configuration),
    Route("GET", f"{BROKERS}/backlog-quota-check", Access.SUPERUSER, check_backlog_quotas),
    Route("POST", f"{BROKERS}/shutdown", Access.SUPERUSER, shut_down),
    Route("GET", f"{BROKERS}/{{cluster}}", Access.SUPERUSER, active_in_cluster),
    Route("GET", f"{BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", Access.SUPERUSER, owned_namespaces),
    *(
        Route("GET", f"{ADMIN}/worker/{leaf}", Access.AUTHENTICATED, no_worker)
        for leaf in ("cluster", "cluster/leader", "assignments", "cluster/leader/ready")
    ),
    *(
        Route("GET", f"/admin/v3/{kind}{leaf}", Access.AUTHENTICATED, no_worker)
        for kind in ("functions", "sources", "sinks")
        for leaf in ("", "/{tenant}/{namespace}")
    ),
    Route("GET", CONFIGURATION, Access.SUPERUSER, configuration_names),
    Route("GET", f"{CONFIGURATION}/values", Access.SUPERUSER, configuration_values),
    Route("GET", f"{CONFIGURATION}/runtime", Access.SUPERUSER, configuration_runtime),
    Route("POST", f"{CONFIGURATION}/{{key}}/{{value}}", Access.SUPERUSER, put_configuration),
    Route("DELETE", f"{CONFIGURATION}/{{key}}", Access.SUPERUSER, delete_configuration),
)
