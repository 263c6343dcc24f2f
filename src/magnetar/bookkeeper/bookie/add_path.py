"""Everything that changes a ledger: adds, fences, explicit LACs. Order: ledger state, write cache, journal.

Because memory comes first, whatever is durable in the journal is in memory. So a checkpoint that persists what memory held at some
moment may let go of the journal up to the commit that was durable at that moment.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar.base.errors import DiskFullError, DiskIOError
from magnetar.base.limits import BOOKIE_KEYLESS_LEDGERS_MAX
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX, BookieConfig
from magnetar.bookkeeper.bookie.ledger_state import FENCED_KEYS_MAX, LedgerState
from magnetar.bookkeeper.bookie.storage.journal import Journal, ignore
from magnetar.bookkeeper.bookie.storage.journal_format import EXPLICIT_LAC, FENCE, KEY, pack_special
from magnetar.bookkeeper.bookie.storage.write_cache import CacheHalf, HeldEntries, WriteCache
from magnetar.bookkeeper.codes import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import ENTRY_BYTES_MIN, highest_lac, peek_ids
from magnetar.bookkeeper.ports import AddDone

_logger = logging.getLogger(__name__)

MASTER_KEY_BYTES_MAX: Final = 256
"""BookKeeper's are 20 bytes; a longer one is refused as UNAUTHORIZED."""

LAC_BODY_BYTES_MIN: Final = 16
LAC_BODY_BYTES_MAX: Final = 64
"""Ledger id, LAC and the longest digest; anything else is refused as BAD_REQUEST."""


class _WaitingAdd(NamedTuple):
    ledger_id: int
    entry_ids: Sequence[int]
    entries: list[bytes]
    size_bytes: int
    master_key: bytes
    flags: int
    done: AddDone


class AddPath:
    """Lives on the event loop. `wake_flush()` asks for a flush; the flusher calls `swap` and `flushed`. `want_room()` asks the disk monitor
    to look at the disk: adds wait until it calls `set_read_only`."""

    __slots__ = (
        "_cache",
        "_dirty",
        "_failed",
        "_guarded",
        "_half_bytes_max",
        "_journal",
        "_keyless",
        "_ledgers",
        "_notice_bytes",
        "_pending_bytes_max",
        "_read_only",
        "_reserve",
        "_room_bytes",
        "_swap_mark",
        "_waiting",
        "_waiting_bytes",
        "_wake_flush",
        "_want_room",
        "add_bytes_total",
        "adds_refused_total",
        "adds_total",
        "wake_watchers",
    )

    def __init__(
        self,
        config: BookieConfig,
        ledgers: dict[int, LedgerState],
        dirty: dict[int, LedgerState],
        cache: WriteCache,
        journal: Journal,
        wake_flush: Callable[[], None],
        want_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledgers = ledgers
        self._keyless = sum(state.keyless and state.deleted_ms is None for state in ledgers.values())
        self._dirty = dirty
        self._cache = cache
        self._journal = journal
        self._wake_flush = wake_flush
        self._want_room = want_room
        self._half_bytes_max = config.write_cache_bytes
        self._room_bytes = sys.maxsize
        self._notice_bytes = self._half_bytes_max
        self._pending_bytes_max = config.journal_pending_bytes
        self._waiting: deque[_WaitingAdd] = deque()
        self._waiting_bytes = 0
        self._swap_mark = journal.durable_sequence
        self._read_only = False
        self._reserve = False
        self._failed = False
        self.wake_watchers: Callable[[LedgerState], None] = lambda state: None
        """Told of a LAC that moved, a fence and a deletion."""
        self._guarded = False  # any of: failed, read-only, adds waiting
        self.adds_total = 0
        self.add_bytes_total = 0
        self.adds_refused_total = 0

    # ---- Adds

    def add_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: list[bytes],
        master_key: bytes,
        flags: int,
        done: AddDone,
    ) -> None:
        """See `BookieChannel.add_run`. All of them, or none."""
        state = self._ledgers.get(ledger_id)
        size = len(entries[0]) if len(entries) == 1 else sum(map(len, entries))
        if (
            self._guarded
            or state is None
            or not state.writable
            or state.master_key != master_key
            or self._journal.pending_bytes >= self._pending_bytes_max
            or entry_ids[0] < 0
        ):
            self._add_guarded(_WaitingAdd(ledger_id, entry_ids, entries, size, master_key, flags, done))
            return
        self._store(state, entry_ids, entries, size, done)

    def _store(
        self, state: LedgerState, entry_ids: Sequence[int], entries: list[bytes], size: int, done: AddDone
    ) -> None:
        """What was admitted goes into memory and to the journal, if it is what it should be."""
        ledger_id = state.ledger_id
        lac = highest_lac(ledger_id, entry_ids, entries, ENTRY_BYTES_MAX)
        if lac is None:
            self._refuse(done, ReturnCode.BAD_REQUEST)
            return
        half = self._cache.active
        held = half.ledgers.get(ledger_id)
        count, first_entry_id, last_entry_id = len(entries), entry_ids[0], entry_ids[-1]
        if last_entry_id - first_entry_id >= count:
            half.put_scattered(ledger_id, entry_ids, entries)
        elif held is None:
            half.ledgers[ledger_id] = HeldEntries(first_entry_id, entries)
        elif first_entry_id == held.next_entry_id:
            held.newest += entries
            held.next_entry_id = last_entry_id + 1
        else:
            held.put_run(first_entry_id, entries)
        half.entries_count += count
        half.size_bytes += size
        if half.size_bytes >= self._notice_bytes:
            self._half_is_full()
        if last_entry_id > state.last_entry_id:
            state.last_entry_id = last_entry_id
        if lac > state.lac:
            state.lac = lac
            if state.watchers is not None:
                self.wake_watchers(state)
        self.adds_total += count
        self.add_bytes_total += size
        self._journal.append_run(entries, size, done)

    def _add_guarded(self, add: _WaitingAdd) -> None:
        if self._failed:
            self._refuse(add.done, ReturnCode.IO_ERROR)
        elif self._read_only and not (add.flags & FLAG_HIGH_PRIORITY and self._reserve):
            self._refuse(add.done, ReturnCode.READ_ONLY)
        elif self._journal.pending_bytes + self._waiting_bytes >= self._pending_bytes_max:
            self._refuse(add.done, ReturnCode.TOO_MANY_REQUESTS)
        elif self._waiting or self._is_full():
            self._waiting.append(add)
            self._waiting_bytes += add.size_bytes
            self._guarded = True
        else:
            self._admit(add)

    def _admit(self, add: _WaitingAdd) -> None:
        """The checks of `add_run` in full, once nothing stands against adds as such."""
        for entry_id, entry in zip(add.entry_ids, add.entries, strict=True):
            if not ENTRY_BYTES_MIN <= len(entry) <= ENTRY_BYTES_MAX or peek_ids(entry)[:2] != (add.ledger_id, entry_id):
                self._refuse(add.done, ReturnCode.BAD_REQUEST)
                return
        if add.entry_ids[0] < 0 or add.ledger_id < 0:
            self._refuse(add.done, ReturnCode.BAD_REQUEST)
            return
        code = self._open(add.ledger_id, add.master_key, add.flags)
        if code != ReturnCode.OK:
            self._refuse(add.done, code)
            return
        self._store(self._ledgers[add.ledger_id], add.entry_ids, add.entries, add.size_bytes, add.done)

    def _open(self, ledger_id: int, master_key: bytes, flags: int) -> ReturnCode:
        """OK when an entry may be added under this key. The first one fixes the ledger's key, which is journaled before it."""
        state = self._ledgers.get(ledger_id)
        if state is not None and not state.keyless:
            if not state.authorizes(master_key):
                return ReturnCode.UNAUTHORIZED
            if not state.writable and (state.deleted_ms is not None or not flags & FLAG_RECOVERY_ADD):
                return ReturnCode.FENCED
            return ReturnCode.OK
        if not 0 < len(master_key) <= MASTER_KEY_BYTES_MAX:
            return ReturnCode.UNAUTHORIZED
        if state is None:
            state = self._ledgers[ledger_id] = LedgerState(ledger_id, master_key)
        else:
            fenced = state.fenced_keys is not None and master_key in state.fenced_keys
            if state.deleted_ms is not None or (fenced and not flags & FLAG_RECOVERY_ADD):
                return ReturnCode.FENCED
            state.fix_key(master_key)
            self._keyless -= 1
        self._dirty[ledger_id] = state
        self._journal.append(pack_special(ledger_id, KEY, master_key), ignore)
        return ReturnCode.OK

    def _refuse(self, done: AddDone, code: ReturnCode) -> None:
        self.adds_refused_total += 1
        done(int(code))

    # ---- Fences and explicit LACs

    def fence(self, ledger_id: int, master_key: bytes, done: AddDone) -> None:
        """Fence the ledger, known or not; `done` once that is durable. Ordinary adds are refused from now on."""
        if self._failed:
            done(int(ReturnCode.IO_ERROR))
            return
        if not 0 < len(master_key) <= MASTER_KEY_BYTES_MAX or ledger_id < 0:
            done(int(ReturnCode.UNAUTHORIZED))
            return
        state = self._ledgers.get(ledger_id)
        refusal = self._fence_refusal(state, master_key)
        if refusal is not None:
            done(int(refusal))
            return
        if state is None:
            state = self._ledgers[ledger_id] = LedgerState(ledger_id)
            self._keyless += 1
        durable = state.fenced_keys.get(master_key, False) if state.fenced_keys is not None else state.fence_durable
        if durable:
            done(int(ReturnCode.OK))
            return
        state.fence_under(master_key, durable=False)
        self.wake_watchers(state)
        self._dirty[ledger_id] = state
        fenced = state

        def journaled(code: int) -> None:
            # an entry may have fixed another key meanwhile: the fence is then void, and its sender is answered as it was promised
            if code == ReturnCode.OK and (fenced.keyless or fenced.master_key == master_key):
                fenced.fence_under(master_key, durable=True)
            done(code)

        self._journal.append(pack_special(ledger_id, FENCE, master_key), journaled)

    def _fence_refusal(self, state: LedgerState | None, master_key: bytes) -> ReturnCode | None:
        if state is None:
            return ReturnCode.TOO_MANY_REQUESTS if self._keyless >= BOOKIE_KEYLESS_LEDGERS_MAX else None
        if state.deleted_ms is not None:
            return ReturnCode.NO_LEDGER
        if state.fenced_keys is None:
            return None if state.authorizes(master_key) else ReturnCode.UNAUTHORIZED
        full = master_key not in state.fenced_keys and len(state.fenced_keys) >= FENCED_KEYS_MAX
        return ReturnCode.TOO_MANY_REQUESTS if full else None

    def write_lac(self, ledger_id: int, body: bytes, master_key: bytes, done: AddDone) -> None:
        """See `BookieChannel.write_lac`."""
        if self._failed:
            done(int(ReturnCode.IO_ERROR))
            return
        if not LAC_BODY_BYTES_MIN <= len(body) <= LAC_BODY_BYTES_MAX or ledger_id < 0:
            done(int(ReturnCode.BAD_REQUEST))
            return
        if self._read_only:
            done(int(ReturnCode.READ_ONLY))
            return
        state = self._ledgers.get(ledger_id)
        if state is not None and state.deleted_ms is not None:
            done(int(ReturnCode.FENCED))
        elif state is None or state.keyless:
            done(
                int(ReturnCode.NO_LEDGER)
            )  # nothing is confirmed here that it could speak of, and only an entry fixes the key
        elif not state.authorizes(master_key):
            done(int(ReturnCode.UNAUTHORIZED))
        else:
            state.accept_lac(body)
            self.wake_watchers(state)
            self._dirty[ledger_id] = state
            self._journal.append(pack_special(ledger_id, EXPLICIT_LAC, body), done)

    def force(self, done: AddDone) -> None:
        """See `BookieService.force_ledger`."""
        if self._failed:
            done(int(ReturnCode.IO_ERROR))
        else:
            self._journal.when_durable(done)

    # ---- Flush and deletion

    def swap(self) -> tuple[CacheHalf, list[tuple[int, bytes]], int]:
        """Begin a checkpoint: (half to be written, ledger states to be written, the mark that this allows)."""
        half = self._cache.flushing
        if half is None:
            self._swap_mark = self._journal.durable_sequence
            half = self._cache.swap()
            self._limit(self._room_bytes - half.size_bytes)
            self._admit_waiting()
        # A half whose flush failed for want of room is tried again, with the mark of its own swap.
        states = [(ledger_id, state.pack()) for ledger_id, state in self._dirty.items()]
        return half, states, self._swap_mark

    def flushed(self, states: list[tuple[int, bytes]]) -> None:
        """The checkpoint of `swap` is durable."""
        self._cache.flushing = None
        for ledger_id, packed in states:
            state = self._dirty.get(ledger_id)
            if state is not None and state.pack() == packed:
                del self._dirty[ledger_id]
        self._admit_waiting()

    def bury(self, state: LedgerState, now_ms: int) -> None:
        """The ledger is deleted: forget its entries, refuse late writes. No flush may be under way."""
        if state.keyless and state.deleted_ms is None:
            self._keyless -= 1
        state.bury(now_ms)
        self.wake_watchers(state)
        self._cache.drop(state.ledger_id)
        self._dirty[state.ledger_id] = (
            state  # should the deletion from the index fail, the next checkpoint keeps the tombstone
        )

    async def journal_barrier(self, state: LedgerState) -> int:
        """Wait until everything journaled so far, of this ledger and all others, is durable; answers the last commit's sequence.

        Raises DiskFullError, DiskIOError.
        """
        durable: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        repeated = pack_special(state.ledger_id, KEY, state.master_key)  # says nothing new, and is ignored by a replay
        self._journal.append(repeated, lambda code: None if durable.done() else durable.set_result(code))
        code = await durable
        if code == ReturnCode.READ_ONLY:
            raise DiskFullError("no room for the journal")
        if code != ReturnCode.OK:
            raise DiskIOError("the journal has failed")
        return self._journal.durable_sequence

    # ---- Conditions

    def set_read_only(self, read_only: bool, reserve: bool, room_bytes: int | None = None) -> None:
        """`reserve`: there is room enough for high-priority adds. `room_bytes`: so much may be added before the disk is looked at again."""
        self._read_only = read_only
        self._reserve = reserve
        if read_only:
            self._limit(sys.maxsize)
        elif room_bytes is not None:
            self._limit(self._cache.active.size_bytes + room_bytes)
        self._admit_waiting()

    def fail(self) -> None:
        """Nothing is acknowledged any more."""
        self._failed = True
        self._admit_waiting()

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def takes_high_priority(self) -> bool:
        return not self._read_only or self._reserve

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def _is_full(self) -> bool:
        """Adds wait: both halves are full, or the room that was measured is used up.

        Before the flusher has swapped them a burst may go on, but not without end.
        """
        bound = self._half_bytes_max if self._cache.flushing is not None else 2 * self._half_bytes_max
        return self._cache.active.size_bytes >= min(bound, self._room_bytes)

    def _limit(self, room_bytes: int) -> None:
        """The active half may grow to this size; one comparison for each add watches this bound and that of the half."""
        self._room_bytes = room_bytes
        self._notice_bytes = min(self._half_bytes_max, room_bytes)

    def _half_is_full(self) -> None:
        size_bytes = self._cache.active.size_bytes
        if size_bytes >= self._half_bytes_max:
            self._wake_flush()
        if size_bytes >= self._room_bytes:
            self._want_room()
        self._guarded = self._guarded or self._is_full()

    def _admit_waiting(self) -> None:
        waiting = self._waiting
        while waiting and (self._failed or self._read_only or not self._is_full()):
            add = waiting.popleft()
            self._waiting_bytes -= add.size_bytes
            try:
                if self._failed:
                    self._refuse(add.done, ReturnCode.IO_ERROR)
                elif self._read_only and not (add.flags & FLAG_HIGH_PRIORITY and self._reserve and not self._is_full()):
                    self._refuse(add.done, ReturnCode.READ_ONLY)
                else:
                    self._admit(add)
            except Exception:  # a refused caller's callback; the adds behind it belong to others
                _logger.exception("the callback of an add failed")
        self._guarded = self._failed or self._read_only or bool(waiting) or self._is_full()
