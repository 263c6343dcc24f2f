"""What dispatch needs of the outside: a consumer's way out, a source of entries, timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position

MarkersRead = Callable[[Sequence[Entry]], None]
"""Called with the markers that were read and passed over."""

Kept = Mapping[tuple[int, int], Entry]
"""Entries by position that are in memory, so that they need not be read."""

ReadDone = Callable[[MagnetarError | None, list[Entry]], None]


class ConsumerChannel(Protocol):
    """One consumer's way to its client. Plain calls that buffer; none of them may block."""

    @property
    def writable(self) -> bool:
        """False above the connection's high mark; when it has drained, `Subscription.channel_writable` is called."""
        ...

    def deliver(
        self, entry: Entry, redelivery_count: int, ack_set: list[int] | None, consumer_epoch: int | None
    ) -> None:
        """One MESSAGE frame. `ack_set`: the batch indexes that are left, None when all are."""
        ...

    def deliver_run(self, entries: Sequence[Entry]) -> None:
        """The MESSAGE frames of whole entries that are delivered for the first time, to a consumer without an epoch."""
        ...

    def active_changed(self, is_active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE of a Failover subscription."""
        ...

    def close(self) -> None:
        """CLOSE_CONSUMER from the server's side: after a seek, an unload or a deletion."""
        ...

    def end_of_topic(self) -> None:
        """REACHED_END_OF_TOPIC: the topic is terminated and this consumer's subscription has read all of it."""
        ...


class EntrySource(Protocol):
    """The part of a managed cursor that dispatch reads through."""

    @property
    def read_position(self) -> Position: ...

    @property
    def has_more(self) -> bool: ...

    def read(self, max_entries: int, max_bytes: int, done: ReadDone) -> None: ...

    def replay(self, positions: Sequence[Position], done: ReadDone, kept: Kept | None = None) -> None: ...

    def rewind(self) -> None: ...

    def is_acknowledged(self, position: Position) -> bool: ...

    def ack_set_of(self, position: Position) -> list[int] | None: ...

    def acknowledge(
        self, positions: Sequence[Position], done: Callable[[MagnetarError | None], None] | None = None
    ) -> None: ...


class Timer(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The event loop as far as dispatch uses it; asyncio's loops fit."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay_s: float, callback: Callable[[], object], /) -> Timer: ...
