"""Copying what a fragment's lost or incomplete bookies had to hold (BookKeeper client/LedgerFragmentReplicator).

An entry is copied as it was stored, byte for byte: the ledger's length up to it, its LAC and its digest stay what the writer made them.
The metadata names a new bookie only after everything it has to hold is on its disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.autorecovery.fragments import Fragment
from magnetar.bookkeeper.autorecovery.probes import Health, LedgerKeys, judge
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics
from magnetar.bookkeeper.client.bookies import BookieDirectory, answer_error
from magnetar.bookkeeper.codes import FLAG_RECOVERY_ADD, ReturnCode
from magnetar.bookkeeper.errors import EntryLostError, EntryUnreadableError


class ByteRate:
    """At most so many bytes per second, counted after the fact: `await take(size)` sleeps off what was too fast."""

    def __init__(self, bytes_per_s: int, clock: Clock) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = 0.0

    async def take(self, size_bytes: int) -> None:
        if self._bytes_per_s <= 0:
            return
        now_s = self._clock.monotonic_s()
        self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
        await asyncio.sleep(self._free_s - now_s)


class FragmentReplicator:
    """Copies `batch_size` entries at a time; a batch that has not ended after `timeout_s` fails."""

    def __init__(
        self,
        bookies: BookieDirectory,
        rate: ByteRate,
        statistics: AutoRecoveryStatistics,
        *,
        batch_size: int,
        timeout_s: float,
    ) -> None:
        self._bookies = bookies
        self._rate = rate
        self._statistics = statistics
        self._batch_size = batch_size
        self._timeout_s = timeout_s

    async def copy(
        self, keys: LedgerKeys, fragment: Fragment, bad: Mapping[int, Health], targets: Mapping[int, str]
    ) -> int:
        """Give the bookie `targets[index]` all that the one at `index` has to hold; answers the number of entries copied.

        Raises EntryLostError when all bookies of an entry deny it, EntryUnreadableError when none gave it, or the error of a bookie
        that would not take it. What was copied until then stays there and does no harm.
        """
        copied = 0
        entries = fragment.entries_of(tuple(targets))
        while batch := list(islice(entries, self._batch_size)):
            size_bytes = await self._copy_batch(keys, fragment, bad, targets, batch)
            copied += len(batch)
            self._statistics.entries_copied_total += len(batch)
            self._statistics.bytes_copied_total += size_bytes
            await self._rate.take(size_bytes)
        return copied

    async def rewrite(
        self, keys: LedgerKeys, fragment: Fragment, index: int, entries: Sequence[int]
    ) -> LedgerError | None:
        """Give the bookie at `index` these entries again, out of other bookies' copies, and nothing else.

        Answers why some of them were left as they are: no other copy is good. Raises the error of a bookie that would not take one.
        """
        problem: LedgerError | None = None
        target, bad = {index: fragment.ensemble[index]}, {index: Health.DAMAGED}
        for entry_id in entries:
            try:
                size_bytes = await self._copy_batch(keys, fragment, bad, target, [entry_id])
            except (EntryLostError, EntryUnreadableError) as error:
                problem = error  # the others may have a good copy
                continue
            self._statistics.copies_rewritten_total += 1
            self._statistics.bytes_copied_total += size_bytes
            await self._rate.take(size_bytes)
        return problem

    async def _copy_batch(
        self,
        keys: LedgerKeys,
        fragment: Fragment,
        bad: Mapping[int, Health],
        targets: Mapping[int, str],
        batch: Sequence[int],
    ) -> int:
        copies = [_EntryCopy(self._bookies, keys, fragment, bad, targets, entry_id) for entry_id in batch]
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _Batch(copies).run()
        except TimeoutError:
            text = f"ledger {keys.ledger_id}: entries {batch[0]} to {batch[-1]} were not copied within {self._timeout_s:g} s"
            raise EntryUnreadableError(text) from None
        except EntryLostError:
            self._statistics.entries_lost_total += 1
            raise


class _Batch:
    """Entries that are copied at once; the first failure ends it."""

    def __init__(self, copies: list[_EntryCopy]) -> None:
        self._copies = copies
        self._left = len(copies)
        self._size_bytes = 0
        self._answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Bytes written."""
        for copy in self._copies:
            copy.start(self)
        return await self._answer

    def done(self, error: LedgerError | None, size_bytes: int) -> None:
        if self._answer.done():
            return
        self._left -= 1
        self._size_bytes += size_bytes
        if error is not None:
            self._answer.set_exception(error)
        elif self._left == 0:
            self._answer.set_result(self._size_bytes)


class _EntryCopy:
    """Reads one entry from one bookie after the other until a copy is good, then writes it to all targets."""

    __slots__ = ("_batch", "_bookies", "_denied", "_entry_id", "_keys", "_left", "_packed", "_sources", "_targets")

    def __init__(
        self,
        bookies: BookieDirectory,
        keys: LedgerKeys,
        fragment: Fragment,
        bad: Mapping[int, Health],
        targets: Mapping[int, str],
        entry_id: int,
    ) -> None:
        self._bookies = bookies
        self._keys = keys
        self._entry_id = entry_id
        holders = fragment.holders(entry_id)
        # A bad copy is asked last: it may lack some other entry and have this one.
        order = sorted(
            (index for index in holders if bad.get(index) is not Health.GONE), key=lambda index: index in bad
        )
        self._sources = iter([fragment.ensemble[index] for index in order])
        self._targets = [targets[index] for index in holders if index in targets]
        self._denied = len(order) == len(holders)
        self._left = len(self._targets)
        self._packed = b""

    def start(self, batch: _Batch) -> None:
        self._batch = batch
        self._read()

    def _read(self) -> None:
        bookie_id = next(self._sources, None)
        if bookie_id is None:
            self._batch.done(self._failure(), 0)
            return
        keys = self._keys
        self._bookies.channel(bookie_id).read_entry(keys.ledger_id, self._entry_id, 0, keys.master_key, self._on_read)

    def _on_read(self, code: int, packed: bytes | None) -> None:
        health = judge(self._keys, self._entry_id, code, packed)
        if health is Health.GOOD and packed is not None:
            self._write(packed)
            return
        if health is not Health.ABSENT:
            self._denied = False
        self._read()

    def _write(self, packed: bytes) -> None:
        self._packed = packed
        keys = self._keys
        for bookie_id in self._targets:
            # The ledger is fenced wherever it was recovered: without the flag the bookie would refuse (BookKeeper issue 4163).
            self._bookies.channel(bookie_id).add_entry(
                keys.ledger_id, self._entry_id, packed, keys.master_key, FLAG_RECOVERY_ADD, self._on_added
            )

    def _on_added(self, code: int) -> None:
        self._left -= 1
        if code != ReturnCode.OK:
            self._batch.done(answer_error(code, self._keys.ledger_id, self._entry_id), 0)
        elif self._left == 0:
            self._batch.done(None, len(self._packed) * len(self._targets))

    def _failure(self) -> LedgerError:
        where = f"ledger {self._keys.ledger_id} entry {self._entry_id}"
        if self._denied:
            return EntryLostError(f"{where}: all its bookies are there and none has it")
        return EntryUnreadableError(f"{where}: none of its bookies that are there gave it; bring a lost one back")
