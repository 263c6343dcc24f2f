"""Traces of single messages as types."""

from __future__ import annotations

from magnetar.admin.documents.cluster import Document


class TraceEvent(Document):
    """`event` is one of the stable words that the reference lists; `after_ms`: since the message came. Null where a name does not concern
    the event, or is not for the caller."""

    event: str
    after_ms: float
    text: str
    subscription: str | None
    consumer: str | None
    address: str | None
    bookie: str | None
    cluster: str | None


class MessageTrace(Document):
    """`message_id`: `ledger:entry`, null unless it is stored. `complete`: all subscriptions and clusters that the topic has are done with
    it. `events_left_out`: beyond those that are kept."""

    trace_id: str
    topic: str
    message_id: str | None
    trace_only: bool
    complete: bool
    received: str
    producer: str | None
    address: str | None
    events: list[TraceEvent]
    events_left_out: int
