"""Partitioned topics: how many partitions, more of them, none any more."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import Call
from magnetar.admin.context import check_storage
from magnetar.admin.documents.topics import PartitionedTopic
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.policy_checks import number_of
from magnetar.admin.routes.topic.topics import properties_of
from magnetar.admin.routing import both_domains
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import TopicNotFoundError


@documented(answer=list[str])
async def names(call: Call) -> Response:
    """The partitioned topics of a namespace."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    return as_json(await call.broker.namespaces.partitioned_topics(name, call.domain))


def _count_and_properties(value: Any) -> tuple[int, dict[str, str]]:
    """Either a bare number or `{"partitions": n, "properties": {...}}`."""
    properties: dict[str, str] = {}
    if isinstance(value, dict):
        properties = properties_of(value.get("properties"))
        value = value.get("partitions")
    value = number_of(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequestError('expected the number of partitions, or {"partitions": n, "properties": {...}}')
    return value, properties


@documented("Create a topic with so many partitions.", body=int | PartitionedTopic, heavy=True)
async def create(call: Call) -> Response:
    name = call.topic
    count, properties = _count_and_properties(await call.json())
    if name.persistent:
        check_storage(call.admin.storage)
    await call.admin.partitioned.create(name, count, properties)
    return done()


@documented(
    "Increase the number of partitions. It cannot be decreased.",
    body=int | PartitionedTopic,
    heavy=True,
    errors=(422,),
)
async def grow(call: Call) -> Response:
    name = call.topic
    count, _ = _count_and_properties(await call.json())
    if name.persistent:
        check_storage(call.admin.storage)
    await call.admin.partitioned.grow(name, count)
    return done()


@documented(answer=PartitionedTopic, query={"checkAllowAutoCreation": bool}, effect="checkAllowAutoCreation")
async def get(call: Call) -> Response:
    """0 partitions for a plain topic; a missing one is 404 unless it may be created on demand (`checkAllowAutoCreation`)."""
    name, broker = call.topic, call.broker
    auto_create = call.flag("checkAllowAutoCreation")
    count = await broker.lookup.partitions(name, auto_create)
    if count == 0 and not auto_create and not await _exists(call):
        raise TopicNotFoundError(f"Topic {name} not found")
    properties = await broker.namespaces.partitioned_properties(name) if count else {}
    return as_json({"partitions": count, "deleted": False} | ({"properties": properties} if properties else {}))


async def _exists(call: Call) -> bool:
    name = call.topic
    return call.broker.topics.get_loaded(name) is not None or await call.broker.lookup.stored(name)


@documented("Delete a partitioned topic with its partitions.", query=FORCE, heavy=True)
async def delete(call: Call) -> Response:
    await call.admin.partitioned.delete(call.topic, force=call.flag("force"))
    return done()


@documented("Register partitions that are not stored.", heavy=True)
async def create_missing(call: Call) -> Response:
    name = call.topic
    if not await call.broker.namespaces.partitions(name):
        raise TopicNotFoundError(f"Partitioned Topic not found: {name} has zero partitions")
    if name.persistent:
        check_storage(call.admin.storage)
    await call.admin.partitioned.create_missing(name)
    return done()


ROUTES = (
    *both_domains("GET", "/partitioned", Access.NAMESPACE, names),
    *both_domains("PUT", "/{topic}/partitions", Access.TENANT, create),
    *both_domains("POST", "/{topic}/partitions", Access.TENANT, grow),
    *both_domains("GET", "/{topic}/partitions", Access.LOOKUP, get),
    *both_domains("DELETE", "/{topic}/partitions", Access.TENANT, delete),
    *both_domains("POST", "/{topic}/createMissedPartitions", Access.TENANT, create_missing),
)
