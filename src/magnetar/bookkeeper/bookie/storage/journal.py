"""The journal: every acknowledged change is in it before the answer. Group commit without a timer.

Records of one turn of the event loop form a commit when the journal is idle; while an fsync runs, whatever arrives forms the
next one. One hop to the journal's thread per commit (pack, write, fdatasync), then the callbacks in order on the loop. Records that
were added together, a run, are in one commit and have one callback.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import operator
import os
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from magnetar.base.errors import DiskFullError, StorageError
from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.storage.disk import Disk, DiskFile
from magnetar.bookkeeper.bookie.storage.journal_format import FILE_HEADER_BYTES, pack_commit, pack_file_header
from magnetar.bookkeeper.bookie.storage.journal_replay import (
    NEXT,
    SPARE_SUFFIX,
    file_name,
    first_sequence_of,
    journal_files,
    spare_files,
)
from magnetar.bookkeeper.bookie.storage.latencies import Latencies
from magnetar.bookkeeper.codes import ReturnCode

Done = Callable[[int], None]

_logger = logging.getLogger(__name__)

_ANSWERS_PER_TURN = 256
"""Records of one commit that are answered before the loop serves everybody else; each may take a receipt to a client."""

_OK = int(ReturnCode.OK)


def ignore(code: int) -> None:
    """The callback of a record whose durability nobody waits for."""


class _Run(NamedTuple):
    """Records that are durable together. None of them: who waits only wants to know of those before."""

    records: list[bytes]
    size_bytes: int
    done: Done


_records_of = operator.itemgetter(0)


def _call(runs: Iterable[_Run], code: int) -> None:
    for run in runs:
        try:
            run.done(code)
        except Exception:  # the entries behind it belong to others
            _logger.exception("the callback of an add failed")


class Journal:
    """`append` on the loop, `run` as its task, `trim` on the storage thread. `on_fatal(error)` is called once when a write or an
    fsync failed for good: nothing of that commit and nothing after it is ever acknowledged."""

    __slots__ = (
        "_batch_bytes",
        "_carried",
        "_directory",
        "_disk",
        "_executor",
        "_file",
        "_file_bytes_max",
        "_filled",
        "_fsync",
        "_idle",
        "_offset",
        "_oldest_s",
        "_on_fatal",
        "_on_full",
        "_preallocate",
        "_rng",
        "_runs",
        "_salt",
        "_sequence",
        "_spares_max",
        "_wakeup",
        "add_latency",
        "commits_total",
        "durable_sequence",
        "failed",
        "fsyncs_total",
        "pending_bytes",
        "queued",
        "records_total",
        "size_bytes_total",
        "sync_latency",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        executor: Executor,
        rng: random.Random,
        last_sequence: int,
        on_fatal: Callable[[StorageError], None],
        on_full: Callable[[DiskFullError], None],
    ) -> None:
        self._disk = disk
        self._directory = config.journal_path
        self._executor = executor
        self._rng = rng
        self._file_bytes_max = config.journal_file_bytes
        self._batch_bytes = config.journal_batch_bytes
        self._preallocate = config.journal_preallocate_bytes
        self._spares_max = config.journal_spare_files
        self._fsync = not config.unsafe_no_fsync
        self._on_fatal = on_fatal
        self._on_full = on_full
        self._runs: list[_Run] = []
        self._carried: list[bytes] = []
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._file: DiskFile | None = None
        self._salt = b""
        self._offset = 0
        self._filled = 0
        self._sequence = last_sequence
        self.durable_sequence = last_sequence
        self.failed: StorageError | None = None
        self.pending_bytes = 0
        self.queued = 0
        """Records that wait for the next commit."""
        self.commits_total = 0
        self.fsyncs_total = 0
        self.records_total = 0
        self.size_bytes_total = 0
        self._oldest_s = 0.0
        self.sync_latency = Latencies()
        """Of whole commits: pack, write, fsync."""
        self.add_latency = Latencies()
        """Of the record of each commit that waited longest: an upper bound for all records of it."""

    def append(self, record: bytes, done: Done) -> None:
        """Queue a record; `done(code)` runs in order, with OK once it is durable. The caller keeps `pending_bytes` bounded."""
        self.append_run([record], len(record), done)

    def append_run(self, records: list[bytes], size_bytes: int, done: Done) -> None:
        """The same for records that go into one commit; `size_bytes` is that of all of them, and `done` runs once."""
        if not self._runs:
            self._wakeup.set()
            self._oldest_s = asyncio.get_running_loop().time()
        self._runs.append(_Run(records, size_bytes, done))
        self.queued += len(records)
        self.pending_bytes += size_bytes

    def when_durable(self, done: Done) -> None:
        """`done(code)` with OK once everything appended so far is durable; at once when it is."""
        if self._runs or not self._idle.is_set():
            self.append_run([], 0, done)
        else:
            done(_OK if self.failed is None else int(ReturnCode.IO_ERROR))

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._runs:
                self._idle.clear()
                await self._commit_some()
            self._idle.set()

    async def drain(self) -> None:
        """Return when everything appended so far has been answered."""
        while self._runs or not self._idle.is_set():
            await self._idle.wait()
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Close the file. `run` must have ended."""
        if self._file is not None:
            await self._executor.run(self._file.close)
            self._file = None

    def trim(self, mark: int) -> int:
        """Remove files that hold nothing above `mark`, or keep them for reuse; returns how many. Blocks."""
        names = journal_files(self._disk, self._directory)
        spares = len(spare_files(self._disk, self._directory))
        removed = 0
        for name, following in itertools.pairwise(names):
            if first_sequence_of(following) > mark + 1:
                break
            path = os.path.join(self._directory, name)
            if spares < self._spares_max:
                self._disk.rename(path, path + SPARE_SUFFIX)
                spares += 1
            else:
                self._disk.unlink(path)
            removed += 1
        if removed:
            self._disk.fsync_dir(self._directory)
        return removed

    async def _commit_some(self) -> None:
        oldest_s, now_s = self._oldest_s, asyncio.get_running_loop().time
        runs, size = self._take()
        started_s = self._oldest_s = now_s()
        records = list(itertools.chain.from_iterable(map(_records_of, runs)))
        self.queued -= len(records)
        carried = self._carried
        code = _OK
        if self.failed is not None:
            code = int(ReturnCode.IO_ERROR)
        elif records or carried:
            try:
                await self._executor.run(self._write, carried + records if carried else records)
            except DiskFullError as error:
                # Keys, fences and LACs are in memory already, and later records build on them: they go with the next commit.
                self._carried = carried + [record for record in records if record[8] & 0x80]
                code = int(ReturnCode.READ_ONLY)
                self._on_full(error)
            except StorageError as error:
                self.failed = error
                code = int(ReturnCode.IO_ERROR)
                self._on_fatal(error)
            else:
                self._carried = []
                self.durable_sequence = self._sequence
                self.commits_total += 1
                self.records_total += len(records)
                self.size_bytes_total += size
                ended_s = now_s()
                self.sync_latency.add(1000 * (ended_s - started_s))
                self.add_latency.add(1000 * (ended_s - oldest_s))
        self.pending_bytes -= size
        await self._answer(runs, code)

    async def _answer(self, runs: list[_Run], code: int) -> None:
        """In order; between some of many the loop serves everybody else."""
        answered, left = 0, _ANSWERS_PER_TURN
        try:
            for number, run in enumerate(runs):
                if left <= 0:
                    turn, answered, left = runs[answered:number], number, _ANSWERS_PER_TURN
                    _call(turn, code)
                    await asyncio.sleep(0)
                left -= len(run.records) or 1
        finally:
            _call(runs[answered:], code)  # the last ones; all that are left when the bookie is being closed

    def _take(self) -> tuple[list[_Run], int]:
        """Runs for one commit, and their bytes."""
        runs = self._runs
        if self.pending_bytes <= self._batch_bytes:
            self._runs = []
            return runs, self.pending_bytes
        size = 0
        count = 0
        for run in runs:
            size += run.size_bytes
            count += 1
            if size >= self._batch_bytes:
                break
        self._runs = runs[count:]
        return runs[:count], size

    # ---- On the journal's thread

    def _write(self, records: list[bytes]) -> None:
        file = self._file
        if file is None or self._offset >= self._file_bytes_max:
            file = self._next_file()
        header, body = pack_commit(self._sequence + 1, self._salt, records)
        end = self._offset + len(header) + len(body)
        if end > self._filled:
            self._fill(file, end)
        file.write_at(self._offset, (header, body))
        if self._fsync:
            file.fsync()
            self.fsyncs_total += 1
        self._offset = end
        self._sequence += 1

    def _fill(self, file: DiskFile, end: int) -> None:
        target = min(end + self._preallocate, max(self._file_bytes_max, end))
        self._filled = end
        if target > end:
            try:
                file.write_at(end, (bytes(target - end),))
            except DiskFullError:
                return  # the commit itself may still find room
            self._filled = target

    def _next_file(self) -> DiskFile:
        if self._file is not None:
            self._file.close()
            self._file = None
        path = os.path.join(self._directory, file_name(self._sequence + 1))
        fresh = os.path.join(self._directory, NEXT)
        spares = spare_files(self._disk, self._directory)
        if spares:
            self._disk.rename(os.path.join(self._directory, spares[0]), fresh)
        file = self._disk.open_append(fresh)
        salt = self._rng.getrandbits(64)
        file.write_at(0, (pack_file_header(self._sequence + 1, salt),))
        file.fsync()
        self._disk.rename(fresh, path)
        self._disk.fsync_dir(self._directory)
        self._file = file
        self._salt = salt.to_bytes(8, "big")
        self._offset = FILE_HEADER_BYTES
        self._filled = file.size_bytes()
        return file
