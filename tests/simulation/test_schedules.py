"""Every scripted schedule ends well."""

from __future__ import annotations

import pytest

from magnetar.testing.sim.stage import run_schedule
from tests.simulation import schedules, schedules_bookies  # noqa: F401 (they register themselves)
from tests.simulation.script_kit import SCHEDULES


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name: str) -> None:
    script, bookies = SCHEDULES[name]
    run_schedule(script, bookies)
