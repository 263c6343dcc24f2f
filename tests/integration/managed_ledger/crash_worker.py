"""A broker to be killed: appends and acknowledges without end, and writes down what it was told is durable.

Run as `python -m tests.integration.managed_ledger.crash_worker <directory> <first number>`; prints `ready` once it is open. Two of
three entries are acknowledged, those divisible by three never.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.integration.managed_ledger.harness import NAME, Harness

CONFIG = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=700, cursor_ledger_max_entries=20)
BURST = 100


class Worker:
    def __init__(self, path: Path, ledger: ManagedLedger, cursor: ManagedCursor) -> None:
        self.ledger = ledger
        self.cursor = cursor
        self.appended = (path / "appended").open("a", buffering=1)
        self.acknowledged = (path / "acknowledged").open("a", buffering=1)

    async def burst(self, first: int) -> None:
        """Append `BURST` numbers and acknowledge some; the acknowledgement is not waited for."""
        positions: dict[int, Position] = {}
        full = asyncio.Event()

        def done(value: int, error: MagnetarError | None, position: Position) -> None:
            assert error is None, error
            self.appended.write(f"append {value}\n")
            positions[value] = position
            if len(positions) == BURST:
                full.set()

        for value in range(first, first + BURST):
            self.ledger.append(
                b"%d" % value, lambda error, lid, eid, value=value: done(value, error, Position(lid, eid))
            )
        await full.wait()
        chosen = [value for value in positions if value % 3]

        def stored(error: MagnetarError | None) -> None:
            assert error is None, error
            self.acknowledged.write("".join(f"ack {value}\n" for value in chosen))

        self.cursor.acknowledge([positions[value] for value in chosen], stored)


async def main(path: Path, number: int) -> None:
    async with Harness(path) as harness:
        ledger = await harness.factory.open(NAME, CONFIG)
        worker = Worker(path, ledger, await ledger.open_cursor("sub", initial=EARLIEST))
        print("ready", flush=True)
        while True:
            await worker.burst(number)
            number += BURST


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
