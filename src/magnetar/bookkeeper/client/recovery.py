"""Taking over a ledger whose writer is gone: fence, find the end, copy the tail, close (BookKeeper LedgerRecoveryOp).

Safety rests on three rules. Every read here fences, so that no bookie counted as "has not got it" can take the old writer's entry
afterwards (BookKeeper issue 2614). Only explicit negatives count towards "does not exist" (1067, 2908). Bookies are asked at the
places which the metadata named when the recovery began.
"""

from __future__ import annotations

import asyncio
from functools import partial

from magnetar.base.errors import BadVersionError, LedgerError
from magnetar.bookkeeper.client.bookies import answer_error
from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.pending_adds import PendingAdd, PendingAdds
from magnetar.bookkeeper.client.range_read import LedgerSource, length_up_to
from magnetar.bookkeeper.codes import EXPLICIT_NEGATIVES, FLAG_FENCE, FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.entry_format import UnpackedEntry, unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError, LedgerRecoveryError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.quorum import EntryVote, Verdict

READDS_UNDER_WAY_MAX = 64
"""Entries being copied at a time; reading on waits for the oldest beyond it."""

_READ_FLAGS = FLAG_FENCE | FLAG_HIGH_PRIORITY
_ADD_FLAGS = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY


async def recover(source: LedgerSource, version: int, manager: LedgerManager) -> LedgerMetadata:
    """Close the ledger of `source` (metadata at `version`) and answer its final metadata. Several clients may do so at once.

    Raises LedgerRecoveryError when too few bookies answered, NoSuchLedgerError when it was deleted meanwhile.
    """
    version = await _mark(source, version, manager)
    if source.metadata.state is LedgerState.CLOSED:
        return source.metadata
    last_entry_id, length = await _Recovery(source).run()
    return await _close(source, version, manager, last_entry_id, length)


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


async def _close(
    source: LedgerSource, version: int, manager: LedgerManager, last_entry_id: int, length: int
) -> LedgerMetadata:
    metadata = source.metadata
    while metadata.state is not LedgerState.CLOSED:
        closed = metadata.closed(last_entry_id, length)
        try:
            await manager.write(source.ledger_id, closed, version)
            metadata = closed
        except BadVersionError:
            # Another recovery, or the writer itself, was faster: if it closed the ledger, its result is the result.
            metadata, version = await manager.read(source.ledger_id)
    return metadata


class _Recovery:
    """Reads forward from the LAC and re-adds what it finds, until an entry is proven not to exist."""

    def __init__(self, source: LedgerSource) -> None:
        self._source = source
        self._segment = source.metadata.last_segment
        self._channels = [source.bookies.channel(bookie_id) for bookie_id in self._segment.ensemble]
        self._pending: PendingAdds[PendingAdd]
        self._failure: LedgerError | None = None
        self._progress: asyncio.Future[None] | None = None

    async def run(self) -> tuple[int, int]:
        """(last entry id, length)."""
        lac = await LastConfirmedRead(self._source, fence=True).run()
        metadata = self._source.metadata
        self._pending = PendingAdds(metadata.write_quorum, metadata.ack_quorum, lac)
        last_entry_id, length = lac, -1
        while (found := await self._read(last_entry_id + 1)) is not None:
            packed, entry = found
            last_entry_id, length = entry.entry_id, entry.length
            self._add(last_entry_id, packed)
            await self._wait_below(READDS_UNDER_WAY_MAX)
        await self._wait_below(1)
        assert self._pending.lac == last_entry_id
        if length < 0:
            # Nothing lies behind the LAC: only that entry itself knows the length, maybe in the segment before (facts 6, row 3).
            length = await length_up_to(self._source, last_entry_id)
        return last_entry_id, length

    async def _read(self, entry_id: int) -> tuple[bytes, UnpackedEntry] | None:
        """The entry, packed as it was found and checked; None when it provably was never confirmed."""
        return await _RecoveryRead(self._source, self._segment.ensemble, entry_id).run()

    def _add(self, entry_id: int, packed: bytes) -> None:
        """Write the entry unchanged (same LAC and length) to its whole write set."""
        add = PendingAdd(entry_id, self._segment.ensemble)
        self._pending.push(add)
        source = self._source
        for index in source.write_sets[entry_id % len(source.write_sets)]:
            done = partial(self._on_added, add, index)
            self._channels[index].add_entry(source.ledger_id, entry_id, packed, source.master_key, _ADD_FLAGS, done)

    def _on_added(self, add: PendingAdd, index: int, code: int) -> None:
        if code != ReturnCode.OK:
            if self._pending.reject(add, index):
                self._failure = answer_error(code, self._source.ledger_id, add.entry_id)
        elif self._pending.acknowledge(add, index):
            while self._pending.pop_completed() is not None:
                pass
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def _wait_below(self, count: int) -> None:
        """Wait until fewer than `count` re-adds are under way."""
        while True:
            if self._failure is not None:
                raise LedgerRecoveryError(f"the tail could not be copied: {self._failure}") from self._failure
            if len(self._pending) < count:
                return
            self._progress = asyncio.get_running_loop().create_future()
            await self._progress


class _RecoveryRead:
    """One fencing read of one entry from its whole write set at once; the first sufficient proof decides."""

    def __init__(self, source: LedgerSource, ensemble: tuple[str, ...], entry_id: int) -> None:
        self._source = source
        self._ensemble = ensemble
        self._entry_id = entry_id
        self._vote = EntryVote(source.metadata.write_quorum, source.metadata.ack_quorum)
        self._answer: asyncio.Future[tuple[bytes, UnpackedEntry] | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> tuple[bytes, UnpackedEntry] | None:
        source = self._source
        for index in source.write_sets[self._entry_id % len(source.write_sets)]:
            channel = source.bookies.channel(self._ensemble[index])
            done = partial(self._on_answer, index)
            channel.read_entry(source.ledger_id, self._entry_id, _READ_FLAGS, source.master_key, done)
        return await self._answer

    def _on_answer(self, index: int, code: int, packed: bytes | None) -> None:
        if self._answer.done():
            return
        source = self._source
        error: LedgerError | None = None
        if code == ReturnCode.OK and packed is not None:
            try:
                entry = unpack_entry(packed, source.digest, source.ledger_id, self._entry_id)
            except DigestMismatchError as mismatch:
                error, verdict = mismatch, self._vote.unknown(index)
            else:
                self._vote.present(index)
                self._answer.set_result((packed, entry))
                return
        elif code in EXPLICIT_NEGATIVES:
            verdict = self._vote.absent(index)
        else:
            error, verdict = answer_error(code, source.ledger_id, self._entry_id), self._vote.unknown(index)
        if verdict is Verdict.ABSENT:
            self._answer.set_result(None)
        elif verdict is Verdict.UNDECIDABLE:
            text = f"ledger {source.ledger_id} entry {self._entry_id}: it cannot be decided whether it exists"
            failure = LedgerRecoveryError(
                f"{text} (the last bookie said: {error or 'no'}); open the ledger again later"
            )
            self._answer.set_exception(failure)
