"""Whole clusters with brokers: seeds that break no promise, and deliberate bugs in the broker's layers that are caught."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from magnetar.testing.sim import __main__ as command
from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.messaging.mutations import MUTATIONS, focused, mutated
from magnetar.testing.sim.messaging.promises import (
    ACKNOWLEDGED,
    COMPLETE,
    KEPT,
    KEY_EXCLUSIVE,
    KEY_ORDER,
    ORDER,
    REPEATS,
    STORED,
)
from magnetar.testing.sim.messaging.run import run_messaging_seed
from magnetar.testing.sim.messaging.scenario import messaging_scenario
from magnetar.testing.sim.report import Totals, seed_report
from magnetar.testing.sim.run import Result

SEEDS = 20
SEEDS_LONG = 500

RARE = {
    "a failed write of a cursor counts as stored",
    "a topic is taken over without fencing",
    "what was stored behind the snapshot is not replayed",
    "the snapshot is not restored",
    "a message counts as stored when it is handed to the ledger",
    "a repeat is not recognized",
    "a former owner sends until it hears that it is one",
    "the mark-delete passes holes",
}
"""Deliberate bugs that need a fault at one certain moment, so many seeds of their focus."""

SEEDS_OF_A_BUG = 15
SEEDS_OF_A_RARE_BUG = 200

PROMISES = {STORED, ORDER, REPEATS, KEY_EXCLUSIVE, KEY_ORDER, ACKNOWLEDGED, COMPLETE, KEPT}


def check(count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals("topics")
    for number in range(count):
        result = run_messaging_seed(str(number))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


@pytest.mark.timeout(600)  # 12 s of one core, which others may be using
def test_twenty_seeds() -> None:
    totals = check(SEEDS)
    assert totals.acked > 3000
    assert totals.faults > 50
    for what in ("deliveries", "acknowledgements confirmed", "messages read at the end", "ledgers trimmed"):
        assert totals.counts[what] > 0, what


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_hundred_seeds() -> None:
    assert check(SEEDS_LONG).acked > 80_000


def test_a_seed_does_not_depend_on_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it looks at the real clock, which jumps here."""
    here = run_messaging_seed("1").digest
    real, jumps = time.perf_counter, itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: real() + 0.01 * next(jumps))
    assert run_messaging_seed("1").digest == here


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the hash seed and the addresses."""
    seeds = ("1", "4")
    here = [run_messaging_seed(seed).digest for seed in seeds]
    code = f"""
import logging
from magnetar.testing.sim.messaging.promises import (
    ACKNOWLEDGED,
    COMPLETE,
    KEPT,
    KEY_EXCLUSIVE,
    KEY_ORDER,
    ORDER,
    REPEATS,
    STORED,
)
from magnetar.testing.sim.messaging.run import run_messaging_seed
logging.disable(logging.CRITICAL)
print(*[run_messaging_seed(seed).digest for seed in {seeds}])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


def first_caught(name: str, seeds: int) -> str | None:
    """The first seed of the bug's focus with a broken promise."""
    for number in range(seeds):
        with mutated(name):
            result = run_messaging_seed(str(number), focused(messaging_scenario(str(number)), name))
        if PROMISES & {violation.checker for violation in result.violations}:
            return str(number)
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(MUTATIONS) - RARE))
def test_a_deliberate_bug_is_caught(name: str) -> None:
    assert first_caught(name, SEEDS_OF_A_BUG) is not None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_deliberate_bug_is_caught(name: str) -> None:
    assert first_caught(name, SEEDS_OF_A_RARE_BUG) is not None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_the_same_seeds_pass_without_the_bug(name: str) -> None:
    for number in range(SEEDS_OF_A_BUG):
        result = run_messaging_seed(str(number), focused(messaging_scenario(str(number)), name))
        assert not result.failed, seed_report(result)


def test_the_command_reports_and_replays() -> None:
    many = CliRunner().invoke(main, ["--brokers", "--seeds", "2"])
    assert many.exit_code == 0, many.output
    assert "2 seeds in" in many.output
    assert "topics, " in many.output
    one = CliRunner().invoke(main, ["--brokers", "--seed", "1"])
    assert one.exit_code == 0
    for part in ("seed 1: passed", run_messaging_seed("1").digest, "subscriptions:", "the end of the trace:"):
        assert part in one.output


def test_the_totals_so_far_are_printed_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: str) -> Result:
        if seed == "2":
            raise KeyboardInterrupt
        return run_messaging_seed(seed)

    monkeypatch.setattr(command, "run_messaging_quietly", run)
    stopped = CliRunner().invoke(main, ["--brokers", "--seeds", "5", "--json"])
    assert stopped.exit_code == command.INTERRUPTED
    assert json.loads(stopped.stdout)["seeds"] == 2
