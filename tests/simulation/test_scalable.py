"""A scalable topic in simulated clusters: seeds with faults that break no promise, and deliberate bugs that are caught."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.report import Totals, seed_report
from magnetar.testing.sim.scalable.mutations import MUTATIONS, focused, mutated, script_of
from magnetar.testing.sim.scalable.run import run_scalable_seed
from magnetar.testing.sim.scalable.scenario import scalable_scenario

SEEDS = 8
SEEDS_LONG = 300
SEEDS_OF_A_BUG = 15
SEEDS_OF_A_RARE_BUG = 200

RARE = {"a parent is terminated before that is written down"}
"""Needs a fault between two steps; its script has one there."""


def check(count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals("topics", "--scalable")
    for number in range(count):
        result = run_scalable_seed(str(number))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


@pytest.mark.timeout(600)  # 5 s of one core, which others may be using
def test_eight_seeds() -> None:
    """Among them those that found that a checkpoint reader stopped at the end of a sealed segment (0), that the rest of a batch was
    acknowledged with a part of it (3), and that a segment's last messages came out of order when it went to another consumer (7)."""
    counts = check(SEEDS).counts
    assert counts["layouts"] > 40
    assert counts["sealed segments deleted"] > 10
    assert counts["deliveries"] > 1000
    assert counts["messages read at the end"] > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_seeds() -> None:
    assert check(SEEDS_LONG).counts["layouts"] > 2000


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the hash seed and the addresses."""
    seeds = ("6", "7")
    here = [run_scalable_seed(seed).digest for seed in seeds]
    code = f"""
import logging
from magnetar.testing.sim.scalable.run import run_scalable_seed
logging.disable(logging.CRITICAL)
print(*[run_scalable_seed(seed).digest for seed in {seeds}])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_deliberate_bug_is_caught_by_its_script(name: str) -> None:
    script = script_of(name)
    with mutated(name):
        assert run_scalable_seed(name, script).failed
    clean = run_scalable_seed(name, script)
    assert not clean.failed, seed_report(clean)


def caught_by_random_seeds(name: str, seeds: int) -> bool:
    for number in range(seeds):
        with mutated(name):
            if run_scalable_seed(str(number), focused(scalable_scenario(str(number)), name)).failed:
                return True
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(set(MUTATIONS) - RARE))
def test_a_deliberate_bug_is_caught_by_random_seeds(name: str) -> None:
    assert caught_by_random_seeds(name, SEEDS_OF_A_BUG)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(RARE))
def test_a_rare_deliberate_bug_is_caught_by_random_seeds(name: str) -> None:
    assert caught_by_random_seeds(name, SEEDS_OF_A_RARE_BUG)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_the_same_seeds_pass_without_the_bug(name: str) -> None:
    for number in range(SEEDS_OF_A_BUG):
        result = run_scalable_seed(str(number), focused(scalable_scenario(str(number)), name))
        assert not result.failed, seed_report(result)


def test_the_command_runs_and_replays_them() -> None:
    many = CliRunner().invoke(main, ["--scalable", "--seeds", "1", "--first", "5"])
    assert many.exit_code == 0, many.output
    assert "layouts" in many.output
    one = CliRunner().invoke(main, ["--scalable", "--seed", "5"])
    assert one.exit_code == 0
    assert "seed 5: passed" in one.output
