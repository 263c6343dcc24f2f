"""Managed ledgers on a real bookie and real metadata: restarts, kill -9, many holes, retention that gives the disk back."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.integration.managed_ledger.harness import NAME, Harness
from tests.unit.managed_ledger.ledger_harness import Appends, acknowledge, append_all, read, read_all

ROOT = Path(__file__).resolve().parents[3]
KEEP = {"retention_time_ms": -1, "retention_size_bytes": -1}


async def test_append_read_acknowledge_restart(tmp_path: Path) -> None:
    payloads = [b"%06d" % number * 170 for number in range(6000)]
    config = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=2500)
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, payloads)
        assert await read_all(cursor) == payloads
        await acknowledge(cursor, positions[:2000])
        await acknowledge(cursor, positions[2500:5000])
        await harness.factory.close()
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(NAME, config)
        cursor = ledger.cursors["sub"]
        assert cursor.backlog_entries == 1500
        assert await read_all(cursor) == payloads[2000:2500] + payloads[5000:]
        found = await ledger.find_last_matching(lambda entry: entry.data <= payloads[4321])
        assert found == positions[4321]


@pytest.mark.parametrize("count", [200_000, pytest.param(1_000_000, marks=pytest.mark.long)])
async def test_every_second_acknowledged_survives_a_restart(tmp_path: Path, count: int) -> None:
    """No hole is dropped: after the restart exactly the unacknowledged half is redelivered."""
    step = 20_000
    # Minimal entries: the number of holes matters here, not their size.
    config = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=50_000, cache_entries=False, **KEEP)
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(NAME, config)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions: list[Position] = []
        arrived = asyncio.Event()

        def done(error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
            assert error is None, error
            positions.append(Position(ledger_id, entry_id))
            if len(positions) % step == 0:
                arrived.set()

        for _ in range(0, count, step):
            arrived.clear()
            for _ in range(step):
                ledger.append(b"x", done)
            await arrived.wait()
            cursor.acknowledge(positions[-step + 1 :: 2])
        await cursor.flush()
        assert cursor.backlog_entries == count // 2
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(NAME, config)
        cursor = ledger.cursors["sub"]
        assert cursor.mark_delete_position == Position(positions[0].ledger_id, -1)
        assert cursor.backlog_entries == count // 2
        assert all(cursor.is_acknowledged(position) for position in positions[1::2])
        assert not any(cursor.is_acknowledged(position) for position in positions[::2])
        entries = await read(cursor, 1000, 1 << 20)
        assert [entry.position for entry in entries] == positions[: 2 * len(entries) : 2]


async def test_retention_removes_ledgers_and_the_disk_shrinks(tmp_path: Path) -> None:
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(
            NAME, ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=4000, **KEEP)
        )
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(ledger, [os.urandom(1024) for _ in range(20_000)])
        await harness.bookie.checkpoint()
        before = harness.disk_bytes()
        assert before > 20_000 * 1024
        cursor.acknowledge_cumulative(positions[17_999])
        ledger.set_config(ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=4000))
        await ledger.trim()
        assert ledger.first_position == positions[16_000]
        assert cursor.stored_mark_delete == positions[17_999]
        assert harness.bookie.ledger_ids()
        await harness.bookie.collect_garbage()
        assert positions[0].ledger_id not in harness.bookie.ledger_ids()
        assert positions[16_000].ledger_id in harness.bookie.ledger_ids()
        assert harness.disk_bytes() < before / 2
        assert len(await read(cursor, 5000, 1 << 30)) > 0


async def test_a_second_broker_takes_over_from_a_live_one(tmp_path: Path) -> None:
    async with Harness(tmp_path) as harness:
        mine = await harness.factory.open(NAME)
        cursor = await mine.open_cursor("sub", initial=EARLIEST)
        positions = await append_all(mine, [b"%d" % number for number in range(100)])
        await acknowledge(cursor, positions[:10])
        other = harness.new_factory()
        theirs = await other.open(NAME)
        appends = Appends()
        appends.append(mine, b"too late")
        await appends.wait(1)
        assert appends.stored == []
        assert await read_all(theirs.cursors["sub"]) == [b"%d" % number for number in range(10, 100)]
        await mine.close()
        await other.close()


async def test_kill_9_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    """Several lives of a broker that is killed in full flow; the last one finds every answered append and acknowledgement."""
    (tmp_path / "appended").touch()
    (tmp_path / "acknowledged").touch()
    for life in range(3):
        command = [
            sys.executable,
            "-m",
            "tests.integration.managed_ledger.crash_worker",
            str(tmp_path),
            str(life * 10**6),
        ]
        worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", worker.communicate()[1]
            grown = (tmp_path / "acknowledged").stat().st_size + 20_000 + 3000 * life
            deadline = time.monotonic() + 30
            while (tmp_path / "acknowledged").stat().st_size < grown:
                assert worker.poll() is None, worker.communicate()[1]
                assert time.monotonic() < deadline, "the worker makes no progress"
                time.sleep(0.005)
        finally:
            worker.send_signal(signal.SIGKILL)
            worker.communicate()
    appended = _numbers(tmp_path / "appended")
    acknowledged = set(_numbers(tmp_path / "acknowledged"))
    assert len(acknowledged) > 1000
    async with Harness(tmp_path) as harness:
        ledger = await harness.factory.open(NAME, ManagedLedgerConfig(**KEEP))
        redelivered = [int(data) for data in await read_all(ledger.cursors["sub"], 1000)]
        assert not acknowledged & set(redelivered), "acknowledged durably, and delivered again"
        assert set(redelivered) >= {number for number in appended if number % 3 == 0}, "never acknowledged"
        assert redelivered == sorted(set(redelivered)), "in order, once each"


def _numbers(path: Path) -> list[int]:
    """The numbers of complete lines; the last line may be cut."""
    return [int(line.split()[1]) for line in path.read_text().split("\n")[:-1]]
