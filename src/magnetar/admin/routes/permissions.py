"""Who may do what in a namespace: stored in its policies document."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.errors import BadRequestError
from magnetar.admin.routes.paths import NAMESPACE
from magnetar.admin.routing import Route
from magnetar.broker.namespaces.policies import Document

ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
ROLE_CHARS_MAX = 1024
"""A longer role name is refused with 400."""


def _role(call: Call) -> str:
    role = call.params["role"]
    if len(role) > ROLE_CHARS_MAX:
        raise BadRequestError(f"a role has at most {ROLE_CHARS_MAX} characters")
    return role


async def get(call: Call) -> Response:
    document = await call.broker.namespaces.policies(call.namespace)
    return as_json((document.get("auth_policies") or {}).get("namespace_auth") or {})


async def grant(call: Call) -> Response:
    """The body lists actions; it replaces what the role had."""
    name, role, actions = call.namespace, _role(call), await call.json()
    if not isinstance(actions, list) or not all(action in ACTIONS for action in actions):
        raise BadRequestError(f"expected a list of actions: {', '.join(ACTIONS)}")

    def change(document: Document) -> None:
        _namespace_auth(document)[role] = sorted(set(actions))

    await call.broker.namespaces.update_policies(name, change)
    return done()


async def revoke(call: Call) -> Response:
    role = _role(call)

    def change(document: Document) -> None:
        _namespace_auth(document).pop(role, None)

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


def _namespace_auth(document: Document) -> dict[str, list[str]]:
    auth = document.get("auth_policies") or {}
    document["auth_policies"] = auth
    roles: dict[str, list[str]] = auth.get("namespace_auth") or {}
    auth["namespace_auth"] = roles
    return roles


ROUTES = (
    Route("GET", f"{NAMESPACE}/permissions", get),
    Route("POST", f"{NAMESPACE}/permissions/{{role}}", grant),
    Route("DELETE", f"{NAMESPACE}/permissions/{{role}}", revoke),
)
