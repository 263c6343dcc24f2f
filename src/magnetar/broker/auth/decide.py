"""Whether a role may do something: a pure function of role, kind of access, resource and what is stored. The default is to deny.

Superusers may do everything, a tenant's administrators everything inside it. What the others may do is granted in the
namespace's policies document (`auth_policies`), for a namespace or for one topic. The document is data from outside: whatever in
it does not have the right form grants nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from magnetar.broker.naming import PERSISTENT, SCALABLE, NamespaceName, TopicName, is_internal_cursor

PRODUCE, CONSUME = "produce", "consume"
AUTH_MODE_PREFIX = "Prefix"


class Access(Enum):
    """What a command or a route requires. The value says it in words."""

    OPEN = "nothing, not even a credential"
    AUTHENTICATED = "any role, with a valid credential"
    SOMEWHERE = "the right to produce or consume in some namespace or on some topic, or to administer a tenant"
    OWN = "what this connection has opened itself, checked when it was"
    METRICS = "superuser, or nothing when authenticateMetricsEndpoint is false"
    SUPERUSER = "superuser"
    TENANT = "administrator of the tenant"
    NAMESPACE = "the right to produce or consume in the namespace"
    LOOKUP = "the right to produce or consume on the topic"
    PRODUCE = "the right to produce on the topic"
    CONSUME = "the right to consume on the topic, through this subscription if one is named"
    REPLICATE = "superuser, or a role that replicatorRoles names for that cluster"


@dataclass(frozen=True, slots=True)
class Resource:
    """The tenant, namespace, topic or subscription that a request concerns. A topic implies its namespace, a namespace its tenant."""

    tenant: str = ""
    namespace: NamespaceName | None = None
    topic: TopicName | None = None
    subscription: str = ""
    source: str = ""
    """The cluster that is replicated from."""

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str = "", source: str = "") -> Resource:
        return cls(topic.tenant, topic.namespace_name, topic, subscription, source)

    @classmethod
    def of_namespace(cls, namespace: NamespaceName) -> Resource:
        return cls(namespace.tenant, namespace)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is stored about the resource; fields are empty where nothing is stored."""

    superusers: tuple[str, ...]
    tenant_admins: tuple[str, ...] = ()
    policies: Mapping[str, Any] | None = None
    replicators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Roles by the cluster that they may replicate from."""
    granted: frozenset[str] = frozenset()
    """Roles that may do something somewhere; only asked for `Access.SOMEWHERE`."""


def allowed(role: str, access: Access, resource: Resource, facts: Facts) -> bool:
    """Decides for a role that was authenticated. `OPEN` and `METRICS` are decided before there is a role."""
    if not role:
        return False
    if role in facts.superusers:
        return True
    if access is Access.AUTHENTICATED or access is Access.OPEN:
        return True
    if access is Access.REPLICATE:
        return role in facts.replicators.get(resource.source, ())
    if access is Access.SOMEWHERE:
        return role in facts.granted
    if access not in _BELOW_TENANT:
        return False
    if resource.tenant and role in facts.tenant_admins:
        return True
    if facts.policies is None:
        return False
    if access is Access.NAMESPACE:
        return any(_granted(role, action, None, facts.policies) for action in (PRODUCE, CONSUME))
    if resource.topic is None:
        return False
    if access is Access.PRODUCE:
        return _granted(role, PRODUCE, resource.topic, facts.policies)
    if access is Access.CONSUME:
        if is_internal_cursor(resource.subscription):
            return False
        return _may_consume(role, resource.topic, resource.subscription, facts.policies)
    if access is Access.LOOKUP:
        return any(_granted(role, action, resource.topic, facts.policies) for action in (PRODUCE, CONSUME))
    return False


_BELOW_TENANT = (Access.TENANT, Access.NAMESPACE, Access.LOOKUP, Access.PRODUCE, Access.CONSUME)


def _may_consume(role: str, topic: TopicName, subscription: str, policies: Mapping[str, Any]) -> bool:
    if not _granted(role, CONSUME, topic, policies):
        return False
    if not subscription:
        return True
    roles = _mapping(_auth(policies).get("subscription_auth_roles")).get(subscription)
    if roles and not (isinstance(roles, list) and role in roles):
        return False
    if policies.get("subscription_auth_mode") != AUTH_MODE_PREFIX:
        return True
    # Pulsar takes any name that begins with the role, so that role `app` may use what belongs to role `app2`.
    return subscription == role or subscription.startswith(f"{role}-")


def _granted(role: str, action: str, topic: TopicName | None, policies: Mapping[str, Any]) -> bool:
    """True if the role is granted the action in the namespace, on the topic, or on the topic that it is a part of.

    Scalable topics share their names with classic ones, and what is granted there.
    """
    auth = _auth(policies)
    if _has(auth.get("namespace_auth"), role, action):
        return True
    if topic is None:
        return False
    by_topic = _mapping(auth.get("destination_auth"))
    whole = topic.partitioned_name
    names = [str(topic), str(whole)]
    if whole.domain == SCALABLE:
        names.append(str(TopicName(PERSISTENT, whole.tenant, whole.namespace, whole.local_name)))
    return any(_has(by_topic.get(name), role, action) for name in names)


def roles_granted_in(policies: Mapping[str, Any]) -> set[str]:
    """Roles that may produce or consume in the namespace of this document, or on one of its topics."""
    auth = _auth(policies)
    named = [auth.get("namespace_auth"), *_mapping(auth.get("destination_auth")).values()]
    return {
        role
        for roles in named
        for role in _mapping(roles)
        if any(_has(roles, role, each) for each in (PRODUCE, CONSUME))
    }


def _auth(policies: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(policies.get("auth_policies"))


def _has(roles: object, role: str, action: str) -> bool:
    actions = _mapping(roles).get(role)
    return isinstance(actions, list) and action in actions


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
