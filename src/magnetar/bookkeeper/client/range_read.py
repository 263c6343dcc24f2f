"""Reading a range of one ledger's entries from its bookies: plain callbacks, every byte checked.

A segment whose bookies all hold every entry (E = Qw) is read in batches from one preferred bookie. A striped one is read entry by
entry, several of them at a time from different bookies, and answered in order. A request goes to one replica after the other: the next
one is asked when one fails, when it answers with a damaged or foreign entry, or, as well, when it takes long; the first good answer
counts (BookKeeper ReadOpBase, DefaultSpeculativeRequestExecutionPolicy).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.base.errors import LedgerError, MagnetarError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, ReturnCode
from magnetar.bookkeeper.entry_format import UnpackedEntry, unpack_run
from magnetar.bookkeeper.errors import BookieRequestError, DigestMismatchError, NoSuchEntryError, NoSuchLedgerError

ReplicaDone = Callable[["ReplicaRead"], None]


class ReplicaRead:
    """Entries from `entry_id` on, up to `count` of them and about `max_bytes`; a count of 1 is a plain read. `start` it once.

    `done(read)` runs once, possibly before `start` returns: `entries` then holds at least one, or `error` says why not.
    """

    __slots__ = (
        "_asked",
        "_bookies",
        "_count",
        "_delay_s",
        "_done",
        "_ensemble",
        "_max_bytes",
        "_outstanding",
        "_source",
        "_timer",
        "entries",
        "entry_id",
        "error",
        "finished",
    )

    def __init__(self, source: LedgerSource, entry_id: int, count: int, max_bytes: int, done: ReplicaDone) -> None:
        self._source = source
        self.entry_id = entry_id
        self._count = count
        self._max_bytes = max_bytes
        self._done = done
        metadata = source.metadata
        ensemble = self._ensemble = metadata.segments[metadata.segment_index(entry_id)].ensemble
        self._bookies = [ensemble[index] for index in source.replicas(entry_id)]
        if source.config.reorder_reads and len(self._bookies) > 1:
            self._bookies = source.bookies.read_order(self._bookies)
        self._asked = 0
        self._outstanding = 0
        self._delay_s = source.config.speculative_read_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self.entries: list[UnpackedEntry] = []
        self.error: LedgerError | None = None
        self.finished = False

    def start(self) -> None:
        self._ask()

    def cancel(self) -> None:
        """Nobody wants the answer any more; `done` does not run."""
        self.finished = True
        self._disarm()

    def _ask(self) -> None:
        source, bookie_id = self._source, self._bookies[self._asked]
        self._asked += 1
        self._outstanding += 1
        channel = source.bookies.channel(bookie_id)
        if self._count == 1:
            done = partial(self._on_entry, bookie_id)
            channel.read_entry(source.ledger_id, self.entry_id, 0, source.master_key, done)
        else:
            batch_done = partial(self._on_batch, bookie_id)
            channel.read_batch(source.ledger_id, self.entry_id, self._count, self._max_bytes, batch_done)
        if not self.finished and self._asked < len(self._bookies) and self._delay_s > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._speculate, bookie_id)

    def _speculate(self, bookie_id: str) -> None:
        """The bookie has not answered for a while: ask the next one as well."""
        self._timer = None
        config = self._source.config
        self._delay_s = min(self._delay_s * config.speculative_read_factor, config.speculative_read_timeout_max_s)
        self._source.statistics.speculative_reads += 1
        self._source.bookies.note_slow(bookie_id)
        self._ask()

    def _on_entry(self, bookie_id: str, code: int, packed: bytes | None) -> None:
        self._on_batch(bookie_id, code, [] if packed is None else [packed])

    def _on_batch(self, bookie_id: str, code: int, packed: list[bytes]) -> None:
        if self.finished:
            return
        self._outstanding -= 1
        source = self._source
        if code != ReturnCode.OK:
            if code == ReturnCode.IO_ERROR:
                source.bookies.note_damage(source.ledger_id, bookie_id)
            elif code not in EXPLICIT_NEGATIVES:
                source.bookies.note_read_failure(bookie_id)
            self._failed(bookie_id, answer_error(code, source.ledger_id, self.entry_id))
        elif not 1 <= len(packed) <= self._count:
            text = f"ledger {source.ledger_id}: a bookie answered {len(packed)} entries, 1 to {self._count} were asked"
            source.bookies.note_read_failure(bookie_id)
            self._failed(bookie_id, BookieRequestError(text))
        else:
            self._take(bookie_id, packed)

    def _take(self, bookie_id: str, packed: list[bytes]) -> None:
        source = self._source
        damage: DigestMismatchError | None = None
        try:
            self.entries = unpack_run(packed, source.digest, source.ledger_id, self.entry_id)
        except DigestMismatchError as error:
            damage = error
        # The good ones before a damaged one are served; the next read starts at it and finds another replica.
        if damage is not None or len(self.entries) < len(packed):
            source.statistics.digest_mismatches += 1
            source.bookies.note_damage(source.ledger_id, bookie_id)
            if damage is not None:
                self._failed(bookie_id, damage)
                return
        self.error = None
        self._finish()

    def _failed(self, bookie_id: str, error: LedgerError) -> None:
        """Try the next replica. An explicit negative never hides another error: it says less about this entry."""
        if self.error is None or isinstance(self.error, NoSuchEntryError | NoSuchLedgerError):
            self.error = error
        self._source.move_on(self._ensemble, bookie_id)
        if self._asked < len(self._bookies):
            self._disarm()
            self._ask()
        elif self._outstanding == 0:
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._disarm()
        self._done(self)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


RangeDone = Callable[[MagnetarError | None, list[bytes]], None]
"""`done(error, payloads)`; the payloads are those of a non-empty prefix of the range unless there is an error."""

READS_UNDER_WAY_MAX: Final = 32
"""Entries of one striped range that are asked for at a time; the next one is asked for when the oldest has come."""


class RangeRead:
    """One read of `first..last`; `start` it once."""

    __slots__ = (
        "_bytes_left",
        "_done",
        "_finished",
        "_last",
        "_next",
        "_payloads",
        "_reads",
        "_running",
        "_source",
        "last_length",
    )

    def __init__(self, source: LedgerSource, first: int, last: int, max_bytes: int, done: RangeDone) -> None:
        assert 0 <= first <= last
        self._source = source
        self._next = first
        self._last = last
        self._bytes_left = max(max_bytes, 1)
        self._done = done
        self._payloads: list[bytes] = []
        self._reads: deque[ReplicaRead] = deque()
        self._running = False
        self._finished = False
        self.last_length = 0
        """The ledger's length up to and including the last entry read."""

    def start(self) -> None:
        if self._source.striped:
            self._run()
            return
        source, first, last = self._source, self._next, self._last
        segments = source.metadata.segments
        index = source.metadata.segment_index(first)
        if index + 1 < len(segments):
            last = min(last, segments[index + 1].first_entry_id - 1)
        ReplicaRead(source, first, last - first + 1, self._bytes_left, self._on_batch).start()

    def _on_batch(self, read: ReplicaRead) -> None:
        if read.error is not None:
            self._finish(read.error)
            return
        self._payloads = [entry.payload for entry in read.entries]
        self.last_length = read.entries[-1].length
        self._finish(None)

    # ---- Striped

    def _run(self) -> None:
        """Ask and take until bookies take their time: answers that come at once do not nest."""
        if self._running:
            return
        self._running = True
        while not self._finished:
            if self._reads and self._reads[0].finished:
                self._take(self._reads.popleft())
            elif self._next <= self._last and len(self._reads) < self._window():
                read = ReplicaRead(self._source, self._next, 1, 0, self._on_entry)
                self._next += 1
                self._reads.append(read)
                read.start()
            else:
                break
        self._running = False

    def _window(self) -> int:
        """As many entries as are likely to fit into the bytes that are left."""
        return 1 + min(self._bytes_left // (self._source.entry_bytes + 1), READS_UNDER_WAY_MAX - 1)

    def _on_entry(self, read: ReplicaRead) -> None:
        if not self._finished and self._reads and read is self._reads[0]:
            self._run()

    def _take(self, read: ReplicaRead) -> None:
        """The oldest entry has come."""
        if read.error is not None:
            self._finish(read.error)
            return
        entry = read.entries[0]
        size = self._source.entry_bytes = len(entry.payload)
        if self._payloads and size > self._bytes_left:
            self._finish(None)
            return
        self._payloads.append(entry.payload)
        self.last_length = entry.length
        self._bytes_left -= size
        if read.entry_id == self._last or self._bytes_left <= 0:
            self._finish(None)

    def _finish(self, error: MagnetarError | None) -> None:
        self._finished = True
        for read in self._reads:
            read.cancel()
        if error is not None and self._payloads:
            error = None
        self._done(error, [] if error is not None else self._payloads)


async def length_up_to(source: LedgerSource, entry_id: int) -> int:
    """Payload bytes of the ledger up to and including the entry, as the entry itself says. 0 for entry -1."""
    if entry_id < 0:
        return 0
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, _: list[bytes]) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(None)

    read = RangeRead(source, entry_id, entry_id, 1, done)
    read.start()
    await answer
    return read.last_length
