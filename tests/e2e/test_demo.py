"""A slice of the demo: processes, kill -9, and every message accounted for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAGNETAR = Path(sys.executable).parent / "magnetar"


def test_a_slice_of_the_flights_arrives_once_and_in_order(tmp_path: Path) -> None:
    command = [
        MAGNETAR,
        "demo",
        "flights",
        "--messages",
        "8000",
        "--no-views",
        "--json",
        "--data-dir",
        tmp_path / "data",
    ]
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


@pytest.mark.timeout(600)
def test_the_flights_become_views_that_equal_the_file(tmp_path: Path) -> None:
    picture = tmp_path / "vnodes.svg"
    command = [MAGNETAR, "demo", "flights", "--messages", "6000", "--json", "--plot", picture]
    result = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)["views"]
    assert {each["view"]: each["differing"] for each in outcome["comparisons"]} == {"delays": 0, "routes": 0}
    assert all(each["rows"] == each["expected_rows"] > 100 for each in outcome["comparisons"])
    assert [epoch["units"] for epoch in outcome["epochs"]][:1] == [2]
    assert [epoch["units"] for epoch in outcome["epochs"]][-1:] == [3]
    assert outcome["rescale"][-1]["vnodes after"].startswith("85,")
    assert picture.read_text().startswith("<?xml")


def test_a_consumer_fails_over_twice_among_three_clusters_and_skips_nothing(tmp_path: Path) -> None:
    command = [MAGNETAR, "demo", "geo", "--seconds", "9", "--rate", "50", "--json", "--data-dir", tmp_path / "data"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert outcome["skipped"] == 0
    assert outcome["published"] == outcome["consumed"] > 100
    assert [stay["cluster"] for stay in outcome["stays"]] == ["west", "central", "east"]
    assert outcome["stays"][0]["repeated"] == 0
    assert outcome["repeated"] < outcome["published"] / 2
    assert "kill -9 central" in result.stderr


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    command = [MAGNETAR, "demo", "flights", "--messages", "100", "--data-dir", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "is not empty" in result.stderr
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("demo", [("flights", "subscribed"), ("geo", "consumes in west")], ids=lambda demo: demo[0])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(
    tmp_path: Path, end: signal.Signals, demo: tuple[str, str]
) -> None:
    data = tmp_path / "data"
    process = subprocess.Popen([MAGNETAR, "demo", demo[0], "--data-dir", data], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while demo[1] not in (line := process.stderr.readline()):
        assert line, "the demo ended by itself"
    process.send_signal(end)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[end], errors
    assert "Traceback" not in errors
    deadline = time.monotonic() + 60
    while left := processes_naming(data):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes_naming(path: Path) -> list[str]:
    """Command lines of all processes that work in `path`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it ended meanwhile
        if any(word.startswith(str(path)) for word in words):
            found.append(" ".join(words))
    return found
