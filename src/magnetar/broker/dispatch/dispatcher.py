"""What a dispatch policy implements: the port between a subscription, its pump and the policy that hands out entries.

`subscriptions/policies` says which policy serves which subscription type. Implementations are pure: the pump reads for them,
and consumers are called through their channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.ports import Kept, MarkersRead
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.broker.reasons import Reason, Standing
from magnetar.managed_ledger.entry import Entry


class Where(NamedTuple):
    """`holder`: the consumer that an entry was delivered to, None if it waits or was not read. `reasons`: what it waits for itself."""

    holder: Receiver | None = None
    redeliveries: int = 0
    reasons: Sequence[Reason] = ()


class Dispatcher(Protocol):
    """Hands the entries of one subscription to its consumers. All calls are plain and may not re-enter the pump."""

    holds_entries: ClassVar[bool]
    """True if several consumers get entries at a time, each of which holds them one by one until they are acknowledged.
    False: one consumer at a time gets everything in order, and redelivery goes back to the mark-delete position."""
    keyed: ClassVar[bool]
    """True if an entry's consumer follows from its key: `requeue_entry` needs the entry's slot then."""
    markers_read: MarkersRead | None
    """Called with the markers that were read and passed over."""

    # ---- Consumers

    def add(self, consumer: Receiver, ranges: Sequence[tuple[int, int]]) -> None:
        """Serve `consumer`, too. HashingError when the sticky `ranges` overlap or are malformed."""
        ...

    def remove(self, consumer: Receiver) -> None:
        """Stop serving a consumer that left: entries that it held go to others."""
        ...

    @property
    def active_consumer(self) -> Receiver | None:
        """The only consumer that is served, None where several are."""
        ...

    def key_ranges_of(self, consumer: Receiver) -> list[tuple[int, int]]:
        """The slots that `consumer` owns, as inclusive pairs; none unless `keyed`."""
        ...

    def draining_of(self, consumer: Receiver) -> Mapping[int, int]:
        """Slots that went to others and wait for what `consumer` still holds of them: entries by slot; none unless `keyed`."""
        ...

    def configure(self, max_unacked: int, delaying: bool) -> None:
        """New limits: unacknowledged messages over all consumers (0 = none), and whether delayed messages are held back."""
        ...

    def close(self) -> None:
        """Another policy took over, or the subscription is closed: timers are cancelled."""
        ...

    # ---- What the pump asks

    def take_replay(self, limit: int, now_ms: int) -> list[int]:
        """Up to `limit` position keys to read again now, ascending; they are in the pump's hands until handed back."""
        ...

    @property
    def kept(self) -> Kept | None:
        """Entries that `take_replay` may name and that are in memory."""
        ...

    def take_back(self, keys: Sequence[int]) -> None:
        """The replay failed: keep them for later."""
        ...

    def dispatch_replayed(self, entries: list[Entry], keys: Sequence[int], now_ms: int) -> None:
        """The entries of `keys` that still exist unacknowledged, in order."""
        ...

    def wanted(self, limit: int, now_ms: int) -> int:
        """The number of new entries that somebody could take now, 0 = none."""
        ...

    def dispatch(self, entries: list[Entry], now_ms: int) -> None:
        """New entries, in order."""
        ...

    @property
    def more(self) -> bool:
        """True if there is work for another turn although nothing was read in this one."""
        ...

    def rewound(self) -> None:
        """The source went back to its mark-delete position: forget what was read but not sent."""
        ...

    def next_due_ms(self) -> int | None:
        """Due time of the next delayed message, None without any."""
        ...

    # ---- Acknowledgements and redelivery

    def acknowledged(self, consumer: Receiver, key: int, left: int = 0) -> None:
        """An entry was acknowledged but for `left` of its messages. Not called unless `holds_entries`."""
        ...

    def acknowledged_all(self, consumer: Receiver, keys: Sequence[int]) -> None:
        """Entries were acknowledged as a whole, mostly some that `consumer` holds. Not called unless `holds_entries`."""
        ...

    def acknowledged_elsewhere(self) -> None:
        """Many entries were acknowledged without a consumer (skip, clear, expire)."""
        ...

    def redeliver(self, consumer: Receiver, keys: Sequence[int]) -> None:
        """Deliver again those of `keys` that `consumer` holds; without keys all it has not acknowledged."""
        ...

    def requeue_entry(self, key: int, slot: int) -> None:
        """An aborted transaction had acknowledged this entry: deliver it again. Not called unless `holds_entries`."""
        ...

    @property
    def leftover(self) -> bool:
        """True if entries are read and wait for permits."""
        ...

    def leftover_changed(self) -> None:
        """Entries were acknowledged without being delivered: do not deliver those."""
        ...

    # ---- Statistics

    @property
    def delayed(self) -> DelayedIndex | None:
        """Messages held back until they are due, None where none are."""
        ...

    @property
    def unacked_messages(self) -> int:
        """Messages held by consumers; 0 unless `holds_entries`."""
        ...

    @property
    def blocked_on_unacked(self) -> bool:
        """True if dispatch waits for acknowledgements, since consumers hold as much as they may."""
        ...

    @property
    def unblocked(self) -> bool:
        """True if settled entries made something deliverable that needs a turn of the pump."""
        ...

    @property
    def waiting_count(self) -> int:
        """Entries that wait to be delivered again, or for the first time after having been passed over."""
        ...

    def standing(self, has_more: bool) -> Standing:
        """Whether an entry could go out now, and what is in the way of those that cannot. `has_more`: there are entries to be read.
        True without a reason where nothing waits."""
        ...

    def where(self, key: int, slot: int) -> Where:
        """What has become of an entry that is not acknowledged. `slot` counts only if `keyed`."""
        ...

    def validate(self) -> None:
        """Assert that the books are right."""
        ...
