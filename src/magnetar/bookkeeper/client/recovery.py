"""Taking over a ledger whose writer is gone: fence, find the end, copy the tail, close (BookKeeper LedgerRecoveryOp).

Safety rests on four rules. Every read here fences, so that no bookie counted as "has not got it" can take the old writer's entry
afterwards (BookKeeper issue 2614). Only explicit negatives count towards "does not exist" (1067, 2908). Bookies are asked at the
places which the metadata named when the recovery began. What replaces a failed bookie is written together with the close and
never before: metadata in recovery gets no segment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final, NamedTuple

from magnetar.base.errors import BadVersionError, LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.context import ClientContext
from magnetar.bookkeeper.client.ensemble_change import FATAL_CODES, Change, EnsembleChanges
from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.pending_adds import PendingAdd, PendingAdds
from magnetar.bookkeeper.client.range_read import length_up_to
from magnetar.bookkeeper.client.recovery_read import RecoveryRead
from magnetar.bookkeeper.codes import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD
from magnetar.bookkeeper.entry_format import UnpackedEntry
from magnetar.bookkeeper.errors import LedgerRecoveryError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

READDS_UNDER_WAY_MAX: Final = 64
"""Entries being copied at a time; reading on waits for the oldest beyond it."""

_ADD_FLAGS = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY


class RecoveredTail(NamedTuple):
    """Where the ledger ends, its payload bytes, and the bookies replaced while the tail was copied, in order."""

    last_entry_id: int
    length: int
    changes: tuple[Change, ...]


class TailRecovery:
    """One recoverer's work between marking the ledger and closing it. Several may do the same at once: copies are identical."""

    def __init__(self, source: LedgerSource, context: ClientContext) -> None:
        self._source = source
        self._context = context
        self._frozen = source.metadata.last_segment.ensemble
        """Who is asked. Replacements of failed bookies get copies and are not asked: they had nothing."""
        self._changes = EnsembleChanges(self._frozen)
        self._made: list[Change] = []
        self._pending: PendingAdds[_Readd]
        self._failure: LedgerError | None = None
        self._progress: asyncio.Future[None] | None = None

    async def run(self) -> RecoveredTail:
        """Raises LedgerRecoveryError, LedgerUnauthorizedError."""
        lac = await LastConfirmedRead(self._source, fence=True).run()
        metadata = self._source.metadata
        self._pending = PendingAdds(metadata.write_quorum, metadata.ack_quorum, lac)
        last_entry_id, length = await self._copy(lac)
        await self._wait_below(1)
        assert self._pending.lac == last_entry_id
        self._context.statistics.recovered_entries += last_entry_id - lac
        if length < 0:
            # Nothing lies behind the LAC: only the entry at the LAC carries the length, and it may be in the segment before.
            length = await length_up_to(self._source, last_entry_id)
        return RecoveredTail(last_entry_id, length, tuple(self._made))

    async def _copy(self, lac: int) -> tuple[int, int]:
        """(last entry, length or -1). Reads ahead, twice as far with every entry found: most tails are short."""
        reads: deque[RecoveryRead] = deque()
        last_entry_id, length, ahead = lac, -1, 1
        try:
            while True:
                while len(reads) < ahead:
                    read = RecoveryRead(self._source, self._frozen, last_entry_id + 1 + len(reads))
                    reads.append(read)
                    read.start()
                found = await reads[0].answer
                reads.popleft()
                if found is None:
                    return last_entry_id, length
                packed, entry = found
                last_entry_id, length = entry.entry_id, entry.length
                ahead = min(2 * ahead, self._context.config.recovery_reads_under_way)
                self._add(packed, entry)
                await self._wait_below(READDS_UNDER_WAY_MAX)
        finally:
            # What lies behind the first missing entry was never confirmed, whatever the answers are.
            for read in reads:
                read.cancel()

    # ---- Storing the entry again

    def _add(self, packed: bytes, entry: UnpackedEntry) -> None:
        """Write the entry unchanged (same LAC and length) to its whole write set."""
        add = _Readd(entry.entry_id, self._changes.ensemble, packed)
        self._pending.push(add)
        for index in self._source.write_sets[entry.entry_id % len(self._source.write_sets)]:
            self._send(add, index)

    def _send(self, add: _Readd, index: int) -> None:
        source, bookie_id = self._source, self._changes.ensemble[index]
        done = partial(self._on_added, add, index, bookie_id)
        channel = source.bookies.channel(bookie_id)
        channel.add_entry(source.ledger_id, add.entry_id, add.packed, source.master_key, _ADD_FLAGS, done)

    def _on_added(self, add: _Readd, index: int, bookie_id: str, code: int) -> None:
        if self._changes.ensemble[index] != bookie_id or self._failure is not None:
            return
        if code == 0:
            self._pending.acknowledge(add, index)
        else:
            self._on_failure(add, index, bookie_id, code)
        while self._pending.pop_completed() is not None:
            pass
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _on_failure(self, add: _Readd, index: int, bookie_id: str, code: int) -> None:
        self._source.bookies.note_failure(bookie_id)
        out_of_reach = self._pending.reject(add, index)
        self._changes.failed(index, bookie_id, self._context.clock.monotonic_s())
        if code in FATAL_CODES or (not self._replace() and out_of_reach):
            self._failure = answer_error(code, self._source.ledger_id, add.entry_id)

    def _replace(self) -> bool:
        """Other bookies for the failed ones, for the entries behind those that are stored. Only this recoverer knows so far."""
        context, changes, source = self._context, self._changes, self._source

        def choose(ensemble: tuple[str, ...], index: int, excluded: frozenset[str]) -> str | None:
            quorum = source.metadata.write_quorum
            return context.bookies.choose_replacement(
                ensemble, index, quorum, excluded, changes.past_failures, context.rng
            )

        change = changes.plan(self._pending.lac, context.clock.monotonic_s(), choose)
        if change is None:
            return False
        self._made.append(change)
        ensemble = list(changes.ensemble)
        for index, (_, new) in change.replacements.items():
            ensemble[index] = new
        changes.begin()
        changes.landed(tuple(ensemble))
        changes.end()
        write_sets = source.write_sets
        for add, stale in self._pending.end_change(changes.ensemble):
            for index in write_sets[add.entry_id % len(write_sets)]:
                if stale >> index & 1:
                    self._send(add, index)
        return True

    async def _wait_below(self, count: int) -> None:
        """Wait until fewer than `count` re-adds are under way."""
        while True:
            if self._failure is not None:
                raise LedgerRecoveryError(f"the tail could not be copied: {self._failure}") from self._failure
            if self._pending.count < count:
                return
            self._progress = asyncio.get_running_loop().create_future()
            await self._progress


class _Readd(PendingAdd):
    """An entry on its way to where it belongs."""

    __slots__ = ("packed",)

    def __init__(self, entry_id: int, ensemble: tuple[str, ...], packed: bytes) -> None:
        super().__init__(entry_id, ensemble)
        self.packed = packed


async def recover(source: LedgerSource, version: int, context: ClientContext) -> LedgerMetadata:
    """Close the ledger of `source` (metadata at `version`) and answer its final metadata. Several clients may do so at once.

    Raises LedgerRecoveryError when too few bookies answered, NoSuchLedgerError when it was deleted meanwhile.
    """
    manager = context.manager
    version = await _mark(source, version, manager)
    if source.metadata.state is LedgerState.CLOSED:
        return source.metadata
    context.statistics.recoveries += 1
    found = await TailRecovery(source, context).run()
    return await _close(source, version, manager, found)


async def _mark(source: LedgerSource, version: int, manager: LedgerManager) -> int:
    """OPEN to IN_RECOVERY, so that the old writer can no longer change the ensemble. Answers the version."""
    while source.metadata.state is LedgerState.OPEN:
        marked = source.metadata.in_recovery()
        try:
            version = await manager.write(source.ledger_id, marked, version)
            source.metadata = marked
        except BadVersionError:
            source.metadata, version = await manager.read(source.ledger_id)
    return version


async def _close(source: LedgerSource, version: int, manager: LedgerManager, found: RecoveredTail) -> LedgerMetadata:
    """IN_RECOVERY to CLOSED, together with the bookies that were replaced on the way."""
    metadata = source.metadata
    while metadata.state is not LedgerState.CLOSED:
        closed = metadata
        for change in found.changes:
            closed = change.apply(closed)
        closed = closed.closed(found.last_entry_id, found.length)
        try:
            await manager.write(source.ledger_id, closed, version)
            metadata = closed
        except BadVersionError:
            # Another recovery, or the writer itself, was faster: if it closed the ledger, its result is the result.
            metadata, version = await manager.read(source.ledger_id)
    return metadata
