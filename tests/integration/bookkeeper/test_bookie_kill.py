"""A bookie's process is killed in the middle of everything: whatever it acknowledged is there afterwards, twice the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.base.errors import StartupError
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.codes import ReturnCode
from tests.integration.bookkeeper.bookie_child import child_config, payload
from tests.unit.bookkeeper.bookie_helpers import add, entry, read, read_batch

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """The child process; `lines` are those read so far."""

    def __init__(self, directory: Path, mode: str, seed: int = 0, first: int = 0) -> None:
        arguments = [
            sys.executable,
            "-m",
            "tests.integration.bookkeeper.bookie_child",
            directory,
            mode,
            str(seed),
            str(first),
        ]
        self.process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[list[str]] = []

    def read(self, count: int) -> None:
        """Read `count` lines more; fewer when the child ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())
            count -= 1
            if count == 0:
                return

    def kill(self) -> None:
        """SIGKILL, then everything the child still managed to say."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        # By the stream that `read` used: it may hold the beginning of a line whose end is still in the pipe.
        rest, errors = self.process.stdout.read(), self.process.stderr.read()
        self.process.wait(60)
        complete = rest[: rest.rfind("\n") + 1]
        self.lines += [line.split() for line in complete.splitlines()]
        # A commit that was under way at the last kill is told of at the next start.
        unexpected = [
            line for line in errors.splitlines() if "the last commit of the journal cannot be read" not in line
        ]
        assert not unexpected, errors


async def contents(bookie: Bookie) -> dict[int, list[bytes]]:
    """Everything held, by ledger, as runs from the first entry on."""
    found: dict[int, list[bytes]] = {}
    for ledger_id in bookie.ledger_ids():
        found[ledger_id] = []
        while True:
            code, entries = await read_batch(bookie, ledger_id, len(found[ledger_id]))
            if code == ReturnCode.NO_ENTRY:
                break
            assert code == ReturnCode.OK
            found[ledger_id] += entries
    return found


async def test_acknowledged_entries_and_fences_survive_kill_after_kill(tmp_path: Path) -> None:
    rng = random.Random(5)
    acknowledged: set[tuple[int, int]] = set()
    fenced: set[int] = set()
    first = 0
    for round_number in range(8):
        child = Child(tmp_path, "load", round_number, first)
        child.read(rng.randrange(2, 4000))
        child.kill()
        for what, *numbers in child.lines:
            if what == "added":
                acknowledged.add((int(numbers[0]), int(numbers[1])))
            elif what == "fenced":
                fenced.add(int(numbers[0]))
        states = []
        for _ in range(2):
            bookie = Bookie(child_config(tmp_path))
            async with bookie:
                states.append(await contents(bookie))
                for ledger_id in sorted(fenced):
                    assert await add(bookie, ledger_id, 0) == ReturnCode.FENCED
        assert states[0] == states[1]
        for ledger_id, entry_id in acknowledged:
            assert states[0][ledger_id][entry_id] == entry(ledger_id, entry_id, payload(ledger_id, entry_id))
        first = max((len(entries) for entries in states[0].values()), default=0)
        for ledger_id in range(4):  # the next child goes on above all of them
            held = states[0].get(ledger_id, [])
            async with Bookie(child_config(tmp_path)) as bookie:
                for entry_id in range(len(held), first):
                    assert await add(bookie, ledger_id, entry_id, payload(ledger_id, entry_id)) == ReturnCode.OK
    assert len(acknowledged) > 3000
    assert fenced


async def test_a_fence_on_a_ledger_never_seen_survives(tmp_path: Path) -> None:
    child = Child(tmp_path, "fence-unknown")
    child.read(2)
    child.kill()
    assert child.lines[1] == ["fenced", "77", str(int(ReturnCode.NO_ENTRY))]
    async with Bookie(child_config(tmp_path)) as bookie:
        assert await add(bookie, 77, 0) == ReturnCode.FENCED


async def test_a_fence_survives_checkpoints_that_had_nothing_else_to_keep(tmp_path: Path) -> None:
    child = Child(tmp_path, "fence-idle")
    child.read(2)
    child.kill()
    _, _, code, checkpointed, journaled = child.lines[1]
    assert int(code) == ReturnCode.OK
    assert checkpointed == journaled, "the mark has passed the fence's record"
    async with Bookie(child_config(tmp_path)) as bookie:
        assert await add(bookie, 78, 1) == ReturnCode.FENCED
        assert await read(bookie, 78, 0) == (ReturnCode.OK, entry(78, 0))


async def test_a_failed_fsync_ends_the_process_and_nothing_later_was_acknowledged(tmp_path: Path) -> None:
    child = Child(tmp_path, "fsync-error")
    child.read(1_000_000)
    assert child.process.wait(20) == 3
    assert child.process.stderr is not None
    assert child.process.stderr.read().count("bookie stops") == 1
    assert child.lines[-1] == ["fatal"]
    async with Bookie(child_config(tmp_path)) as bookie:
        held = await contents(bookie)
    acknowledged = [(int(numbers[0]), int(numbers[1])) for what, *numbers in child.lines if what == "added"]
    assert acknowledged
    for ledger_id, entry_id in acknowledged:
        assert held[ledger_id][entry_id] == entry(ledger_id, entry_id, payload(ledger_id, entry_id))


async def test_the_lock_names_the_process_and_dies_with_it(tmp_path: Path) -> None:
    child = Child(tmp_path, "fence-unknown")
    child.read(2)
    with pytest.raises(StartupError, match=f"is in use by process PID {child.process.pid}"):
        async with Bookie(child_config(tmp_path)):
            pass
    child.kill()
    assert child.process.pid != os.getpid()
    async with Bookie(child_config(tmp_path)) as bookie:
        assert bookie.ledger_ids() == [77]
