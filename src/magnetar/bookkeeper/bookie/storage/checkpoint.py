"""The checkpoint mark: the journal up to (and with) this commit is not needed any more.

It moves only after everything journaled before it, flags and LACs included, is durable in entry logs and index, and never back.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Final

from magnetar.base.checksum import crc32c
from magnetar.base.errors import CorruptionError
from magnetar.bookkeeper.bookie.storage.disk import Disk, read_file, write_file

_MAGIC: Final = b"MGMARK01"
_BODY = Struct(">8sQ")
_CRC = Struct(">I")
FILE_NAME: Final = "checkpoint"


class CheckpointMark:
    """The mark file of one directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE_NAME)
        self.sequence = self._read()

    def advance(self, sequence: int) -> None:
        """Persist a higher mark; the same one is a no-op. Blocks."""
        assert sequence >= self.sequence, f"the mark would move back from {self.sequence} to {sequence}"
        if sequence == self.sequence:
            return
        body = _BODY.pack(_MAGIC, sequence)
        write_file(self._disk, self._path, body + _CRC.pack(crc32c(body)))
        self.sequence = sequence

    def _read(self) -> int:
        data = read_file(self._disk, self._path, _BODY.size + _CRC.size + 1)
        if data is None:
            return 0
        if len(data) != _BODY.size + _CRC.size or _CRC.unpack_from(data, _BODY.size)[0] != crc32c(data[: _BODY.size]):
            raise CorruptionError(f"the checkpoint mark {self._path} is damaged")
        magic, sequence = _BODY.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptionError(f"{self._path} is not a checkpoint mark of this version")
        return int(sequence)
