"""SIGKILL of each process at points of an epoch: afterwards the views are the recomputation, the sink has each change once.

The whole matrix is `python -m tests.support.fault_site`, which prints it as a table (docs/pipelines.md, Faults).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_points import POINTS, VICTIMS
from tests.support.fault_site import FaultSite

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FaultSite]:
    with FaultSite(tmp_path) as made:
        yield made


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_a_broker_and_a_jvm_killed_in_an_epoch(site: FaultSite) -> None:
    """Those that need one more Spark at most; drivers are killed in test_crashes."""
    for point, victim in (("written", "worker"), ("sinking", "broker"), ("collected", "jvm")):
        site.case(point, victim)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", VICTIMS)
def test_every_point(site: FaultSite, victim: str) -> None:
    for point in POINTS:
        site.case(point, victim)
