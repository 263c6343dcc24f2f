"""SIGKILL of each process at points of an epoch: afterwards the views are the recomputation, the sink has each change once.

The whole matrix is `python -m tests.support.fault_harness`, which prints it as a table (docs/explanation/pipelines.md, Faults).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_harness import FaultHarness
from tests.support.fault_points import POINTS, VICTIMS

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FaultHarness]:
    with FaultHarness(tmp_path) as made:
        yield made


@pytest.mark.timeout(600)
def test_a_worker_and_a_broker_killed_in_an_epoch(harness: FaultHarness) -> None:
    """Those that need one Spark only; drivers are killed in test_crashes."""
    for point, victim in (("written", "worker"), ("sinking", "broker")):
        assert harness.case(point, victim).ended == "went on"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_every_point(harness: FaultHarness, victim: str) -> None:
    for point in POINTS:
        harness.case(point, victim)
