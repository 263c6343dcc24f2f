"""Parts of an epoch that need neither Spark nor a server."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.pipeline.errors import DamagedStateError, PipelineError
from magnetar.pipeline.operators.changelog import CHANGE
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.views.changelog_files import ChangelogFile, read_changes, write_changes
from magnetar.pipeline.views.control.checkpoint import parse_offsets
from magnetar.pipeline.views.control.failures import DAMAGED_FIX, told
from magnetar.pipeline.views.epoch import event_time as watermarks

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine stops for seconds between two draws."""
TIMES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))


@UNHURRIED
@given(TIMES, st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9)))
def test_watermarks_never_fall(now: dict[str, int], seen: dict[str, int | None]) -> None:
    after = watermarks.advanced(now, seen)
    assert set(after) == set(now) | {name for name, time in seen.items() if time is not None}
    assert all(after[name] >= time for name, time in now.items())
    assert all(after[name] >= time for name, time in seen.items() if time is not None)


@UNHURRIED
@given(TIMES, st.sets(st.sampled_from("abc")))
def test_a_watermark_of_several_relations_waits_for_all(now: dict[str, int], relations: set[str]) -> None:
    found = watermarks.combined(now, relations)
    if relations and relations <= set(now):
        assert found == min(now[name] for name in relations)
    else:
        assert found is None


def test_changes_come_back_or_are_damaged(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path))
    changes = pl.DataFrame({CHANGE: [0, 3], "k": ["a", None], "n": [1, 2]}, schema_overrides={CHANGE: pl.Int8})
    file = write_changes(files, 3, "0", changes, SCHEMA, durable=True)
    assert ChangelogFile.from_description(file.describe()) == file
    assert read_changes(files, file).to_pylist() == changes.to_dicts()
    path = tmp_path / file.path
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedStateError, match="does not match its checksum"):
            read_changes(files, file)
    path.unlink()
    with pytest.raises(DamagedStateError, match="cannot be read"):
        read_changes(files, file)


def test_offsets_of_a_batch() -> None:
    text = 'v1\n{"batchTimestampMs":1}\n{"t":{"ledger":1,"entry":2,"batch":0}}\n-'
    assert parse_offsets(text, ["a", "b"]) == {"a": {"t": {"ledger": 1, "entry": 2, "batch": 0}}}
    for wrong in ("", "v1\n{}", text.replace("v1", "v2"), text + "\n-"):
        with pytest.raises(PipelineError, match="not an offset log"):
            parse_offsets(wrong, ["a", "b"])


def test_errors_of_tasks_keep_their_class() -> None:
    text = "Job aborted\n  File x.py\nmagnetar.pipeline.errors.DamagedStateError: run r is short\n\n\tat org.apache"
    error = told(RuntimeError(text))
    assert isinstance(error, DamagedStateError)
    assert str(error) == f"run r is short; {DAMAGED_FIX}"
    other = RuntimeError("magnetar.pipeline.errors.NoSuchError: x")
    assert told(other) is other
