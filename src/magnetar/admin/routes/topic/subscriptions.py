"""Subscriptions of a topic, or of all its partitions: list, create, delete, skip, expire, reset."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import INT_MAX, Call
from magnetar.admin.documents.topics import BacklogAnalysis, ResetPosition
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import FORCE, documented
from magnetar.admin.routes.topic.topics import properties_of
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import (
    as_persistent,
    every_backlog,
    every_persistent,
    every_subscription,
    single,
    single_persistent,
)
from magnetar.broker.auth.decide import Access
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.errors import NotAllowedError, SubscriptionNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

SUBSCRIPTION = "/{topic}/subscription/{subscription}"


@documented("Names of the subscriptions.", answer=list[str], heavy=True)
async def names(call: Call) -> Response:
    return as_json(await call.admin.partitioned.subscriptions(call.topic))


@documented(body=ResetPosition | None, query={"replicated": bool}, heavy=True)
async def create(call: Call) -> Response:
    """The body names the first message to be consumed; without one, only what comes from now on."""
    topic, name, replicated = call.topic, call.subscription, call.flag("replicated")
    position, document = await call.position()
    properties = properties_of(document.get("properties"))
    if not topic.persistent:
        raise NotAllowedError(f"{topic} is not persistent: it cannot keep messages for a subscription")
    parts = await call.admin.partitioned.parts(topic)
    existed = 0
    for part in parts:
        loaded = as_persistent(await call.broker.topics.get(part, create=True))
        try:
            await loaded.subscriptions.create(name, mark_delete_for(loaded, position), properties, replicated)
        except AlreadyExistsError:
            existed += 1
    if existed == len(parts):
        raise AlreadyExistsError("Subscription already exists for topic")
    return done()


def mark_delete_for(topic: PersistentTopic, first: Position | None) -> Position:
    """The mark-delete position with which `first` is consumed next."""
    if first is None or first >= LATEST:
        return LATEST
    return EARLIEST if first <= EARLIEST else topic.ledger.index.previous(first)


@documented(query=FORCE, heavy=True)
async def delete(call: Call) -> Response:
    """Refused while consumers are connected, unless `force` is given. On a partitioned topic: wherever it exists."""
    name, force = call.subscription, call.flag("force")
    await call.broker.lookup.require_all(await call.admin.partitioned.parts(call.topic))
    if name not in await call.admin.partitioned.subscriptions(call.topic):
        raise SubscriptionNotFoundError("Subscription not found")
    holders = [
        loaded
        for part in await call.admin.partitioned.parts(call.topic)
        if (loaded := call.broker.topics.get_loaded(part)) is not None and name in loaded.subscription_names
    ]
    if not force and any(_connected(topic, name) for topic in holders):
        raise PreconditionFailedError("Subscription has active connected consumers")
    for topic in holders:
        await topic.unsubscribe(name, force=True)
    return done()


def _connected(topic: PersistentTopic | NonPersistentTopic, name: str) -> bool:
    if isinstance(topic, PersistentTopic):
        return bool(topic.subscriptions.get(name).consumers)
    return name in topic.subscription_names  # it exists only while somebody consumes


@documented(answer=dict[str, str], heavy=True)
async def get_properties(call: Call) -> Response:
    """Properties of a subscription; those of partitions are merged, a later partition wins."""
    found: dict[str, str] = {}
    for subscription in await every_subscription(call):
        found |= subscription.properties
    return as_json(found)


@documented(body=dict[str, str] | None, heavy=True)
async def put_properties(call: Call) -> Response:
    """Replace the subscription's properties."""
    properties = properties_of(await call.json())
    for subscription in await every_subscription(call):
        await subscription.replace_properties(properties)
    return done()


@documented(answer=BacklogAnalysis)
async def analyze_backlog(call: Call) -> Response:
    """Count what is left to consume, from the body's message on or from the first unconsumed one."""
    position, _ = await call.position()
    if call.topic.partition < 0 and await call.broker.namespaces.partitions(call.topic):
        raise NotAllowedError("Analyze backlog on a partitioned topic is not allowed")
    subscription = (await single_persistent(call)).subscriptions.get(call.subscription)
    return as_json(await _analyzed(subscription, position))


@documented(heavy=True, of_replicators=True)
async def skip_all(call: Call) -> Response:
    """Clear the backlog; of a replicator when the name is its cursor's, `pulsar.repl.<cluster>`."""
    for reader in await every_backlog(call):
        await reader.clear_backlog()
    return done()


@documented(of_replicators=True)
async def skip(call: Call) -> Response:
    """Skip messages. Refused for partitioned topics, as by Pulsar: it is undefined which partition's messages to skip."""
    count = call.number("count", INT_MAX)
    if call.topic.partition < 0 and await call.broker.namespaces.partitions(call.topic):
        raise NotAllowedError("Skip messages on a partitioned topic is not allowed")
    await (await single_persistent(call)).backlog_holder(call.cursor).skip_messages(count)
    return done()


@documented(heavy=True, of_replicators=True)
async def expire(call: Call) -> Response:
    """Mark messages older than so many seconds as consumed."""
    name, age_s = call.cursor, call.number("seconds", INT_MAX)
    for topic in await every_persistent(call):
        await topic.upkeep.expire_older_than(age_s, [topic.backlog_holder(name)])
    return done()


@documented("What is older than so many seconds counts as consumed, by every subscription.", heavy=True)
async def expire_all_subscriptions(call: Call) -> Response:
    age_s = call.number("seconds", INT_MAX)
    for topic in await every_persistent(call):
        await topic.upkeep.expire_older_than(age_s, topic.subscriptions.all)
    return done()


@documented(body=ResetPosition, of_replicators=True)
async def expire_to_position(call: Call) -> Response:
    """The body's message and everything before it count as consumed, or only what is before with `isExcluded`."""
    position, document = await call.position()
    if position is None:
        raise BadRequestError('expected a message id: {"ledgerId": n, "entryId": n}')
    topic = await single_persistent(call)
    upto = topic.ledger.index.previous(position) if document.get("isExcluded") is True else position
    await topic.backlog_holder(call.cursor).expire(min(upto, topic.ledger.last_confirmed))
    return done()


@documented(heavy=True)
async def reset_to_time(call: Call) -> Response:
    """The first message published at or after the time is consumed next."""
    timestamp_ms = call.number("timestamp")
    for subscription in await every_subscription(call):
        await subscription.seek_to_time(timestamp_ms)
    return done()


@documented(body=ResetPosition)
async def reset_to_position(call: Call) -> Response:
    """The body's message is consumed next, or the one behind it with `isExcluded`."""
    position, document = await call.position()
    if position is None:
        raise BadRequestError('expected a message id: {"ledgerId": n, "entryId": n}')
    topic = await single(call)
    if document.get("isExcluded") is True and EARLIEST < position < LATEST:
        position = as_persistent(topic).ledger.next_position(position)
    await topic.seek(call.subscription, position)
    return done()


ANALYZED_ENTRIES_MAX = 10_000
"""A longer backlog is counted so far, and `aborted` says so (Pulsar: subscriptionBacklogScanMaxEntries)."""

_FILTERED = ("Accepted", "Rejected", "Rescheduled")


async def _analyzed(subscription: Subscription, start: Position | None) -> dict[str, Any]:
    """Pulsar's AnalyzeSubscriptionBacklogResult. Entry filters are unsupported, so every message is accepted."""
    ledger, cursor = subscription.ledger, subscription.cursor
    position = ledger.next_position(cursor.mark_delete_position)
    if start is not None:
        position = max(position, start)
    last = ledger.last_confirmed
    entries = messages = scanned = 0
    ends: list[Position] = []
    while position <= last and scanned < ANALYZED_ENTRIES_MAX:
        scanned += 1
        if not cursor.is_acknowledged(position):
            entry = await ledger.read_entry(position)
            metadata = metadata_of(entry)
            entries += 1
            messages += metadata.num_messages if metadata.batched else 1
            ends = [ends[0] if ends else position, position]
        position = ledger.next_position(position)
    document: dict[str, Any] = {"entries": entries, "messages": messages, "markerMessages": 0}
    for kind in _FILTERED:
        document[f"filter{kind}Entries"] = entries if kind == "Accepted" else 0
        document[f"filter{kind}Messages"] = messages if kind == "Accepted" else 0
    document["aborted"] = position <= last
    document["firstMessageId"], document["lastMessageId"] = (_text(ends[0]), _text(ends[1])) if ends else (None, None)
    return document


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


ROUTES = (
    *both_domains("GET", "/{topic}/subscriptions", Access.LOOKUP, names),
    *both_domains("PUT", SUBSCRIPTION, Access.CONSUME, create),
    *both_domains("DELETE", SUBSCRIPTION, Access.CONSUME, delete),
    *both_domains("GET", f"{SUBSCRIPTION}/properties", Access.CONSUME, get_properties),
    *both_domains("PUT", f"{SUBSCRIPTION}/properties", Access.CONSUME, put_properties),
    *both_domains("GET", f"{SUBSCRIPTION}/analyzeBacklog", Access.CONSUME, analyze_backlog),
    *both_domains("POST", f"{SUBSCRIPTION}/analyzeBacklog", Access.CONSUME, analyze_backlog),
    *both_domains("POST", f"{SUBSCRIPTION}/skip_all", Access.CONSUME, skip_all),
    *both_domains("POST", f"{SUBSCRIPTION}/skip/{{count}}", Access.CONSUME, skip),
    *both_domains("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", Access.CONSUME, expire),
    *both_domains("POST", f"{SUBSCRIPTION}/expireMessages", Access.CONSUME, expire_to_position),
    *both_domains(
        "POST", "/{topic}/all_subscription/expireMessages/{seconds}", Access.TENANT, expire_all_subscriptions
    ),
    *both_domains("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", Access.CONSUME, reset_to_time),
    *both_domains("POST", f"{SUBSCRIPTION}/resetcursor", Access.CONSUME, reset_to_position),
)
