"""Where a key is: its hashes, partition, bundle, broker and bookies; which consumer has it; and what a join or a leave would change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from magnetar.base.clock import Clock
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.lanes import Lanes
from magnetar.broker.explain.answer import Explanation
from magnetar.broker.explain.ledger import open_segment
from magnetar.broker.explain.sentences import in_order, verdict
from magnetar.broker.explain.subscription import completed, standing_of
from magnetar.broker.reasons import Code, Reason, because
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.hashing.errors import HashingError
from magnetar.hashing.java_hash import java_positive_hash
from magnetar.hashing.murmur3 import key_slot, murmur3_positive

SUBSCRIPTIONS_MAX: Final = 50
"""Subscriptions of one answer; name one to see it alone."""

RANGES_MAX: Final = 2000
"""Ranges of a picture; a ring of more is not drawn."""


class Question(NamedTuple):
    """`joins`, `leaves`: names of consumers that would; empty for none."""

    key: str
    subscription: str = ""
    joins: str = ""
    leaves: str = ""


def partition_of(key: str, partitions: int) -> tuple[int, int]:
    """The partitions that clients route a key to: by JavaStringHash, the default of the Java and Go clients, and by Murmur3_32Hash. The C++
    and Python clients use the hash of Boost by default, which no specification holds fast: for them name the partition as the topic."""
    return java_positive_hash(key) % partitions, murmur3_positive(key) % partitions


def hashes_of(key: str) -> dict[str, int]:
    return {"slot": key_slot(key.encode()), "java": java_positive_hash(key), "murmur3": murmur3_positive(key)}


async def explain_key(
    topic: PersistentTopic, question: Question, client: BookKeeperClient, clock: Clock, where: Mapping[str, Any]
) -> Explanation:
    """`where`: partition, bundle and broker. Raises SubscriptionNotFoundError, and HashingError for a what-if that cannot be."""
    slot = key_slot(question.key.encode())
    named = question.subscription
    subscriptions = [topic.subscriptions.get(named)] if named else topic.subscriptions.all[:SUBSCRIPTIONS_MAX]
    if (question.joins or question.leaves) and len(subscriptions) > 1:
        raise HashingError("the topic has several subscriptions: name the one whose consumers would come or go")
    reasons: list[Reason] = []
    rows: list[dict[str, Any]] = []
    movings: list[bool | None] = []
    for subscription in subscriptions:
        moving, found = _of_subscription(topic, subscription, slot, clock)
        movings.append(moving)
        reasons += [await completed(topic.ledger, reason) for reason in found]
        rows.append(_row(subscription, slot, moving, question))
    moving = False if False in movings else True if True in movings else None
    reasons = in_order(reasons)
    details = {
        "hashes": hashes_of(question.key),
        **where,
        "ledger": await open_segment(topic.ledger, client),
        "subscriptions": rows,
    }
    subject = {"kind": "key", "topic": str(topic.name), "key": question.key}
    subject |= {"subscription": named} if named else {}
    about = f"Key {question.key} of {topic.name}" + (f" in subscription {named}" if named else "")
    return Explanation(subject, verdict(about, moving, reasons), moving, reasons, details)


def _of_subscription(
    topic: PersistentTopic, subscription: Subscription, slot: int, clock: Clock
) -> tuple[bool | None, list[Reason]]:
    dispatcher = subscription.dispatch.dispatcher
    if not isinstance(dispatcher, KeySharedDispatcher) or not subscription.consumers:
        moving, reasons = standing_of(topic, subscription, clock)
        return moving, reasons if moving is False else []
    found = why.of_slot(dispatcher.lanes, slot)
    if found:
        return False, found
    lane = dispatcher.lanes.owner(slot)
    assert lane is not None
    held = why.held_in(lane.consumer, slot)
    owned = because(
        Code.KEY_OWNED,
        subscription=subscription.name,
        slot=slot,
        held=held,
        by=why.owned_by(dispatcher.lanes, slot),
        **lane.consumer.described(),
    )
    return (True if held else None), [owned]


def _row(subscription: Subscription, slot: int, moving: bool | None, question: Question) -> dict[str, Any]:
    dispatcher = subscription.dispatch.dispatcher
    kind = subscription.type
    row: dict[str, Any] = {
        "subscription": subscription.name,
        "type": kind.name if kind is not None else None,
        "moving": moving,
    }
    if isinstance(dispatcher, KeySharedDispatcher):
        lanes = dispatcher.lanes
        owner = lanes.owner(slot)
        row |= {
            "consumer": owner.consumer.name if owner is not None else None,
            "range": why.owned_by(lanes, slot) if owner is not None else None,
            "draining": slot in lanes.draining,
            "waiting": why.waiting_in(lanes, slot),
        }
        if question.joins or question.leaves:
            row["what_if"] = what_if(lanes, slot, question)
    elif dispatcher.active_consumer is not None:
        row["consumer"] = dispatcher.active_consumer.name
    return row


def what_if(lanes: Lanes, slot: int, question: Question) -> dict[str, Any]:
    """The owner of the key and the ranges before and after."""
    before, after = lanes.what_if(), lanes.what_if(question.joins, question.leaves)
    return {
        "joins": question.joins or None,
        "leaves": question.leaves or None,
        "owner_before": owner_in(before, slot),
        "owner_after": owner_in(after, slot),
        "slots_moved": slots_moved(before, after),
        "ranges_before": [list(each) for each in before[:RANGES_MAX]],
        "ranges_after": [list(each) for each in after[:RANGES_MAX]],
    }


Ranges = Sequence[tuple[int, int, str]]


def owner_in(ranges: Ranges, slot: int) -> str | None:
    """`ranges` ascend."""
    place = bisect_right(ranges, slot, key=_start) - 1
    return ranges[place][2] if place >= 0 and slot <= ranges[place][1] else None


def slots_moved(before: Ranges, after: Ranges) -> int:
    """Slots that have another owner, or none."""
    edges = sorted({edge for start, end, _ in (*before, *after) for edge in (start, end + 1)})
    return sum(high - low for low, high in pairwise(edges) if owner_in(before, low) != owner_in(after, low))


def _start(each: tuple[int, int, str]) -> int:
    return each[0]
