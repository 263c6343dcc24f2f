"""A consumer as dispatch sees it: permits, what it holds unacknowledged, its channel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from magnetar.base.limits import PERMITS_MAX
from magnetar.broker.dispatch.ports import ConsumerChannel

HELD_SLOT_BITS = 16
"""`Receiver.held` keeps `messages << HELD_SLOT_BITS | slot` per entry: one int instead of a tuple."""

HELD_SLOT_MASK = (1 << HELD_SLOT_BITS) - 1

ONE_MESSAGE = 1 << HELD_SLOT_BITS
"""What is kept of an entry of one message, without its slot."""


class Receiver:
    """State of one consumer on the message path. `subscriptions.Consumer` adds who it is."""

    __slots__ = (
        "blocked_on_unacked",
        "bytes_out",
        "channel",
        "consumer_epoch",
        "entries_out",
        "held",
        "is_active",
        "last_consumed_ms",
        "max_unacked",
        "messages_out",
        "messages_redelivered",
        "name",
        "notified_active",
        "permits",
        "priority_level",
        "unacked_messages",
        "window",
    )

    def __init__(self, *, name: str, channel: ConsumerChannel, priority_level: int = 0) -> None:
        self.name = name
        self.channel = channel
        self.priority_level = priority_level
        self.permits = 0
        """Messages it may still be sent; below zero after a batch larger than what was left."""
        self.window = 0
        """The most that one FLOW granted: clients begin with the length of their queue."""
        self.held: dict[int, int] = {}
        """Entries sent and not acknowledged (Shared, Key_Shared): position key -> messages << 16 | slot, in order."""
        self.unacked_messages = 0
        """The messages of `held`."""
        self.max_unacked = 0
        """Bound of `unacked_messages`, 0 = none: reaching it blocks the consumer until half of it is settled."""
        self.blocked_on_unacked = False
        self.is_active = True
        """False for the waiting consumers of a Failover subscription."""
        self.notified_active: bool | None = None
        """The last ACTIVE_CONSUMER_CHANGE sent to the client, None before the first."""
        self.consumer_epoch: int | None = None
        """Epoch of its last redelivery request; echoed so that the client can tell old deliveries from new ones."""
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.messages_redelivered = 0
        self.last_consumed_ms = 0

    def grant(self, permits: int) -> None:
        """A FLOW."""
        self.permits = add_permits(self.permits, permits)
        if permits > self.window:
            self.window = permits

    def restore(self, messages: int) -> None:
        """Permits for messages that the client will never be done with. Up to its window: it may have given them back itself."""
        self.permits = max(self.permits, min(self.permits + messages, self.window))

    def hold(self, key: int, value: int, messages: int) -> None:
        """An entry is about to be delivered and stays held until it is settled; hot loops write this out."""
        self.permits -= messages
        self.held[key] = value
        self.messages_out += messages
        unacked = self.unacked_messages = self.unacked_messages + messages
        if unacked >= self.max_unacked > 0:
            self.blocked_on_unacked = True

    def settle(self, key: int, left: int = 0) -> int:
        """The entry was acknowledged or taken back; `left` messages of it stay. Returns how many were settled now.

        Repeating it settles nothing: clients send the same id many times in one ACK.
        """
        value = self.held.get(key)
        if value is None:
            return 0
        settled = (value >> HELD_SLOT_BITS) - left
        if left:
            if settled <= 0:
                return 0
            self.held[key] = left << HELD_SLOT_BITS | value & HELD_SLOT_MASK
        else:
            del self.held[key]
        self._release(settled)
        return settled

    def settle_all(self, keys: Iterable[int], unknown: list[int]) -> tuple[list[int], int]:
        """`settle` for entries that were acknowledged as a whole: the values of those it held, and how many messages these were.
        Those that it does not hold are added to `unknown`."""
        pop = self.held.pop
        values: list[int] = []
        messages = 0
        for key in keys:
            value = pop(key, None)
            if value is None:
                unknown.append(key)
            else:
                values.append(value)
                messages += value >> HELD_SLOT_BITS
        if values:
            self._release(messages)
        return values, messages

    def drop_all(self) -> dict[int, int]:
        """Take back everything it holds (it left, or asked for redelivery of all)."""
        held = self.held
        self.held = {}
        self._release(self.unacked_messages)
        return held

    def described(self) -> dict[str, Any]:
        """Who it is, as facts of a reason."""
        return {"consumer": self.name, "address": ""}

    def recheck_blocked(self) -> None:
        """The limit changed."""
        self.blocked_on_unacked = self.unacked_messages >= self.max_unacked > 0

    def _release(self, messages: int) -> None:
        unacked = self.unacked_messages = self.unacked_messages - messages
        if self.blocked_on_unacked and unacked <= self.max_unacked // 2:
            self.blocked_on_unacked = False

    def validate(self) -> None:
        """Assert that the count is the sum of what is held."""
        assert self.unacked_messages == sum(value >> HELD_SLOT_BITS for value in self.held.values())
        assert all(value >> HELD_SLOT_BITS > 0 for value in self.held.values())
        if self.max_unacked and self.unacked_messages >= self.max_unacked:
            assert self.blocked_on_unacked


def add_permits(permits: int, granted: int) -> int:
    """`permits` after a FLOW of `granted`. Nothing is taken away by a FLOW, and the sum saturates at PERMITS_MAX."""
    if granted <= 0:
        return permits
    total = permits + granted
    return total if total < PERMITS_MAX else PERMITS_MAX


def messages_left(ack_set: Sequence[int]) -> int:
    """Messages that a delivery with these 64-bit words costs: the bits that are set, i.e. not acknowledged yet."""
    left = 0
    for word in ack_set:
        left += (word & 0xFFFF_FFFF_FFFF_FFFF).bit_count()
    return left
