"""What clients were told and what they see: the history of a run with brokers, and its checkers. They belong to no process.

P1 to P7 are the promises of docs/explanation/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar.testing.sim.history import History

STORED = "P1 a message with a receipt is stored where the receipt says"
ORDER = "P2 first occurrences of a producer's messages are in the order of sending"
REPEATS = "P3 with deduplication nothing is stored twice"
KEY_EXCLUSIVE = "P4 a key is never outstanding at two consumers"
KEY_ORDER = "P4 first occurrences of a key's messages are in the order of sending"
ACKNOWLEDGED = "P5 an acknowledgement with a receipt is never undone"
COMPLETE = "P6 every subscription gets every message that has a receipt"
KEPT = "P6 a ledger is deleted only when every subscription has stored that it is consumed"
BACK = "P7 the service is back after the faults"

NOWHERE: Final = 2**64 - 1
"""Ledger and entry id in the receipt of a message that deduplication has dropped."""


class Place(NamedTuple):
    """Where a message is stored. `batch_index`: in its batch, -1 for an entry that is one message."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1


class Name(NamedTuple):
    """A message: the `number`-th of a producer."""

    producer: str
    number: int


def payload_of_message(name: Name, key: str, padding: bytes) -> bytes:
    return f"{name.producer}/{name.number}/{key}/".encode() + padding


def name_of_payload(payload: bytes) -> tuple[Name, str]:
    """The message and its key. Raises ValueError for what no simulated producer sends."""
    producer, number, key, _ = payload.split(b"/", 3)
    return Name(producer.decode(), int(number)), key.decode()


@dataclass
class Holder:
    """A consumer's connection, as far as P4 needs it: who has what, and whether the broker still counts on it."""

    consumer: str
    broker: str
    """Name of the broker's process."""
    known: Callable[[], bool]
    """True while the broker's end of the connection is open: what the consumer holds counts as outstanding there."""


class Settled(NamedTuple):
    """Who has the receipt of an acknowledgement, and since when."""

    consumer: str
    at_s: float


@dataclass
class SubscriptionHistory:
    """One subscription of one topic."""

    name: str
    kind: str
    delivered: set[Name] = field(default_factory=set)
    settled: dict[Place, Settled] = field(default_factory=dict)
    """Places whose acknowledgement has a receipt."""
    newest: dict[tuple[str, str], int] = field(default_factory=dict)
    """Highest number delivered so far, by key (empty where the whole subscription is ordered) and producer."""
    replicated: bool = False
    """Its consumers ask that it keeps its place in all clusters."""
    outstanding: dict[str, dict[Place, Holder]] = field(default_factory=dict)
    """By key, for Key_Shared: what consumers hold without having acknowledged it."""

    @property
    def ordered(self) -> bool:
        return self.kind in ("Exclusive", "Failover")


@dataclass
class TopicHistory:
    """One topic: all that was sent, and what has a receipt."""

    name: str
    deduplicated: bool
    sent: dict[Name, bytes] = field(default_factory=dict)
    receipts: dict[Name, Place | None] = field(default_factory=dict)
    """None: stored before, says deduplication."""
    subscriptions: dict[str, SubscriptionHistory] = field(default_factory=dict)

    def missing(self, subscription: SubscriptionHistory) -> list[Name]:
        """Messages with a receipt that the subscription has not delivered."""
        return [name for name in self.receipts if name not in subscription.delivered]


class Promises:
    """Every event that a simulated client sees comes here, in the order of virtual time."""

    def __init__(self, history: History, now_s: Callable[[], float]) -> None:
        self.history = history
        self.topics: dict[str, TopicHistory] = {}
        self.seen: Callable[[TopicHistory, Name], None] = lambda topic, name: None
        """Called for each message that a client gets to see."""
        self.is_deposed: Callable[[str], bool] = lambda broker: False
        """By name of the process: whether the metadata service has ended its last session. A fault may do that before the lease is over,
        which no lease can be kept against: until it hears of it, such a broker delivers what its successor has stored as acknowledged."""
        self.now_s = now_s

    def violate(self, promise: str, text: str) -> None:
        self.history.violate(promise, text, self.now_s())

    # ---- Producers

    def sent(self, topic: TopicHistory, name: Name, payload: bytes) -> None:
        topic.sent[name] = payload
        self.history.sent_total += 1

    def receipt(self, topic: TopicHistory, name: Name, place: Place) -> None:
        self.history.count("receipts")
        if place.ledger_id == NOWHERE or place.entry_id == NOWHERE:
            if not topic.deduplicated:
                self.violate(STORED, f"{topic.name}: the receipt of {name} names no place, and nothing is deduplicated")
            topic.receipts.setdefault(name, None)
            return
        before = topic.receipts.get(name)
        if before is not None and before != place and topic.deduplicated:
            self.violate(REPEATS, f"{topic.name}: {name} has receipts for {before} and for {place}")
        topic.receipts[name] = place

    # ---- Consumers

    def delivered(
        self,
        topic: TopicHistory,
        subscription: SubscriptionHistory,
        place: Place,
        payload: bytes,
        holder: Holder,
        sent_s: float,
    ) -> None:
        """`sent_s`: when the broker has written it. What was on its way before its acknowledgement elsewhere is no second delivery."""
        self.history.count("deliveries")
        name, key = self._known(topic, place, payload)
        if name is None:
            return
        who = f"{topic.name} {subscription.name}"
        settled = subscription.settled.get(place)
        if settled is not None and sent_s > settled.at_s and not self.is_deposed(holder.broker):
            self.violate(
                ACKNOWLEDGED,
                f"{who}: {place} came to {holder.consumer} although {settled.consumer} had acknowledged it",
            )
        self._first(subscription, who, name, key)
        if subscription.kind == "Key_Shared":
            self._check_exclusive(subscription, who, key, place, holder)

    def taken(
        self, topic: TopicHistory, subscription: SubscriptionHistory, place: Place, payload: bytes, who: str
    ) -> None:
        """An application has got a message from its client. For clients whose deliveries are looked at elsewhere."""
        name, key = self._known(topic, place, payload)
        if name is not None:
            self._first(subscription, f"{topic.name} {subscription.name} {who}", name, key)

    def _first(self, subscription: SubscriptionHistory, who: str, name: Name, key: str) -> None:
        if name not in subscription.delivered:
            subscription.delivered.add(name)
            self._check_order(subscription, who, name, key)

    def _known(self, topic: TopicHistory, place: Place, payload: bytes) -> tuple[Name | None, str]:
        try:
            name, key = name_of_payload(payload)
        except ValueError:
            self.violate(STORED, f"{topic.name}: {place} holds {payload[:40]!r}, which nobody sent")
            return None, ""
        if topic.sent.get(name) != payload:
            self.violate(STORED, f"{topic.name}: {place} does not hold what {name} has sent")
            return None, key
        self.seen(topic, name)
        return name, key

    def _check_order(self, subscription: SubscriptionHistory, who: str, name: Name, key: str) -> None:
        if subscription.kind == "Shared":
            return
        scope = ("" if subscription.ordered else key, name.producer)
        newest = subscription.newest.get(scope, -1)
        if name.number < newest:
            promise = ORDER if subscription.ordered else KEY_ORDER
            self.violate(promise, f"{who}: {name} of key {key} came for the first time behind number {newest}")
        subscription.newest[scope] = max(newest, name.number)

    def _check_exclusive(
        self, subscription: SubscriptionHistory, who: str, key: str, place: Place, holder: Holder
    ) -> None:
        held = subscription.outstanding.setdefault(key, {})
        for other_place, other in list(held.items()):
            if other.consumer == holder.consumer:
                continue
            if other.broker != holder.broker or not other.known():
                del held[other_place]
                continue
            self.violate(
                KEY_EXCLUSIVE,
                f"{who}: {place} of key {key} came to {holder.consumer} while {other.consumer} holds {other_place}",
            )
        held[place] = holder

    def let_go(self, subscription: SubscriptionHistory, places: list[Place]) -> None:
        """A consumer has sent an acknowledgement, or asked for redelivery."""
        for held in subscription.outstanding.values():
            for place in places:
                held.pop(place, None)

    def left(self, subscription: SubscriptionHistory, consumer: str) -> None:
        """A consumer has lost its connection or its process."""
        for held in subscription.outstanding.values():
            for place in [place for place, holder in held.items() if holder.consumer == consumer]:
                del held[place]

    def settled(self, subscription: SubscriptionHistory, places: list[Place], consumer: str) -> None:
        """The broker has confirmed an acknowledgement."""
        self.history.count("acknowledgements confirmed", len(places))
        for place in places:
            subscription.settled.setdefault(place, Settled(consumer, self.now_s()))

    # ---- The end

    def stored(self, topic: TopicHistory, entries: list[tuple[Place, bytes]]) -> None:
        """All that the topic holds, read from its beginning to its end."""
        places: dict[Name, list[Place]] = {}
        newest: dict[str, int] = {}
        for place, payload in entries:
            name, _ = self._known(topic, place, payload)
            if name is None:
                continue
            if name not in places:
                if name.number < newest.get(name.producer, -1):
                    self.violate(
                        ORDER, f"{topic.name}: {name} is stored behind number {newest[name.producer]} of its producer"
                    )
                newest[name.producer] = max(newest.get(name.producer, -1), name.number)
            places.setdefault(name, []).append(place)
        for name, receipt in topic.receipts.items():
            if name not in places:
                self.violate(STORED, f"{topic.name}: {name} has a receipt ({receipt}) and is not stored")
            elif receipt is not None and receipt not in places[name]:
                self.violate(
                    STORED, f"{topic.name}: {name} has a receipt for {receipt} and is stored at {places[name]}"
                )
        if topic.deduplicated:
            for name, found in places.items():
                if len(found) > 1:
                    self.violate(REPEATS, f"{topic.name}: {name} is stored at {found}")
        self.history.count("messages read at the end", len(entries))
