"""One request for entries, from one replica after the other (BookKeeper ReadOpBase, DefaultSpeculativeRequestExecutionPolicy).

The next replica is asked when one fails, when it answers with a damaged or foreign entry, or, as well, when it takes long. The first
good answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, ReturnCode
from magnetar.bookkeeper.entry_format import UnpackedEntry, unpack_entry
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
        source, entries = self._source, self.entries
        digest, ledger_id, entry_id = source.digest, source.ledger_id, self.entry_id
        try:
            for entry in packed:
                entries.append(unpack_entry(entry, digest, ledger_id, entry_id))
                entry_id += 1
        except DigestMismatchError as error:
            source.statistics.digest_mismatches += 1
            source.bookies.note_damage(source.ledger_id, bookie_id)
            if not entries:
                self._failed(bookie_id, error)
                return
            # The good ones before the damaged one are served; the next read starts at it and finds another replica.
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
