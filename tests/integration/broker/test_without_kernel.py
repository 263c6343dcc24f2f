"""What the compiled functions have a part in passes without them, too: the same tests once more, in Python alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from magnetar.wire.pulsar.kernel import SWITCH, kernel

ROOT = Path(__file__).parents[3]

CONCERNED = (
    "tests/integration/broker/test_calls_per_entry.py",
    "tests/property/broker/test_run_properties.py",
    "tests/unit/broker/test_single_active.py",
)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not kernel, reason="this whole run is without the compiled functions")
def test_the_message_path_in_python_alone() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CONCERNED]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    made = subprocess.run(command, cwd=ROOT, env=environment | {SWITCH: "off"}, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-5000:]
    assert "skipped" not in made.stdout.splitlines()[-1]
