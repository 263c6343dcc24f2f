"""The commit mark: a small file beside the metadata file that says which transaction was committed last.

SQLite ends the replay of its write-ahead log at the first frame whose checksum does not match, and says nothing: that is how it recognises
the torn end of a transaction that was under way during a crash. A damaged frame in the middle looks the same, so every commit behind it
would vanish without a word, and so would they all if the log were deleted or an older copy of the file were put in its place. The mark is
the second witness: a store that ends before its mark has lost acknowledged commits, and is not opened.

The mark is written after each commit and before the commit is answered, so it is never ahead of the file. A background thread syncs it
within `SYNC_INTERVAL_S`. A process that is killed therefore loses nothing of it; after a power cut it may name a commit of that interval
before the cut, and whatever of these last commits is damaged as well cannot be told from a torn tail.

Layout: two slots of 48 bytes at offsets 0 and 4096, written in turn, the higher valid one counts:
`magic 8 | store id 16 | transaction u64 | zeros 12 | CRC32C of what is before u32`, big-endian.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from magnetar.base.checksum import crc32c
from magnetar.base.errors import CorruptionError

SYNC_INTERVAL_S: Final = 0.1
"""How long a mark may wait for its fsync, which it shares with the marks of the commits that follow meanwhile."""

STORE_ID_BYTES: Final = 16

_MAGIC: Final = b"MGMARK\x00\x01"
_SLOT: Final = Struct(">8s16sQ12xI")
_SLOT_OFFSETS: Final = (0, 4096)
_FILE_BYTES: Final = 8192


class Mark(NamedTuple):
    """Store `store_id` has committed the transaction `zxid`."""

    store_id: bytes
    zxid: int


def mark_path(file: Path) -> Path:
    """Of the mark that belongs to a metadata file."""
    return Path(f"{file}-mark")


def read_mark(file: Path) -> Mark | None:
    """The mark of a metadata file; None when there is none. Raises CorruptionError when neither slot is valid. Blocks.

    One invalid slot is what a crash during the write leaves.
    """
    path = mark_path(file)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    marks = [mark for offset in _SLOT_OFFSETS if (mark := _unpack(data[offset : offset + _SLOT.size])) is not None]
    if not marks:
        raise CorruptionError(
            f"the commit mark {path} is damaged, so nobody can tell whether {file} is complete; restore both from a copy, or "
            f"accept the file as it is: magnetar metadata salvage {file.parent}"
        )
    return max(marks, key=lambda mark: mark.zxid)


def _unpack(slot: bytes) -> Mark | None:
    if len(slot) != _SLOT.size:
        return None
    magic, store_id, zxid, crc = _SLOT.unpack(slot)
    return Mark(store_id, zxid) if magic == _MAGIC and crc == crc32c(slot[:-4]) else None


class CommitMark:
    """The mark of one open store. `write` is called by the thread that commits."""

    def __init__(self, file: Path, mark: Mark) -> None:
        """Replaces what was there, durably. Raises OSError. Blocks."""
        self._store_id = mark.store_id
        path = mark_path(file)
        temporary = path.with_name(path.name + ".tmp")
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._descriptor, _FILE_BYTES)
            self._turn = 0
            self._put(mark.zxid)
            self._put(mark.zxid)
            os.fsync(self._descriptor)
            os.replace(temporary, path)
            _sync_directory(path.parent)
        except OSError:
            os.close(self._descriptor)
            raise
        self._error: OSError | None = None
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._sync, name="metadata-mark", daemon=True)
        self._thread.start()

    def write(self, zxid: int) -> None:
        """`zxid` has been committed. Raises OSError, also for a sync that failed before."""
        if self._error is not None:
            raise self._error
        self._put(zxid)
        self._dirty.set()

    def close(self) -> None:
        """Durable afterwards, unless the disk fails. Blocks."""
        self._closing.set()
        self._dirty.set()
        self._thread.join()
        try:
            if self._error is None:
                os.fdatasync(self._descriptor)  # the thread may have ended between a mark and its sync
        except OSError as error:
            self._error = error
        finally:
            os.close(self._descriptor)

    def _put(self, zxid: int) -> None:
        head = _SLOT.pack(_MAGIC, self._store_id, zxid, 0)[:-4]
        os.pwrite(self._descriptor, head + crc32c(head).to_bytes(4, "big"), _SLOT_OFFSETS[self._turn])
        self._turn ^= 1

    def _sync(self) -> None:
        while not self._closing.is_set():
            self._dirty.wait()
            self._closing.wait(SYNC_INTERVAL_S)
            self._dirty.clear()
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                self._error = error
                return


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
