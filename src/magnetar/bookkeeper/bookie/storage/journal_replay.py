"""Reads the journal after a crash: every commit above the checkpoint mark, in order, or a CorruptionError.

What may be missing is the tail of the newest file: the commit under way when the process or the machine died. It was not
acknowledged and is cut off once. Anything else that is missing or damaged stops the bookie: it would be acknowledged data.

One copy alone cannot tell a last commit that was torn from one that was whole, acknowledged and then damaged. So the entries in it that
match their own digest are kept: to hold an entry that was never acknowledged does no harm, and of a damaged commit only what was hit
is missing, which the other copies have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from magnetar.base.checksum import crc32c
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.config import ENTRY_BYTES_MAX
from magnetar.bookkeeper.bookie.storage.disk import Disk
from magnetar.bookkeeper.bookie.storage.journal_format import (
    COMMIT_HEADER_BYTES,
    COMMIT_MAGIC,
    FILE_HEADER_BYTES,
    IDS_BYTES,
    FileHeader,
    unpack_commit_header,
    unpack_file_header,
    unpack_records,
)
from magnetar.bookkeeper.entry_format import Digest, DigestType, peek_ids, unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError

_DIGEST = Digest(DigestType.CRC32C)

SUFFIX = ".journal"
SPARE_SUFFIX = ".spare"
"""A trimmed file kept for reuse; its content means nothing."""
NEXT = "next"
"""A file on its way to become the newest one."""


def file_name(first_sequence: int) -> str:
    """Names sort like sequences."""
    return f"{first_sequence:016x}{SUFFIX}"


def journal_files(disk: Disk, directory: str) -> list[str]:
    """Names of the journal's files, oldest first."""
    return [name for name in disk.list(directory) if name.endswith(SUFFIX)]


def spare_files(disk: Disk, directory: str) -> list[str]:
    """Names of the files kept for reuse."""
    return [name for name in disk.list(directory) if name.endswith(SPARE_SUFFIX)]


def first_sequence_of(name: str) -> int:
    """The sequence of the first commit of the file called `name`."""
    try:
        return int(name.removesuffix(SUFFIX), 16)
    except ValueError:
        raise CorruptionError(f"journal file {name} has a strange name; remove it if it is not magnetar's") from None


@dataclass(slots=True)
class ReplayResult:
    """What a replay saw."""

    last_sequence: int = 0
    commits: int = 0
    records: int = 0
    size_bytes: int = 0
    torn_bytes: int = 0
    """Of the last commit, when it could not be read."""
    salvaged: list[bytes] = field(default_factory=list)
    """Entries out of that commit."""
    torn_ledgers: set[int] = field(default_factory=set)
    """Ledgers whose entries that commit seems to hold, whole or not: a damaged record may name a wrong one."""


def replay(disk: Disk, directory: str, mark: int, result: ReplayResult) -> Iterator[list[bytes]]:
    """Yield the records of each commit with a sequence above `mark`; `result` is filled on the way.

    A last list, empty, comes before an unreadable end is cut off: what `result.salvaged` holds must be made durable elsewhere first.
    """
    names = journal_files(disk, directory)
    result.last_sequence = mark
    if not names:
        if mark:
            raise CorruptionError(f"the journal in {directory} is gone although the checkpoint mark is {mark}")
        return
    if first_sequence_of(names[0]) > mark + 1:
        raise CorruptionError(f"the journal begins at {names[0]}, after the checkpoint mark {mark}: a file is missing")
    expected = first_sequence_of(names[0])
    for position, name in enumerate(names):
        if first_sequence_of(name) != expected:
            raise CorruptionError(f"journal file {name} does not follow commit {expected - 1}: commits are missing")
        following = first_sequence_of(names[position + 1]) if position + 1 < len(names) else None
        if following is not None and following <= mark + 1:
            expected = following
            continue
        file = _File(disk, directory, name, expected)
        yield from file.commits(following, mark, result)
        expected = file.expected
        if following is None:
            result.salvaged, result.torn_ledgers = file.entries_in_torn_commit()
            if result.salvaged:
                yield []
            file.cut(result)
    if expected - 1 < mark:
        raise CorruptionError(f"the journal ends at commit {expected - 1}, before the checkpoint mark {mark}")
    result.last_sequence = expected - 1


class _File:
    """One journal file under replay; `expected` is the sequence of the next commit, `offset` where it should begin."""

    def __init__(self, disk: Disk, directory: str, name: str, expected: int) -> None:
        self._disk = disk
        self._path = os.path.join(directory, name)
        self._name = name
        self.expected = expected
        self.offset = FILE_HEADER_BYTES
        file = disk.open_read(self._path)
        try:
            self._data = file.read_at(0, file.size_bytes())
        finally:
            file.close()
        self._header: FileHeader = unpack_file_header(self._data, name)
        if self._header.first_sequence != expected:
            raise CorruptionError(f"journal file {name} says that it begins at {self._header.first_sequence}")

    def commits(self, following: int | None, mark: int, result: ReplayResult) -> Iterator[list[bytes]]:
        data, salt = self._data, self._header.salt
        while self.expected != following:
            header = unpack_commit_header(data, self.offset, salt)
            start = self.offset + COMMIT_HEADER_BYTES
            if header is None or header.sequence != self.expected or start + header.body_bytes > len(data):
                break
            body = data[start : start + header.body_bytes]
            if crc32c(body) != header.body_crc:
                break
            if self.expected > mark:
                records = unpack_records(body, f"journal file {self._name} commit {self.expected}")
                result.commits += 1
                result.records += len(records)
                result.size_bytes += len(body)
                yield records
            self.expected += 1
            self.offset = start + header.body_bytes
        if following is not None and self.expected != following:
            raise CorruptionError(
                f"journal file {self._name} is damaged at offset {self.offset}: "
                f"commits {self.expected} to {following - 1} cannot be read"
            )
        if following is None:
            self._refuse_damage_before_good_commits()

    def _refuse_damage_before_good_commits(self) -> None:
        position = self._data.find(COMMIT_MAGIC, self.offset)
        while position != -1:
            header = unpack_commit_header(self._data, position, self._header.salt)
            if header is not None and header.sequence > self.expected:
                raise CorruptionError(
                    f"journal file {self._name} is damaged at offset {self.offset}: commit {self.expected} cannot be read, "
                    f"but commit {header.sequence} follows at offset {position}"
                )
            position = self._data.find(COMMIT_MAGIC, position + 1)

    def entries_in_torn_commit(self) -> tuple[list[bytes], set[int]]:
        """Whole entries behind the last good commit that match their own digest (CRC32C, as all brokers write them), and the ledgers that
        any of the entries there name."""
        data = self._data
        found: list[bytes] = []
        ledgers: set[int] = set()
        offset = self.offset + COMMIT_HEADER_BYTES
        while offset + 4 <= len(data):
            size = int.from_bytes(data[offset : offset + 4], "big")
            if not IDS_BYTES <= size <= ENTRY_BYTES_MAX or offset + 4 + size > len(data):
                break
            record = data[offset + 4 : offset + 4 + size]
            offset += 4 + size
            if size >= _DIGEST.payload_offset:
                ledger_id, entry_id, _ = peek_ids(record)
                ledgers.add(ledger_id)
                with suppress(DigestMismatchError):
                    unpack_entry(record, _DIGEST, ledger_id, entry_id)
                    found.append(record)
        return found, ledgers

    def cut(self, result: ReplayResult) -> None:
        """Drop what follows the last whole commit, durably."""
        if self.offset == len(self._data):
            return
        result.torn_bytes = len(self._data[self.offset :].rstrip(b"\0"))
        file = self._disk.open_append(self._path)
        try:
            file.truncate(self.offset)
            file.fsync()
        finally:
            file.close()
