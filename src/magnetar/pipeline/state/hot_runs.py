"""Runs as a process that works for many epochs keeps them: decoded, by path, as far as the memory for it goes.

A run never changes and its name never comes again, so what is here cannot be out of date: which runs count is what the manifest says,
and a process that has none of them, or that was killed, reads the files.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import polars as pl

HOT_BYTES: Final = 128 << 20
"""Of rows in one process; the runs that were not asked for longest go first."""


class HotRuns:
    """Whole runs, deletions included, in storage order. `largest_bytes`: of a run that is worth to be kept."""

    def __init__(self, bytes_max: int = HOT_BYTES) -> None:
        self._bytes_max = bytes_max
        self._held: OrderedDict[str, tuple[pl.DataFrame, int]] = OrderedDict()
        self.size_bytes = 0

    @property
    def largest_bytes(self) -> int:
        return self._bytes_max // 2

    def get(self, path: str) -> pl.DataFrame | None:
        found = self._held.get(path)
        if found is None:
            return None
        self._held.move_to_end(path)
        return found[0]

    def put(self, path: str, rows: pl.DataFrame) -> None:
        size = int(rows.estimated_size())
        if size > self.largest_bytes or path in self._held:
            return
        self._held[path] = (rows, size)
        self.size_bytes += size
        while self.size_bytes > self._bytes_max:
            _, (_, gone) = self._held.popitem(last=False)
            self.size_bytes -= gone
