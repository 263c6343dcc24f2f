"""A slice of the demo: processes, kill -9, and every message accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAGNETAR = Path(sys.executable).parent / "magnetar"


def test_a_slice_of_the_flights_arrives_once_and_in_order(tmp_path: Path) -> None:
    command = [MAGNETAR, "demo", "flights", "--messages", "8000", "--json", "--data-dir", tmp_path / "data"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    expected = {"messages": 8000, "lost": 0, "duplicated_without_a_reason": 0, "out_of_order_per_key": 0, "damaged": 0}
    assert {name: outcome[name] for name in expected} == expected
    assert [consumer["fate"] for consumer in outcome["consumers"]].count("kill -9 half way") == 1
    assert len(outcome["consumers"]) == 5
    assert all(row["equal"] for row in outcome["sums"])
    assert sum(consumer["messages"] for consumer in outcome["consumers"]) == 8000 + outcome["duplicated"]
    assert "kill -9 consumer-2" in result.stderr


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    command = [MAGNETAR, "demo", "flights", "--messages", "100", "--data-dir", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "is not empty" in result.stderr
    assert (tmp_path / "mine").read_text() == "precious"
