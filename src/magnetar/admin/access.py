"""Authentication and authorization of a request: before its body is read and before anything is looked up for it."""

from __future__ import annotations

from magnetar.admin.call import Call
from magnetar.admin.http_connection import CERTIFICATE
from magnetar.admin.routing import Route
from magnetar.broker.auth.decide import Resource
from magnetar.broker.auth.principal import Principal
from magnetar.broker.naming import cursor_name
from magnetar.broker.peers import ORIGINAL_PRINCIPAL_HEADER


async def authorize(call: Call, route: Route) -> None:
    """Raises AuthenticationError (401), AuthorizationError (403), InvalidTopicNameError (412)."""
    security = call.broker.security
    if security.authentication is None:
        return
    principal: Principal | None = None
    if security.authorizer.needs_credential(route.access):
        headers = call.request.headers
        principal = security.authentication.of_http(
            headers.get("authorization", ""),
            call.request.scope.get("state", {}).get(CERTIFICATE),
            headers.get(ORIGINAL_PRINCIPAL_HEADER, ""),
        )
    call.principal = principal
    await security.authorizer.check(principal, route.access, resource_of(call))


def resource_of(call: Call) -> Resource:
    """What the path names, parsed by the rules that the handlers use."""
    params = call.params
    if "tenant" not in params:
        return Resource()
    if "namespace" not in params:
        return Resource(call.tenant)
    if "topic" not in params:
        return Resource.of_namespace(call.namespace)
    return Resource.of_topic(call.topic, cursor_name(params["subscription"]) if "subscription" in params else "")
