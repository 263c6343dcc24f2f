"""Everything at once, in seeded disorder, cut off at a random turn of the loop: what was answered holds for the next owner."""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.managed_ledger.ledger_harness import NAME, LedgerHarness, append_all, read_all

SEEDS = 60
CURSORS = ("one", "two")
CONFIG = ManagedLedgerConfig(
    min_rollover_age_ms=0, max_entries_per_ledger=5, cursor_ledger_max_entries=4, cursor_persist_interval_ms=0
)


class Client:
    """Publishes and consumes with many requests under way; remembers what it was told."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.number = 0
        self.stored: list[tuple[int, Position]] = []
        self.failed: list[int] = []
        self.acked: dict[str, set[int]] = {name: set() for name in CURSORS}
        self.asked: dict[str, set[int]] = {name: set() for name in CURSORS}
        self.delivered: dict[str, list[int]] = {name: [] for name in CURSORS}

    def publish(self, ledger: ManagedLedger) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            number = self.number
            self.number += 1

            def done(error: MagnetarError | None, lid: int, eid: int, number: int = number) -> None:
                if error is None:
                    self.stored.append((number, Position(lid, eid)))
                else:
                    self.failed.append(number)

            ledger.append(b"%d" % number, done)

    def consume(self, cursor: ManagedCursor) -> None:
        def got(error: MagnetarError | None, entries: list[Entry]) -> None:
            assert error is None, error
            self.delivered[cursor.name] += [int(entry.data) for entry in entries]
            chosen = [entry for entry in entries if self.rng.random() < 0.8]
            numbers = {int(entry.data) for entry in chosen}
            self.asked[cursor.name] |= numbers

            def durable(error: MagnetarError | None) -> None:
                if error is None:
                    self.acked[cursor.name] |= numbers

            if self.rng.random() < 0.7:
                cursor.acknowledge([entry.position for entry in chosen], durable)
            else:
                for entry in chosen:
                    cursor.acknowledge([entry.position])

        if cursor._reader._request is None:
            cursor.read(self.rng.randrange(1, 12), 1 << 20, got)

    async def live(self, harness: LedgerHarness, ledger: ManagedLedger, turns: int) -> None:
        bookie = harness.cluster.bookies[0]
        tasks: list[asyncio.Task[None]] = []
        for _ in range(turns):
            dice = self.rng.random()
            bookie.add_code = ReturnCode.IO_ERROR if dice < 0.02 else None
            if dice > 0.93:  # full disk: failed appends find no other ledger for a while
                harness.cluster.directory.register("b0", bookie, writable=dice > 0.96)
            if dice < 0.3:
                self.publish(ledger)
            elif dice < 0.6:
                self.consume(ledger.cursors[self.rng.choice(CURSORS)])
            elif dice < 0.65:
                tasks.append(asyncio.get_running_loop().create_task(self._quietly(ledger, dice)))
            ledger.resume_writes()
            harness.clock.ms += self.rng.randrange(3)
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        bookie.add_code = None
        harness.cluster.directory.register("b0", bookie)

    async def _quietly(self, ledger: ManagedLedger, dice: float) -> None:
        try:
            await (ledger.trim() if dice < 0.63 else ledger.rollover())
        except MagnetarError:
            pass


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_answered_holds(seed: int) -> None:
    rng = random.Random(seed)
    harness = LedgerHarness()
    client = Client(rng)
    for _ in range(4):
        async with harness.broker(last_turns=0) as factory:
            ledger = await factory.open(NAME, CONFIG)
            for name in CURSORS:
                cursor = await ledger.open_cursor(name, initial=EARLIEST)
                check(client, await read_all(cursor, 7), cursor)
                cursor.rewind()
            client.delivered = {name: [] for name in CURSORS}
            await client.live(harness, ledger, rng.randrange(5, 120))
            for name in CURSORS:
                delivered = client.delivered[name]
                assert delivered == sorted(set(delivered)), "in order and once per life"
            if rng.random() < 0.3:
                await factory.close()
    async with harness.broker() as factory:
        ledger = await factory.open(NAME, CONFIG)
        for name in CURSORS:
            check(client, await read_all(ledger.cursors[name], 7), ledger.cursors[name])
            assert ledger.cursors[name].mark_delete_position <= ledger.last_confirmed
        await append_all(ledger, [b"alive"])


def check(client: Client, redelivered: list[bytes], cursor: ManagedCursor) -> None:
    numbers = [int(data) for data in redelivered]
    assert numbers == sorted(set(numbers)), "in order, nothing twice"
    assert not client.acked[cursor.name] & set(numbers), "acknowledged durably and delivered again"
    missing = {number for number, _ in client.stored} - set(numbers)
    assert missing <= client.asked[cursor.name], "stored, never acknowledged, gone"
    assert cursor.backlog_entries == len(numbers)
    positions = [position for _, position in client.stored]
    assert positions == sorted(set(positions)), "answers in the order of the log"
