"""Properties of a namespace, which bookies its ledgers prefer, apart from which namespaces it is served, and in which clusters."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, done, text
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import BookieAffinity
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import ADMIN, NAMESPACE, Route
from magnetar.admin.tenancy import ALLOWED_CLUSTERS, check_clusters
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.policies import Document
from magnetar.broker.naming import NamespaceName, entity_name
from magnetar.metadata import paths

PROPERTIES_MAX = 1000
"""More properties of one namespace are refused with 400: they are part of a document that is read at every change."""

AFFINITY = "bookieAffinityGroup"
ANTI_AFFINITY = "namespaceAntiAffinityGroup"


async def _properties(call: Call) -> dict[str, str]:
    return dict((await call.broker.namespaces.policies(call.namespace)).get("properties") or {})


@documented(answer=dict[str, str])
async def get_all(call: Call) -> Response:
    """Properties by name."""
    return as_json(await _properties(call))


@documented(body=dict[str, str])
async def put_all(call: Call) -> Response:
    """Add or change properties."""
    await _add(call, await call.body_as(dict[str, str]))
    return done()


@documented()
async def clear(call: Call) -> Response:
    """Remove all properties."""

    def change(document: Document) -> None:
        document["properties"] = {}

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


@documented(answer=str, media=TEXT, may_be_unset=True)
async def get_one(call: Call) -> Response:
    """Its value as a text; 204 without such a property."""
    value = (await _properties(call)).get(call.params["key"])
    return done() if value is None else text(value)


@documented("Set one property.")
async def put_one(call: Call) -> Response:
    await _add(call, {call.params["key"]: call.params["value"]})
    return done()


@documented(answer=str, media=TEXT)
async def delete_one(call: Call) -> Response:
    """200 with its value, as Pulsar; 404 without such a property."""
    key, removed = call.params["key"], dict[str, str]()

    def change(document: Document) -> None:
        properties = dict(document.get("properties") or {})
        if key not in properties:
            raise NotFoundError(f"{call.namespace} has no property {key[:80]}")
        removed[key] = properties.pop(key)
        document["properties"] = properties

    await call.broker.namespaces.update_policies(call.namespace, change)
    return text(removed[key])


async def _add(call: Call, properties: dict[str, str]) -> None:
    def change(document: Document) -> None:
        together = {**(document.get("properties") or {}), **properties}
        if len(together) > PROPERTIES_MAX:
            raise BadRequestError(f"a namespace has at most {PROPERTIES_MAX} properties")
        document["properties"] = together

    await call.broker.namespaces.update_policies(call.namespace, change)


# ---- Bookie affinity: this cluster's own, in the local policies


@documented(answer=BookieAffinity, may_be_unset=True)
async def get_affinity(call: Call) -> Response:
    """204 while none is set."""
    await call.broker.namespaces.policies(call.namespace)
    found = (await call.broker.namespaces.local_policies(call.namespace)).get(AFFINITY)
    return done() if found is None else as_json(found)


@documented(body=BookieAffinity)
async def put_affinity(call: Call) -> Response:
    """Kept for clusters whose bookies are grouped; one bookie has no groups."""
    body = await call.body_as(BookieAffinity)
    if not body.bookkeeper_affinity_group_primary:
        raise BadRequestError("bookkeeperAffinityGroupPrimary must name a group")
    document = {
        "bookkeeperAffinityGroupPrimary": body.bookkeeper_affinity_group_primary,
        "bookkeeperAffinityGroupSecondary": body.bookkeeper_affinity_group_secondary,
    }
    await _set_affinity(call, document)
    return done()


@documented("Go to any bookie again.")
async def delete_affinity(call: Call) -> Response:
    await _set_affinity(call, None)
    return done()


async def _set_affinity(call: Call, value: dict[str, str | None] | None) -> None:
    await _set_local(call, AFFINITY, value)


async def _set_local(call: Call, key: str, value: object) -> None:
    await call.broker.namespaces.policies(call.namespace)

    def change(document: Document) -> None:
        document[key] = value

    await call.broker.namespaces.update_local_policies(call.namespace, change)


# ---- Anti-affinity: namespaces of a group are served apart from each other (`broker.load_balance.isolation`)


@documented(answer=str, media=TEXT, may_be_unset=True)
async def get_anti_affinity(call: Call) -> Response:
    """Name of the namespace's anti-affinity group; 204 without one."""
    await call.broker.namespaces.policies(call.namespace)
    found = (await call.broker.namespaces.local_policies(call.namespace)).get(ANTI_AFFINITY)
    return text(found) if found else done()


@documented("Serve the namespace apart from the others of a group; the body is the group's name.", body=str)
async def put_anti_affinity(call: Call) -> Response:
    name = (await call.body()).decode("utf-8", "replace").strip().strip('"')
    if not name:
        raise PreconditionFailedError("Anti-affinity group name can't be empty")
    await _set_local(call, ANTI_AFFINITY, entity_name(name, "anti-affinity group"))
    return done()


@documented("Serve the namespace anywhere again.")
async def delete_anti_affinity(call: Call) -> Response:
    await _set_local(call, ANTI_AFFINITY, None)
    return done()


@documented(answer=list[str], query={"property": str}, heavy=True)
async def anti_affinity_namespaces(call: Call) -> Response:
    """Namespaces of an anti-affinity group; with `property` those of one tenant."""
    registry, group, tenant = call.broker.namespaces, call.params["group"], call.query("property")
    if call.params["cluster"] not in await call.broker.metadata.children(paths.CLUSTERS_PATH):
        raise PreconditionFailedError(f"Cluster {call.params['cluster']} does not exist.")
    found = []
    for owner in [tenant] if tenant else await registry.tenants():
        for name in await registry.namespaces(owner):
            if (await registry.local_policies(NamespaceName.parse(name))).get(ANTI_AFFINITY) == group:
                found.append(name)
            await call.pace.breathe()
    return as_json(found)


# ---- Allowed clusters: those that a namespace may be replicated to, fewer than its tenant's


@documented(answer=list[str])
async def get_allowed_clusters(call: Call) -> Response:
    """Empty: those of the tenant."""
    return as_json((await call.broker.namespaces.policies(call.namespace)).get(ALLOWED_CLUSTERS) or [])


@documented(body=list[str])
async def put_allowed_clusters(call: Call) -> Response:
    """Must hold those that the namespace is replicated to; an empty list allows the tenant's."""
    clusters = sorted(set(await call.body_as(list[str])))
    await check_clusters(call, call.tenant, clusters)

    def change(document: Document) -> None:
        missing = set(document.get("replication_clusters") or ()) - set(clusters)
        if clusters and missing:
            raise BadRequestError(
                f"Allowed clusters do not contain the replication cluster {', '.join(sorted(missing))}."
            )
        document[ALLOWED_CLUSTERS] = clusters

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


_AFFINITY = f"{NAMESPACE}/persistence/bookieAffinity"
_ANTI_AFFINITY = f"{NAMESPACE}/antiAffinity"

ROUTES = (
    Route("GET", f"{NAMESPACE}/properties", Access.TENANT, get_all),
    Route("PUT", f"{NAMESPACE}/properties", Access.TENANT, put_all),
    Route("DELETE", f"{NAMESPACE}/properties", Access.TENANT, clear),
    Route("GET", f"{NAMESPACE}/property/{{key}}", Access.TENANT, get_one),
    Route("PUT", f"{NAMESPACE}/property/{{key}}/{{value}}", Access.TENANT, put_one),
    Route("DELETE", f"{NAMESPACE}/property/{{key}}", Access.TENANT, delete_one),
    Route("GET", _AFFINITY, Access.SUPERUSER, get_affinity),
    Route("POST", _AFFINITY, Access.SUPERUSER, put_affinity),
    Route("DELETE", _AFFINITY, Access.SUPERUSER, delete_affinity),
    Route("GET", _ANTI_AFFINITY, Access.TENANT, get_anti_affinity),
    Route("POST", _ANTI_AFFINITY, Access.TENANT, put_anti_affinity),
    Route("DELETE", _ANTI_AFFINITY, Access.TENANT, delete_anti_affinity),
    Route("GET", f"{ADMIN}/namespaces/{{cluster}}/antiAffinity/{{group}}", Access.SUPERUSER, anti_affinity_namespaces),
    Route("GET", f"{NAMESPACE}/allowedClusters", Access.TENANT, get_allowed_clusters),
    Route("POST", f"{NAMESPACE}/allowedClusters", Access.TENANT, put_allowed_clusters),
)
