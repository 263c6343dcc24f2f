"""Why a view is as fresh as it is and where a row comes from, of a directory that was committed by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from magnetar.base.clock import SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.broker.explain.view import places_of_key
from magnetar.cli.main import cli
from magnetar.pipeline import explain_view
from magnetar.pipeline.errors import CatalogError
from magnetar.pipeline.views.control.listing import overview
from magnetar.pipeline.views.control.status import FAILED, STOPPED
from magnetar.pipeline.views.control.why import report_of_overview
from magnetar.pipeline.views.epoch.epoch import BACKFILL
from tests.support.stored_pipelines import MINUTE_US, StoredPipeline

BEHIND = {"a": 24 * MINUTE_US, "b": 9 * MINUTE_US}
LONG_AGO = {name: {"rows_at_ms": 1, "watermark_us": BEHIND[name], "watermark_at_ms": 1} for name in BEHIND}


@pytest.fixture
def stored(tmp_path: Path) -> StoredPipeline:
    return StoredPipeline(tmp_path)


def codes(found: Any) -> list[str]:
    return [str(reason.code) for reason in found.reasons]


def ask(stored: StoredPipeline, view: str, *key: str, units: int = 0) -> Any:
    return explain_view(str(stored.directory), view, key, units)


def command(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["explain", "view", *args])
    assert result.exit_code == code, result.output
    return result.output if code != 1 else str(result.exception)


def test_a_view_waits_for_the_watermark_of_the_source_that_is_behind(stored: StoredPipeline) -> None:
    stored.commit(BEHIND)
    with stored.driven(lags={"a": 0, "b": 0}, sources=LONG_AGO):
        began_s = time.process_time()
        found = ask(stored, "w")
        assert time.process_time() - began_s < 1.0
        assert codes(found) == ["view-waits-for-watermark"]
        facts = found.reasons[0].facts
        assert (facts["source"], facts["watermark"]) == ("b", "1970-01-01T00:09:00.000Z")
        assert facts["others"] == {"a": "1970-01-01T00:24:00.000Z"}
        assert found.moving is False
        assert found.details["stale_s"] == 0.0
        assert codes(ask(stored, "sums")) == ["view-current"], "it has no windows"
        shown = command("w", "--pipeline", str(stored.directory))
        assert "close when the watermark of b reaches their end" in shown.splitlines()[0]
        assert "What to do: Send rows with later times to the topics of b" in shown


def test_a_source_without_any_time_yet_holds_windows_as_well(stored: StoredPipeline) -> None:
    stored.commit({"a": 1})
    with stored.driven(lags={"a": 0, "b": 0}):
        (reason,) = ask(stored, "w").reasons
        assert (reason.facts["source"], reason.facts["watermark"]) == ("b", "not there yet")


def test_equal_watermarks_of_sources_that_are_idle(stored: StoredPipeline) -> None:
    stored.commit(dict.fromkeys("ab", 9 * MINUTE_US))
    now_ms = SystemClock().now_ms()
    with stored.driven(lags={"a": 0, "b": 0}, sources={"a": {"rows_at_ms": now_ms}, "b": {"rows_at_ms": now_ms}}):
        assert codes(ask(stored, "w")) == ["view-current"], "rows came a moment ago"
        stored.tell(sources={"a": {"rows_at_ms": 1}, "b": {"rows_at_ms": 1}})
        assert codes(ask(stored, "w")) == ["view-waits-for-watermark"]


def test_a_driver_that_is_behind_stopped_gone_failed_or_silent(stored: StoredPipeline) -> None:
    stored.commit(dict.fromkeys("ab", 1))
    with stored.driven(lags={"a": 5, "b": 0}):
        found = ask(stored, "sums")
        assert (codes(found), found.moving) == (["view-behind"], True)
        assert found.reasons[0].facts["sources"] == {"a": 5}
        assert found.details["stale_s"] >= 0
        stored.tell(lags={})
        assert ask(stored, "sums").details["stale_s"] is None, "nobody can tell"
        stored.tell(updated_ms=1)
        assert codes(ask(stored, "sums")) == ["view-driver-silent"]
    assert codes(ask(stored, "sums")) == ["view-driver-gone"]
    stored.tell("running")
    found = ask(stored, "sums")
    assert (codes(found), found.reasons[0].facts["how"]) == (["view-driver-gone"], "is gone without a word")
    stored.tell(FAILED, error="the disk is full.")
    found = ask(stored, "sums")
    assert (codes(found), found.moving) == (["view-driver-failed"], False)
    assert found.verdict.endswith("the disk is full.")


def test_a_view_that_is_being_built(stored: StoredPipeline) -> None:
    stored.commit(dict.fromkeys("ab", 1), **{BACKFILL: ["sums"]})
    with stored.driven(lags={"a": 0, "b": 0}):
        found = ask(stored, "sums")
        assert (codes(found), found.moving) == (["view-backfilling"], True)


def test_a_row_with_its_vnode_unit_file_and_the_rows_behind_it(stored: StoredPipeline) -> None:
    manifest = stored.commit(dict.fromkeys("ab", 1))
    stored.tell(STOPPED)
    found = ask(stored, "sums", "k1")
    assert codes(found)[-1] == "view-key-placed"
    key = found.details["key"]
    assert key["rows"] == [{"k": "k1", "total": 4}]
    assert [file["rows"] for file in key["files"]] == [0, 1, 0], "the second run says what the row is"
    assert found.reasons[-1].facts["files"] == [manifest.tables[1].runs[1].path]
    (kept,) = key["inputs"]
    assert kept["rows"] == [{"k": "k1", "id": 1, "n": 1}, {"k": "k1", "id": 2, "n": 3}]
    assert ask(stored, "SUMS", "K=k1").details["key"] == key, "names in any case, with their column or without"

    found = ask(stored, "sums", "k2")
    assert codes(found)[-1] == "view-row-absent"
    assert [file["deleted"] for file in found.details["key"]["files"]] == [0, 0, 1]
    assert codes(ask(stored, "w", "1970-01-01T00:00:00+00:00"))[-1] == "view-row-absent"

    document = json.loads(command("sums", "-p", str(stored.directory), "-k", "k1", "--json"))
    assert document["details"]["key"]["vnode"] == key["vnode"]
    shown = command("sums", "-p", str(stored.directory), "-k", "k1")
    assert f"vnode {key['vnode']}, which unit {key['unit']} has" in shown


def test_what_other_units_would_move_as_letters_and_as_a_picture(stored: StoredPipeline, tmp_path: Path) -> None:
    stored.commit(dict.fromkeys("ab", 1))
    stored.tell(STOPPED)
    change = ask(stored, "sums", "k1", units=3).details["what_if"]
    assert (change["vnodes_moved"], change["vnodes"]) == (85, 256)
    assert change["owner_before"] in "01"
    picture = tmp_path / "units.svg"
    shown = command("sums", "-p", str(stored.directory), "--if-units", "3", "--svg", str(picture))
    assert "3 units: 85 of 256 vnodes would move" in shown
    assert "85 of 256 vnodes move (outlined)" in picture.read_text()
    command("sums", "-p", str(stored.directory), "--svg", str(picture), code=2)
    assert "257 units" in command("sums", "-p", str(stored.directory), "--if-units", "257", code=1)


def test_vnode_and_unit_of_a_key_in_stages_that_read_a_topic(stored: StoredPipeline) -> None:
    stored.commit(dict.fromkeys("ab", 1))
    stored.tell(STOPPED)
    report = report_of_overview(overview(str(stored.directory), SystemClock()))
    sums, windows = places_of_key(report, stored.topics[0], "k1")
    key = ask(stored, "sums", "k1").details["key"]
    assert (sums["stage"], sums["vnode"], sums["unit"]) == ("sums/1-aggregate", key["vnode"], key["unit"])
    assert (windows["stage"], windows["vnode"]) == ("w/1-aggregate", None)
    assert windows["note"] == "'k1' is not a value of this column"
    assert places_of_key(report, "persistent://public/default/other", "k1") == []


def test_what_is_not_there(stored: StoredPipeline, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no pipeline"):
        ask(stored, "sums")
    stored.commit(dict.fromkeys("ab", 1))
    stored.tell(STOPPED)
    with pytest.raises(InvalidArgumentError, match="no view x; there are: sums, w"):
        ask(stored, "x")
    with pytest.raises(InvalidArgumentError, match="COLUMN=VALUE"):
        ask(stored, "sums", "a", "b")
    with pytest.raises(InvalidArgumentError, match="window_start is timestamp"):
        ask(stored, "w", "yesterday")
    assert "no view x" in command("x", "-p", str(stored.directory), code=1)
