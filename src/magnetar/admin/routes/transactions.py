"""Transactions: their coordinators, and what they do in topics and subscriptions (Pulsar's admin API v3)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json, done
from magnetar.admin.call import INT_MAX, Call
from magnetar.admin.coordinator_owners import HERE, TRANSACTIONS, OtherTopics, coordinators_of, from_others, require
from magnetar.admin.documents.internal_stats import ledger_stats
from magnetar.admin.documents.transactions import (
    BufferStats,
    CoordinatorInfo,
    CoordinatorInternalStats,
    CoordinatorStats,
    InBufferStats,
    InPendingAckStats,
    LogStats,
    PendingAckInternalStats,
    PendingAckStats,
    PositionInPendingAck,
    TransactionMetadata,
)
from magnetar.admin.errors import BadRequestError, NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.routing import Handler, Route
from magnetar.admin.topic_access import single_persistent
from magnetar.broker.auth.decide import Access
from magnetar.broker.cluster_participants import PARTICIPANTS_TARGET
from magnetar.broker.errors import SubscriptionNotFoundError, TopicNotFoundError, TransactionNotFoundError
from magnetar.broker.naming import PERSISTENT, TopicName
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.coordinator_state import Transaction
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC, COORDINATORS_MAX
from magnetar.broker.transactions.grants import MAY_DO_ALL
from magnetar.broker.transactions.log import RecordLog
from magnetar.broker.transactions.pending_state import WHOLE
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.position import Position

COORDINATOR_QUERY = {"coordinatorId": int, HERE: bool}


def _chosen(call: Call) -> int | None:
    """`coordinatorId` of the query. Raises NotFoundError, BadRequestError."""
    return call.query_integer("coordinatorId", 0, INT_MAX) if call.query("coordinatorId") else None


def _txn(call: Call) -> TxnId:
    return TxnId(call.number("mostSigBits"), call.number("leastSigBits"))


def _text(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


def _answer(document: Any) -> Response:
    return as_json(msgspec.to_builtins(document))


# ---- Coordinators


@documented(answer=list[CoordinatorInfo], errors=(503,))
async def list_coordinators(call: Call) -> Response:
    """The transaction coordinators and who serves them."""
    count = await coordinators_of(call).recounted()
    found = [await call.broker.lookup.find(ASSIGN_TOPIC.partition_name(number)) for number in range(count)]
    urls = [each.address.service_url or each.address.service_url_tls for each in found]
    return _answer([CoordinatorInfo(id=number, broker_service_url=url) for number, url in enumerate(urls)])


@documented(answer=dict[str, Any], query=COORDINATOR_QUERY, errors=(404, 503))
async def coordinator_stats(call: Call) -> Response:
    """Statistics of one coordinator, or of all by number, whichever brokers serve them; `here`: only those of this broker."""
    found, chosen = coordinators_of(call), _chosen(call)
    if chosen is not None:
        await require(call, chosen)
        return _answer(_stats_of(found.get_loaded(chosen)))
    count = await found.recounted()
    stats = msgspec.to_builtins({str(number): _stats_of(found.get_loaded(number)) for number in range(count)})
    for others in await from_others(call, "coordinatorStats"):
        stats.update({number: each for number, each in others.items() if each["state"] != "None"})
    return as_json(stats)


def _stats_of(coordinator: TransactionCoordinator | None) -> CoordinatorStats:
    if coordinator is None:
        return CoordinatorStats()
    state = coordinator.state
    return CoordinatorStats(
        state="Ready",
        least_sig_bits=state.highest,
        low_water_mark=state.low_water_mark,
        ongoing_txn_size=len(state),
        recover_start_time=coordinator.recovery_ms[0],
        recover_end_time=coordinator.recovery_ms[1],
    )


@documented(answer=CoordinatorInternalStats, query={"metadata": bool}, errors=(404, 503))
async def coordinator_internal_stats(call: Call) -> Response:
    """The log of a coordinator."""
    number = call.number("coordinatorId")
    coordinator = (await require(call, number)).get_loaded(number)
    if coordinator is None:
        raise NotFoundError("the coordinator has had no transaction yet and keeps no log")
    return _answer(CoordinatorInternalStats(transaction_log_stats=_log_stats(coordinator.log)))


def _log_stats(log: RecordLog) -> LogStats:
    return LogStats(managed_ledger_name=log.ledger.name, managed_ledger_internal_stats=ledger_stats(log.ledger))


@documented(body=int, errors=(406, 503))
async def scale(call: Call) -> Response:
    """Raise the number of coordinators."""
    found = coordinators_of(call)
    count = await call.json()
    if type(count) is not int or not 1 <= count <= COORDINATORS_MAX:
        raise BadRequestError(f"expected a number of coordinators between 1 and {COORDINATORS_MAX}")
    await found.scale(count)
    return done()


# ---- Transactions


@documented(answer=TransactionMetadata, errors=(404, 503))
async def metadata(call: Call) -> Response:
    """A transaction that has not ended yet, with what it does where. For superusers, and for the role that has opened it."""
    txn = _txn(call)
    coordinator = await (await require(call, txn.most)).get(txn.most)
    found, owner = coordinator.state.get(txn), call.broker.security.authorizer.owner(call.principal)
    if owner is not None and found.owner != owner:
        raise TransactionNotFoundError(f"transaction {txn} is not open, or belongs to another role")
    return _answer(await _metadata(call, found))


async def _metadata(call: Call, transaction: Transaction) -> TransactionMetadata:
    txn, elsewhere = transaction.txn, OtherTopics(call)

    async def in_buffer(name: str) -> InBufferStats:
        topic = _loaded(call, name)
        if topic is not None:
            return _in_buffer(topic, txn)
        return msgspec.convert(await elsewhere.in_buffer(name, txn), InBufferStats)

    async def in_pending(name: str, subscription: str) -> InPendingAckStats:
        topic = _loaded(call, name)
        if topic is not None:
            return _in_pending(topic, subscription, txn)
        return msgspec.convert(await elsewhere.in_pending(name, subscription, txn), InPendingAckStats)

    topics, subscriptions = list(transaction.partitions.items()), list(transaction.subscriptions.items())
    produced = await asyncio.gather(*(in_buffer(name) for _, name in topics))
    taken = await asyncio.gather(*(in_pending(name, subscription) for (_, subscription), (name, _) in subscriptions))
    acked: dict[str, dict[str, InPendingAckStats]] = {}
    for ((topic, subscription), _), stats in zip(subscriptions, taken, strict=True):
        acked.setdefault(topic, {})[subscription] = stats
    return TransactionMetadata(
        txn_id=str(transaction.txn),
        status=transaction.status.name,
        open_timestamp=transaction.started_ms,
        timeout_at=transaction.timeout_ms,
        produced_partitions=dict(zip((topic for topic, _ in topics), produced, strict=True)),
        acked_partitions=acked,
        owner=transaction.owner or None,
    )


def _loaded(call: Call, name: str) -> PersistentTopic | None:
    topic = call.broker.topics.get_loaded(TopicName.parse(name))
    return topic if isinstance(topic, PersistentTopic) else None


@documented(answer=dict[str, TransactionMetadata], query=COORDINATOR_QUERY, errors=(404, 503))
async def slow(call: Call) -> Response:
    """Transactions that have been open for at least so many milliseconds, at all brokers; `here`: at this one."""
    found, chosen = coordinators_of(call), _chosen(call)
    at_least_ms = call.number("timeout")
    if chosen is not None:
        await require(call, chosen)
    now_ms = call.broker.clock.now_ms()
    documents = {
        str(transaction.txn): msgspec.to_builtins(await _metadata(call, transaction))
        for coordinator in found.loaded
        if chosen in (None, coordinator.coordinator_id)
        for transaction in list(coordinator.state)
        if now_ms - transaction.started_ms >= at_least_ms
    }
    for others in await from_others(call, f"slowTransactions/{at_least_ms}") if chosen is None else []:
        documents.update(others)
    return as_json(documents)


@documented(errors=(404, 409, 503))
async def abort(call: Call) -> Response:
    """Abort an open transaction, whoever has opened it."""
    txn = _txn(call)
    coordinator = await (await require(call, txn.most)).get(txn.most)
    await coordinator.end(txn, commit=False, who=MAY_DO_ALL)
    return done()


# ---- In a topic


@documented(answer=BufferStats, query={"lowWaterMarks": bool, "segmentStats": bool}, errors=(404, 405, 503))
async def buffer_stats(call: Call) -> Response:
    """What a topic knows of transactions."""
    coordinators_of(call)
    topic = await single_persistent(call)
    buffer = topic.transactions.buffer
    if buffer is None:
        return _answer(BufferStats(max_read_position=_text(topic.ledger.last_confirmed)))
    return _answer(
        BufferStats(
            state="Ready",
            max_read_position=_text(buffer.readable_end),
            last_snapshot_timestamps=buffer.snapshot_ms,
            ongoing_txn_size=buffer.state.open_count,
            total_aborted_transactions=buffer.state.aborted_count,
            recover_start_time=buffer.recovery_ms[0],
            recover_end_time=buffer.recovery_ms[1],
        )
    )


@documented(answer=dict[str, Any], query={"metadata": bool}, errors=(404, 405, 503))
async def buffer_internal_stats(call: Call) -> Response:
    """Where the snapshots lie: in a cursor of the topic itself."""
    coordinators_of(call)
    topic = await single_persistent(call)
    document = {
        "snapshotType": "Cursor",
        "singleSnapshotSystemTopicInternalStats": None,
        "managedLedgerName": topic.ledger.name,
        "managedLedgerInternalStats": ledger_stats(topic.ledger),
    }
    return as_json(document)


@documented(answer=InBufferStats, errors=(404, 405, 503))
async def in_buffer_stats(call: Call) -> Response:
    """A transaction in one topic."""
    coordinators_of(call)
    return _answer(_in_buffer(await single_persistent(call), _txn(call)))


def _in_buffer(topic: PersistentTopic | None, txn: TxnId) -> InBufferStats:
    buffer = topic.transactions.buffer if topic is not None else None
    if buffer is None:
        return InBufferStats()
    found = buffer.state.open_transaction(txn)
    return InBufferStats(
        start_position=None if found is None else _text(found.first), aborted=buffer.state.is_aborted(txn)
    )


# ---- In a subscription


async def _subscription(call: Call) -> Subscription:
    coordinators_of(call)
    topic = await single_persistent(call)
    return topic.subscriptions.get(call.subscription)


@documented(answer=PendingAckStats, query={"lowWaterMarks": bool}, errors=(404, 405, 503))
async def pending_ack_stats(call: Call) -> Response:
    """What a subscription holds for open transactions."""
    pending = (await _subscription(call)).pending_acks
    if pending is None:
        return _answer(PendingAckStats())
    return _answer(PendingAckStats(state="Ready", ongoing_txn_size=len(pending.state.transactions)))


@documented(answer=PendingAckInternalStats, query={"metadata": bool}, errors=(404, 405, 503))
async def pending_ack_internal_stats(call: Call) -> Response:
    """The log of a subscription's pending acknowledgements."""
    pending = (await _subscription(call)).pending_acks
    if pending is None:
        raise NotFoundError("no transaction has acknowledged in this subscription yet: it keeps no log")
    return _answer(PendingAckInternalStats(pending_ack_log_stats=_log_stats(pending.log)))


@documented(answer=InPendingAckStats, errors=(404, 405, 503))
async def in_pending_ack_stats(call: Call) -> Response:
    """A transaction in one subscription."""
    await _subscription(call)
    return _answer(_in_pending(await single_persistent(call), call.subscription, _txn(call)))


def _in_pending(topic: PersistentTopic | None, subscription: str, txn: TxnId) -> InPendingAckStats:
    try:
        pending = topic.subscriptions.get(subscription).pending_acks if topic is not None else None
    except (SubscriptionNotFoundError, TopicNotFoundError):
        pending = None
    found = pending.state.get(txn) if pending is not None else None
    upto = found.cumulative if found is not None else None
    return InPendingAckStats(cumulative_ack_position=None if upto is None else _text(upto.position))


@documented(answer=PositionInPendingAck, query={"batchIndex": int}, errors=(404, 405, 503))
async def position_stats(call: Call) -> Response:
    """Where the acknowledgement of one message stands."""
    subscription = await _subscription(call)
    position = Position(call.number("ledger"), call.number("entry"))
    index = call.query("batchIndex")
    if index and not (index.isascii() and index.isdigit() and len(index) <= 6):
        raise BadRequestError(f"batchIndex must be a number, not '{index[:40]}'")
    bits = 1 << int(index) if index else WHOLE
    pending = subscription.pending_acks
    if not position.entry_id < subscription.ledger.index.entries_in(position.ledger_id):
        return _answer(PositionInPendingAck(state="InvalidPosition"))
    if subscription.cursor.is_acknowledged(position):
        return _answer(PositionInPendingAck(state="MarkDelete"))
    if pending is None:
        return _answer(PositionInPendingAck(state="PendingAckNotReady"))
    taken = pending.state.taken(position) & bits
    return _answer(PositionInPendingAck(state="PendingAck" if taken else "NotInPendingAck"))


_ROOT = TRANSACTIONS
_TOPIC = "{tenant}/{namespace}/{topic}"
_IDS = "{mostSigBits}/{leastSigBits}"


def _of_topic(leaf: str, handler: Handler) -> Route:
    """A route about transactions in one topic, for the tenant's administrators."""
    return Route("GET", f"{_ROOT}/{leaf}", Access.TENANT, handler, {"domain": PERSISTENT})


# Coordinators hold the transactions of all tenants: for superusers (in CVE-2026-105931 such routes skipped the check of their siblings).
class ParticipantRequest(msgspec.Struct, rename="camel"):
    """Without `commit` the topic (or its subscription) is to get ready for a transaction of `owner`; with it, to carry out the outcome."""

    topic: str
    subscription: str | None = None
    owner: str = ""
    commit: bool | None = None
    most_sig_bits: int = 0
    least_sig_bits: int = 0
    low_water_mark: int = 0


@documented(body=ParticipantRequest, errors=(404, 503))
async def take_part(call: Call) -> Response:
    """A step of a transaction, from the broker that coordinates it. For brokers only."""
    request = await call.body_as(ParticipantRequest)
    own, topic, subscription = call.broker.participants.own, request.topic, request.subscription
    txn = TxnId(request.most_sig_bits, request.least_sig_bits)
    if request.commit is None:
        if subscription is None:
            await own.prepare_partition(topic, txn, request.owner)
        else:
            await own.prepare_subscription(topic, subscription, txn, request.owner)
        return done()
    if subscription is None:
        await own.end_on_partition(topic, txn, request.commit, request.low_water_mark)
    else:
        await own.end_on_subscription(topic, subscription, txn, request.commit, request.low_water_mark)
    return done()


class NamedTransaction(msgspec.Struct, rename="camel"):
    """An open transaction that uses a topic: its `subscription`, or the topic itself when that is empty."""

    least_sig_bits: int
    subscription: str
    owner: str


@documented(answer=list[NamedTransaction], query={"topic": str}, errors=(404, 503))
async def named(call: Call) -> Response:
    """The open transactions of a coordinator that have named a topic, for the broker that serves the topic. For brokers only."""
    number = call.number("coordinatorId")
    found = await (await require(call, number)).named(number, str(TopicName.parse(call.query("topic"))))
    return _answer([NamedTransaction(*each) for each in found])


ROUTES = (
    Route("GET", f"{_ROOT}/coordinators", Access.SUPERUSER, list_coordinators),
    Route("GET", f"{_ROOT}/coordinatorStats", Access.SUPERUSER, coordinator_stats),
    Route("GET", f"{_ROOT}/coordinatorInternalStats/{{coordinatorId}}", Access.SUPERUSER, coordinator_internal_stats),
    Route("POST", f"{_ROOT}/transactionCoordinator/replicas", Access.SUPERUSER, scale),
    Route("GET", f"{_ROOT}/transactionMetadata/{_IDS}", Access.SOMEWHERE, metadata),
    Route("GET", f"{_ROOT}/slowTransactions/{{timeout}}", Access.SUPERUSER, slow),
    Route("POST", f"{_ROOT}/abortTransaction/{_IDS}", Access.SUPERUSER, abort),
    _of_topic(f"transactionBufferStats/{_TOPIC}", buffer_stats),
    _of_topic(f"transactionBufferInternalStats/{_TOPIC}", buffer_internal_stats),
    _of_topic(f"transactionInBufferStats/{_TOPIC}/{_IDS}", in_buffer_stats),
    _of_topic(f"pendingAckStats/{_TOPIC}/{{subscription}}", pending_ack_stats),
    _of_topic(f"pendingAckInternalStats/{_TOPIC}/{{subscription}}", pending_ack_internal_stats),
    _of_topic(f"transactionInPendingAckStats/{_TOPIC}/{{subscription}}/{_IDS}", in_pending_ack_stats),
    _of_topic(f"positionStatsInPendingAck/{_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}", position_stats),
    Route("POST", PARTICIPANTS_TARGET, Access.SUPERUSER, take_part),
    Route("GET", f"{PARTICIPANTS_TARGET}/{{coordinatorId}}", Access.SUPERUSER, named),
)
