"""The bench runs from end to end; its numbers are for `make bench`, on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "bench"
BENCH = FOLDER / "run.py"


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


def run(script: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, FOLDER / script, *map(str, words)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_brokers_under_load(tmp_path: Path) -> None:
    out = run("brokers.py", "--brokers", 2, "--topics", 2, "--messages", 4000, "--keep", tmp_path)
    row = json.loads(out.splitlines()[0])
    for mode in ("produce", "consume"):
        assert row[f"{mode}_per_s"] > 0
        brokers_us, others_us, generators_us = row[f"{mode}_us"]
        assert min(brokers_us, generators_us) > 0
        assert others_us >= 0  # what the bookie does for so few messages may be less than a tick of the kernel's clock


def test_topics_nobody_uses(tmp_path: Path) -> None:
    (row,) = json.loads(run("topics.py", "--counts", 1200, "--rounds", 1, "--dir", tmp_path, "--json"))
    assert row["topics"] == 1200
    assert 0 < row["metadata_bytes_per_topic"] < 5000
    assert 0 < row["lookup_p50_ms"] <= row["lookup_p99_ms"]
    assert list(tmp_path.iterdir()) == []


def test_a_client_beside_a_flood(tmp_path: Path) -> None:
    """Floods are answered, nothing fails, and the other client's publishes have receipts."""
    quick = ("--seconds", 0.5, "--rounds", 1, "--topics", 300, "--dir", tmp_path, "--json")
    kinds = ("lookups", "unread")
    rows = json.loads(run("neighbours.py", *quick, "--kinds", *kinds))
    assert tuple(row["kind"] for row in rows) == kinds
    for row in rows:
        assert row["failures"] == 0, row
        assert row["per_s"] > 0 or row["kind"] in ("idle", "unread"), row
        assert 0 < row["alone_p50_ms"] <= row["alone_p99_ms"]
        assert 0 < row["flooded_p50_ms"] <= row["flooded_p99_ms"] <= row["flooded_max_ms"]
    assert list(tmp_path.iterdir()) == []
