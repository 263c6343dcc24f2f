"""Failovers under trouble, at random (`failover_runs` says what and how)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.geo.failover_runs import run_all


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_thirty_random_runs_skip_nothing_and_repeat_within_the_bound(tmp_path: Path) -> None:
    assert len(run_all(tmp_path, range(1, 31))) == 30
