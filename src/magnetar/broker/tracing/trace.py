"""One traced message: what asks for a trace, and what was seen of the message, in the order in which it was seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from magnetar.base.limits import TRACE_EVENTS_MAX
from magnetar.managed_ledger.position import Position

TRACE_PROPERTY: Final = "magnetar.trace"
"""Of a message: trace it. The value is the id of the trace, up to 64 letters, digits, `-`, `_` and `.`; another one is replaced."""

ONLY_PROPERTY: Final = "magnetar.trace.only"
"""Of a message: do not store it, and say where it would go. Any value but `false`."""

PARENT_PROPERTY: Final = "traceparent"
"""Of a message: the span of a user's trace, as W3C Trace Context writes it. Looked at where spans are exported."""

LOOK_FOR_TRACES: Final = 1
LOOK_FOR_SPANS: Final = 2
"""Bits of what publishing looks for; the compiled functions of the message path know the same."""

TRACING_KEYS: Final = (
    (),
    (TRACE_PROPERTY, ONLY_PROPERTY),
    (PARENT_PROPERTY,),
    (TRACE_PROPERTY, ONLY_PROPERTY, PARENT_PROPERTY),
)
"""By the sum of these bits."""

TRACING_MARKS: Final = ((), (b"magnetar.trace",), (b"traceparent",), (b"magnetar.trace", b"traceparent"))
"""Metadata with one of the keys holds one of these."""

TEXT_CHARS_MAX: Final = 400
NAME_CHARS_MAX: Final = 200
"""What clients called themselves, or were told, is kept so far."""

_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")


class Kind(StrEnum):
    """What happened. The values are stable: scripts read them."""

    RECEIVED = "received"
    SENT = "sent-to-bookies"
    COPY = "copy-stored"
    COPY_FAILED = "copy-failed"
    STORED = "stored"
    REFUSED = "refused"
    REPEATED = "repeated"
    PASSED_ON = "passed-on"
    DELIVERED = "delivered"
    RETURNED = "returned"
    ACKNOWLEDGED = "acknowledged"
    SKIPPED = "skipped"
    VIEW_COMMITTED = "view-committed"
    REPLICATED = "replicated"
    NOT_FOLLOWED = "not-followed"
    WOULD_BE_STORED = "would-be-stored"
    WOULD_BE_REFUSED = "would-be-refused"
    WOULD_BE_DELIVERED = "would-be-delivered"
    WOULD_WAIT = "would-wait"
    WOULD_BE_REPLICATED = "would-be-replicated"


class Event(NamedTuple):
    """`after_s`: since the message came. Names are empty where they do not concern the event."""

    kind: Kind
    after_s: float
    text: str = ""
    bookie: str = ""
    subscription: str = ""
    consumer: str = ""
    address: str = ""
    cluster: str = ""


class Asked(NamedTuple):
    """`parent`: the value of a valid `traceparent`, empty for none. `only`: the message is not to be stored."""

    trace_id: str
    only: bool
    parent: str


class Pair(Protocol):
    """A property."""

    key: str
    value: str


def asked_of(properties: Iterable[Pair], exporting: bool) -> Asked | None:
    """What a message asks for; None for nothing. `exporting`: a span of the user's own that was sampled asks for a trace as well."""
    trace_id: str | None = None
    parent, only = "", False
    for pair in properties:
        if pair.key == TRACE_PROPERTY:
            trace_id = pair.value
        elif pair.key == ONLY_PROPERTY:
            only = pair.value.strip().lower() != "false"
        elif pair.key == PARENT_PROPERTY and exporting:
            parent = pair.value
    found = _PARENT.fullmatch(parent)
    if found is None:
        parent = ""
    elif trace_id is None and int(found[2], 16) & 1:
        trace_id = found[1]
    if trace_id is None and not only:
        return None
    return Asked(trace_id if trace_id and _ID.fullmatch(trace_id) else "", only, parent)


class Origin(NamedTuple):
    """Who sent a message, and what it says of itself. `role`: None without authentication. `topic`: complete name."""

    topic: str
    tenant: str
    role: str | None
    producer: str
    address: str
    sequence_id: int
    messages: int
    size_bytes: int


class Trace:
    """Bounded: further events are counted. Implements `AddWatch`."""

    __slots__ = (
        "_began_s",
        "_now_s",
        "asked",
        "began_ms",
        "complete",
        "events",
        "left_out",
        "noted",
        "origin",
        "position",
        "spans",
        "trace_id",
    )

    def __init__(self, trace_id: str, asked: Asked, origin: Origin, began_ms: int, now_s: Callable[[], float]) -> None:
        self.trace_id = trace_id
        self.asked = asked
        self.origin = origin
        self.began_ms = began_ms
        self.position: Position | None = None
        """Where the message is stored, once it is."""
        self.events: list[Event] = []
        self.left_out = 0
        self.complete = False
        """Nothing more is to come: all subscriptions and clusters are done with it, or it was never stored."""
        self.noted: Callable[[Trace, Event], None] | None = None
        """Called with each event that is kept, while spans are exported."""
        self.spans: object = None
        """What the export keeps of it."""
        self._now_s = now_s
        self._began_s = now_s()

    def note(
        self,
        kind: Kind,
        text: str = "",
        *,
        bookie: str = "",
        subscription: str = "",
        consumer: str = "",
        address: str = "",
        cluster: str = "",
    ) -> None:
        after_s = self._now_s() - self._began_s
        if len(self.events) >= TRACE_EVENTS_MAX:
            self.left_out += 1
            return
        text, consumer, address = text[:TEXT_CHARS_MAX], consumer[:NAME_CHARS_MAX], address[:NAME_CHARS_MAX]
        event = Event(kind, after_s, text, bookie, subscription, consumer, address, cluster)
        self.events.append(event)
        if self.noted is not None:
            self.noted(self, event)

    # ---- AddWatch

    def sent(self, ledger_id: int, entry_id: int, bookies: Iterable[str]) -> None:
        self.note(Kind.SENT, f"entry {ledger_id}:{entry_id} to {', '.join(bookies)}")

    def answered(self, bookie_id: str, code: int) -> None:
        if code == 0:
            self.note(Kind.COPY, "its journal has the entry on disk", bookie=bookie_id)
        else:
            self.note(Kind.COPY_FAILED, f"the bookie answered with code {code}", bookie=bookie_id)
