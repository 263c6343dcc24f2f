"""Policies of a namespace: the simple ones from their table, backlog quotas."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_or_nothing, done
from magnetar.admin.call import Call
from magnetar.admin.policy_rows import POLICY_ROWS, PolicyRow, backlog_quota
from magnetar.admin.routes.paths import NAMESPACE
from magnetar.admin.routing import Handler, Route
from magnetar.broker.namespaces.policies import DESTINATION_STORAGE, Document


def _getter(row: PolicyRow) -> Handler:
    async def get(call: Call) -> Response:
        value = (await call.broker.namespaces.policies(call.namespace)).get(row.key)
        if value is None:
            value = row.unset(call.broker.config) if callable(row.unset) else row.unset
        return as_json_or_nothing(value)

    return get


def _setter(row: PolicyRow) -> Handler:
    async def put(call: Call) -> Response:
        value = await call.json()
        await _set(call, row.key, None if value is None else row.check(row.path, value))
        return done()

    return put


def _remover(row: PolicyRow) -> Handler:
    async def delete(call: Call) -> Response:
        await _set(call, row.key, None)
        return done()

    return delete


async def _set(call: Call, key: str, value: object) -> None:
    """None goes back to the broker's default."""

    def change(document: Document) -> None:
        document[key] = value

    await call.broker.namespaces.update_policies(call.namespace, change)


async def get_quotas(call: Call) -> Response:
    document = await call.broker.namespaces.policies(call.namespace)
    return as_json(document.get("backlog_quota_map") or {})


async def set_quota(call: Call) -> Response:
    kind = call.query("backlogQuotaType", DESTINATION_STORAGE)
    name, quota = call.namespace, backlog_quota(await call.json(), kind)

    def change(document: Document) -> None:
        document["backlog_quota_map"] = {**(document.get("backlog_quota_map") or {}), kind: quota}

    await call.broker.namespaces.update_policies(name, change)
    return done()


async def remove_quota(call: Call) -> Response:
    kind = call.query("backlogQuotaType", DESTINATION_STORAGE)

    def change(document: Document) -> None:
        quotas = document.get("backlog_quota_map") or {}
        document["backlog_quota_map"] = {key: value for key, value in quotas.items() if key != kind}

    await call.broker.namespaces.update_policies(call.namespace, change)
    return done()


def _rows() -> Iterator[Route]:
    for row in POLICY_ROWS:
        path = f"{NAMESPACE}/{row.path}"
        yield Route("GET", path, _getter(row))
        yield Route(row.setter, path, _setter(row))
        yield Route("DELETE", path, _remover(row))


ROUTES = (
    *_rows(),
    Route("GET", f"{NAMESPACE}/backlogQuotaMap", get_quotas),
    Route("POST", f"{NAMESPACE}/backlogQuota", set_quota),
    Route("DELETE", f"{NAMESPACE}/backlogQuota", remove_quota),
)
