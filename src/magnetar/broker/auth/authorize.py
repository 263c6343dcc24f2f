"""Authorization: reads from the stores what `decide` needs, and refuses with Pulsar's error texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from magnetar.broker.auth.authenticate import NEED_TO_AUTHENTICATE, Authentication
from magnetar.broker.auth.decide import Access, Facts, Resource, allowed, roles_granted_in
from magnetar.broker.auth.principal import Principal
from magnetar.broker.auth.tls import TlsContext
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import AuthenticationError, AuthorizationError
from magnetar.broker.namespaces.errors import NamespaceNotFoundError
from magnetar.broker.naming import NamespaceName, is_internal_cursor
from magnetar.broker.settings.security import SecuritySettings, names_of, replicators_of

GRANTED_ROLES_PAUSE_S = 2.0
"""Pause between two readings of all grants. A role that is not among them waits for the next one, so that a new grant holds at once."""

GRANTED_ROLES_READ_SHARE = 0.05
"""The largest share of the time that reading may take: where it takes long, the pause is longer."""

GRANTED_ROLES_AGE_S = 60.0
"""A role that lost its last grant may open transactions for so long; it may name no topic in them."""


class PolicySource(Protocol):
    """The part of the namespace registry that is read. Methods that name one tenant or namespace raise NamespaceNotFoundError."""

    async def tenants(self) -> list[str]: ...

    async def namespaces(self, tenant: str) -> list[str]: ...

    async def tenant(self, tenant: str) -> dict[str, Any]: ...

    async def policies(self, name: NamespaceName) -> dict[str, Any]: ...


class Authorizer:
    """Decides every access. It is asked when something is opened, never for a message."""

    def __init__(self, config: SecuritySettings, source: PolicySource, monotonic_s: Callable[[], float]) -> None:
        self._config = config
        self._superusers = names_of(config.super_user_roles)
        self._replicators = replicators_of(config.replicator_roles)
        self._source = source
        self._granted = GrantedRoles(source, monotonic_s)

    def needs_credential(self, access: Access) -> bool:
        """True if a client without a credential is refused."""
        if access is Access.METRICS:
            return self._config.authentication_enabled and self._config.authenticate_metrics_endpoint
        return self._config.authentication_enabled and access is not Access.OPEN

    def is_superuser(self, principal: Principal | None) -> bool:
        """True if all roles of the principal are superusers, and for everybody without authentication and authorization."""
        if not (self._config.authentication_enabled and self._config.authorization_enabled):
            return True
        return principal is not None and all(role in self._superusers for role in principal.roles)

    async def check(self, principal: Principal | None, access: Access, resource: Resource) -> None:
        """Raises AuthenticationError without a principal, AuthorizationError when the principal may not do it."""
        if not self.needs_credential(access):
            return
        if principal is None:
            raise AuthenticationError(NEED_TO_AUTHENTICATE)
        if not self._config.authorization_enabled:
            return
        facts = await self._facts_somewhere(principal) if access is Access.SOMEWHERE else await self._facts(resource)
        for role in principal.roles:
            if not allowed(role, access, resource, facts):
                raise AuthorizationError(refusal(role, access, resource))

    def owner(self, principal: Principal | None) -> str | None:
        """The role that owns what the principal opens; None for those who may use everybody's: superusers, or all clients."""
        return None if principal is None or self.is_superuser(principal) else principal.role

    async def tenant_exists(self, tenant: str) -> bool:
        try:
            await self._source.tenant(tenant)
        except NamespaceNotFoundError:
            return False
        return True

    async def _facts_somewhere(self, principal: Principal) -> Facts:
        return Facts(
            self._superusers, granted=await self._granted.with_any_of(set(principal.roles) - set(self._superusers))
        )

    async def _facts(self, resource: Resource) -> Facts:
        configured = Facts(self._superusers, replicators=self._replicators)
        if not resource.tenant:
            return configured
        try:
            names = _admins(await self._source.tenant(resource.tenant))
        except NamespaceNotFoundError:
            return configured
        known = replace(configured, tenant_admins=names)
        if resource.namespace is None:
            return known
        try:
            return replace(known, policies=await self._source.policies(resource.namespace))
        except NamespaceNotFoundError:
            return known


class GrantedRoles:
    """Every role that has a grant somewhere, in one list for all who ask."""

    def __init__(self, source: PolicySource, monotonic_s: Callable[[], float]) -> None:
        self._source = source
        self._monotonic_s = monotonic_s
        self._roles: frozenset[str] = frozenset()
        self._began_s = float("-inf")
        """When the list began to be read."""
        self._next_s = 0.0
        self._reading = asyncio.Lock()

    async def with_any_of(self, roles: set[str]) -> frozenset[str]:
        """The list; one that was read after this call if `roles` are not all on it."""
        asked_s = self._monotonic_s()
        if self._serves(roles):
            return self._roles
        async with self._reading:
            if not self._serves(roles) and self._began_s < asked_s:
                await asyncio.sleep(max(0.0, self._next_s - self._monotonic_s()))
                began_s = self._monotonic_s()
                self._roles = frozenset(await self._read())
                self._began_s, ended_s = began_s, self._monotonic_s()
                self._next_s = ended_s + max(GRANTED_ROLES_PAUSE_S, (ended_s - began_s) / GRANTED_ROLES_READ_SHARE)
        return self._roles

    def _serves(self, roles: set[str]) -> bool:
        return roles <= self._roles and self._monotonic_s() - self._began_s < GRANTED_ROLES_AGE_S

    async def _read(self) -> set[str]:
        found: set[str] = set()
        for tenant in await self._source.tenants():
            try:
                found.update(_admins(await self._source.tenant(tenant)))
                for namespace in await self._source.namespaces(tenant):
                    found |= await self._granted_in(NamespaceName.parse(namespace))
            except NamespaceNotFoundError:
                continue  # it went while the list was read
        return found

    async def _granted_in(self, namespace: NamespaceName) -> set[str]:
        try:
            return roles_granted_in(await self._source.policies(namespace))
        except NamespaceNotFoundError:
            return set()


def _admins(tenant: Mapping[str, Any]) -> tuple[str, ...]:
    roles = tenant.get("adminRoles")
    return tuple(role for role in roles if isinstance(role, str)) if isinstance(roles, list) else ()


def refusal(role: str, access: Access, resource: Resource) -> str:
    """Names the role, what it lacks and where."""
    where = resource.topic or resource.namespace or resource.tenant
    place = f" ({where})" if where else ""
    if access is Access.REPLICATE:
        return (
            f"Unauthorized: role {role} may not replicate from cluster {resource.source}{place}: this requires {access.value}. "
            "Give a producer that does not replicate another name."
        )
    if access is Access.CONSUME and is_internal_cursor(resource.subscription):
        return f"Unauthorized: role {role} may not do this; {resource.subscription} is a cursor of the server itself{place}"
    return f"Unauthorized: role {role} may not do this; it requires {access.value}{place}"


class Security:
    """Authentication, authorization and TLS of one broker. `authentication` is None when it is disabled."""

    def __init__(
        self, config: BrokerConfig, source: PolicySource, now_ms: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        """Reads keys, certificates and password files. Raises ConfigError."""
        settings, tls = config.settings, config.tls
        self.authentication = Authentication(settings, now_ms) if settings.authentication_enabled else None
        self.authorizer = Authorizer(settings, source, monotonic)
        self.tls = TlsContext(tls, monotonic) if tls is not None else None
