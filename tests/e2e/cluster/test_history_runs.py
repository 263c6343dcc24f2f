"""Randomized runs of a cluster under faults, checked by their history (`history_runs` says what and how)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster.history_runs import Options, run_all

SECONDS = 15.0
"""During which faults begin; two or three of them fit in."""


def test_a_short_run_keeps_every_promise(tmp_path: Path) -> None:
    faults = ("kill -9 owner", "owner cut off from the metadata", "unload", "split")
    (outcome,) = run_all(tmp_path, [Options(4, SECONDS, faults=faults)])
    assert len(outcome.history.faults) >= 2
    assert sum(append.acknowledged for append in outcome.history.appends) > 500


@pytest.mark.long
@pytest.mark.timeout(4800)
@pytest.mark.parametrize("zookeeper", [0, 1, 3], ids=["metadata-server", "zookeeper", "ensemble"])
def test_twenty_random_runs_keep_every_promise(tmp_path: Path, zookeeper: int) -> None:
    assert len(run_all(tmp_path, [Options(seed, 60.0, zookeeper) for seed in range(1, 21)])) == 20
