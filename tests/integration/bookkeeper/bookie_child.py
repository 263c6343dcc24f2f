"""A process that writes through a bookie and says on stdout what was acknowledged, one line each, until somebody kills it.

`python -m tests.integration.bookkeeper.bookie_child <directory> <mode> <seed> <first>`; modes: `load`, `fence-unknown`, `fence-idle`,
`fsync-error`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from magnetar.base.errors import StorageError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.codes import FLAG_FENCE, ReturnCode
from tests.unit.bookkeeper.bookie_helpers import KEY, FaultDisk, entry

LEDGERS = 4


def child_config(directory: Path) -> BookieConfig:
    """Everything happens often: rolls, flushes, checkpoints, collections."""
    return BookieConfig(
        data_dir=directory,
        journal_file_bytes=256 * 1024,
        journal_preallocate_bytes=32 * 1024,
        write_cache_bytes=128 * 1024,
        entry_log_bytes=512 * 1024,
        flush_interval_s=0.02,
        gc_interval_s=0.05,
        minor_compaction_interval_s=0.1,
        major_compaction_interval_s=0.1,
        disk_free_plenty_bytes=0,
    )


def payload(ledger_id: int, entry_id: int) -> bytes:
    return random.Random(ledger_id << 32 | entry_id).randbytes(100 + entry_id % 400)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def load(bookie: Bookie, seed: int, first: int) -> None:
    rng = random.Random(seed)
    following = dict.fromkeys(range(LEDGERS), first)
    pending = 0

    def added(ledger_id: int, entry_id: int, code: int) -> None:
        nonlocal pending
        pending -= 1
        assert code == ReturnCode.OK, code
        say("added", ledger_id, entry_id)

    fences = 0
    while True:
        for _ in range(rng.randrange(1, 30)):
            ledger_id = rng.randrange(LEDGERS)
            entry_id = following[ledger_id]
            following[ledger_id] += 1
            pending += 1
            packed = entry(ledger_id, entry_id, payload(ledger_id, entry_id))
            bookie.add_entry(
                ledger_id, entry_id, packed, KEY, 0, lambda code, it=(ledger_id, entry_id): added(*it, code)
            )
        if rng.random() < 0.05:
            fenced = 1_000_000 * (seed + 1) + fences
            fences += 1
            bookie.read_entry(
                fenced, -1, FLAG_FENCE, KEY, lambda code, found, it=fenced: say("fenced", it) if code == 2 else None
            )
        await asyncio.sleep(0)
        while pending > 200:
            await asyncio.sleep(0.0005)


async def fence_unknown(bookie: Bookie) -> None:
    bookie.read_entry(77, -1, FLAG_FENCE, KEY, lambda code, found: say("fenced", 77, code))
    await asyncio.sleep(60)


async def fence_idle(bookie: Bookie) -> None:
    """The fence is the only thing that the checkpoints have to keep."""
    answer = asyncio.get_running_loop().create_future()
    bookie.add_entry(78, 0, entry(78, 0), KEY, 0, answer.set_result)
    await answer
    await bookie.checkpoint()
    fenced = asyncio.get_running_loop().create_future()
    bookie.read_entry(78, -1, FLAG_FENCE, KEY, lambda code, found: fenced.set_result(code))
    await fenced
    for _ in range(3):
        await bookie.checkpoint()
    say("fenced", 78, await fenced, bookie.statistics().checkpoint_sequence, bookie.statistics().journal_sequence)
    await asyncio.sleep(60)


def exit_for(error: StorageError) -> None:
    say("fatal")
    os._exit(3)


async def main(directory: str, mode: str, seed: str, first: str) -> None:
    disk = FaultDisk()

    async def all_ledgers() -> list[int]:
        return [*range(LEDGERS), *(ledger_id for ledger_id in bookie.ledger_ids() if ledger_id >= LEDGERS)]

    config = child_config(Path(directory))
    bookie = Bookie(config, disk=disk, list_ledgers=all_ledgers, on_fatal=exit_for)
    async with bookie:
        say("ready")
        if mode == "fsync-error":
            asyncio.get_running_loop().call_later(0.2, setattr, disk, "fail_fsync_of", "journal")
        if mode in ("load", "fsync-error"):
            await load(bookie, int(seed), int(first))
        await {"fence-unknown": fence_unknown, "fence-idle": fence_idle}[mode](bookie)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
