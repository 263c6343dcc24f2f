"""Deliberate bugs are caught: each by a script at once, most by random seeds as well."""

from __future__ import annotations

import pytest

from magnetar.testing.sim.mutations import MUTATIONS, mutated
from magnetar.testing.sim.run import run_seed
from magnetar.testing.sim.stage import run_schedule
from tests.simulation import schedules, schedules_bookies  # noqa: F401 (they register themselves)
from tests.simulation.script_kit import SCHEDULES

CAUGHT_BY_SCRIPT = {
    "ack before fsync": "an add is durable before it is acknowledged",
    "fsync error ignored": "a failed fsync acknowledges nothing and stops the bookie",
    "fence not journaled": "a fence on a ledger never seen survives a power cut (trap 1)",
    "checkpoint mark passes what is not flushed": "the checkpoint mark never passes what is not flushed (BK#3329, BK#4844, trap 16)",
    "a checkpoint leaves out ledger states": "a fence survives checkpoints without entries (BK#4843, trap 2)",
    "compaction deletes before the index is written": "compaction loses nothing, wherever the power fails (BK#1534, trap 20)",
    "collection lists the metadata first and does not look again": "a ledger created during a collection is not collected",
    "deleted ledgers are forgotten at once": "a late add does not bring a deleted ledger back (BK#4462, trap 21)",
    "no cookie check": "a wiped bookie may not come back under its name (BK#2612, trap 14)",
    "resend before the metadata is written": "nothing is acknowledged on a bookie that the metadata does not name (BK#1591, trap 9)",
    "a change keeps the acknowledgements of replaced bookies": "an entry counts its bookies anew after a change (BK#3005, trap 10)",
    "entries complete in any order": "entries are acknowledged in order",
    "one acknowledgement is enough": "recovery reads fence (BK#2614, trap 4)",
    "no coverage rule": "a reader hears from every ack quorum (PR 2333, trap 8)",
    "recovery reads without fence": "recovery reads fence (BK#2614, trap 4)",
    "an I/O error counts as a negative": "errors are not negatives (BK#1067, BK#2908, trap 6)",
    "one negative is enough": "one negative proves nothing when Qa bookies are needed",
    "the LAC is not floored": (
        "the LAC starts below the last segment, the length comes from the one before (BK#2615, traps 3 and 5)"
    ),
    "the length comes from the last segment only": (
        "the LAC starts below the last segment, the length comes from the one before (BK#2615, traps 3 and 5)"
    ),
    "ensembles are written during recovery": (
        "ensembles of an unfinished recovery are nobody's business (upstream: newEnsemblesFromRecovery)"
    ),
    "a recovery does not store its tail again": "a recovery leaves its tail on Qa bookies",
    "a recovery stores its tail on one bookie": "a recovery leaves its tail on Qa bookies",
}

CAUGHT_BY_SEEDS = {
    "ack before fsync": "0",
    "entries complete in any order": "0",
}
"""Mutation -> the first of the seeds 0, 1, 2, ... that finds it."""


def test_every_mutation_has_a_script() -> None:
    assert set(CAUGHT_BY_SCRIPT) == set(MUTATIONS)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_script_catches_it(name: str) -> None:
    script, bookies = SCHEDULES[CAUGHT_BY_SCRIPT[name]]
    with mutated(name), pytest.raises(AssertionError):
        run_schedule(script, bookies)


@pytest.mark.parametrize("name", CAUGHT_BY_SEEDS)
def test_a_seed_catches_it(name: str) -> None:
    with mutated(name):
        assert run_seed(CAUGHT_BY_SEEDS[name]).failed
