"""The way of single messages that asked for a trace (this server's own). Who may produce sees what his own messages met; who may consume
sees the consumers of the subscriptions that he may use; an administrator of the tenant sees all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.client.noun import query_text
from magnetar.admin.documents.trace import MessageTrace, TraceEvent
from magnetar.admin.errors import NotFoundError
from magnetar.admin.operation import documented
from magnetar.admin.redirects import credentials_of
from magnetar.admin.routing import ADMIN, Route
from magnetar.base.clock import iso_time
from magnetar.broker.auth.decide import Access, Resource
from magnetar.broker.errors import AuthorizationError
from magnetar.broker.explain.message import parse_id
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.naming import TopicName
from magnetar.broker.tracing.trace import Event, Trace

_PATH = f"{ADMIN}/trace"

TRACES_TOLD_MAX: Final = 50
"""Traces of one answer, the newest ones."""


class Reader:
    """What the caller may see of traces of one topic."""

    def __init__(self, call: Call, topic: TopicName) -> None:
        self._call = call
        self._topic = topic
        self._may: dict[tuple[Access, str], bool] = {}

    async def may(self, access: Access, subscription: str = "") -> bool:
        key = (access, subscription)
        if key not in self._may:
            resource = Resource.of_topic(self._topic, subscription)
            try:
                await self._call.broker.security.authorizer.check(self._call.principal, access, resource)
            except AuthorizationError:
                self._may[key] = False
            else:
                self._may[key] = True
        return self._may[key]

    async def sees_producer(self, trace: Trace) -> bool:
        """The sender itself, and administrators."""
        if await self.may(Access.TENANT):
            return True
        principal = self._call.principal
        own = principal is not None and principal.role == trace.origin.role
        return own and await self.may(Access.PRODUCE)

    async def document(self, trace: Trace) -> MessageTrace | None:
        """None for a trace that is not the caller's business."""
        as_producer = await self.sees_producer(trace)
        if not as_producer and not await self.may(Access.CONSUME):
            return None
        events = [await self._event(event) for event in trace.events]
        position = trace.position
        return MessageTrace(
            trace_id=trace.trace_id,
            topic=trace.origin.topic,
            message_id=None if position is None else f"{position.ledger_id}:{position.entry_id}",
            trace_only=trace.asked.only,
            complete=trace.complete,
            received=iso_time(trace.began_ms),
            producer=trace.origin.producer if as_producer else None,
            address=trace.origin.address if as_producer else None,
            events=events,
            events_left_out=trace.left_out,
        )

    async def _event(self, event: Event) -> TraceEvent:
        names = event.consumer or event.address
        shown = bool(names) and await self.may(Access.CONSUME, event.subscription)
        return TraceEvent(
            event=str(event.kind),
            after_ms=round(event.after_s * 1000, 3),
            text=event.text,
            subscription=event.subscription or None,
            consumer=event.consumer or None if shown else None,
            address=event.address or None if shown else None,
            bookie=event.bookie or None,
            cluster=event.cluster or None,
        )


@documented(
    answer=list[MessageTrace], query={"topic": str, "id": str}, required=("topic",), errors=(404, 405, 412), heavy=True
)
async def trace(call: Call) -> Response:
    """The way of messages that asked for a trace, the newest first; `id`: of a trace, or of a message as ledger:entry. Of a partitioned
    topic all partitions. A broker keeps traces in memory, and tells those that the caller may see."""
    wanted = call.query("id")
    found: list[Any] = []
    parts = await call.admin.partitioned.parts(call.topic)
    for part in parts:
        try:
            await call.broker.lookup.require(part)
            found += [msgspec.to_builtins(each) for each in await _of(call, part, wanted)]
        except NotOwnedError as error:
            if parts == [call.topic] or error.owner is None:
                raise
            target = _PATH + query_text({"topic": str(part), "id": wanted or None})
            answer = await call.broker.peers.call(error.owner, "GET", target, b"", credentials_of(call))
            if answer.status < 300:
                found += answer.document
        await call.pace.breathe()
    if wanted and not found:
        raise NotFoundError(
            f"no trace {wanted[:80]!r} of {call.topic} is kept here that you may see: the message did not ask for one, "
            "came above the tenant's traceMessagesPerSecond, was in a batch, or newer traces took its place"
        )
    found.sort(key=lambda each: str(each["received"]), reverse=True)
    return as_json(found[:TRACES_TOLD_MAX])


async def _of(call: Call, topic: TopicName, wanted: str) -> list[MessageTrace]:
    kept: Iterable[Trace] = call.broker.traces.of(topic.tenant, str(topic))
    if wanted:
        message = parse_id(wanted)
        position = message.position if message is not None else None
        kept = [
            each for each in kept if each.trace_id == wanted or (position is not None and each.position == position)
        ]
    reader = Reader(call, topic)
    documents: list[MessageTrace] = []
    for each in kept:
        document = await reader.document(each)
        if document is not None:
            documents.append(document)
        if len(documents) >= TRACES_TOLD_MAX:
            break
    return documents


ROUTES = (Route("GET", _PATH, Access.LOOKUP, trace, by_query=True),)
