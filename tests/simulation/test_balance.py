"""The load manager in simulated clusters: seeds that break no promise, and deliberate bugs that are caught."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.balance.mutations import MUTATIONS, focused, mutated, script_of
from magnetar.testing.sim.balance.run import balance_scenario, run_balance_seed
from magnetar.testing.sim.report import Totals, seed_report

SEEDS = 4
SEEDS_LONG = 200
SEEDS_OF_A_BUG = 15


def check(count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals("topics", "--balance")
    for number in range(count):
        result = run_balance_seed(str(number))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


@pytest.mark.timeout(600)  # 4 s of one core, which others may be using
def test_four_seeds() -> None:
    counts = check(SEEDS).counts
    assert counts["bundles to move"] > 2
    assert counts["deliveries"] > 1000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_seeds() -> None:
    counts = check(SEEDS_LONG).counts
    assert counts["bundles to move"] > 100
    assert counts["bundles to split"] > 50


def test_a_seed_is_the_same_run_again() -> None:
    first, second = (run_balance_seed("5").digest for _ in range(2))
    assert first == second


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_deliberate_bug_is_caught_by_its_script(name: str) -> None:
    script = script_of(name)
    with mutated(name):
        assert run_balance_seed(name, script).failed
    clean = run_balance_seed(name, script)
    assert not clean.failed, seed_report(clean)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_deliberate_bug_is_caught_by_random_seeds(name: str) -> None:
    for number in range(SEEDS_OF_A_BUG):
        with mutated(name):
            if run_balance_seed(str(number), focused(balance_scenario(str(number)), name)).failed:
                return
    raise AssertionError(f"none of {SEEDS_OF_A_BUG} seeds")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_the_same_seeds_pass_without_the_bug(name: str) -> None:
    for number in range(SEEDS_OF_A_BUG):
        result = run_balance_seed(str(number), focused(balance_scenario(str(number)), name))
        assert not result.failed, seed_report(result)


def test_the_command_runs_and_replays_them() -> None:
    many = CliRunner().invoke(main, ["--balance", "--seeds", "1", "--first", "5"])
    assert many.exit_code == 0, many.output
    assert "receipts" in many.output
    one = CliRunner().invoke(main, ["--balance", "--seed", "5"])
    assert one.exit_code == 0
    assert "seed 5: passed" in one.output
