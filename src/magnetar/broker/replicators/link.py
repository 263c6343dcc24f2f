"""A replicator's way to the other cluster while one connection lasts: reads entries, sends them, acknowledges what is stored there.

Plain calls from the append to the receipt. One life: whatever fails ends it, and the replicator makes another from the cursor's
mark-delete on; the other side drops what it has already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import BYTES_PER_READ_MAX, ENTRIES_PER_DISPATCH_MAX, FRAME_PADDING_BYTES
from magnetar.broker.dispatch.ports import Scheduler, Timer
from magnetar.broker.rate_limits import RateMeter
from magnetar.broker.replicators.outgoing import Outgoing, Skip, UnknownSchema, outgoing
from magnetar.broker.replicators.remote_clusters import EntryTooLargeError
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.position import Position

IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
"""Sent and not acknowledged by one replicator: it reads no more until half of them are."""

RATE_PAUSE_MIN_S = 0.01
"""Shortest pause for the dispatch rate: a high one is kept by bursts instead of a timer for each message."""


SCHEMA_VERSIONS_MAX = 1000
"""Schema versions that a link remembers. Clients choose what their messages name: above it all are forgotten, and asked for again."""


class OutletConnection(Protocol):
    """What a link looks at before it sends."""

    @property
    def address(self) -> str: ...

    @property
    def writable(self) -> bool: ...

    @property
    def message_bytes_max(self) -> int: ...

    def when_writable(self, callback: Callable[[], None]) -> None: ...


class Outlet(Protocol):
    """Where a link sends entries: a producer in the other cluster, or several. Receipts come in the order of `send`."""

    @property
    def connection(self) -> OutletConnection: ...

    def send(
        self,
        data: bytes,
        sequence_id: int,
        highest_sequence_id: int = 0,
        num_messages: int = 1,
        is_chunk: bool = False,
        marker: bool = False,
    ) -> None: ...

    async def close(self) -> None: ...


class _Sent(NamedTuple):
    position: Position
    size_bytes: int
    messages: int
    publish_time_ms: int


class Common:
    """State that outlives the links of one replicator: counters, read at scrape time, and the cursor's one read at a time."""

    __slots__ = ("bytes_out", "followed", "link", "messages_out", "reading", "skipped", "unreadable")

    def __init__(self) -> None:
        self.reading = False
        self.link: Link | None = None
        self.messages_out = 0
        self.bytes_out = 0
        self.skipped = 0
        self.unreadable = 0
        self.followed: Callable[[], None] | None = None
        """Called after the cursor has moved, while one of the entries is traced."""


class Link:
    """`attention()` is called when `failure` or `unknown_schema` was set; `schema_known` goes on after the latter."""

    __slots__ = (
        "_ack_scheduled",
        "_acked",
        "_attention",
        "_clock",
        "_common",
        "_cursor",
        "_full",
        "_held",
        "_in_flight",
        "_in_flight_bytes",
        "_local",
        "_meter",
        "_producer",
        "_pump_scheduled",
        "_queue_max",
        "_remote",
        "_scheduler",
        "_timer",
        "_waiting_for_room",
        "failure",
        "schema_versions",
        "unknown_schema",
    )

    def __init__(
        self,
        *,
        cursor: ManagedCursor,
        local: str,
        remote: str,
        queue_max: int,
        common: Common,
        clock: Clock,
        scheduler: Scheduler,
        meter: Callable[[], RateMeter | None],
        attention: Callable[[], None],
    ) -> None:
        self._cursor = cursor
        self._local = local
        self._remote = remote
        self._queue_max = queue_max
        self._common = common
        self._clock = clock
        self._scheduler = scheduler
        self._meter = meter
        self._attention = attention
        self._producer: Outlet | None = None
        self._held: deque[Entry] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._in_flight_bytes = 0
        self._full = False
        self._pump_scheduled = False
        self._waiting_for_room = False
        self._timer: Timer | None = None
        self._acked: Position | None = None
        self._ack_scheduled = False
        self.schema_versions: dict[bytes, bytes] = {}
        self.unknown_schema: bytes | None = None
        self.failure: MagnetarError | None = None

    # ---- Life

    def start(self, producer: Outlet) -> None:
        self._producer = producer
        self._common.link = self
        self._cursor.rewind()
        self.wake()

    def failed(self, error: MagnetarError) -> None:
        """The producer ended, or what was read cannot be sent. Nothing more happens here."""
        if self.failure is None:
            self.failure = error
            self._cancel_timer()
            self._attention()

    def stop(self) -> None:
        """Nothing more happens here, on purpose."""
        self.failure = self.failure or CursorClosedError("the replicator stopped")
        self._cancel_timer()
        self._acknowledge()

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def oldest_publish_ms(self) -> int | None:
        """Bytes sent and not yet acknowledged."""
        return self._in_flight[0].publish_time_ms if self._in_flight else None

    # ---- From the log to the other cluster

    def wake(self) -> None:
        """There may be something to read: soon, in a turn of its own."""
        if not self._pump_scheduled and self.failure is None:
            self._pump_scheduled = True
            self._scheduler.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        producer = self._producer
        if self._held or self.failure is not None or producer is None or self._timer is not None:
            return
        if self._common.reading or not self._cursor.has_more:
            return
        room = self._queue_max - len(self._in_flight)
        if room <= 0 or self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            self._full = True
            return
        if not producer.connection.writable:
            if not self._waiting_for_room:
                self._waiting_for_room = True
                producer.connection.when_writable(self._room)
            return
        entries_max = min(room, ENTRIES_PER_DISPATCH_MAX)
        bytes_max = BYTES_PER_READ_MAX
        meter = self._meter()
        if meter is not None:
            now_s = self._clock.monotonic_s()
            delay_s = meter.delay_s(now_s)
            if delay_s > 0:
                self._timer = self._scheduler.call_later(max(delay_s, RATE_PAUSE_MIN_S), self._due)
                return
            messages, size_bytes = meter.available(now_s)
            entries_max, bytes_max = max(1, int(min(entries_max, messages))), max(1, int(min(bytes_max, size_bytes)))
        self._common.reading = True
        self._cursor.read(entries_max, bytes_max, self._read)

    def _due(self) -> None:
        self._timer = None
        self.wake()

    def rate_changed(self) -> None:
        """A pause that the former rate asked for is over."""
        self._cancel_timer()
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _room(self) -> None:
        self._waiting_for_room = False
        self.wake()

    def _read(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        common = self._common
        common.reading = False
        if common.link is not self and common.link is not None:
            common.link.wake()  # a later link waited for this answer
        if self.failure is not None:
            return
        if error is not None:
            self.failed(error)
        elif entries:  # without any the next append wakes this up
            self._held.extend(entries)
            self._send_held()
            self.wake()

    def _send_held(self) -> None:
        held, producer = self._held, self._producer
        assert producer is not None
        while held and self.failure is None:
            entry = held[0]
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            way = outgoing(entry.data, ledger_id, entry_id, self._local, self._remote, self.schema_versions)
            if isinstance(way, Outgoing):
                held.popleft()
                self._send(producer, Position(ledger_id, entry_id), way)
            elif isinstance(way, UnknownSchema):
                self.unknown_schema = way.version
                self._attention()
                return
            else:
                held.popleft()
                self._skip(Position(ledger_id, entry_id), way)

    def schema_known(self, version: bytes, there: bytes) -> None:
        """The other cluster's version of a schema of ours, which was missing, has arrived."""
        if len(self.schema_versions) >= SCHEMA_VERSIONS_MAX:
            self.schema_versions.clear()
        self.schema_versions[version] = there
        self.unknown_schema = None
        if self.failure is None:
            self._send_held()
            self.wake()

    def _send(self, producer: Outlet, position: Position, entry: Outgoing) -> None:
        size_bytes = len(entry.data)
        bytes_max = producer.connection.message_bytes_max
        if bytes_max and size_bytes > bytes_max + FRAME_PADDING_BYTES:
            self.failed(
                EntryTooLargeError(
                    f"message {position.ledger_id}:{position.entry_id} has {size_bytes} bytes, cluster {self._remote} "
                    f"takes {bytes_max}; raise maxMessageSize there or skip it here"
                )
            )
            return
        self._in_flight.append(_Sent(position, size_bytes, entry.num_messages, entry.publish_time_ms))
        self._in_flight_bytes += size_bytes
        meter = self._meter()
        if meter is not None:
            meter.take(entry.num_messages, size_bytes, self._clock.monotonic_s())
        producer.send(
            entry.data,
            entry.sequence_id,
            entry.highest_sequence_id,
            entry.num_messages,
            entry.is_chunk,
            entry.marker,
        )

    def _skip(self, position: Position, why: Skip) -> None:
        """Done with, once everything before it is."""
        self._common.skipped += 1
        if why is Skip.UNREADABLE:
            self._common.unreadable += 1
        if self._in_flight:
            self._in_flight[-1] = self._in_flight[-1]._replace(position=position)
        else:
            self._done(position)

    # ---- Stored over there

    def receipt(self, ledger_id: int, entry_id: int) -> None:
        """A receipt for the oldest entry in flight; ids of -1: the entry was stored there before."""
        if self.failure is not None:
            return
        sent = self._in_flight.popleft()
        self._in_flight_bytes -= sent.size_bytes
        self._common.messages_out += sent.messages
        self._common.bytes_out += sent.size_bytes
        self._done(sent.position)
        if self._full and self._half_empty:
            self._full = False
            self.wake()

    @property
    def _half_empty(self) -> bool:
        return len(self._in_flight) <= self._queue_max // 2 and self._in_flight_bytes <= IN_FLIGHT_BYTES_MAX // 2

    def _done(self, position: Position) -> None:
        self._acked = position
        if not self._ack_scheduled:
            self._ack_scheduled = True
            self._scheduler.call_soon(self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_scheduled = False
        acked, self._acked = self._acked, None
        if acked is not None and not self._cursor.closed:
            self._cursor.acknowledge_cumulative(acked)
            if self._common.followed is not None:
                self._common.followed()
