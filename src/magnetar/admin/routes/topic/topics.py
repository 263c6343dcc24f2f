"""Topics as things: list, create, delete, unload, terminate, compact, trim, truncate, properties."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done, message_id
from magnetar.admin.call import Call
from magnetar.admin.context import check_storage
from magnetar.admin.documents.topics import MessageId, RunStatus
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import every_persistent, single_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.compaction.errors import CompactionRunningError
from magnetar.broker.compaction.topic_compaction import Status
from magnetar.broker.errors import NotAllowedError, TopicNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.namespaces.records import bundle_of
from magnetar.broker.namespaces.registry import bundle_place
from magnetar.broker.naming import NON_PERSISTENT, TopicName
from magnetar.broker.topics.persistent import TOPIC_EPOCH_PROPERTY, PersistentTopic


def properties_of(value: Any) -> dict[str, str]:
    """A body that maps texts to texts, or nothing. Raises BadRequestError."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadRequestError('expected properties: {"name": "text"}')
    return dict(value)


@documented(answer=list[str], query={"here": bool, "bundle": str})
async def names(call: Call) -> Response:
    """Topics that hold messages: partitions separately. Non-persistent ones exist while somebody uses them; `here`: at this broker.

    `bundle`: only those of one bundle."""
    name = call.namespace
    await call.broker.namespaces.policies(name)
    found = await call.admin.partitioned.names_of(name, (call.domain,))
    found = found if call.flag("here") else await everywhere(call, found, (call.domain,))
    if bundle := call.query("bundle"):
        boundaries = await call.broker.namespaces.boundaries(name)
        bundle_place(bundle, boundaries, str(name))
        return as_json([topic for topic in found if bundle_of(TopicName.parse(topic), boundaries) == bundle])
    return await call.admin.name_lists.answer((name, call.domain, call.flag("here")), found)


async def everywhere(call: Call, found: list[str], domains: Iterable[str]) -> list[str]:
    """With the non-persistent topics of other brokers: each knows only its own."""
    if NON_PERSISTENT not in domains:
        return found
    return list(dict.fromkeys([*found, *await call.broker.non_persistent.elsewhere(call.namespace)]))


@documented("Create a topic without partitions. The body holds its properties.", body=dict[str, str] | None)
async def create(call: Call) -> Response:
    name, properties = call.topic, properties_of(await call.json())
    await call.broker.namespaces.policies(name.namespace_name)
    if await call.broker.namespaces.partitions(name):
        raise AlreadyExistsError("This topic already exists")
    _check_reserved(properties)
    if name.persistent:
        check_storage(call.admin.storage)
    if name.persistent and not properties:
        await call.broker.topics.register(name)
        return done()
    topic = await call.broker.topics.create(name)
    if properties and isinstance(topic, PersistentTopic):
        await topic.ledger.set_properties({**topic.ledger.properties, **properties})
    return done()


def _check_reserved(properties: Iterable[str]) -> None:
    if TOPIC_EPOCH_PROPERTY in properties:
        raise PreconditionFailedError(f"the property {TOPIC_EPOCH_PROPERTY} belongs to the server")


@documented("Delete a topic with its data.", query=FORCE)
async def delete(call: Call) -> Response:
    name = call.topic
    if name.partition < 0 and await call.broker.namespaces.partitions(name):
        raise NotAllowedError(f"{name} is a partitioned topic instead of a non-partitioned topic")
    await call.broker.topics.delete(name, force=call.flag("force"))
    return done()


@documented(heavy=True)
async def unload(call: Call) -> Response:
    """Clients reconnect by themselves. Partitions that are not loaded stay so."""
    name = call.topic
    parts = await call.admin.partitioned.parts(name)
    await call.broker.lookup.require_all(parts)
    for part in parts:
        try:
            await call.broker.topics.unload(part)
        except TopicNotFoundError:
            if parts == [name]:
                raise
    return done()


@documented(answer=MessageId)
async def terminate(call: Call) -> Response:
    """200 with the id of the last message."""
    name = call.topic
    if name.partition < 0 and await call.broker.namespaces.partitions(name):
        raise NotAllowedError("Termination of a partitioned topic is not allowed")
    topic = await single_persistent(call)
    return message_id(await topic.terminate(), name.partition)


@documented(answer=dict[str, MessageId], heavy=True)
async def terminate_partitions(call: Call) -> Response:
    """200 with the ids of the last messages, by partition."""
    name = call.topic
    if not await call.broker.namespaces.partitions(name):
        raise NotAllowedError(
            "Termination of a non-partitioned topic is not allowed using partitioned-terminate, please use terminate commands"
        )
    found = {}
    for topic in await every_persistent(call, unused_ones=True):
        last = await topic.terminate()
        partition = topic.name.partition
        found[str(partition)] = {"ledgerId": last.ledger_id, "entryId": last.entry_id, "partitionIndex": partition}
    return as_json(found)


@documented(heavy=True)
async def compact(call: Call) -> Response:
    """Begin to compact, all partitions of a partitioned topic; 409 while one of them is being compacted."""
    topics = await every_persistent(call)
    if any(topic.compaction.status is Status.RUNNING for topic in topics):
        raise CompactionRunningError("Compaction already in progress")
    for topic in topics:
        topic.compaction.start()
    return done()


@documented(answer=RunStatus, heavy=True)
async def compaction_status(call: Call) -> Response:
    """State of the last compaction. A partitioned topic: RUNNING or ERROR if a partition says so, SUCCESS if one does and no other ran."""
    compactions = [topic.compaction for topic in await every_persistent(call)]
    found = next(
        (
            compaction
            for status in (Status.RUNNING, Status.ERROR, Status.SUCCESS)
            for compaction in compactions
            if compaction.status is status
        ),
        None,
    )
    if found is None:
        return as_json({"status": Status.NOT_RUN.value, "lastError": ""})
    return as_json({"status": found.status.value, "lastError": found.last_error})


@documented("Delete what was compacted, and hold nothing back for the next compaction.", heavy=True)
async def stop_compacting(call: Call) -> Response:
    """Delete what was compacted, and hold nothing back any more for the next compaction (Pulsar has no such route: there it is to
    delete the subscription `__compaction`, which here would let whoever may consume delete data)."""
    for topic in await every_persistent(call):
        await topic.compaction.forget()
    return done()


@documented(heavy=True)
async def trim(call: Call) -> Response:
    """Give back storage that retention no longer keeps, now."""
    for topic in await every_persistent(call):
        await topic.upkeep.trim()
    return done()


@documented(heavy=True)
async def truncate(call: Call) -> Response:
    """Everything counts as consumed, and what retention does not keep goes: at the latest when a trim under way has ended."""
    for topic in await every_persistent(call):
        for subscription in topic.subscriptions.all:
            await subscription.clear_backlog()
        await topic.compaction.forget()
        await topic.ledger.rollover()
        await topic.ledger.trim()
        await topic.policies_applied()
    return done()


@documented("Properties by name.", answer=dict[str, str])
async def get_properties(call: Call) -> Response:
    name = call.topic
    if name.partition < 0 and await call.broker.namespaces.partitions(name):
        return as_json(await call.broker.namespaces.partitioned_properties(name))
    topic = await single_persistent(call)
    return as_json({key: text for key, text in topic.ledger.properties.items() if key != TOPIC_EPOCH_PROPERTY})


@documented(body=dict[str, str] | None)
async def put_properties(call: Call) -> Response:
    """Add or change properties of a topic; those of a partitioned topic belong to it as a whole."""
    added = properties_of(await call.json())
    _check_reserved(added)
    await _change_properties(call, lambda properties: {**properties, **added})
    return done()


@documented(query={"key": str})
async def delete_property(call: Call) -> Response:
    """The one that `key` names; without it nothing happens."""
    key = call.query("key")
    _check_reserved((key,))
    await _change_properties(call, lambda properties: {name: properties[name] for name in properties if name != key})
    return done()


async def _change_properties(call: Call, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    name, namespaces = call.topic, call.broker.namespaces
    if name.partition < 0 and await namespaces.partitions(name):
        await namespaces.change_partitioned_properties(name, change)
        return
    topic = await single_persistent(call)
    await topic.ledger.set_properties(change(dict(topic.ledger.properties)))


# Creating, changing and emptying topics is administration; looking at one requires a right to use it.
ROUTES = (
    *both_domains("GET", "", Access.NAMESPACE, names),
    *both_domains("PUT", "/{topic}", Access.TENANT, create),
    *both_domains("DELETE", "/{topic}", Access.TENANT, delete),
    *both_domains("PUT", "/{topic}/unload", Access.TENANT, unload),
    *both_domains("POST", "/{topic}/terminate", Access.TENANT, terminate),
    *both_domains("POST", "/{topic}/terminate/partitions", Access.TENANT, terminate_partitions),
    *both_domains("PUT", "/{topic}/compaction", Access.TENANT, compact),
    *both_domains("GET", "/{topic}/compaction", Access.LOOKUP, compaction_status),
    *both_domains("DELETE", "/{topic}/compaction", Access.TENANT, stop_compacting),
    *both_domains("POST", "/{topic}/trim", Access.TENANT, trim),
    *both_domains("DELETE", "/{topic}/truncate", Access.TENANT, truncate),
    *both_domains("GET", "/{topic}/properties", Access.LOOKUP, get_properties),
    *both_domains("PUT", "/{topic}/properties", Access.TENANT, put_properties),
    *both_domains("DELETE", "/{topic}/properties", Access.TENANT, delete_property),
)
