"""The pipeline commands that need no Spark, on a directory made by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'magnetar[spark]'")

from magnetar.base.clock import SystemClock
from magnetar.cli.main import run
from magnetar.pipeline.views.control.driver_lock import DriverLock
from tests.support.state_tables import TABLE, StateTableHarness

SOURCE = "CREATE SOURCE f (k varchar, n int) WITH (connector='pulsar', topic='t', service.url='pulsar://h:1') FORMAT PLAIN ENCODE JSON"
VIEW = "CREATE MATERIALIZED VIEW delays AS SELECT k, count(*) AS c FROM f GROUP BY k"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTableHarness:
    monkeypatch.setenv("MAGNETAR_HOME", str(tmp_path))
    harness = StateTableHarness(str(tmp_path / "pipelines" / "flights"), units=3)
    catalog = [
        {"name": "f", "statement": SOURCE, "parallelism": None},
        {"name": "delays", "statement": VIEW, "parallelism": None},
    ]
    harness.commit(views={"catalog": catalog, "tables": {"delays": TABLE.table_id}, "stages": {}})
    harness.epoch({("a", 1): 1.0, ("b", 2): 2.0})
    return harness


def output(capsys: Any, *args: str, code: int = 0) -> str:
    assert run(["pipeline", *args]) == code
    streams = capsys.readouterr()
    text: str = streams.out if code == 0 else streams.err
    return text


def test_list_and_status_tell_what_the_directory_tells(harness: StateTableHarness, capsys: Any) -> None:
    rows = json.loads(output(capsys, "list", "--json"))
    assert [(row["name"], row["state"], row["epoch"], row["units"]) for row in rows] == [("flights", "stopped", 1, 3)]
    status = json.loads(output(capsys, "status", "--json"))
    assert status["views"]["delays"]["stored_rows"] == 2
    assert status["state_bytes"] == sum(run.size_bytes for run in harness.state.runs)
    assert "state\tstopped" in output(capsys, "status", "flights", "--table")
    assert "no pipeline x; those below" in output(capsys, "status", "x", code=1)
    (Path(harness.files.root) / "manifests" / "MANIFEST-00000000000000000009.json").write_text("{")
    assert json.loads(output(capsys, "list", "--json"))[0]["state"] == "damaged"


def test_a_stopped_pipeline_is_rescaled_at_once_without_touching_its_state(
    harness: StateTableHarness, capsys: Any
) -> None:
    before = {path: path.read_bytes() for path in Path(harness.files.root).glob("tables/*/*")}
    dry = output(capsys, "rescale", "--units", "4", "--dry-run")
    assert dry.count("^") == 4
    assert json.loads(output(capsys, "status", "--json"))["units"] == 3
    outcome = json.loads(output(capsys, "rescale", "flights", "--units", "4", "--json"))
    assert outcome["vnodes_moved"] == dry.count("^")
    assert outcome["after"] == dict.fromkeys("0123", 4)
    assert json.loads(output(capsys, "status", "--json"))["units"] == 4
    assert {path: path.read_bytes() for path in Path(harness.files.root).glob("tables/*/*")} == before
    assert "has 4 units already" in output(capsys, "rescale", "--units", "4")
    assert "17 units for 16 vnodes" in output(capsys, "rescale", "--units", "17", code=1)
    assert "give --units N" in output(capsys, "rescale", "--auto", code=1)
    assert "SET PARALLELISM = ADAPTIVE into its file" in output(capsys, "rescale", "--adaptive", code=1)
    assert "one of --units N, --auto and --adaptive" in output(capsys, "rescale", code=2)
    output(capsys, "query", "ALTER MATERIALIZED VIEW delays SET PARALLELISM = 2")
    assert json.loads(output(capsys, "status", "--json"))["units"] == 2


def test_the_catalog_answers_without_spark(harness: StateTableHarness, capsys: Any) -> None:
    assert json.loads(output(capsys, "query", "SHOW MATERIALIZED VIEWS", "--json")) == [{"name": "delays"}]
    columns = json.loads(output(capsys, "query", "DESCRIBE delays", "--json"))
    assert [(column["column"], column["key"]) for column in columns] == [("k", True), ("n", True), ("v", False)]
    assert "count(*)" in output(capsys, "query", "SHOW CREATE MATERIALIZED VIEW delays").lower()
    assert "Aggregate" in output(capsys, "query", "EXPLAIN SELECT k, max(n) AS m FROM f GROUP BY k")
    assert "magnetar pipeline run FILE" in output(capsys, "query", "DROP MATERIALIZED VIEW delays", code=1)
    assert "found 'ROLES'" in output(capsys, "query", "SHOW ROLES", code=1)


def test_explain_shows_plans_or_refuses_with_the_line(harness: StateTableHarness, capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text(f"{SOURCE};\n{VIEW};\n")
    text = output(capsys, "explain", str(file), "--logical")
    assert "SOURCE f" in text
    assert "Aggregate" in text
    plans = json.loads(output(capsys, "explain", str(file), "--logical", "--json"))
    assert [plan["kind"] for plan in plans] == ["SOURCE", "MATERIALIZED VIEW"]
    assert "Aggregate" in output(capsys, "explain", "SELECT n, count(*) AS c FROM f GROUP BY n", "-p", "flights")
    file.write_text("SELECT 1;\n")
    assert "no CREATE in it" in output(capsys, "explain", str(file), code=1)
    file.write_text(f"{SOURCE};\nCREATE MATERIALIZED VIEW v AS SELECT k FROM f LIMIT 0;\n")
    assert "line 2" in output(capsys, "explain", str(file), code=1)
    assert "No such file" in output(capsys, "explain", "none.sql", code=1)


def test_drop_asks_spares_strangers_and_refuses_a_running_one(
    harness: StateTableHarness, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(harness.files.root)
    (root / "notes.txt").write_text("mine")
    with DriverLock(root, "flights", SystemClock()) as lock:
        lock.announce()
        assert "magnetar pipeline stop flights" in output(capsys, "drop", "flights", "--yes", code=1)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run(["pipeline", "drop", "flights"]) == 130, "nobody is there to say yes"
    assert harness.store.numbers()
    output(capsys, "drop", "flights", "--yes")
    assert [path.name for path in root.iterdir()] == ["notes.txt"]
    assert json.loads(output(capsys, "list", "--json")) == []
    assert "which pipeline?" in output(capsys, "status", code=1)


def test_stop_of_one_that_does_not_run_and_of_one_that_does_not_answer(harness: StateTableHarness, capsys: Any) -> None:
    assert json.loads(output(capsys, "stop", "--json"))["stopped"] is False
    with DriverLock(Path(harness.files.root), "flights", SystemClock()) as lock:
        lock.announce()
        assert "did not answer within 0.2 s" in output(capsys, "stop", "--timeout", "0.2", code=1)
    assert not list(Path(harness.files.root).glob("control/*")), "the request is taken back"
