"""Which epochs count as those of few rows, and what their workers keep."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from magnetar.pipeline.state.files import TEMPORARY, StateFiles
from magnetar.pipeline.state.hot_runs import HotRuns
from magnetar.pipeline.views.epoch.kept_plans import FEW_ENTRIES, SMALL_ENTRIES, SMALL_ROWS, EpochSize


@pytest.mark.parametrize(
    ("entries", "rows_per_entry", "small"),
    [
        (None, 1.0, False),  # from another ledger: any number
        (FEW_ENTRIES, None, True),
        (FEW_ENTRIES + 1, None, False),
        (SMALL_ENTRIES, 0.0, True),  # the rows before were filtered
        (SMALL_ENTRIES + 1, 0.1, False),
        (100, SMALL_ROWS / 100, True),
        (101, SMALL_ROWS / 100, False),
    ],
)
def test_an_epoch_of_few_rows_is_known_by_its_entries(
    entries: int | None, rows_per_entry: float | None, small: bool
) -> None:
    assert EpochSize(entries, rows_per_entry).is_small is small


def test_what_an_epoch_had_says_how_large_entries_are() -> None:
    size = EpochSize()
    size.learn(10)  # entries unknown
    assert size.rows_per_entry is None
    size.entries = 5
    size.learn(5000)
    assert size.rows_per_entry == 1000
    size.entries = 11
    assert not size.is_small


def test_runs_that_were_not_asked_for_go_first() -> None:
    rows = pl.DataFrame({"a": [1] * 100})  # 800 bytes
    hot = HotRuns(2000)
    for name in ("a", "b"):
        hot.put(name, rows)
    assert hot.get("a") is not None
    hot.put("c", rows)
    assert hot.get("b") is None
    assert hot.get("a") is not None
    assert hot.size_bytes == 2 * rows.estimated_size() <= 2000


def test_a_run_that_would_push_out_all_others_is_not_kept() -> None:
    hot = HotRuns(1000)
    hot.put("a", pl.DataFrame({"a": [1] * 100}))
    assert hot.get("a") is None
    assert hot.size_bytes == 0


def test_names_are_those_of_finished_files_on_every_file_system(tmp_path: Path) -> None:
    local, remote = StateFiles(str(tmp_path)), StateFiles(f"memory://{tmp_path}")
    for files in (local, remote):
        assert files.names("manifests") == []
        for name in ("b", "a", f"{TEMPORARY}c"):
            files.create(f"manifests/{name}", b"1")
        files.create("manifests/below/d", b"1")
        assert files.names("manifests") == ["a", "b"]
        assert files.names() == []
