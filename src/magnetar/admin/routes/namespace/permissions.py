"""Who may do what in a namespace, on a topic and through a subscription: stored in the namespace's policies document."""

from __future__ import annotations

from typing import Any, Literal, get_args

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import TopicGrant
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import documented
from magnetar.admin.routing import ADMIN, NAMESPACE, Route, both_domains
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.policies import Document
from magnetar.broker.naming import TopicName

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
ACTIONS = get_args(Action)
ROLE_CHARS_MAX = 1024
"""A longer role name is refused with 400."""

NAMESPACE_AUTH, TOPIC_AUTH, SUBSCRIPTION_AUTH = "namespace_auth", "destination_auth", "subscription_auth_roles"


def _role(call: Call) -> str:
    return _checked(call.params["role"])


def _checked(role: object) -> str:
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_CHARS_MAX:
        raise BadRequestError(f"a role is a text of at most {ROLE_CHARS_MAX} characters")
    return role


async def _actions(call: Call) -> list[str]:
    actions = await call.json()
    if not isinstance(actions, list) or not all(action in ACTIONS for action in actions):
        raise BadRequestError(f"expected a list of actions: {', '.join(ACTIONS)}")
    return sorted(set(actions))


async def _stored(call: Call, kind: str) -> dict[str, Any]:
    return _part(await call.broker.namespaces.policies(call.namespace), kind)


def _part(document: Document, kind: str) -> dict[str, Any]:
    """One mapping of `auth_policies`, put into the document where it is missing."""
    auth = document.get("auth_policies") or {}
    document["auth_policies"] = auth
    part: dict[str, Any] = auth.get(kind) or {}
    auth[kind] = part
    return part


# ---- Namespaces


@documented("Actions by role.", answer=dict[str, list[str]])
async def get(call: Call) -> Response:
    return as_json(await _stored(call, NAMESPACE_AUTH))


@documented(body=list[Action])
async def grant(call: Call) -> Response:
    """The body lists actions; it replaces what the role had."""
    name, role, actions = call.namespace, _role(call), await _actions(call)

    def change(document: Document) -> None:
        _part(document, NAMESPACE_AUTH)[role] = actions

    await call.broker.namespaces.update_policies(name, change)
    return done()


@documented("Take all actions from a role.")
async def revoke(call: Call) -> Response:
    role = _role(call)

    def change(document: Document) -> None:
        _part(document, NAMESPACE_AUTH).pop(role, None)

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


# ---- Topics; a partitioned topic's permissions hold for its partitions


@documented(answer=dict[str, list[str]])
async def get_of_topic(call: Call) -> Response:
    """What holds for the topic: the namespace's roles, and its own."""
    name = call.topic
    document = await call.broker.namespaces.policies(name.namespace_name)
    found = {role: set(actions) for role, actions in _part(document, NAMESPACE_AUTH).items()}
    for topic in dict.fromkeys((str(name), str(name.partitioned_name))):
        for role, actions in (_part(document, TOPIC_AUTH).get(topic) or {}).items():
            found[role] = found.get(role, set()) | set(actions)
    return as_json({role: sorted(actions) for role, actions in found.items()})


@documented("The topic need not exist yet. The body replaces what the role had.", body=list[Action])
async def grant_on_topic(call: Call) -> Response:
    """The topic need not exist yet."""
    topic, role, actions = call.topic, _role(call), await _actions(call)

    def change(document: Document) -> None:
        _part(document, TOPIC_AUTH).setdefault(str(topic), {})[role] = actions

    await call.broker.namespaces.update_policies(topic.namespace_name, change)
    return done()


@documented("Take all actions on a topic from a role.")
async def revoke_on_topic(call: Call) -> Response:
    topic, role = call.topic, _role(call)

    def change(document: Document) -> None:
        roles = _part(document, TOPIC_AUTH).get(str(topic)) or {}
        roles.pop(role, None)
        if not roles:
            _part(document, TOPIC_AUTH).pop(str(topic), None)

    await call.broker.namespaces.update_policies(topic.namespace_name, change)
    return done()


@documented(body=list[TopicGrant])
async def grant_on_topics(call: Call) -> Response:
    """For several topics and roles at once; what is listed replaces what the role had on the topic."""
    for grant in await call.body_as(list[TopicGrant]):
        topic, role, actions = TopicName.parse(grant.topic), _checked(grant.role), sorted(set(grant.actions))

        def change(document: Document, topic: TopicName = topic, role: str = role, actions: Any = actions) -> None:
            _part(document, TOPIC_AUTH).setdefault(str(topic), {})[role] = actions

        await call.broker.namespaces.update_policies(topic.namespace_name, change)
    return done()


@documented(body=list[TopicGrant])
async def revoke_on_topics(call: Call) -> Response:
    """Take all actions on the topics from the roles."""
    for grant in await call.body_as(list[TopicGrant]):
        topic, role = TopicName.parse(grant.topic), _checked(grant.role)

        def change(document: Document, topic: TopicName = topic, role: str = role) -> None:
            (_part(document, TOPIC_AUTH).get(str(topic)) or {}).pop(role, None)

        await call.broker.namespaces.update_policies(topic.namespace_name, change)
    return done()


# ---- Subscriptions: once a name has roles, consuming through it takes one of them


@documented("Roles by subscription.", answer=dict[str, list[str]])
async def get_of_subscriptions(call: Call) -> Response:
    return as_json(await _stored(call, SUBSCRIPTION_AUTH))


@documented(body=list[str])
async def grant_on_subscription(call: Call) -> Response:
    """The body lists roles; it replaces those the subscription had."""
    name, subscription, body = call.namespace, call.subscription, await call.json()
    if not isinstance(body, list):
        raise BadRequestError("expected a list of roles")
    roles = sorted({_checked(role) for role in body})

    def change(document: Document) -> None:
        _part(document, SUBSCRIPTION_AUTH)[subscription] = roles

    await call.broker.namespaces.update_policies(name, change)
    return done()


@documented("Take a role from a subscription.")
async def revoke_on_subscription(call: Call) -> Response:
    subscription, role = call.subscription, _role(call)

    def change(document: Document) -> None:
        left = [other for other in _part(document, SUBSCRIPTION_AUTH).get(subscription) or () if other != role]
        _part(document, SUBSCRIPTION_AUTH)[subscription] = left

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


ROUTES = (
    Route("POST", f"{ADMIN}/namespaces/grantPermissionsOnTopics", Access.SUPERUSER, grant_on_topics),
    Route("POST", f"{ADMIN}/namespaces/revokePermissionsOnTopics", Access.SUPERUSER, revoke_on_topics),
    Route("GET", f"{NAMESPACE}/permissions", Access.TENANT, get),
    Route("POST", f"{NAMESPACE}/permissions/{{role}}", Access.TENANT, grant),
    Route("DELETE", f"{NAMESPACE}/permissions/{{role}}", Access.TENANT, revoke),
    Route("GET", f"{NAMESPACE}/permissions/subscription", Access.TENANT, get_of_subscriptions),
    Route("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}", Access.TENANT, grant_on_subscription),
    Route("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", Access.TENANT, revoke_on_subscription),
    *both_domains("GET", "/{topic}/permissions", Access.TENANT, get_of_topic),
    *both_domains("POST", "/{topic}/permissions/{role}", Access.TENANT, grant_on_topic),
    *both_domains("DELETE", "/{topic}/permissions/{role}", Access.TENANT, revoke_on_topic),
)
