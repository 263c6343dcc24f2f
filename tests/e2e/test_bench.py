"""The bench runs from end to end; its numbers are for `make bench`, on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "run.py"


def test_the_bench_measures_both_servers(tmp_path: Path) -> None:
    options = [
        "--quick",
        "--rounds",
        "1",
        "--only",
        "start",
        "single",
        "consume",
        "key_shared",
        "--json",
        "--dir",
        tmp_path,
    ]
    result = subprocess.run([sys.executable, BENCH, *options], capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    rows = {row["name"]: row for row in document["results"]}
    assert len(rows) == 4
    assert all(row["ours"] > 0 for row in rows.values())
    assert rows["produce 1 KiB entries"]["ratio"] > 0
    assert list(tmp_path.iterdir()) == []
