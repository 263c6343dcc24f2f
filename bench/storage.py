#!/usr/bin/env python3
"""What one bookie costs by thread, and how long its parts hold the event loop up: adds, flush, compaction, reads; without sockets.

  storage.py [--old TREE] [--rounds N] [--entries N] [--run N] [--bytes N] [--ledgers N] [--striped] [--dir DIR] [--json]

Figures are CPU microseconds an entry, from the clocks of the threads, so that other work on the machine disturbs little; of the storage
thread also how much of it is spent outside of the kernel, where it mostly holds the interpreter. A pause is the time between two
looks of the event loop at a clock, counted in CPU time of this process: what other processes took is not in it. `--old`: a checkout to
compare with, in turns. `--striped`: entries 0, 2, 3, 5, 6 ..., as a bookie gets them with E=3 and Qw=2.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack
from typing import Any

HERE = Path(__file__).resolve().parent
KEY = b"k" * 20
WINDOW = 4000


def thread_cpu_s() -> tuple[float, float]:
    """(user, system) of the thread that calls."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime, used.ru_stime


@dataclass
class Watch:
    """The longest time between two turns of the loop, in CPU time of the process."""

    longest_ms: float = 0.0
    running: bool = True
    phases: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        before = time.process_time()
        while self.running:
            await asyncio.sleep(0.0005)
            now = time.process_time()
            self.longest_ms = max(self.longest_ms, 1000 * (now - before))
            before = now

    async def phase(self, name: str, work: Awaitable[Any]) -> None:
        await asyncio.sleep(0.002)
        self.longest_ms = 0.0
        await work
        self.phases[name] = round(self.longest_ms, 2)


def ids_of(options: argparse.Namespace, count: int) -> list[tuple[int, int]]:
    """(first entry id, entries) of each run of one ledger."""
    if options.striped:
        return [(0, 1)] + [(3 * pair - 1, 2) for pair in range(1, count // 2)]
    return [(start, min(options.run, count - start)) for start in range(0, count, options.run)]


async def add_all(bookie: Any, options: argparse.Namespace) -> int:
    """All entries of all ledgers, WINDOW of them under way."""
    done = asyncio.Event()
    state = {"pending": 0, "failed": 0}
    total = 0
    body = os.urandom(options.bytes)
    takes_ids = "entry_ids" in inspect.signature(bookie.add_run).parameters  # versions before that: the first one
    for first, count in ids_of(options, options.entries // options.ledgers):
        for ledger_id in range(options.ledgers):
            entries = [pack(">qqqq", ledger_id, first + number, -1, 0) + b"abcd" + body for number in range(count)]

            def answered(code: int, count: int = count) -> None:
                state["pending"] -= count
                state["failed"] += code != 0
                done.set()

            state["pending"] += count
            total += count
            ids = range(first, first + count) if takes_ids else first
            bookie.add_run(ledger_id, ids, entries, KEY, 0, answered)
            await asyncio.sleep(0)
            while state["pending"] >= WINDOW:
                done.clear()
                await done.wait()
    while state["pending"]:
        done.clear()
        await done.wait()
    if state["failed"]:
        raise SystemExit(f"{state['failed']} adds failed")
    return total


async def read_all(bookie: Any, options: argparse.Namespace, ledger_ids: list[int], from_disk: bool) -> int:
    """All entries of some ledgers, in batches of 64."""
    found_total = 0
    loop = asyncio.get_running_loop()
    for ledger_id in ledger_ids:
        for first, count in ids_of(options, options.entries // options.ledgers):
            answer: asyncio.Future[int] = loop.create_future()
            bookie.read_batch(
                ledger_id, first, count, 2**20, lambda code, found, to=answer: to.set_result(-1 if code else len(found))
            )
            found = await answer
            if found <= 0:
                raise SystemExit(f"ledger {ledger_id} entry {first}: not found")
            found_total += found
    return found_total


def written_bytes() -> int:
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("write_bytes")).split()[1])


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    from magnetar.bookkeeper.bookie.bookie import Bookie, BookieExecutors
    from magnetar.bookkeeper.bookie.config import BookieConfig

    alive = set(range(options.ledgers))

    async def list_ledgers() -> set[int]:
        return set(alive)

    async def exists(ledger_id: int) -> bool:
        return ledger_id in alive

    sys.setswitchinterval(0.0005)  # as the server does
    executors = BookieExecutors.threads()
    names = ("loop", "journal", "storage")

    async def clocks() -> dict[str, tuple[float, float]]:
        found = {name: await getattr(executors, name).run(thread_cpu_s) for name in ("journal", "storage", "reads")}
        return found | {"loop": thread_cpu_s()}

    config = BookieConfig(data_dir=folder, entry_log_bytes=32 * 2**20)
    result: dict[str, float] = {}
    watch = Watch()
    async with Bookie(config, executors=executors, list_ledgers=list_ledgers, ledger_exists=exists) as bookie:
        watching = asyncio.create_task(watch.run())
        before, bytes_before = await clocks(), written_bytes()
        count = 0

        async def adds() -> None:
            nonlocal count
            count = await add_all(bookie, options)

        await watch.phase("adds", adds())
        await watch.phase("checkpoint", bookie.checkpoint())
        after = await clocks()
        for name in names:
            user, system = (1e6 * (new - old) / count for new, old in zip(after[name], before[name], strict=True))
            result[f"{name} us"] = user + system
            if name == "storage":
                result["storage user us"] = user
        result["bytes written an entry"] = (written_bytes() - bytes_before) / count
        before_reads = await clocks()
        await watch.phase("reads", read_all(bookie, options, sorted(alive), True))
        after_reads = await clocks()
        result["read thread us"] = 1e6 * (sum(after_reads["reads"]) - sum(before_reads["reads"])) / count
        if options.ledgers > 1:
            alive.difference_update([ledger_id for ledger_id in alive if ledger_id % 3 == 0])
            before_compaction = await clocks()
            await watch.phase("compaction", bookie.collect_garbage())
            after_compaction = await clocks()
            spent = sum(after_compaction["storage"]) - sum(before_compaction["storage"])
            result["compaction us"] = 1e6 * spent / (count * len(alive) / options.ledgers)
            await read_all(bookie, options, sorted(alive), True)
        watch.running = False
        await watching
    executors.close()
    return result | {f"pause ms, {name}": longest for name, longest in watch.phases.items()}


def run_tree(tree: Path, options: argparse.Namespace) -> dict[str, float]:
    """One round, in a process of its own."""
    command = [sys.executable, str(HERE / "storage.py"), "--once", "--dir", options.dir, "--run", str(options.run)]
    command += ["--entries", str(options.entries), "--bytes", str(options.bytes), "--ledgers", str(options.ledgers)]
    command += ["--striped"] if options.striped else []
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def once(options: argparse.Namespace, run: Callable[[Any], Any] = asyncio.run) -> None:
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=options.dir))
    try:
        print(json.dumps(run(measure(options, folder))))
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="another checkout, measured in turns with this one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entries", type=int, default=120_000)
    parser.add_argument("--run", type=int, default=64, help="entries of one call")
    parser.add_argument("--bytes", type=int, default=1070, help="of each payload")
    parser.add_argument("--ledgers", type=int, default=1)
    parser.add_argument("--striped", action="store_true")
    parser.add_argument("--dir", default=str(HERE), help="where the data goes; not a memory filesystem")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(options)
        return
    trees = {"old": options.old.resolve()} if options.old else {}
    trees["new"] = HERE.parent
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(options.rounds):
        for name, tree in trees.items():
            found[name].append(run_tree(tree, options))
    table = {
        key: {
            f"{name} {what.__name__}": round(what(each[key] for each in rounds), 2)
            for name, rounds in found.items()
            for what in (min, statistics.median)
        }
        for key in found["new"][0]
    }
    if options.json:
        print(json.dumps(table))
        return
    for key, values in table.items():
        print(f"{key:26}" + "".join(f"  {name} {value:9.2f}" for name, value in values.items()))


if __name__ == "__main__":
    main()
