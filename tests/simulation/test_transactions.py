"""Transactions in simulated clusters: seeds that break no promise, and deliberate bugs that are caught."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from magnetar.testing.sim.__main__ import main
from magnetar.testing.sim.messaging.run import run_messaging_seed
from magnetar.testing.sim.messaging.scenario import transaction_scenario
from magnetar.testing.sim.messaging.transaction_mutations import (
    TRANSACTION_MUTATIONS,
    transaction_focused,
    transaction_mutated,
)
from magnetar.testing.sim.report import Totals, seed_report

SEEDS = 6
SEEDS_LONG = 300
SEEDS_OF_A_BUG = 60

CALM = (
    "reading does not stop before an open transaction",
    "the low-water mark is one too far",
    "a message may be taken by two transactions",
)
"""Deliberate bugs that take no fault."""

SEEDS_OF_A_CALM_BUG = 10


def check(count: int) -> Totals:
    """Run seeds; the first failing one is the message."""
    totals = Totals("topics", "--transactions")
    for number in range(count):
        result = run_messaging_seed(str(number), transaction_scenario(str(number)))
        totals.add(result)
        assert not result.failed, seed_report(result)
    return totals


def caught(name: str, seeds: int) -> bool:
    for number in range(seeds):
        with transaction_mutated(name):
            result = run_messaging_seed(str(number), transaction_focused(transaction_scenario(str(number)), name))
        if result.failed:
            return True
    return False


@pytest.mark.timeout(600)  # 4 s of one core, which others may be using
def test_six_seeds() -> None:
    totals = check(SEEDS)
    assert totals.counts["transactions committed"] > 50
    assert totals.counts["transactions aborted"] > 10
    assert totals.counts["messages read at the end"] > 200


def test_a_log_whose_metadata_was_written_without_an_answer_is_opened_again() -> None:
    """It looks as if another broker had written; transactions could acknowledge nothing there until the topic was loaded anew."""
    result = run_messaging_seed("20425", transaction_scenario("20425"))
    assert not result.failed, seed_report(result)


def test_a_worker_whose_link_was_slow_is_heard_when_it_is_fast_again() -> None:
    """Its acknowledgement and the end of its connection came two minutes late: nobody else got what it held before the run was over."""
    result = run_messaging_seed("244", transaction_scenario("244"))
    assert not result.failed, seed_report(result)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_three_hundred_seeds() -> None:
    assert check(SEEDS_LONG).counts["transactions committed"] > 5000


def test_a_seed_is_the_same_run_again() -> None:
    first, second = (run_messaging_seed("3", transaction_scenario("3")).digest for _ in range(2))
    assert first == second


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CALM)
def test_a_deliberate_bug_is_caught(name: str) -> None:
    assert caught(name, SEEDS_OF_A_CALM_BUG)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(set(TRANSACTION_MUTATIONS) - set(CALM)))
def test_a_deliberate_bug_that_takes_a_crash_is_caught(name: str) -> None:
    assert caught(name, SEEDS_OF_A_BUG)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(TRANSACTION_MUTATIONS))
def test_the_same_seeds_pass_without_the_bug(name: str) -> None:
    for number in range(SEEDS_OF_A_CALM_BUG):
        result = run_messaging_seed(str(number), transaction_focused(transaction_scenario(str(number)), name))
        assert not result.failed, seed_report(result)


def test_the_command_runs_and_replays_them() -> None:
    many = CliRunner().invoke(main, ["--transactions", "--seeds", "1"])
    assert many.exit_code == 0, many.output
    assert "transactions committed" in many.output
    one = CliRunner().invoke(main, ["--transactions", "--seed", "0"])
    assert one.exit_code == 0
    assert "seed 0: passed" in one.output
