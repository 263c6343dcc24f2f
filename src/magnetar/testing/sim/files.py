"""The contents of a disk: files with their unsynced writes, directories with their unsynced names, and what a power cut leaves of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

SECTOR_BYTES: Final = 512
"""Written whole or not at all."""

Change = tuple[int, bytes]
"""(offset, bytes): a write; (size, b""): a truncation to that size."""


class Inode:
    """`content` is what a reader sees (the page cache), `synced` what the platter holds, `pending` the changes in between."""

    __slots__ = ("content", "pending", "synced")

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced = bytearray()
        self.pending: list[Change] = []

    def write(self, offset: int, data: bytes) -> None:
        if data:
            _write(self.content, offset, data)
            self.pending.append((offset, data))

    def truncate(self, size_bytes: int) -> None:
        _truncate(self.content, size_bytes)
        self.pending.append((size_bytes, b""))

    def sync(self) -> None:
        for offset, data in self.pending:
            if data:
                _write(self.synced, offset, data)
            else:
                _truncate(self.synced, offset)
        self.pending.clear()

    def forget(self) -> None:
        """A failed fsync: the kernel calls the pages clean, though they never reached the platter."""
        self.pending.clear()

    def cut_power(self, rng: random.Random) -> None:
        """Each dirty sector keeps one of the states it had since the last sync; a truncation is a barrier in between."""
        if self.pending:
            epochs = list(_epochs(self.pending))
            reached = rng.randrange(len(epochs))
            for changes in epochs[:reached]:
                for offset, data in changes:
                    _write(self.synced, offset, data) if data else _truncate(self.synced, offset)
            _tear(self.synced, epochs[reached], rng)
            if reached == len(epochs) - 1 and len(self.synced) < len(self.content) and rng.random() < 0.5:
                _truncate(self.synced, len(self.content))  # the size got there, the data did not
        self.pending.clear()
        self.content = bytearray(self.synced)


class Directory:
    """`names` is what `list` shows; the last `len(pending)` changes to it would not survive a power cut."""

    __slots__ = ("names", "pending", "synced")

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced: dict[str, Inode] = {}
        self.pending: list[dict[str, Inode | None]] = []

    def rename(self, source: str, target: str) -> None:
        self._change({source: None, target: self.names[source]})

    def put(self, name: str, inode: Inode | None) -> None:
        self._change({name: inode})

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.synced, change)
        self.pending.clear()

    def cut_power(self, rng: random.Random, ordered: bool) -> None:
        """`ordered`: a prefix of the changes survives, as in a journaling file system; else any of them may."""
        if self.pending:
            kept = rng.randrange(len(self.pending) + 1)
            for number, change in enumerate(self.pending):
                if number < kept if ordered else rng.random() < 0.5:
                    _apply(self.synced, change)
            self.pending.clear()
        self.names = dict(self.synced)
        for inode in self.names.values():
            inode.cut_power(rng)

    def _change(self, change: dict[str, Inode | None]) -> None:
        _apply(self.names, change)
        self.pending.append(change)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _truncate(content: bytearray, size_bytes: int) -> None:
    if size_bytes < len(content):
        del content[size_bytes:]
    else:
        content.extend(bytes(size_bytes - len(content)))


def _epochs(pending: list[Change]) -> Iterator[list[Change]]:
    """Split at truncations, each of which begins a part."""
    part: list[Change] = []
    for change in pending:
        if not change[1] and part:
            yield part
            part = []
        part.append(change)
    yield part


def _tear(synced: bytearray, changes: list[Change], rng: random.Random) -> None:
    """Apply what a power cut leaves of changes that are not ordered among each other."""
    mode = rng.choice(("nothing", "everything", "sectors", "sectors", "prefix"))
    if mode == "nothing":
        return
    versions: dict[int, list[Change]] = {}
    order: list[int] = []
    for offset, data in changes:
        if not data:
            if mode != "everything" and rng.random() < 0.5:
                return
            _truncate(synced, offset)
            continue
        for sector in range(offset // SECTOR_BYTES, (offset + len(data) - 1) // SECTOR_BYTES + 1):
            begin = max(offset, sector * SECTOR_BYTES)
            end = min(offset + len(data), (sector + 1) * SECTOR_BYTES)
            if sector not in versions:
                versions[sector] = []
                order.append(sector)
            versions[sector].append((begin, data[begin - offset : end - offset]))
    reached = rng.randrange(len(order) + 1) if mode == "prefix" else len(order)
    for sector in order[:reached]:
        parts = versions[sector]
        kept = rng.randrange(len(parts) + 1) if mode == "sectors" else len(parts)
        for begin, data in parts[:kept]:
            _write(synced, begin, data)
