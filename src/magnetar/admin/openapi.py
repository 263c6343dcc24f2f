"""The OpenAPI 3.1 document: of the route table, the handlers' `documented(...)`, and the types in `admin.documents`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from magnetar import __version__
from magnetar.admin.operation import JSON, NOTHING, OPERATIONS, Operation
from magnetar.admin.routing import Route, segments_of
from magnetar.broker.auth.decide import Access
from magnetar.broker.naming import DOMAINS


class Refusal(Struct):
    """Why a request was not served."""

    reason: str


STATUSES = {
    200: "OK",
    204: "Done, or nothing is there to be shown",
    400: "The request is malformed",
    401: "No valid credential",
    403: "The role may not do this, or a page of another site asks",
    404: "Nothing is there",
    405: "Not for this kind of topic, or not for this method",
    408: "The body did not arrive in time",
    409: "It exists already, or something else is in the way",
    406: "The number of transaction coordinators cannot shrink",
    412: "A name is not valid, or the present state or a limit forbids it",
    413: "The body is too large",
    422: "The schema is not valid, or partitions would become fewer",
    426: "The address is a WebSocket's",
    503: "The server, or a part of it, cannot do its work now",
}

ERRORS = tuple(status for status in STATUSES if status >= 400)

NUMBERS = (
    *("seconds", "timestamp", "number", "count", "ledger", "entry", "version"),
    *("mostSigBits", "leastSigBits", "coordinatorId", "timeout"),
    *("segmentId", "segmentId1", "segmentId2"),
)
"""Path parameters that are whole numbers."""


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The complete document; routes of both domains are one path with the parameter `domain`."""
    collapsed = {(route.method, route.template): route for route in routes}
    kinds = list(dict.fromkeys(_named_kinds(OPERATIONS[route.handler] for route in collapsed.values())))
    _, components = msgspec.json.schema_components([*kinds, Refusal], ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for (method, template), route in sorted(collapsed.items(), key=lambda item: (item[0][1], item[0][0])):
        paths.setdefault(template, {})[method.lower()] = _operation(method, template, route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "magnetar admin API",
            "version": __version__,
            "description": "Pulsar's admin REST v2. Errors are JSON objects with a `reason`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"E{status}": _refusal(STATUSES[status]) for status in ERRORS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "basic": {"type": "http", "scheme": "basic"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _named_kinds(operations: Iterable[Operation]) -> Iterator[Any]:
    for operation in operations:
        yield from (kind for kind in (operation.body, operation.answer) if kind is not NOTHING and kind is not None)


def _operation(method: str, template: str, route: Route) -> dict[str, Any]:
    about = OPERATIONS[route.handler]
    found: dict[str, Any] = {
        "operationId": operation_id(method, template),
        "tags": [tag_of(template)],
        "summary": about.summary,
        "description": f"Requires {route.access.value}.",
        "parameters": [*_path_parameters(template), *_query_parameters(about)],
        "responses": _responses(method, template, about),
        "security": [] if route.access is Access.OPEN else [{}, {"token": []}, {"basic": []}, {"certificate": []}],
    }
    if about.body is not None:
        required = type(None) not in getattr(about.body, "__args__", ())
        found["requestBody"] = {"required": required, "content": {JSON: {"schema": schema_of(about.body)}}}
    return found


def operation_id(method: str, template: str) -> str:
    """`get_namespaces_tenant_namespace_retention`: unique, and stable as long as the path is."""
    words = re.findall(r"\w+", template.removeprefix("/admin/v2").replace("-", "_").replace(".", "_"))
    return "_".join((method.lower(), *words))


def tag_of(template: str) -> str:
    """The noun of a path."""
    parts = segments_of(template)
    if parts[0] != "admin":
        return parts[0] if len(parts) > 1 else "server"
    if parts[2] != "{domain}":
        return parts[2]
    return "subscriptions" if "subscription" in parts else "topics"


def _path_parameters(template: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", template):
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if name == "domain":
            schema = {"type": "string", "enum": list(DOMAINS)}
        elif name in NUMBERS:
            schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(about: Operation) -> Iterator[dict[str, Any]]:
    for name, kind in about.query.items():
        yield {"name": name, "in": "query", "required": name in about.required, "schema": schema_of(kind)}


def _responses(method: str, template: str, about: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    nothing = about.answer is NOTHING
    if not nothing and not about.always_fails:
        schema = {"type": "string"} if about.answer is bytes else schema_of(about.answer)
        found["200"] = {"description": STATUSES[200], "content": {about.media: {"schema": schema}}}
    if (nothing or about.may_be_unset) and not about.always_fails:
        found["204"] = {"description": STATUSES[204]}
    return found | {
        str(status): {"$ref": f"#/components/responses/E{status}"} for status in errors_of(method, template, about)
    }


def errors_of(method: str, template: str, about: Operation) -> list[int]:
    """Statuses of refusals that a route may answer with."""
    found = {400, 401, 403, 503, *about.errors}
    if "{" in template:
        found |= {404, 412}
    if "{domain}" in template or "{subscription}" in template:
        found.add(405)
    if about.body is not None:
        found |= {408, 413}
    if method != "GET":
        found.add(409)
    return sorted(found)


def _refusal(description: str) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": {"$ref": "#/components/schemas/Refusal"}}}}


def schema_of(kind: Any) -> dict[str, Any]:
    """JSON schema of a type, with references for what has a name."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    return dict(schema)
