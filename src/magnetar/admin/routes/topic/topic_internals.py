"""What lies below a topic: its ledgers and cursors as stored, its backlog, offloading."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from magnetar.admin.answers import as_json, as_json_in_pieces, members
from magnetar.admin.call import Call
from magnetar.admin.documents.topics import ResetPosition, RunStatus, TopicBacklog
from magnetar.admin.errors import BadRequestError
from magnetar.admin.operation import documented
from magnetar.admin.routing import both_domains
from magnetar.admin.topic_access import every_persistent, single_persistent
from magnetar.base.clock import iso_time
from magnetar.broker.auth.decide import Access
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.position import Position


@documented(answer=dict[str, Any], heavy=True)
async def info(call: Call) -> Response:
    """The managed ledger's list of ledgers and its cursors; of a partitioned topic by partition."""
    topics = await every_persistent(call)
    if len(topics) == 1 and topics[0].name == call.topic:
        return as_json(_info(topics[0]))

    async def partitions() -> AsyncIterator[tuple[str, object]]:
        for topic in topics:
            yield str(topic.name), _info(topic)
            await call.pace.breathe()

    async def pieces() -> AsyncIterator[str]:
        yield '{"version":0,"partitions":'
        async for piece in members(partitions()):
            yield piece
        yield "}"

    return as_json_in_pieces(pieces())


def _info(topic: PersistentTopic) -> dict[str, Any]:
    ledger = topic.ledger
    document: dict[str, Any] = {
        "version": 0,
        "creationDate": iso_time(topic.created_ms),
        "ledgers": [
            {
                "ledgerId": held.ledger_id,
                "entries": held.entries,
                "size": held.size_bytes,
                "timestamp": held.timestamp_ms,
                "isOffloaded": False,
            }
            for held in ledger.index
        ],
        "cursors": {name: _cursor(cursor) for name, cursor in ledger.cursors.items() if cursor.durable},
        "properties": ledger.properties,
    }
    if topic.terminated:
        document["terminatedPosition"] = _position(ledger.last_confirmed)
    return document


RANGES_SHOWN_MAX = 1000
"""Acknowledged ranges of a cursor that are printed."""


def _cursor(cursor: ManagedCursor) -> dict[str, Any]:
    return {
        "markDelete": _position(cursor.mark_delete_position),
        "individualDeletedMessages": [
            {"lowerEndpoint": _position(low), "upperEndpoint": _position(high)}
            for low, high in cursor.individual_ranges(RANGES_SHOWN_MAX)
        ],
        "properties": cursor.cursor_properties,
    }


def _position(position: Position) -> dict[str, int]:
    return {"ledgerId": position.ledger_id, "entryId": position.entry_id}


@documented(answer=TopicBacklog)
async def backlog(call: Call) -> Response:
    """What is stored and what each subscription has not consumed yet, in entries."""
    topic = await single_persistent(call)
    ledger = topic.ledger
    cursors = {subscription.name: subscription.cursor for subscription in topic.subscriptions.all}
    return as_json(
        {
            "storageSize": ledger.size_bytes,
            "totalMessages": ledger.index.total_entries,
            "messageBacklog": max((cursor.backlog_entries for cursor in cursors.values()), default=0),
            "brokerName": call.broker.ownership.broker_id,
            "topicName": str(topic.name),
            "dataLedgerDetails": [
                {
                    "entries": held.entries,
                    "timestamp": held.timestamp_ms,
                    "size": held.size_bytes,
                    "ledgerId": held.ledger_id,
                }
                for held in ledger.index
            ],
            "cursorDetails": {
                name: {"cursorBacklog": cursor.backlog_entries, "cursorLedgerId": -1}
                for name, cursor in cursors.items()
            },
            "statGeneratedAt": iso_time(call.broker.clock.now_ms()),
        }
    )


@documented(answer=RunStatus)
async def offload_status(call: Call) -> Response:
    """Nothing is ever offloaded here."""
    await single_persistent(call)
    return as_json({"status": "NOT_RUN", "lastError": ""})


@documented(body=ResetPosition, always_fails=True)
async def offload(call: Call) -> Response:
    """Refused with 405: offloading is unsupported."""
    position, _ = await call.position()
    if position is None:
        raise BadRequestError('expected a message id: {"ledgerId": n, "entryId": n}')
    await single_persistent(call)
    raise NotAllowedError("no storage to offload to is configured")


ROUTES = (
    *both_domains("GET", "/{topic}/internal-info", Access.LOOKUP, info),
    *both_domains("GET", "/{topic}/backlog", Access.LOOKUP, backlog),
    *both_domains("GET", "/{topic}/offload", Access.LOOKUP, offload_status),
    *both_domains("PUT", "/{topic}/offload", Access.TENANT, offload),
)
