"""The mark of a bookie that acknowledges before its disk has an entry: which boot of the machine it trusts.

A killed process loses nothing of what the operating system holds for it. A machine that goes down does, and the bookie would then deny
entries and forget fences that it has acknowledged, which a recovery believes (BookKeeper BP-46). So it does not start after that.
"""

from __future__ import annotations

import os
from typing import Final

from magnetar.bookkeeper.bookie.storage.disk import Disk, read_file, write_file
from magnetar.bookkeeper.errors import UnsyncedError

FILE_NAME: Final = "UNSYNCED"
_BYTES_MAX: Final = 256


class UnsyncedMark:
    """In the ledger directory, from the first start without fsync to the next clean stop. All calls block."""

    def __init__(self, disk: Disk, directory: str, boot_id: str) -> None:
        """`boot_id`: another one after every start of the machine; empty: nobody checks."""
        self._disk = disk
        self._path = os.path.join(directory, FILE_NAME)
        self._boot_id = boot_id

    def check(self) -> None:
        """Raises UnsyncedError when the machine went down under a bookie that did not sync."""
        found = read_file(self._disk, self._path, _BYTES_MAX)
        if found is not None and self._boot_id and found.decode(errors="replace") != self._boot_id:
            raise UnsyncedError(
                "this bookie ran with journalSyncData=false when the machine went down: it may have lost entries and fences that it has "
                "acknowledged, and would deny them. Decommission it and begin with empty directories under another bookieId; "
                f"or remove {self._path} if you know that nothing was written then"
            )

    def put(self) -> None:
        """What is acknowledged from now on may be lost when the machine goes down."""
        if self._boot_id:
            write_file(self._disk, self._path, self._boot_id.encode())

    def clear(self) -> None:
        """Everything is on disk."""
        if read_file(self._disk, self._path, _BYTES_MAX) is not None:
            self._disk.unlink(self._path)
            self._disk.fsync_dir(os.path.dirname(self._path))
