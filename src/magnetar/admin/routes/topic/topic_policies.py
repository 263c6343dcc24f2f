"""Policies of a topic: the simple ones from their table, backlog quotas. A partitioned topic has one set for all its partitions.

`?applied=true` shows what holds: the topic's value, else the namespace's, else the broker's. `?isGlobal=true` reads and writes the
values for all clusters, which the cluster's own override.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_or_nothing, done
from magnetar.admin.call import INT_MAX, Call, whole_number
from magnetar.admin.documents.policies import POLICY_TYPES, BacklogQuota, DispatchRate
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import QUOTA_TYPE, documented
from magnetar.admin.policy_checks import backlog_quota, check_quota_fits, dispatch_rate
from magnetar.admin.policy_rows import POLICY_ROWS, PolicyRow, checked
from magnetar.admin.routing import Handler, Route, both_domains
from magnetar.admin.tenancy import check_allowed, check_clusters
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.namespaces.policies import (
    DESTINATION_STORAGE,
    MESSAGE_AGE,
    SUBSCRIPTIONS,
    Document,
    effective_quotas,
)
from magnetar.broker.namespaces.policy_layers import Documents, merged
from magnetar.broker.naming import TopicName

QUOTAS = "backLogQuotaMap"
RATE = "dispatchRate"
SUBSCRIPTION_RATE = "/{topic}/{subscription}/dispatchRate"
SUBSCRIPTION_RATES_MAX = 1000
"""Subscriptions of a topic with a rate of their own, which its document holds. More are refused with 400."""

GLOBAL: Mapping[str, Any] = {"isGlobal": bool}
APPLIED: Mapping[str, Any] = {"applied": bool, "isGlobal": bool}


async def _topic(call: Call) -> TopicName:
    """Raises TopicNotFoundError, or NotAllowedError for a single partition."""
    name = call.topic
    if name.partition >= 0:
        raise NotAllowedError("Not allowed to set/get topic policy for a partition")
    broker = call.broker
    await broker.namespaces.policies(name.namespace_name, for_topic=True)
    known = broker.topics.get_loaded(name) is not None or await broker.lookup.stored(name)
    if not known and not await broker.namespaces.partitions(name):
        raise TopicNotFoundError(f"Topic {name} not found")
    return name


async def _documents(call: Call, name: TopicName) -> Documents:
    namespaces = call.broker.namespaces
    own = await namespaces.topic_policies.merged(name)
    return Documents(call.broker.config, await namespaces.policies(name.namespace_name, for_topic=True), own)


async def _change(call: Call, name: TopicName, change: Callable[[Document], None]) -> None:
    """In effect here when the answer leaves; other brokers learn of it through the store's watch."""
    await call.broker.namespaces.topic_policies.update(name, change, call.flag("isGlobal"))
    await call.broker.topics.policies_changed(name.namespace_name, name)


def _getter(row: PolicyRow) -> Handler:
    async def get(call: Call) -> Response:
        name = await _topic(call)
        if call.flag("applied"):
            return as_json_or_nothing(merged(row.name, await _documents(call, name)))
        own = await call.broker.namespaces.topic_policies.get(name, call.flag("isGlobal"))
        return as_json_or_nothing(own.get(row.layer.topic, row.topic_unset))

    return get


def _setter(row: PolicyRow) -> Handler:
    async def put(call: Call) -> Response:
        name = await _topic(call)
        given = _given(call, row.topic) if row.query else await call.json()
        value = checked(row, row.topic, given, call.broker.config)
        if row.name == "replication":
            await check_clusters(call, name.tenant, value or ())
            check_allowed(await call.broker.namespaces.policies(name.namespace_name, for_topic=True), value or ())
        await _set(call, name, row, value)
        return done()

    return put


def _given(call: Call, name: str) -> int:
    """What the row's check decides on, with Pulsar's words for it: any number of 32 bits. Raises NotFoundError, as `Call.number`."""
    text = call.query(name)
    if not text:
        raise BadRequestError(f"expected ?{name}=<number>")
    return whole_number(name, text, INT_MAX)


def _remover(row: PolicyRow) -> Handler:
    async def delete(call: Call) -> Response:
        await _set(call, await _topic(call), row, None)
        return done()

    return delete


async def _set(call: Call, name: TopicName, row: PolicyRow, value: Any) -> None:
    namespace = await call.broker.namespaces.policies(name.namespace_name)

    def change(document: Document) -> None:
        if row.name == "retention":
            for kind in (DESTINATION_STORAGE, MESSAGE_AGE):
                own = (document.get(QUOTAS) or {}).get(kind)
                check_quota_fits(own or (namespace.get("backlog_quota_map") or {}).get(kind), value)
        if value is None:
            document.pop(row.layer.topic, None)
        else:
            document[row.layer.topic] = value

    await _change(call, name, change)


@documented("Backlog quotas by type.", answer=dict[str, BacklogQuota], query=APPLIED)
async def get_quotas(call: Call) -> Response:
    name = await _topic(call)
    if call.flag("applied"):
        return as_json(effective_quotas(await _documents(call, name)))
    own = await call.broker.namespaces.topic_policies.get(name, call.flag("isGlobal"))
    return as_json(own.get(QUOTAS) or {})


@documented("Set a backlog quota.", body=BacklogQuota, query={**QUOTA_TYPE, **GLOBAL})
async def set_quota(call: Call) -> Response:
    name, kind = await _topic(call), call.query("backlogQuotaType", DESTINATION_STORAGE)
    quota = backlog_quota(await call.json(), kind)
    namespace = await call.broker.namespaces.policies(name.namespace_name)

    def change(document: Document) -> None:
        check_quota_fits(quota, document.get("retentionPolicies") or namespace.get("retention_policies"))
        document[QUOTAS] = {**(document.get(QUOTAS) or {}), kind: quota}

    await _change(call, name, change)
    return done()


@documented("Remove a backlog quota.", query={**QUOTA_TYPE, **GLOBAL})
async def remove_quota(call: Call) -> Response:
    name, kind = await _topic(call), call.query("backlogQuotaType", DESTINATION_STORAGE)

    def change(document: Document) -> None:
        document[QUOTAS] = {key: value for key, value in (document.get(QUOTAS) or {}).items() if key != kind}

    await _change(call, name, change)
    return done()


# ---- Of single subscriptions


@documented("The subscription's own dispatch rate.", answer=DispatchRate, may_be_unset=True, query=APPLIED)
async def get_subscription_rate(call: Call) -> Response:
    name = await _topic(call)
    own = await call.broker.namespaces.topic_policies.get(name, call.flag("isGlobal"))
    found = ((own.get(SUBSCRIPTIONS) or {}).get(call.subscription) or {}).get(RATE)
    if found is None and call.flag("applied"):
        found = merged("subscription_dispatch_rate", await _documents(call, name))
    return as_json_or_nothing(found)


@documented("Set a dispatch rate of the subscription's own; null unsets it.", body=DispatchRate | None, query=GLOBAL)
async def set_subscription_rate(call: Call) -> Response:
    name, value = await _topic(call), await call.json()
    await _set_subscription_rate(call, name, None if value is None else dispatch_rate(RATE, value))
    return done()


@documented("Unset it: the rate that all subscriptions of the topic have holds.", query=GLOBAL)
async def remove_subscription_rate(call: Call) -> Response:
    await _set_subscription_rate(call, await _topic(call), None)
    return done()


async def _set_subscription_rate(call: Call, name: TopicName, value: object) -> None:
    def change(document: Document) -> None:
        rates = {key: each for key, each in (document.get(SUBSCRIPTIONS) or {}).items() if key != call.subscription}
        if value is not None:
            if len(rates) >= SUBSCRIPTION_RATES_MAX:
                raise BadRequestError(
                    f"at most {SUBSCRIPTION_RATES_MAX} subscriptions of a topic have rates of their own"
                )
            rates[call.subscription] = {RATE: value}
        document[SUBSCRIPTIONS] = rates

    await _change(call, name, change)


@documented("Unset all policies of the topic.")
async def remove_all(call: Call) -> Response:
    name = await _topic(call)
    await call.broker.namespaces.topic_policies.delete(name)
    await call.broker.topics.policies_changed(name.namespace_name, name)
    return done()


def _rows() -> Iterator[Route]:
    for row in POLICY_ROWS:
        if row.topic:
            path, kind, words = f"/{{topic}}/{row.topic}", POLICY_TYPES[row.name], row.name.replace("_", " ")
            show = documented(f"The topic's {words}.", answer=kind, may_be_unset=True, query=APPLIED)
            if row.query:
                put = documented(f"Set the topic's {words}.", query={row.topic: kind, **GLOBAL})
            else:
                put = documented(f"Set the topic's {words}; null unsets it.", body=kind | None, query=GLOBAL)
            remove = documented(f"Unset the topic's {words}: the namespace's holds.", query=GLOBAL)
            yield from both_domains("GET", path, Access.TENANT, show(_getter(row)))
            yield from both_domains(row.topic_setter, path, Access.TENANT, put(_setter(row)))
            yield from both_domains("DELETE", path, Access.TENANT, remove(_remover(row)))


ROUTES = (
    *_rows(),
    *both_domains("DELETE", "/{topic}/policies", Access.TENANT, remove_all),
    *both_domains("GET", SUBSCRIPTION_RATE, Access.TENANT, get_subscription_rate),
    *both_domains("POST", SUBSCRIPTION_RATE, Access.TENANT, set_subscription_rate),
    *both_domains("DELETE", SUBSCRIPTION_RATE, Access.TENANT, remove_subscription_rate),
    *both_domains("GET", "/{topic}/backlogQuotaMap", Access.TENANT, get_quotas),
    *both_domains("POST", "/{topic}/backlogQuota", Access.TENANT, set_quota),
    *both_domains("DELETE", "/{topic}/backlogQuota", Access.TENANT, remove_quota),
)
