"""Delayed messages beyond what memory should hold: sealed buckets in storage, found again after a restart.

New delayed messages collect in the heap. When there are many, those not due soon are sealed into a bucket: sorted by due time,
written, and named in the cursor's properties; memory keeps a bit a position and a number a segment. A segment is loaded shortly
before its first message is due. An empty bucket is deleted.

**Restart.** The buckets that the properties name are opened before anything is read. Their messages come from them: when the
cursor passes such a position again, it is left alone (`owns`), so nothing is indexed, sorted or delivered twice. What had not been
sealed is indexed again as the cursor passes it. A bucket that cannot be opened is not used at all: the cursor then finds
its messages. `close` seals what is left, so an orderly restart indexes nothing again.

**Order of writes.** Bucket, then property; property away, then bucket. A crash in between leaks a bucket and loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from heapq import heapify, heappush
from typing import Any, Final, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.waiting import SLOT_BITS
from magnetar.broker.subscriptions.delayed_codec import BucketHeader, Item, decode_header, decode_segment, encode
from magnetar.managed_ledger.config import ManagedLedgerConfig

log = logging.getLogger(__name__)

BUCKET_PROPERTY: Final = "#magnetar.delayed."
"""Prefix of cursor properties that name buckets; users of subscription properties never see those."""

SEAL_AT: Final = 50_000
"""Messages in the heap at which those not due soon are sealed into a bucket: 7 MB."""

SEAL_HORIZON_MS: Final = 60_000
"""Messages due within this time stay in memory."""

LOAD_AHEAD_MS: Final = 5_000
"""A segment is loaded this long before its first message is due."""

LOAD_RETRY_MS: Final = 15_000
"""Pause after a segment could not be loaded."""


class BucketStore(Protocol):
    """Storage of buckets."""

    async def write(self, chunks: list[bytes], config: ManagedLedgerConfig, /) -> int:
        """Durable on return, in as many copies as `config` says; the bucket's number."""
        ...

    async def read(self, bucket: int, chunk: int) -> bytes: ...

    async def delete(self, bucket: int) -> None: ...


class DelayedStorage:
    """Storage and the means to use it in the background."""

    __slots__ = ("seal_at", "spawn", "store")

    def __init__(
        self,
        store: BucketStore,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        seal_at: int = SEAL_AT,
    ) -> None:
        """`spawn`: `TaskScope.spawn` of whoever owns the topic."""
        self.store = store
        self.spawn = spawn
        self.seal_at = seal_at


class PropertyHolder(Protocol):
    """The part of a cursor that buckets are named in."""

    @property
    def cursor_properties(self) -> Mapping[str, str]: ...

    async def change_cursor_properties(self, change: Callable[[Mapping[str, str]], Mapping[str, str]], /) -> None: ...


class _Bucket:
    __slots__ = ("header", "loading", "next_segment", "number", "retry_ms", "taken")

    def __init__(self, number: int, header: BucketHeader) -> None:
        self.number = number
        self.header = header
        self.next_segment = 0
        self.loading = False
        self.retry_ms = 0
        self.taken: set[int] = set()
        """Packed items that came due while the bucket was being written."""

    @property
    def wanted_ms(self) -> int | None:
        """Due time of its next segment."""
        if self.loading or self.next_segment == len(self.header.first_due_ms):
            return None
        return max(self.header.first_due_ms[self.next_segment] - LOAD_AHEAD_MS, self.retry_ms)


def _nobody() -> None:
    """The subscription is closed."""


class BucketedDelayedIndex(DelayedIndex):
    """A DelayedIndex with storage. `wake` is called when loaded messages may be due. `ledger_config`: of the topic, as it is now."""

    def __init__(
        self,
        storage: DelayedStorage,
        cursor: PropertyHolder,
        clock: Clock,
        wake: Callable[[], None],
        label: str,
        ledger_config: Callable[[], ManagedLedgerConfig],
    ) -> None:
        super().__init__()
        self._store = storage.store
        self._spawn = storage.spawn
        self._seal_step = storage.seal_at
        self._seal_at = storage.seal_at
        self._cursor = cursor
        self._clock = clock
        self._wake = wake
        self._label = label
        self._ledger_config = ledger_config
        self._buckets: list[_Bucket] = []
        self._recovered: list[BucketHeader] = []
        """Headers of buckets from before the restart; kept because skipped entries may be read late."""
        self._stored = 0
        """Messages in segments that are not loaded."""
        self._sealing = False
        self._taken: set[int] = set()
        self._generation = 0
        """Changes with `clear`: work begun before it is void."""

    def __len__(self) -> int:
        return len(self._heap) + self._stored

    @staticmethod
    def stored_in(cursor: PropertyHolder) -> bool:
        """True if the cursor names buckets."""
        return any(name.startswith(BUCKET_PROPERTY) for name in cursor.cursor_properties)

    async def recover(self) -> None:
        """Open the buckets that the cursor names. Before anything is read."""
        generation = self._generation
        for name in sorted(self._cursor.cursor_properties):
            if not name.startswith(BUCKET_PROPERTY):
                continue
            try:
                number = int(self._cursor.cursor_properties[name])
                header = decode_header(await self._store.read(number, 0))
            except (MagnetarError, ValueError) as error:
                log.warning("delayed bucket not usable subscription=%s bucket=%s error=%s", self._label, name, error)
                continue
            if generation != self._generation:
                return
            self._buckets.append(_Bucket(number, header))
            self._recovered.append(header)
            self._stored += header.count

    # ---- DelayedIndex

    def add(self, due_ms: int, key: int, slot: int) -> None:
        heappush(self._heap, (due_ms, key << SLOT_BITS | slot))
        if len(self._heap) >= self._seal_at and not self._sealing:
            self._begin_seal()

    def owns(self, key: int) -> bool:
        return any(key in header.positions for header in self._recovered)

    def take_due(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        for bucket in self._buckets:
            wanted_ms = bucket.wanted_ms
            if wanted_ms is not None and wanted_ms <= now_ms and bucket.retry_ms <= self._clock.now_ms():
                bucket.loading = True
                self._spawn(self._load(bucket, self._generation), "delayed-load")
        due = super().take_due(now_ms, limit)
        if self._sealing:
            self._taken.update(key << SLOT_BITS | slot for key, slot in due)
        return due

    def next_due_ms(self) -> int | None:
        times = [wanted for bucket in self._buckets if (wanted := bucket.wanted_ms) is not None]
        if self._heap:
            times.append(self._heap[0][0])
        return min(times, default=None)

    def clear(self) -> None:
        super().clear()
        self._generation += 1
        self._sealing = False
        self._recovered = []
        self._stored = 0
        buckets, self._buckets = self._buckets, []
        if buckets:
            self._spawn(self._delete(buckets), "delayed-delete")

    @property
    def size_bytes(self) -> int:
        bitmaps = (bits for bucket in self._buckets for _, bits in bucket.header.positions.by_ledger.values())
        return super().size_bytes + sum(map(len, bitmaps))

    # ---- Storage

    def _begin_seal(self) -> None:
        horizon = self._clock.now_ms() + SEAL_HORIZON_MS
        items = sorted(item for item in self._heap if item[0] > horizon)
        if len(items) * 2 < self._seal_step:
            self._seal_at = len(self._heap) + self._seal_step
            return
        self._sealing = True
        self._taken = set()
        self._spawn(self._seal(items, self._generation), "delayed-seal")

    async def _seal(self, items: list[Item], generation: int) -> None:
        header, chunks = encode(items)
        try:
            number = await self._store.write(chunks, self._ledger_config())
            if generation != self._generation:
                await self._store.delete(number)
                return
            await self._set_properties({f"{BUCKET_PROPERTY}{number}": str(number)}, ())
        except MagnetarError as error:
            log.warning("cannot store delayed messages subscription=%s error=%s", self._label, error)
            if generation == self._generation:
                self._sealing = False
            self._seal_at = len(self._heap) + self._seal_step
            return
        bucket = _Bucket(number, header)
        if generation != self._generation:
            await self._delete([bucket])
            return
        bucket.taken = self._taken
        sealed = set(items)
        self._heap = [item for item in self._heap if item not in sealed]
        heapify(self._heap)
        self._buckets.append(bucket)
        self._stored += header.count
        self._sealing = False
        self._seal_at = self._seal_step
        if len(self._heap) >= self._seal_at:
            self._begin_seal()
        self._wake()

    async def _load(self, bucket: _Bucket, generation: int) -> None:
        try:
            items = decode_segment(await self._store.read(bucket.number, 1 + bucket.next_segment))
        except MagnetarError as error:
            log.warning("cannot load delayed messages subscription=%s error=%s", self._label, error)
            bucket.retry_ms = self._clock.now_ms() + LOAD_RETRY_MS
            bucket.loading = False
            self._wake()
            return
        if generation != self._generation:
            return
        for due_ms, packed in items:
            if packed not in bucket.taken:
                heappush(self._heap, (due_ms, packed))
        self._stored -= len(items)
        bucket.next_segment += 1
        bucket.loading = False
        if bucket.next_segment == len(bucket.header.first_due_ms):
            self._buckets.remove(bucket)
            await self._delete([bucket])
        self._wake()

    async def _delete(self, buckets: list[_Bucket]) -> None:
        try:
            await self._set_properties({}, [f"{BUCKET_PROPERTY}{bucket.number}" for bucket in buckets])
            for bucket in buckets:
                await self._store.delete(bucket.number)
        except MagnetarError as error:
            log.warning("cannot delete delayed buckets subscription=%s error=%s", self._label, error)

    async def _set_properties(self, added: dict[str, str], removed: list[str] | tuple[()]) -> None:
        await self._cursor.change_cursor_properties(
            lambda held: {name: value for name, value in held.items() if name not in removed} | added
        )

    async def close(self) -> None:
        """Seal what would have to be indexed again, when it is much."""
        self._wake = _nobody
        if len(self._heap) * 10 >= self._seal_step and not self._sealing:
            self._sealing = True
            await self._seal(sorted(self._heap), self._generation)

    async def delete(self) -> None:
        """The subscription goes: delete its buckets."""
        self._wake = _nobody
        self._generation += 1
        buckets, self._buckets = self._buckets, []
        await self._delete(buckets)
