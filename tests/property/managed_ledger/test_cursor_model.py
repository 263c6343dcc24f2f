"""A managed ledger with one cursor against a list: appends, reads, acknowledgements, resets, trims, crashes, in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.managed_ledger.append_pipeline import WRITE_FAILED_PAUSE_MAX_S
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.managed_ledger.ledger_harness import (
    NAME,
    Appends,
    LedgerHarness,
    acknowledge,
    append_all,
    read,
    read_all,
    until,
)

CONFIG = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=7, cursor_ledger_max_entries=5)


class CursorAgainstList(RuleBasedStateMachine):
    """`written` maps data to position in append order; `acked` is what was acknowledged durably, `seen` what reads gave out."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.harness = LedgerHarness()
        self.broker = AsyncExitStack()
        self.written: list[tuple[bytes, Position]] = []
        self.acked: set[bytes] = set()
        self.count = 0
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def _open(self) -> None:
        factory = await self.broker.enter_async_context(self.harness.broker())
        self.factory = factory
        self.ledger = await factory.open(NAME, CONFIG)
        self.cursor = await self.ledger.open_cursor("sub", initial=EARLIEST)

    def teardown(self) -> None:
        self.run(self.broker.aclose())
        self.loop.close()

    # ---- Rules

    @rule(count=st.integers(1, 12))
    def append(self, count: int) -> None:
        self._append(count)

    def _append(self, count: int) -> None:
        payloads = [b"%d" % number for number in range(self.count, self.count + count)]
        self.count += count
        self.written += zip(payloads, self.run(append_all(self.ledger, payloads)), strict=True)

    @rule(count=st.integers(1, 5))
    def append_with_a_failing_bookie(self, count: int) -> None:
        async def work() -> None:
            bookie = self.harness.cluster.bookies[0]
            bookie.add_code = ReturnCode.IO_ERROR
            appends = Appends()
            payloads = [b"%d" % number for number in range(self.count, self.count + count)]
            for payload in payloads:
                appends.append(self.ledger, payload)
            for _ in range(3):
                await asyncio.sleep(0)
            bookie.add_code = None
            positions = await appends.wait(count)
            self.ledger.resume_writes()
            self.harness.clock.ms += round(WRITE_FAILED_PAUSE_MAX_S * 1000)
            assert [data for data, _, _ in appends.answers] == payloads
            self.written += zip(appends.stored, [p for p in positions if p.entry_id >= 0], strict=True)

        self.run(work())
        self.count += count

    @rule(picks=st.lists(st.integers(0, 200), max_size=6))
    def acknowledge(self, picks: list[int]) -> None:
        if self.written:
            chosen = [self.written[pick % len(self.written)] for pick in picks]
            self.run(acknowledge(self.cursor, [position for _, position in chosen]))
            self.acked.update(data for data, _ in chosen)

    @rule(pick=st.integers(0, 200))
    def acknowledge_cumulative(self, pick: int) -> None:
        if self.written:
            upto = pick % len(self.written)

            async def work() -> None:
                self.cursor.acknowledge_cumulative(self.written[upto][1])
                await self.cursor.flush()

            self.run(work())
            self.acked.update(data for data, _ in self.written[: upto + 1])

    @rule(max_entries=st.integers(1, 20), max_bytes=st.sampled_from([1, 5, 1 << 20]))
    def read(self, max_entries: int, max_bytes: int) -> None:
        start = self.cursor.read_position
        expected = [data for data, position in self.written if position >= start and data not in self.acked]
        found = [entry.data for entry in self.run(read(self.cursor, max_entries, max_bytes))]
        assert found == expected[: len(found)]
        assert bool(found) == bool(expected)
        assert len(found) <= max_entries

    @rule()
    def rewind_and_read_all(self) -> None:
        self.cursor.rewind()
        assert self.run(read_all(self.cursor, 4)) == self._open_data()

    @rule(pick=st.integers(0, 200))
    def reset(self, pick: int) -> None:
        alive = [item for item in self.written if item[1] >= self.ledger.first_position]
        if alive:
            data, position = alive[pick % len(alive)]
            self.run(self.cursor.reset(position))
            place = [item[0] for item in self.written].index(data)
            self.acked = {item[0] for item in self.written[:place]}

    @rule()
    def trim(self) -> None:
        async def work() -> None:
            self.harness.clock.ms += 5
            await until(lambda: not self.ledger._trimming)
            await self.ledger.trim()

        self.run(work())

    @rule()
    def roll(self) -> None:
        self.run(self.ledger.rollover())

    @rule()
    def crash(self) -> None:
        self.run(self.broker.aclose())
        self.broker = AsyncExitStack()
        self.run(self._open())

    @rule()
    def stop(self) -> None:
        self.run(self.factory.close())
        self.crash()

    # ---- What holds at any time

    def _open_data(self) -> list[bytes]:
        return [data for data, _ in self.written if data not in self.acked]

    @invariant()
    def backlog(self) -> None:
        assert self.cursor.backlog_entries == len(self._open_data())

    @invariant()
    def nothing_unacknowledged_is_trimmed(self) -> None:
        for data, position in self.written:
            assert data in self.acked or position >= self.ledger.first_position
            assert self.cursor.is_acknowledged(position) == (data in self.acked)

    @invariant()
    def cache_within_budget(self) -> None:
        self.factory.cache.validate()


TestCursor = CursorAgainstList.TestCase
TestCursor.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
