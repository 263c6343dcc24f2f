"""Several clusters that replicate to each other: seeds with faults that break no promise, and deliberate bugs that are caught."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.geo.mutations import MUTATIONS, focused, mutated, script_of
from magnetar.testing.sim.geo.run import run_geo_seed
from magnetar.testing.sim.geo.scenario import geo_scenario
from magnetar.testing.sim.report import Totals, seed_report

SEEDS = 8
SEEDS_LONG = 300
SEEDS_OF_A_BUG = 15
SEEDS_OF_A_RARE_BUG = 100

RARE: set[str] = set()
"""Need a fault at one certain moment; their scripts have one there."""


def check(count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals("topics", "--geo")
    for number in range(count):
        result = run_geo_seed(str(number))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


@pytest.mark.timeout(600)  # 3 s of one core, which others may be using
def test_eight_seeds() -> None:
    counts = check(SEEDS).counts
    assert counts["failovers"] > 10
    assert counts["replicated entries compared"] > 200
    assert counts["deliveries"] > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_seeds() -> None:
    assert check(SEEDS_LONG).counts["failovers"] > 1000


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the hash seed and the addresses."""
    here = run_geo_seed("5").digest
    code = """
import logging
from magnetar.testing.sim.geo.run import run_geo_seed
logging.disable(logging.CRITICAL)
print(run_geo_seed("5").digest)
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [here]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_deliberate_bug_is_caught_by_its_script(name: str) -> None:
    script = script_of(name)
    with mutated(name):
        assert run_geo_seed(name, script).failed
    clean = run_geo_seed(name, script)
    assert not clean.failed, seed_report(clean)


def caught_by_random_seeds(name: str, seeds: int) -> bool:
    for number in range(seeds):
        with mutated(name):
            if run_geo_seed(str(number), focused(geo_scenario(str(number)), name)).failed:
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
        result = run_geo_seed(str(number), focused(geo_scenario(str(number)), name))
        assert not result.failed, seed_report(result)


def test_the_command_runs_and_replays_them() -> None:
    many = CliRunner().invoke(main, ["--geo", "--seeds", "1", "--first", "5"])
    assert many.exit_code == 0, many.output
    assert "failovers" in many.output
    one = CliRunner().invoke(main, ["--geo", "--seed", "5"])
    assert one.exit_code == 0
    assert "seed 5: passed" in one.output
