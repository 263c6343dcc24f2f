"""Seeds: the same one is the same run, and none breaks a promise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.report import Totals, seed_report
from magnetar.testing.sim.run import run_seed
from magnetar.testing.sim.swarm import scenario

SEEDS = 50
SEEDS_LONG = 1000


def check(first: int, count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals()
    for number in range(first, first + count):
        result = run_seed(str(number))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


@pytest.mark.timeout(600)  # 15 s of one core, which others may be using
def test_fifty_seeds() -> None:
    totals = check(0, SEEDS)
    assert totals.acked > 1000
    assert totals.faults > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_seeds() -> None:
    totals = check(0, SEEDS_LONG)
    assert totals.acked > 50_000
    assert totals.faults > 5000


def test_a_seed_is_the_same_run_in_every_process() -> None:
    """Whatever the hash seed and the addresses."""
    seeds = ("3", "33")
    here = [run_seed(seed).digest for seed in seeds]
    code = f"""
import logging
from magnetar.testing.sim.run import run_seed
logging.disable(logging.CRITICAL)
print(*[run_seed(seed).digest for seed in {seeds}])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here
    assert len(set(here)) == len(seeds)


def test_scenarios_differ_and_cover_all_faults() -> None:
    scenarios = [scenario(str(number)) for number in range(300)]
    assert len({one.text() for one in scenarios}) == 300
    assert len({fault for one in scenarios for fault in one.faults}) >= 20
    assert any(one.aims for one in scenarios)


def test_the_command_reports_and_replays() -> None:
    many = CliRunner().invoke(main, ["--seeds", "3"])
    assert many.exit_code == 0, many.output
    assert "3 seeds in" in many.output
    assert "all checks passed" in many.output
    one = CliRunner().invoke(main, ["--seed", "3"])
    assert one.exit_code == 0
    for part in ("seed 3: passed", run_seed("3").digest, "quorums:", "the end of the trace:"):
        assert part in one.output
