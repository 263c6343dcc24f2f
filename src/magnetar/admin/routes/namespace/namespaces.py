"""Namespaces: create, list, show, delete; their topics and bundles."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.policies import NewPolicies, StoredPolicies
from magnetar.admin.errors import BadRequestError, ForceNotAllowedError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.policy_checks import number_of
from magnetar.admin.policy_rows import check_document
from magnetar.admin.routes.topic.topics import everywhere
from magnetar.admin.routing import ADMIN, NAMESPACE, Route
from magnetar.admin.tenancy import check_clusters, check_namespace_room
from magnetar.base.limits import BUNDLES_MAX
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.errors import AlreadyExistsError, NamespaceNotFoundError, PreconditionFailedError
from magnetar.broker.naming import DOMAINS, NON_PERSISTENT, PERSISTENT, SYSTEM_TOPIC_PREFIX, TopicName

MODES = {"PERSISTENT": (PERSISTENT,), "NON_PERSISTENT": (NON_PERSISTENT,), "ALL": DOMAINS}


@documented("Complete names of a tenant's namespaces.", answer=list[str])
async def of_tenant(call: Call) -> Response:
    try:
        await call.broker.namespaces.tenant(call.tenant)
    except NamespaceNotFoundError:
        raise NamespaceNotFoundError("Tenant not found") from None  # Pulsar's words, of this route alone
    return as_json(await call.broker.namespaces.namespaces(call.tenant))


@documented(answer=StoredPolicies)
async def get(call: Call) -> Response:
    """The complete policies document, with the bundles that hold now."""
    name = call.namespace
    boundaries = await call.broker.namespaces.boundaries(name)
    bundles = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}
    found = await call.broker.namespaces.policies(name)
    if found.get("is_allow_auto_update_schema") is None:
        found = {
            **found,
            "is_allow_auto_update_schema": call.broker.config.settings.is_allow_auto_update_schema_enabled,
        }
    return as_json({**found, "bundles": bundles})


@documented(body=NewPolicies | int | None, query={"bundles": Annotated[int, Meta(ge=0, le=BUNDLES_MAX)]})
async def create(call: Call) -> Response:
    """The body is a policies document, or a bare number of bundles, or nothing."""
    name, body = call.namespace, number_of(await call.json())
    bundles = _bundle_count(call.query("bundles", "0"))
    if isinstance(body, int) and not isinstance(body, bool):
        bundles, body = _bundle_count(str(body)), None
    if body is not None and not isinstance(body, dict):
        raise BadRequestError("expected a policies document")
    if body is not None:
        check_document(body)
        bundles = bundles or _bundles_of(body)
    await check_namespace_room(call, name.tenant)
    await check_clusters(call, name.tenant, (body or {}).get("replication_clusters") or ())
    await call.broker.namespaces.create_namespace(name, body, bundles)
    return done()


def _bundles_of(document: dict[str, Any]) -> int:
    bundles = document.pop("bundles", None) or {}
    count = number_of(bundles.get("numBundles", 0)) if isinstance(bundles, dict) else None
    if not isinstance(count, int) or isinstance(count, bool):
        raise BadRequestError('expected "bundles": {"numBundles": n}')
    return _bundle_count(str(count))


def _bundle_count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= BUNDLES_MAX):
        raise PreconditionFailedError(f"Invalid number of bundles. Number of bundles has to be in (0, {BUNDLES_MAX}]")
    return int(text)


@documented("Delete a namespace; with `force` its topics as well.", query=FORCE, heavy=True)
async def delete(call: Call) -> Response:
    name, force, scalable = call.namespace, call.flag("force"), call.broker.scalable
    if force and not call.broker.config.settings.force_delete_namespace_allowed:
        raise ForceNotAllowedError("Broker doesn't allow forced deletion of namespaces")
    await call.broker.namespaces.policies(name)
    for topic in await scalable.records.names(name):
        if not force:
            raise AlreadyExistsError("Cannot delete non empty namespace")
        await scalable.delete(TopicName.parse(topic, scalable=True), force=True)
    await call.admin.partitioned.delete_namespace(name, force=force)
    return done()


@documented(
    answer=list[str], query={"mode": Literal["PERSISTENT", "NON_PERSISTENT", "ALL"], "includeSystemTopic": bool}
)
async def topics(call: Call) -> Response:
    """`mode`: PERSISTENT (default), NON_PERSISTENT, ALL. Partitions are listed separately."""
    name, mode = call.namespace, call.query("mode", "PERSISTENT").upper()
    if mode not in MODES:
        raise BadRequestError(f"mode must be one of {', '.join(MODES)}")
    await call.broker.namespaces.policies(name)
    found = await everywhere(call, await call.admin.partitioned.names_of(name, MODES[mode]), MODES[mode])
    if not call.flag("includeSystemTopic"):
        hidden = tuple(f"{domain}://{name}/{SYSTEM_TOPIC_PREFIX}" for domain in DOMAINS)
        found = [topic for topic in found if not topic.startswith(hidden)]
    return await call.admin.name_lists.answer((name, mode, call.flag("includeSystemTopic")), found)


ROUTES = (
    Route("GET", f"{ADMIN}/namespaces/{{tenant}}", Access.TENANT, of_tenant),
    Route("GET", NAMESPACE, Access.TENANT, get),
    Route("PUT", NAMESPACE, Access.TENANT, create),
    Route("DELETE", NAMESPACE, Access.TENANT, delete),
    Route("GET", f"{NAMESPACE}/topics", Access.NAMESPACE, topics),
)
