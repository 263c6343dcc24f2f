"""Why something does not go on: a closed set of codes, each with the facts that belong to it. Pure.

Whoever decides also says why, from the state it decides by: nothing is recorded for a message, and nobody pays for an answer that nobody
asks for. `explain/sentences` has the words for each code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from magnetar.managed_ledger.position import Position


class Code(StrEnum):
    """Stable: scripts, alarms and the console compare with them."""

    # ---- A subscription stands still, what weighs most first
    NO_CONSUMERS = "no-consumers"
    NOT_READING = "not-reading"
    READ_FAILED = "read-failed"
    UNACKED_LIMIT_SUBSCRIPTION = "unacked-limit-subscription"
    CONSUMER_FROZEN = "consumer-frozen"
    UNACKED_LIMIT_CONSUMER = "unacked-limit-consumer"
    NO_PERMITS = "no-permits"
    SOCKET_FULL = "socket-full"
    SLOT_DRAINING = "slot-draining"
    RANGE_UNCOVERED = "range-uncovered"
    FAILOVER_SWITCHING = "failover-switching"
    DISPATCH_RATE = "dispatch-rate"
    TRANSACTION_OPEN = "transaction-open"
    DELAYED = "delayed"
    NOT_ACKNOWLEDGED = "not-acknowledged"
    # ---- What else there is to know of a subscription
    CAUGHT_UP = "caught-up"
    ACKNOWLEDGED_IN_TRANSACTION = "acknowledged-in-transaction"
    KEY_SKEWED = "key-skewed"
    REDELIVERED_OFTEN = "redelivered-often"
    RETRIED_OFTEN = "retried-often"
    EXPIRED = "expired"
    ROUND_MISSING = "round-missing"
    SNAPSHOT_MISSING = "snapshot-missing"
    DROPS_WITHOUT_PERMITS = "drops-without-permits"
    # ---- A topic takes no messages, or not from everybody
    TERMINATED = "terminated"
    FENCED = "fenced"
    QUOTA_EXCEEDED = "quota-exceeded"
    STORAGE_REFUSES = "storage-refuses"
    SCHEMA_INCOMPATIBLE = "schema-incompatible"
    NOT_PERMITTED = "not-permitted"
    SUBSCRIPTION_BUSY = "subscription-busy"
    EXCLUSIVE_ACCESS = "exclusive-access"
    NOT_OWNED = "not-owned"
    CLIENT_REFUSED = "client-refused"
    WAITS_FOR_EXCLUSIVE = "waits-for-exclusive"
    PUBLISH_RATE = "publish-rate"
    RECEIPTS_OUTSTANDING = "receipts-outstanding"
    EXCLUSIVE_PRODUCER = "exclusive-producer"
    NOT_CONNECTED = "not-connected"
    SUBSCRIPTION_STANDS_STILL = "subscription-stands-still"
    REPLICATOR_DISCONNECTED = "replicator-disconnected"
    TOPIC_NOT_LOADED = "topic-not-loaded"
    # ---- Where a key or a message is
    MESSAGE_UNREADABLE = "message-unreadable"
    MESSAGE_DELETED = "message-deleted"
    MESSAGE_NEVER_WRITTEN = "message-never-written"
    MESSAGE_IS_MARKER = "message-is-marker"
    MESSAGE_ABORTED = "message-aborted"
    MESSAGE_IN_TRANSACTION = "message-in-transaction"
    MESSAGE_WAITS = "message-waits"
    MESSAGE_DELAYED = "message-delayed"
    MESSAGE_EXPIRED = "message-expired"
    MESSAGE_DELIVERED = "message-delivered"
    MESSAGE_ACKED_IN_TRANSACTION = "message-acknowledged-in-transaction"
    MESSAGE_UNREAD = "message-unread"
    MESSAGE_ACKNOWLEDGED = "message-acknowledged"
    NO_SUBSCRIPTION = "no-subscription"
    KEY_OWNED = "key-owned"
    # ---- Ledgers, bundles, cursors in other clusters
    COPIES_MISSING = "copies-missing"
    UNDERREPLICATED = "underreplicated"
    LEDGER_OPEN = "ledger-open"
    LEDGER_CURRENT = "ledger-current"
    KEPT_BY_SUBSCRIPTION = "kept-by-subscription"
    KEPT_BY_RETENTION = "kept-by-retention"
    KEPT_FOR_CURSOR = "kept-for-cursor"
    KEPT_BY_NOBODY = "kept-by-nobody"
    LEDGER_DELETABLE = "ledger-deletable"
    LEDGER_DROPPED = "ledger-dropped"
    BUNDLE_UNOWNED = "bundle-unowned"
    BUNDLE_LEAVING = "bundle-leaving"
    BUNDLE_WOULD_MOVE = "bundle-would-move"
    BUNDLE_WOULD_SPLIT = "bundle-would-split"
    BUNDLE_HELD = "bundle-held"
    BUNDLE_SERVED = "bundle-served"
    NOT_REPLICATED = "not-replicated"
    CURSOR_FOLLOWS = "cursor-follows"
    SEGMENTS_FOLLOW = "segments-follow"
    # ---- Views of pipelines
    VIEW_DRIVER_FAILED = "view-driver-failed"
    VIEW_DRIVER_GONE = "view-driver-gone"
    VIEW_DRIVER_SILENT = "view-driver-silent"
    VIEW_BACKFILLING = "view-backfilling"
    VIEW_WAITS_FOR_WATERMARK = "view-waits-for-watermark"
    VIEW_BEHIND = "view-behind"
    VIEW_CURRENT = "view-current"
    VIEW_ROW_ABSENT = "view-row-absent"
    VIEW_KEY_PLACED = "view-key-placed"


@dataclass(frozen=True, slots=True)
class Reason:
    """`since_ms`: wall time, 0 if it is not known. `keys_at`: position keys of some entries whose keys belong into the fact `keys`."""

    code: Code
    facts: Mapping[str, Any]
    since_ms: int = 0
    keys_at: Sequence[int] = ()


def because(code: Code, since_ms: int = 0, keys_at: Sequence[int] = (), **facts: Any) -> Reason:
    """A reason with its facts by name."""
    return Reason(code, facts, since_ms, keys_at)


class Named(dict[str, Any]):
    """A fact that is a mapping by names of consumers and the like, which nobody may put into another case."""


class Rule(StrEnum):
    """By what messages count as consumed that no consumer has acknowledged."""

    TTL = "message TTL"
    QUOTA = "backlog quota"
    REQUEST = "request of an administrator"


class Expiry(NamedTuple):
    """Messages that expired at one time: those behind `after` up to `upto`, as far as they were not acknowledged."""

    after: Position
    upto: Position
    entries: int
    at_ms: int
    rule: Rule


EXPIRIES_MAX = 16
"""Times of expiry that a subscription remembers; the first ones are forgotten."""


class Standing(NamedTuple):
    """`moving`: True if something goes on, False if it stands still, None if there is nothing to be done. The first reason weighs most."""

    moving: bool | None
    reasons: list[Reason]


NOTHING_HELD_UP = Standing(True, [])
