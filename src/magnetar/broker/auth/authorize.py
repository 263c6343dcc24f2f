"""Asks the stores what `decide` needs to know, and says no in Pulsar's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from magnetar.broker.auth.authenticate import NEED_TO_AUTHENTICATE, Authentication
from magnetar.broker.auth.decide import Access, Facts, Resource, allowed
from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.tls import TlsContext
from magnetar.broker.config import BrokerConfig, SecurityConfig
from magnetar.broker.errors import AuthenticationError, AuthorizationError
from magnetar.broker.namespaces.errors import NamespaceNotFoundError
from magnetar.broker.naming import NamespaceName


class PolicySource(Protocol):
    """The part of the namespace registry that is asked. Both raise NamespaceNotFoundError."""

    async def tenant(self, tenant: str) -> dict[str, Any]: ...

    async def policies(self, name: NamespaceName) -> dict[str, Any]: ...


class Authorizer:
    """The one place that says yes. Asked when something is opened, never for a message."""

    def __init__(self, config: SecurityConfig, source: PolicySource) -> None:
        self._config = config
        self._source = source

    def needs_credential(self, access: Access) -> bool:
        """Whether a stranger is turned away."""
        if access is Access.METRICS:
            return self._config.authentication and self._config.metrics_need_superuser
        return self._config.authentication and access is not Access.OPEN

    async def check(self, principal: Principal | None, access: Access, resource: Resource) -> None:
        """Raises AuthenticationError for nobody, AuthorizationError for somebody who may not."""
        if not self.needs_credential(access):
            return
        if principal is None:
            raise AuthenticationError(NEED_TO_AUTHENTICATE)
        if not self._config.authorization:
            return
        facts = await self._facts(resource)
        for role in principal.roles:
            if not allowed(role, access, resource, facts):
                raise AuthorizationError(refusal(role, access, resource))

    async def tenant_exists(self, tenant: str) -> bool:
        try:
            await self._source.tenant(tenant)
        except NamespaceNotFoundError:
            return False
        return True

    async def _facts(self, resource: Resource) -> Facts:
        superusers = self._config.super_user_roles
        if not resource.tenant:
            return Facts(superusers)
        try:
            admins = (await self._source.tenant(resource.tenant)).get("adminRoles")
            names = tuple(role for role in admins if isinstance(role, str)) if isinstance(admins, list) else ()
        except NamespaceNotFoundError:
            return Facts(superusers)
        if resource.namespace is None:
            return Facts(superusers, names)
        try:
            return Facts(superusers, names, await self._source.policies(resource.namespace))
        except NamespaceNotFoundError:
            return Facts(superusers, names)


def refusal(role: str, access: Access, resource: Resource) -> str:
    """Names the role, what it lacks and where."""
    where = resource.topic or resource.namespace or resource.tenant
    place = f" ({where})" if where else ""
    return f"Unauthorized: role {role} may not do this; it takes {access.value}{place}"


class Security:
    """Everything of one broker that decides who gets in. `authentication` is None when nobody is asked."""

    def __init__(
        self, config: BrokerConfig, source: PolicySource, now_ms: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        """Reads keys, certificates and password files. Raises ConfigError."""
        security = config.security
        self.authentication = Authentication(security, now_ms) if security.authentication else None
        self.authorizer = Authorizer(security, source)
        self.tls = TlsContext(config.tls, monotonic) if config.tls is not None else None
