"""A managed ledger factory over bookies in memory, and short words for what its tests do all the time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import TaskScope
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from tests.unit.bookkeeper.fake_bookies import Cluster

NAME = "tenant/ns/persistent/topic"


class HandClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class LedgerHarness:
    """One cluster; `broker` gives a factory as another process would have it."""

    def __init__(self, size: int = 1) -> None:
        self.cluster = Cluster(size)
        self.metadata = self.cluster.metadata
        self.clock = HandClock()
        self._seed = 100

    @asynccontextmanager
    async def broker(self, *, last_turns: int = 20) -> AsyncIterator[ManagedLedgerFactory]:
        """Left without closing anything, like a process that is killed; what was planned has `last_turns` of the loop to start."""
        self._seed += 1
        async with TaskScope("broker") as scope:
            yield ManagedLedgerFactory(
                self.metadata, self.cluster.new_client(self._seed), self.clock, scope, random.Random(self._seed)
            )
            for _ in range(last_turns):
                await asyncio.sleep(0)


class Appends:
    """Answers of appends in the order in which they came."""

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, MagnetarError | None, Position]] = []

    def append(self, ledger: ManagedLedger, data: bytes) -> None:
        ledger.append(data, lambda error, lid, eid: self.answers.append((data, error, Position(lid, eid))))

    async def wait(self, count: int) -> list[Position]:
        await until(lambda: len(self.answers) >= count)
        return [position for _, _, position in self.answers]

    @property
    def stored(self) -> list[bytes]:
        return [data for data, error, _ in self.answers if error is None]

    @property
    def errors(self) -> list[MagnetarError]:
        return [error for _, error, _ in self.answers if error is not None]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Let the loop run until the condition holds; after some turns without it, leave the processor to other threads."""
    turns = 0
    async with asyncio.timeout(timeout_s):
        while not condition():
            turns += 1
            await asyncio.sleep(0 if turns < 200 else 0.0005)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def append_all(ledger: ManagedLedger, payloads: Sequence[bytes]) -> list[Position]:
    """Append, wait until all are stored, answer their positions."""
    appends = Appends()
    for payload in payloads:
        appends.append(ledger, payload)
    positions = await appends.wait(len(payloads))
    assert appends.stored == list(payloads)
    return positions


async def read(cursor: ManagedCursor, max_entries: int = 100, max_bytes: int = 1 << 20) -> list[Entry]:
    """One read, its error raised."""
    answer: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, entries: list[Entry]) -> None:
        if error is None:
            answer.set_result(entries)
        else:
            answer.set_exception(error)

    cursor.read(max_entries, max_bytes, done)
    async with asyncio.timeout(60):
        return await answer


async def read_all(cursor: ManagedCursor, max_entries: int = 100) -> list[bytes]:
    found: list[bytes] = []
    while cursor.has_more:
        found += [entry.data for entry in await read(cursor, max_entries)]
    return found


async def replay(cursor: ManagedCursor, positions: Sequence[Position]) -> list[Entry]:
    answer: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None, entries: list[Entry]) -> None:
        if error is None:
            answer.set_result(entries)
        else:
            answer.set_exception(error)

    cursor.replay(positions, done)
    async with asyncio.timeout(60):
        return await answer


async def acknowledge(cursor: ManagedCursor, positions: Sequence[Position]) -> None:
    """Acknowledge and wait until it is durable."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: MagnetarError | None) -> None:
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)

    cursor.acknowledge(positions, done)
    async with asyncio.timeout(60):
        await answer
