"""Whole clusters with brokers: seeds that break no promise, and deliberate bugs in the broker's layers that are caught."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

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
)
from magnetar.testing.sim.messaging.run import run_messaging_seed
from magnetar.testing.sim.messaging.scenario import messaging_scenario
from magnetar.testing.sim.report import Totals, seed_report

SEEDS = 20
SEEDS_LONG = 500

CAUGHT_BY = {
    "a draining slot is released while an entry is held": ("0", KEY_EXCLUSIVE),
    "a slot that moves does not drain": ("0", KEY_EXCLUSIVE),
    "what waited is sent newest first": ("0", KEY_ORDER),
    "Failover serves all its consumers in turn": ("0", ORDER),
    "what a leaving consumer held is forgotten": ("0", COMPLETE),
    "the next consumer goes on where the last one stopped reading": ("0", COMPLETE),
    "an acknowledgement is confirmed before it is stored": ("0", ACKNOWLEDGED),
    "a failed write of a cursor counts as stored": ("5", ACKNOWLEDGED),
    "the mark-delete passes holes": ("3", COMPLETE),
    "holes are not restored": ("1", ACKNOWLEDGED),
    "a read that was cut short goes on behind it": ("0", COMPLETE),
    "ledgers are trimmed by acknowledgements that are not stored": ("0", KEPT),
    "a topic is taken over without fencing": ("9", ACKNOWLEDGED),
    "the last entry of a recovered ledger is left out": ("0", COMPLETE),
    "a ledger is dropped from the list at a change": ("0", COMPLETE),
    "what was stored behind the snapshot is not replayed": ("0", REPEATS),
    "the snapshot is not restored": ("19", REPEATS),
    "a message counts as stored when it is handed to the ledger": ("3", COMPLETE),
    "a repeat is not recognized": ("0", REPEATS),
    "a new owner begins at the end": ("0", COMPLETE),
}
"""The first seed that catches each deliberate bug in its focus, and the promise that it breaks there."""


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
)
from magnetar.testing.sim.messaging.run import run_messaging_seed
logging.disable(logging.CRITICAL)
print(*[run_messaging_seed(seed).digest for seed in {seeds}])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


def test_every_deliberate_bug_is_listed() -> None:
    assert sorted(CAUGHT_BY) == sorted(MUTATIONS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    seed, promise = CAUGHT_BY[name]
    with mutated(name):
        result = run_messaging_seed(seed, focused(messaging_scenario(seed), name))
    assert promise in {violation.checker for violation in result.violations}, seed_report(result)


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_same_seed_passes_without_the_bug(name: str) -> None:
    seed, _ = CAUGHT_BY[name]
    result = run_messaging_seed(seed, focused(messaging_scenario(seed), name))
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
