"""Requests that kazoo does not have, or not for a million names: tree watches (ZooKeeper 3.6), many creations at once, long lists."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from kazoo.protocol.serialization import write_string
from kazoo.security import ACL

from magnetar.base.errors import InvalidArgumentError

NAMES_PER_TURN: Final = 5_000
"""Of a list that came; then the event loop has its turn, some 1 ms later."""

CREATIONS_PER_REQUEST: Final = 250
CREATION_BYTES_PER_REQUEST: Final = 256 * 1024
"""Of one transaction; ZooKeeper takes 1 MiB (`jute.maxbuffer`), and others' writes wait behind it."""

VALUE_BYTES_MAX: Final = 1024 * 1024 - 1024
"""A larger value is refused: ZooKeeper would drop the connection (`jute.maxbuffer`, less the rest of the request)."""

_INT: Final = struct.Struct("!i")
_MULTI_HEADER: Final = struct.Struct("!i?i")
_CREATE: Final = 1
_ERROR: Final = -1
_END: Final = _MULTI_HEADER.pack(-1, True, -1)
_NO_FLAGS: Final = _INT.pack(0)
_CREATION_OVERHEAD: Final = 64
_PERSISTENT_RECURSIVE: Final = 1
_ANY_WATCHER: Final = 3


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Watch a node and everything below it until the connection ends."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + _INT.pack(_PERSISTENT_RECURSIVE)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    """End the watches that this connection has on exactly this path."""

    path: str
    type: ClassVar[int] = 18

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + _INT.pack(_ANY_WATCHER)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CreateAll:
    """All of the nodes with one value and one access list, or none of them. The answer: a code for each, 0 or ZooKeeper's errors."""

    paths: Sequence[str]
    value: bytes
    acl: Sequence[ACL]
    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        header = _MULTI_HEADER.pack(_CREATE, False, -1)
        rules = [_INT.pack(each.perms) + write_string(each.id.scheme) + write_string(each.id.id) for each in self.acl]
        tail = _INT.pack(len(self.value)) + self.value + _INT.pack(len(rules)) + b"".join(rules) + _NO_FLAGS
        return b"".join([header + write_string(path) + tail for path in self.paths]) + _END

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[int]:
        codes: list[int] = []
        while True:
            kind, done, _ = _MULTI_HEADER.unpack_from(data, offset)
            offset += _MULTI_HEADER.size
            if done:
                return codes
            (number,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            if kind == _ERROR:
                codes.append(number)
            else:  # a creation answers the path
                codes.append(0)
                offset += number


def check_size(path: str, value: bytes) -> None:
    """Raises InvalidArgumentError for a value that ZooKeeper would not take."""
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidArgumentError(f"{path}: a value of {len(value)} bytes; ZooKeeper takes {VALUE_BYTES_MAX}")


def batches(paths: Iterable[str], value: bytes) -> Iterator[list[str]]:
    """In order, as many together as a request may create."""
    batch: list[str] = []
    size = 0
    for path in paths:
        cost = len(path.encode()) + len(value) + _CREATION_OVERHEAD
        if batch and (len(batch) == CREATIONS_PER_REQUEST or size + cost > CREATION_BYTES_PER_REQUEST):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += cost
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class ListChildren:
    """The answer as it came, for `names_in`: kazoo would unpack it on its own thread and hold up its heartbeats meanwhile."""

    path: str
    type: ClassVar[int] = 8

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path)
        return encoded + b"\0"  # no watch

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> bytes:
        return data[offset:]


async def names_in(data: bytes) -> list[str]:
    """The sorted names of a list of strings, unpacked and sorted in pieces: others go on in between, however long it is."""
    (count,) = _INT.unpack_from(data, 0)
    offset = _INT.size
    runs: list[list[str]] = []
    for first in range(0, count, NAMES_PER_TURN):
        if first:
            await asyncio.sleep(0)
        run = []
        for _ in range(min(NAMES_PER_TURN, count - first)):
            start = offset + 4
            offset = start + int.from_bytes(data[offset:start], "big")
            run.append(data[start:offset].decode())
        run.sort()
        while runs and len(runs[-1]) <= len(run):  # merged like a binary counter: no single sort of everything
            run = runs.pop() + run
            run.sort()
        runs.append(run)
    while len(runs) > 1:
        last = runs.pop()
        runs[-1] += last
        runs[-1].sort()
    return runs[0] if runs else []
