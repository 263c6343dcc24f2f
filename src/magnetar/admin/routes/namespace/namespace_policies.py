"""Policies of a namespace: the simple ones from their table, backlog quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_or_nothing, done
from magnetar.admin.call import Call
from magnetar.admin.documents.policies import POLICY_TYPES, BacklogQuota
from magnetar.admin.operation import QUOTA_TYPE, documented
from magnetar.admin.policy_checks import backlog_quota, check_quota_fits
from magnetar.admin.policy_rows import POLICY_ROWS, PolicyRow, checked
from magnetar.admin.routing import NAMESPACE, Handler, Route
from magnetar.admin.tenancy import check_allowed, check_clusters
from magnetar.broker.auth.decide import Access
from magnetar.broker.namespaces.policies import DESTINATION_STORAGE, Document
from magnetar.broker.namespaces.policy_layers import namespace_value


def _getter(row: PolicyRow) -> Handler:
    async def get(call: Call) -> Response:
        document = await call.broker.namespaces.policies(call.namespace)
        value = namespace_value(row.layer, document, call.broker.config.settings.cluster_name)
        if value is None:
            value = row.unset(call.broker.config) if callable(row.unset) else row.unset
        return as_json_or_nothing(value)

    return get


def _setter(row: PolicyRow) -> Handler:
    async def put(call: Call) -> Response:
        value = checked(row, row.namespace, await call.json(), call.broker.config)
        if row.name == "replication":
            await check_clusters(call, call.namespace.tenant, value or ())
            check_allowed(await call.broker.namespaces.policies(call.namespace), value or ())
        await _set(call, row, value)
        return done()

    return put


def _remover(row: PolicyRow) -> Handler:
    async def delete(call: Call) -> Response:
        await _set(call, row, None)
        return done()

    return delete


async def _set(call: Call, row: PolicyRow, value: Any) -> None:
    """None goes back to the broker's default."""
    key, cluster = row.layer.namespace, call.broker.config.settings.cluster_name

    def change(document: Document) -> None:
        if row.name == "retention":
            check_quota_fits((document.get("backlog_quota_map") or {}).get(DESTINATION_STORAGE), value)
        document[key] = {**(document.get(key) or {}), cluster: value} if row.layer.by_cluster else value

    await _change(call, change)


async def _change(call: Call, change: Callable[[Document], None]) -> None:
    """In effect here when the answer leaves; other brokers learn of it through the store's watch."""
    name = call.namespace
    await call.broker.namespaces.update_policies(name, change)
    await call.broker.topics.policies_changed(name)


@documented("Backlog quotas by type.", answer=dict[str, BacklogQuota])
async def get_quotas(call: Call) -> Response:
    document = await call.broker.namespaces.policies(call.namespace)
    return as_json(document.get("backlog_quota_map") or {})


@documented("Set a backlog quota.", body=BacklogQuota, query=QUOTA_TYPE)
async def set_quota(call: Call) -> Response:
    kind = call.query("backlogQuotaType", DESTINATION_STORAGE)
    quota = backlog_quota(await call.json(), kind)

    def change(document: Document) -> None:
        if kind == DESTINATION_STORAGE:
            check_quota_fits(quota, document.get("retention_policies"))
        document["backlog_quota_map"] = {**(document.get("backlog_quota_map") or {}), kind: quota}

    await _change(call, change)
    return done()


@documented("Remove a backlog quota.", query=QUOTA_TYPE)
async def remove_quota(call: Call) -> Response:
    kind = call.query("backlogQuotaType", DESTINATION_STORAGE)

    def change(document: Document) -> None:
        quotas = document.get("backlog_quota_map") or {}
        document["backlog_quota_map"] = {key: value for key, value in quotas.items() if key != kind}

    await _change(call, change)
    return done()


def _rows() -> Iterator[Route]:
    """Policies are for the tenant's administrators; a role that produces or consumes may not even read them (CVE-2024-28098)."""
    for row in POLICY_ROWS:
        if row.namespace:
            path, kind, words = f"{NAMESPACE}/{row.namespace}", POLICY_TYPES[row.name], row.name.replace("_", " ")
            show = documented(f"The namespace's {words}.", answer=kind, may_be_unset=True)
            put = documented(f"Set the namespace's {words}; null unsets it.", body=kind | None)
            remove = documented(f"Unset the namespace's {words}: the broker's holds.")
            yield Route("GET", path, Access.TENANT, show(_getter(row)))
            yield Route(row.namespace_setter, path, Access.TENANT, put(_setter(row)))
            yield Route("DELETE", path, Access.TENANT, remove(_remover(row)))


remove_offload = documented("Unset the namespace's offload policies.")(
    _remover(next(row for row in POLICY_ROWS if row.name == "offload"))
)

ROUTES = (
    *_rows(),
    Route("DELETE", f"{NAMESPACE}/removeOffloadPolicies", Access.TENANT, remove_offload),
    Route("GET", f"{NAMESPACE}/backlogQuotaMap", Access.TENANT, get_quotas),
    Route("POST", f"{NAMESPACE}/backlogQuota", Access.TENANT, set_quota),
    Route("DELETE", f"{NAMESPACE}/backlogQuota", Access.TENANT, remove_quota),
)
