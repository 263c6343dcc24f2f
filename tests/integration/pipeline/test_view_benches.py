"""The benches of views run from end to end, over hardly any rows; their figures are for a quiet machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

BENCH = Path(__file__).resolve().parents[3] / "bench"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def settings_restored(spark: SparkSession) -> Iterator[None]:
    """The bench sets its own in the one session of all tests."""
    before = {name: str(value) for name, value in dict(spark.conf.getAll).items()}
    yield
    for name, value in dict(spark.conf.getAll).items():
        if spark.conf.isModifiable(name) and before.get(name) != value:
            if name in before:
                spark.conf.set(name, before[name])
            else:
                spark.conf.unset(name)


@pytest.mark.usefixtures("settings_restored")
def test_views_are_measured_against_sparks_own_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--rows", "1200", "--keys", "50", "--epochs", "3", "--units", "2"]
    monkeypatch.setattr(
        sys, "argv", ["views.py", *sizes, "--only", "magnetar,hdfs", "--directory", str(tmp_path), "--json"]
    )
    assert loaded("views").main() == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows_per_s"].keys() == {"magnetar", "hdfs"}
    assert found["times"]["hdfs"] > 0
    assert found["phases_s"]["total"] >= found["phases_s"]["work"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("settings_restored")
def test_epochs_and_state_are_measured_while_views_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    sizes = ["--keys", "30,300", "--rows", "40", "--epochs", "1", "--units", "2"]
    given = [*sizes, "--only", "magnetar", "--directory", str(tmp_path), "--json", "--plot", str(tmp_path / "plot.svg")]
    monkeypatch.setattr(sys, "argv", ["views_growth.py", *given])
    assert loaded("views_growth").main() == 0
    small, large = json.loads(capsys.readouterr().out)
    assert (small["keys"], large["keys"]) == (30, 300)
    assert large["state_bytes"] > small["state_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["plot.svg"]


def test_scans_are_balanced_where_keys_only_grow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["view_scan.py", "--rows", "20000", "--epochs", "4", "--tasks", "4", "--json"])
    assert loaded("view_scan").main() == 0
    found = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert sum(found["groups of vnodes, all rows"]["rows_per_task"]) == 20_000
    assert found["groups of vnodes, newest tenth"]["tasks_without_rows"] == 0
    assert found["ranges of keys, newest tenth"]["tasks_without_rows"] == 3


@pytest.mark.long
def test_what_clients_of_postgresql_wait_for_is_measured_while_epochs_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--rows", "3000", "--lookups", "20", "--scans", "3"]
    monkeypatch.setattr(sys, "argv", ["serving.py", *sizes, "--epochs", "--json"])
    assert loaded("serving").main() == 0
    found = json.loads(capsys.readouterr().out)["ms"]
    assert found["look-up p99"] >= found["look-up p50"] > 0
    assert found["scan p50"] > 0 < found["cold query"]


@pytest.mark.long
@pytest.mark.usefixtures("settings_restored")
def test_a_rescale_is_measured_against_sparks_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--keys", "50", "--rows", "600", "--units", "2"]
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "argv", ["rescale.py", *sizes, "--directory", str(tmp_path), "--json"])
    assert loaded("rescale").main() == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["view"]["vnodes_moved"], found["view"]["bytes_rewritten"]) == (85, 0)
    assert found["spark"]["bytes_written"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_units_follow_a_real_load(tmp_path: Path) -> None:
    """Two minutes of a machine that has nothing else to do: fewer units for 20 rows a second, more again for 40,000."""
    given = ["--hurry", "2", "--seconds", "75,35,5", "--directory", str(tmp_path), "--json"]
    command = [sys.executable, str(BENCH / "adaptive.py"), *given]  # in a process of its own: it changes constants
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert found["sent"] > 100_000
    fewer, more = found["changes"][:2]  # where the machine is the limit, the second unit is taken back in the end
    assert (fewer["units"], more["units"]) == (1, 2)
    assert fewer["vnodes_moved"] == more["vnodes_moved"] == 128
    assert fewer["runs_gone"] == 0  # none is written again; a merge may be due in the epoch of the other change


@pytest.mark.long
@pytest.mark.usefixtures("settings_restored")
def test_the_views_of_nexmark_have_the_rows_of_duckdb(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import nexmark  # type: ignore[import-not-found]

    sizes = [
        "--events",
        "4000",
        "--epochs",
        "2",
        "--units",
        "2",
        "--check-only",
        "--directory",
        str(tmp_path),
        "--json",
    ]
    assert nexmark.main(sizes, spark) == 0
    assert json.loads(capsys.readouterr().out)["different"] == {}
