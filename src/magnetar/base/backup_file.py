"""The file that every backup is written to: checked records between a magic number and a seal.

    MGBKUP01 | record | record | ... | seal

A record is its length (4 bytes, big-endian: kind and body), its kind (1 byte), its body, and the CRC-32C of all that (4 bytes). The seal is
a record as well: JSON with the number of records of each kind and the SHA-256 of every byte before it. Nothing follows the seal. So any
flipped bit, any missing or foreign record and any cut is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import IO, Any, Final

from magnetar.base.checksum import crc32c_extend
from magnetar.base.errors import CorruptionError, InvalidArgumentError, MagnetarError, StorageError

MAGIC: Final = b"MGBKUP01"

HEADER_KIND: Final = 1
SEAL_KIND: Final = 255

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""A record that says it is longer is damaged: neither a metadata value nor an entry may be."""

_HEAD: Final = Struct(">IB")
_CRC: Final = Struct(">I")
_PRIVATE: Final = 0o600
"""A backup holds ledger passwords, policies and messages: only its owner reads it."""


class BackupEncoder:
    """The bytes of a backup, piece by piece: `begin`, any number of `add`, `seal`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._counts: dict[int, int] = {}

    def begin(self, header: dict[str, Any]) -> bytes:
        self._hash.update(MAGIC)
        return MAGIC + self.add(HEADER_KIND, json.dumps(header).encode())

    def add(self, kind: int, body: bytes) -> bytes:
        """A record."""
        assert len(body) < RECORD_BYTES_MAX, "a record has a bound"
        self._counts[kind] = self._counts.get(kind, 0) + 1
        head = _HEAD.pack(len(body) + 1, kind)
        data = head + body + _CRC.pack(crc32c_extend(crc32c_extend(0, head), body))
        self._hash.update(data)
        return data

    def seal(self) -> bytes:
        """The last record; nothing follows."""
        seal = {
            "counts": {str(each): count for each, count in self._counts.items()},
            "sha256": self._hash.hexdigest(),
        }
        return self.add(SEAL_KIND, json.dumps(seal).encode())


class NewFile:
    """`with NewFile(path) as out: out.write(data)`: a private file that has its name only once all of it is on disk.

    Raises InvalidArgumentError when the file exists and `force` is not set, StorageError when it cannot be written. When the body raises,
    nothing is left behind.
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path = path
        self._force = force
        self.unfinished = path.with_name(path.name + ".unfinished")

    def __enter__(self) -> NewFile:
        if self.path.exists() and not self._force:
            raise InvalidArgumentError(f"{self.path} exists; choose another file, or pass --force to overwrite it")
        try:
            with suppress(FileNotFoundError):  # of a backup that was broken off; its mode may be another one
                self.unfinished.unlink()
            descriptor = os.open(self.unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}; choose another file") from error
        self._file: IO[bytes] = os.fdopen(descriptor, "wb", buffering=1 << 20)
        return self

    def write(self, data: bytes) -> None:
        """Raises StorageError."""
        try:
            self._file.write(data)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror}; make room or choose another file"
            ) from error

    def flush(self) -> None:
        """Let `unfinished` be read as far as it was written. Raises StorageError."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror}; make room or choose another file"
            ) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self.flush()
            self._file.close()
            if self._force:
                self.unfinished.replace(self.path)
            else:
                os.link(self.unfinished, self.path)  # fails if somebody else has made the file meanwhile
                self.unfinished.unlink()
            fsync_directory(self.path.parent)
        except OSError as failure:
            self._discard()
            raise StorageError(f"cannot write {self.path}: {failure.strerror}") from failure
        except MagnetarError:
            self._discard()
            raise

    def _discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.unfinished.unlink()


class BackupReader:
    """`with BackupReader(path) as backup: for kind, body in backup.records(): ...`; `header` is read when it is entered.

    Raises CorruptionError for whatever differs from what was written, InvalidArgumentError for a file that cannot be opened. Trust what
    was read only when `records` has ended: the seal comes last.
    """

    def __init__(self, path: Path, progress: Callable[[int, int | None], None] = lambda done, total: None) -> None:
        """`progress(bytes read, bytes of the file)` is told after every record."""
        self.path = path
        self.header: dict[str, Any] = {}
        self.counts: dict[int, int] = {}
        """Records by kind, the seal excepted."""
        self.sha256 = ""
        """Of everything before the seal, known once it was reached."""
        self._progress = progress
        self._hash = hashlib.sha256()
        self._offset = 0

    def __enter__(self) -> BackupReader:
        try:
            self._file = self.path.open("rb", buffering=1 << 20)
            self.size_bytes = self.path.stat().st_size
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {self.path}: {error.strerror}; name a backup's file") from error
        try:
            if self._take(len(MAGIC)) != MAGIC:
                raise CorruptionError(f"{self.path} is not a backup of magnetar, or its first bytes are damaged")
            kind, body = self._record()
            header = self._json(body)
            if kind != HEADER_KIND or not isinstance(header, dict):
                raise self._damaged("it has no header")
            self.header = header
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(kind, body) of every record between header and seal. Raises CorruptionError."""
        while True:
            digest = self._hash.hexdigest()
            kind, body = self._record()
            if kind == SEAL_KIND:
                break
            yield kind, body
            self._progress(self._offset, self.size_bytes)
        del self.counts[SEAL_KIND]
        counts = {str(each): count for each, count in self.counts.items()}
        if self._json(body) != {"counts": counts, "sha256": digest}:
            raise self._damaged("its seal does not fit its content")
        if self._offset != self.size_bytes:
            raise self._damaged(f"{self.size_bytes - self._offset} bytes follow its seal")
        self.sha256 = digest
        self._progress(self._offset, self.size_bytes)

    def _record(self) -> tuple[int, bytes]:
        head = self._take(_HEAD.size)
        size, kind = _HEAD.unpack(head)
        if not 1 <= size <= RECORD_BYTES_MAX:
            raise self._damaged(f"a record says that it has {size} bytes")
        body = self._take(size - 1)
        if _CRC.unpack(self._take(_CRC.size))[0] != crc32c_extend(crc32c_extend(0, head), body):
            raise self._damaged("a record does not match its checksum")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind, body

    def _take(self, size: int) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise CorruptionError(f"{self.path} cannot be read at byte {self._offset}: {error.strerror}") from error
        if len(data) != size:
            raise self._damaged("it ends before its seal: the copy was cut off")
        self._hash.update(data)
        self._offset += size
        return data

    def _json(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, why: str) -> CorruptionError:
        return CorruptionError(f"the backup {self.path} is damaged before byte {self._offset}: {why}; use another one")


def fsync_directory(path: Path) -> None:
    """Make a rename in the directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
