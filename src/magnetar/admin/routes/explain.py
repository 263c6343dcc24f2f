"""Why something does not go on: one answer for each kind of thing, with reasons in words and as codes (this server's own)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents.explain import Explanation
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.redirects import credentials_of, require_leader
from magnetar.admin.routes.pipelines import places_of
from magnetar.admin.routing import ADMIN, Handler, Route
from magnetar.admin.topic_access import as_persistent, unused
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.explain.bundle import explain_bundle
from magnetar.broker.explain.key import Question, explain_key, partition_of
from magnetar.broker.explain.ledger import explain_ledger, read_ledger, topic_of
from magnetar.broker.explain.message import explain_message, parse_id
from magnetar.broker.explain.subscription import (
    explain_cursor,
    explain_non_persistent,
    explain_scalable_cursor,
    explain_subscription,
    subject_of,
)
from magnetar.broker.explain.topic import explain_producer, explain_topic, not_loaded, not_there, refusals
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import SCALABLE, TopicName
from magnetar.broker.reasons import Code, because
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.hashing.errors import HashingError

_ROOT = f"{ADMIN}/explain"

REASONS_MAX: Final = 100
"""Reasons of one answer for a partitioned topic; those of later partitions are left out, and their verdicts stay."""

ExplainPart = Callable[[Call, TopicName], Awaitable[dict[str, Any]]]


@documented(
    answer=Explanation,
    query={"topic": str, "subscription": str},
    required=("topic", "subscription"),
    errors=(404, 405, 412),
    heavy=True,
)
async def subscription(call: Call) -> Response:
    """Whether a subscription moves, and if not, why: consumers, limits, draining hashes, delays, transactions. Of a partitioned topic all
    partitions."""
    if "subscription" not in call.params:
        raise BadRequestError("name the subscription: &subscription=NAME")
    name = call.subscription
    parts = await call.admin.partitioned.parts(call.topic)
    if parts == [call.topic]:
        return as_json(await _subscription(call, call.topic))
    found = {part: document async for part, document in _each(call, parts, "subscription", _subscription)}
    if not found:
        raise SubscriptionNotFoundError("Subscription not found")
    return as_json(_joined(subject_of(str(call.topic), name), f"Subscription {name}", found))


async def _subscription(call: Call, part: TopicName) -> dict[str, Any]:
    broker = call.broker
    loaded, now_ms = broker.topics.get_loaded(part) is not None, broker.clock.now_ms()
    topic = await broker.topics.get(part, create=False)
    if isinstance(topic, NonPersistentTopic):
        for each in topic.subscriptions:
            if each.name == call.subscription:
                return explain_non_persistent(str(part), each).document()
        raise SubscriptionNotFoundError("Subscription not found")
    mine = [each for each in broker.refused.of(str(part), now_ms) if each.subscription == call.subscription]
    others = refusals(mine)
    if not loaded:
        others.append(because(Code.TOPIC_NOT_LOADED, broker.topics.unloaded_ms(part)))
    return (await explain_subscription(topic, call.subscription, broker.clock, others)).document()


@documented(answer=Explanation, query={"topic": str}, required=("topic",), errors=(404, 405, 412), heavy=True)
async def topic(call: Call) -> Response:
    """Why a topic takes no messages, or not from everybody; which subscriptions stand still; clients that were refused of late. Of a
    partitioned topic all partitions. Nothing is loaded for the answer."""
    parts = await call.admin.partitioned.parts(call.topic)
    if parts == [call.topic]:
        return as_json(await _topic(call, call.topic))
    found = {part: document async for part, document in _each(call, parts, "topic", _topic)}
    subject = {"kind": "topic", "topic": str(call.topic)}
    return as_json(_joined(subject, f"Topic {call.topic}", found))


async def _topic(call: Call, part: TopicName) -> dict[str, Any]:
    broker = call.broker
    loaded = broker.topics.get_loaded(part)
    if loaded is not None:
        return explain_topic(loaded, broker.refused, call.admin.storage.problem(), broker.clock).document()
    refused = broker.refused.of(str(part), broker.clock.now_ms())
    if await broker.lookup.stored(part):
        await broker.lookup.require(part)
        return not_loaded(str(part), refused, broker.topics.unloaded_ms(part)).document()
    if not refused:
        raise TopicNotFoundError(f"Topic {part} does not exist")
    return not_there(str(part), refused).document()


@documented(
    answer=Explanation, query={"topic": str, "producer": str}, required=("topic",), errors=(404, 405, 412), heavy=True
)
async def producer(call: Call) -> Response:
    """Why a producer does not get on, or is refused: quota, rate, schema, rights, exclusive access, termination. Without `producer`: any
    that would come. Of a partitioned topic all partitions."""
    parts = await call.admin.partitioned.parts(call.topic)
    if parts == [call.topic]:
        return as_json(await _producer(call, call.topic))
    found = {part: document async for part, document in _each(call, parts, "producer", _producer)}
    name = call.query("producer")
    subject = {"kind": "producer", "topic": str(call.topic), "producer": name}
    return as_json(_joined(subject, f"Producer {name}" if name else f"A producer of {call.topic}", found))


async def _producer(call: Call, part: TopicName) -> dict[str, Any]:
    broker, name = call.broker, call.query("producer")
    loaded = await broker.topics.get(part, create=False)
    return explain_producer(loaded, name, broker.refused, call.admin.storage.problem(), broker.clock).document()


async def _each(
    call: Call, parts: list[TopicName], kind: str, explain: ExplainPart
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The answer for each partition, from the broker that serves it; without those that nobody uses."""
    for part in parts:
        try:
            if not await unused(call, part):
                yield str(part), await explain(call, part)
        except NotOwnedError as error:
            if error.owner is None:
                raise
            document = await _elsewhere(call, error.owner, part, kind)
            if document is not None:
                yield str(part), document
        except SubscriptionNotFoundError:
            pass
        await call.pace.breathe()


async def _elsewhere(call: Call, owner: BrokerAddress, part: TopicName, kind: str) -> dict[str, Any] | None:
    """None where another broker does not know of it."""
    from magnetar.admin.client.noun import query_text

    given = dict(call.request.query_params) | {"topic": str(part)}
    answer = await call.broker.peers.call(owner, "GET", f"{_ROOT}/{kind}{query_text(given)}", b"", credentials_of(call))
    return answer.document if answer.status < 300 else None


def _joined(subject: Mapping[str, Any], about: str, found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Stands still where one of the partitions does; its reasons come first, each with its partition as the fact `topic`."""
    ordered = sorted(found.items(), key=lambda item: {False: 0, True: 1, None: 2}[item[1]["moving"]])
    moving = ordered[0][1]["moving"]
    reasons = [
        {**reason, "facts": {**reason["facts"], "topic": part}}
        for part, answer in ordered
        for reason in answer["reasons"]
    ]
    standing = [part for part, answer in ordered if answer["moving"] is False]
    if standing:
        verdict = f"{about} stands still in {len(standing)} of {len(found)} partitions; {standing[0]}: {ordered[0][1]['verdict']}"
    else:
        verdict = f"{about}, in each of {len(found)} partitions: {ordered[0][1]['verdict']}"
    partitions = {part: {"verdict": answer["verdict"], "moving": answer["moving"]} for part, answer in found.items()}
    return {
        "subject": dict(subject),
        "verdict": verdict,
        "moving": moving,
        "reasons": reasons[:REASONS_MAX],
        "details": {"partitions": partitions},
    }


@documented(
    answer=Explanation,
    query={"topic": str, "key": str, "subscription": str, "ifJoins": str, "ifLeaves": str},
    required=("topic", "key"),
    errors=(404, 405, 412),
)
async def key(call: Call) -> Response:
    """Where a key is: hashes, slot, partition, bundle, broker, bookies of the open ledger, and the consumer of each Key_Shared subscription
    with what waits for it; vnode and unit in the stages of pipelines that report. `ifJoins`, `ifLeaves`: names of consumers whose coming
    or going is to be looked at; nothing is done."""
    asked = call.request.query_params.get("key")
    if asked is None:
        raise BadRequestError("name the key: &key=KEY")
    name = call.topic
    where: dict[str, Any] = {}
    count = await call.broker.namespaces.partitions(name) if name.partition < 0 else 0
    if count:
        java, murmur3 = partition_of(asked, count)
        name = name.partition_name(java)
        where = {"partition": java, "partitions": count, "partition_by_murmur3": murmur3}
    loaded = as_persistent(await call.broker.topics.get(name, create=False))
    ownership = call.broker.ownership
    where |= {"bundle": str(await ownership.bundle_of(name)), "broker": ownership.broker_id}
    named = call.subscription if "subscription" in call.params else ""
    question = Question(asked, named, call.query("ifJoins"), call.query("ifLeaves"))
    try:
        found = await explain_key(loaded, question, call.broker.bookkeeper, call.broker.clock, where)
    except HashingError as error:
        raise BadRequestError(f"that cannot be: {error}") from None
    pipelines = await places_of(call, call.topic, asked)
    details = {**found.details, "pipelines": pipelines}
    return as_json(replace(found, details=details).document())


@documented(
    answer=Explanation,
    query={"topic": str, "id": str, "subscription": str},
    required=("topic", "id"),
    errors=(404, 405, 412),
)
async def message(call: Call) -> Response:
    """Where a message is, `id` as ledger:entry[:partition:batch index]: its ledger and the bookies with copies; for each subscription
    whether it is delivered, acknowledged, delayed, expired or held by a transaction, or what it waits for; if it is gone, by which rule."""
    asked = parse_id(call.query("id"))
    if asked is None:
        raise BadRequestError("id must be ledger:entry or ledger:entry:partition:batch index, as receipts show it")
    name = call.topic
    if name.partition < 0 and await call.broker.namespaces.partitions(name):
        if asked.partition < 0:
            raise BadRequestError("the topic is partitioned: write the id as ledger:entry:partition:batch index")
        name = name.partition_name(asked.partition)
    loaded = as_persistent(await call.broker.topics.get(name, create=False))
    named = call.subscription if "subscription" in call.params else ""
    return as_json((await explain_message(loaded, asked, named, call.broker.bookkeeper, call.broker.clock)).document())


@documented(answer=Explanation, query={"id": int}, required=("id",), errors=(404, 412))
async def ledger(call: Call) -> Response:
    """Whose a ledger is, its segments and copies, which of its bookies are missing, and what keeps it from being deleted. The broker that
    serves its topic answers."""
    broker, ledger_id = call.broker, call.query_number("id", 0)
    if "id" not in call.request.query_params:
        raise BadRequestError("name the ledger: ?id=NUMBER")
    try:
        metadata, owner = await read_ledger(broker.bookkeeper, ledger_id)
    except NoSuchLedgerError:
        raise NotFoundError(f"ledger {ledger_id} does not exist") from None
    name = topic_of(owner)
    loaded = broker.topics.get_loaded(name) if name is not None else None
    if name is not None and loaded is None and await broker.lookup.stored(name):
        await broker.lookup.require(name)
        loaded = await broker.topics.get(name, create=False)
    mark = await UnderreplicationManager(broker.metadata, broker.clock, broker.ownership.broker_id).get(ledger_id)
    found = explain_ledger(
        ledger_id,
        metadata,
        owner,
        loaded if isinstance(loaded, PersistentTopic) else None,
        broker.bookkeeper.bookies.registered(),
        mark,
        broker.clock.now_ms(),
    )
    return as_json(found.document())


@documented(
    answer=Explanation, query={"topic": str, "ifBrokerDies": str}, required=("topic",), errors=(404, 405, 412, 503)
)
async def bundle(call: Call) -> Response:
    """Why the topic's bundle is on its broker, what would move it, and where it would go if that broker (`host:port` of its admin API)
    died. Other brokers send on to the leader."""
    broker = call.broker
    await require_leader(call)
    name = await broker.ownership.bundle_of(call.topic)
    found = await explain_bundle(
        name,
        str(call.topic),
        broker.ownership,
        broker.load_manager,
        broker.cluster.load_placement,
        broker.config.settings,
        call.query("ifBrokerDies"),
    )
    return as_json(found.document())


@documented(
    answer=Explanation,
    query={"topic": str, "subscription": str},
    required=("topic", "subscription"),
    errors=(404, 405, 412),
    heavy=True,
)
async def cursor(call: Call) -> Response:
    """Where a replicated subscription is in other clusters, and why its place there does not move: the last snapshot, who is missing, what
    a failover would repeat. Of a partitioned topic all partitions; a segment's place follows with those of its whole topic."""
    if "subscription" not in call.params:
        raise BadRequestError("name the subscription: &subscription=NAME")
    name = call.subscription
    if call.topic.is_segment or call.topic.domain == SCALABLE:
        return as_json(await _scalable_cursor(call, call.topic.partitioned_name))
    parts = await call.admin.partitioned.parts(call.topic)
    if parts == [call.topic]:
        return as_json(await _cursor(call, call.topic))
    found = {part: document async for part, document in _each(call, parts, "cursor", _cursor)}
    if not found:
        raise SubscriptionNotFoundError("Subscription not found")
    subject = {"kind": "cursor", "topic": str(call.topic), "subscription": name}
    return as_json(_joined(subject, f"The place of subscription {name} in other clusters", found))


async def _cursor(call: Call, part: TopicName) -> dict[str, Any]:
    loaded = as_persistent(await call.broker.topics.get(part, create=False))
    return explain_cursor(loaded, call.subscription, call.broker.clock.now_ms()).document()


async def _scalable_cursor(call: Call, whole: TopicName) -> dict[str, Any]:
    """At the topic's controller."""
    scalable = call.broker.scalable
    controller = await scalable.controller(whole)
    if call.subscription not in await scalable.records.subscriptions(whole):
        raise SubscriptionNotFoundError("Subscription not found")
    status = await controller.replicated.status() if controller.replicated is not None else None
    return explain_scalable_cursor(whole, call.subscription, status).document()


def _of_topic(kind: str, handler: Handler) -> Route:
    return Route("GET", f"{_ROOT}/{kind}", Access.LOOKUP, handler, by_query=True, scalable=handler is cursor)


ROUTES = (
    _of_topic("subscription", subscription),
    _of_topic("topic", topic),
    _of_topic("producer", producer),
    _of_topic("key", key),
    _of_topic("message", message),
    _of_topic("cursor", cursor),
    Route("GET", f"{_ROOT}/bundle", Access.NAMESPACE, bundle, by_query=True),
    Route("GET", f"{_ROOT}/ledger", Access.SUPERUSER, ledger),
)
