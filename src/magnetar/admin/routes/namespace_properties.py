"""Properties of a namespace, and which bookies its ledgers prefer."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, done, text
from magnetar.admin.call import Call
from magnetar.admin.documents import BookieAffinity
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import TEXT, documented
from magnetar.admin.routing import NAMESPACE, Route
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.policies import Document

PROPERTIES_MAX = 1000
"""More properties of one namespace are refused with 400: they are part of a document that is read at every change."""

AFFINITY = "bookieAffinityGroup"


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


@documented(answer=str, media=TEXT)
async def get_one(call: Call) -> Response:
    """Its value as a text; 404 without such a property."""
    value = (await _properties(call)).get(call.params["key"])
    if value is None:
        raise NotFoundError(f"{call.namespace} has no property {call.params['key'][:80]}")
    return text(value)


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
    await call.broker.namespaces.policies(call.namespace)

    def change(document: Document) -> None:
        document[AFFINITY] = value

    await call.broker.namespaces.update_local_policies(call.namespace, change)


_AFFINITY = f"{NAMESPACE}/persistence/bookieAffinity"

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
)
