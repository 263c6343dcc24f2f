"""Scans of views without Spark: who reads which vnodes, what prunes, and what stays the same while the pipeline goes on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'magnetar[spark]'")

from magnetar.base.clock import SystemClock
from magnetar.base.errors import InvalidArgumentError
from magnetar.hashing.vectorized.vnode import vnodes
from magnetar.pipeline.connect.errors import OptionError
from magnetar.pipeline.errors import CatalogError, DamagedStateError, UnknownEpochError
from magnetar.pipeline.home import pipeline_directory
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import StateFiles
from magnetar.pipeline.state.table import StateTable
from magnetar.pipeline.views.scan.batch import cut, pieces, rows_of_vnodes
from magnetar.pipeline.views.scan.keys import key_rows, pushed_values, vnode_bits, wanted_values
from magnetar.pipeline.views.scan.options import view_options
from magnetar.pipeline.views.scan.source import ViewReader, spark_schema
from tests.support.state_tables import TABLE, StateTableHarness

ROWS = {(f"k{number}", number): number / 4 for number in range(400)}


def harness_of(path: Path) -> StateTableHarness:
    harness = StateTableHarness(str(path))
    harness.commit(views={"catalog": [], "tables": {"Delays": TABLE.table_id}, "stages": {}})
    harness.epoch(ROWS)
    return harness


def reader(path: Path, **options: str) -> ViewReader:
    return ViewReader(view_options({"pipeline": str(path), "view": "delays", **options}), spark_schema(TABLE))


def read_all(source: ViewReader, parts: Any) -> dict[tuple[str, int], float]:
    rows = [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]
    found = {(row["k"], row["n"]): row["v"] for row in rows}
    assert len(found) == len(rows), "each row once"
    return found


def test_every_task_sees_the_manifest_of_planning_whatever_happens_after(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    source = reader(tmp_path, groups="5")
    parts = source.partitions()
    assert len(parts) == 5
    for number in range(30):  # merges runs, and moves the manifest out of those that are kept
        harness.epoch({("k1", 1): float(number), (f"new{number}", number): 0.0})
    gc.collect(harness.files, SystemClock(), orphan_age_s=0.0)
    assert read_all(source, parts) == ROWS
    assert not gc.pinned(harness.files, SystemClock()), "whoever has read all lets go"
    gc.collect(harness.files, SystemClock(), orphan_age_s=0.0)
    with pytest.raises(UnknownEpochError, match=r"collected|pinTimeoutS"):
        read_all(source, parts)
    assert len(read_all(reader(tmp_path), reader(tmp_path).partitions())) == len(ROWS) + 30


def test_a_view_is_read_while_its_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness_of(tmp_path)

    def full(files: StateFiles, path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(StateFiles, "create", full)
    source = reader(tmp_path)
    assert read_all(source, source.partitions()) == ROWS


def test_an_older_epoch_and_one_that_is_not_kept(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    before = harness.manifest.epoch
    harness.epoch({("k1", 1): None, ("k2", 2): -1.0})
    old = reader(tmp_path, epoch=str(before))
    assert read_all(old, old.partitions()) == ROWS
    with pytest.raises(UnknownEpochError, match="there are"):
        reader(tmp_path, epoch="99").partitions()
    with pytest.raises(CatalogError, match="there are: Delays"):
        ViewReader(view_options({"pipeline": str(tmp_path), "view": "x"}), spark_schema(TABLE)).partitions()
    with pytest.raises(CatalogError, match="there is no pipeline in"):
        reader(tmp_path / "none").partitions()


def test_a_key_reads_one_vnode_and_a_part_of_it_filters(tmp_path: Path) -> None:
    harness_of(tmp_path)
    one = reader(tmp_path, key=json.dumps({"K": "k7", "n": 7}), groups="16")
    parts = one.partitions()
    assert [len(part.pieces[0]) for part in parts] == [1]
    assert read_all(one, parts) == {("k7", 7): 7 / 4}
    some = reader(tmp_path, key=json.dumps({"n": [7, "8", 1000]}))
    assert read_all(some, some.partitions()) == {("k7", 7): 7 / 4, ("k8", 8): 2.0}
    with pytest.raises(OptionError, match="not a key column of t; those are: k, n"):
        reader(tmp_path, key='{"v": 1}').partitions()
    with pytest.raises(OptionError, match="n is int64"):
        reader(tmp_path, key='{"n": "seven"}').partitions()


def test_damage_is_an_error_and_never_rows(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    source = reader(tmp_path, groups="1")
    parts = source.partitions()
    run = tmp_path / harness.state.runs[0].path
    run.write_bytes(run.read_bytes()[:-20])
    with pytest.raises(DamagedStateError, match="bytes instead of"):
        read_all(source, parts)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 16, 100])
def test_a_cut_has_every_vnode_once_and_follows_the_rows(parts: int) -> None:
    even = [10.0] * 16
    groups = cut(range(16), even, parts)
    assert [vnode for group in groups for vnode in group] == list(range(16))
    assert len(groups) == min(parts, 16)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    skewed = [1000.0, *[1.0] * 15]
    if 1 < parts <= 16:
        assert cut(range(16), skewed, parts)[0] == (0,), "one heavy vnode has a task of its own"
    assert sum(map(len, cut(range(16), [0.0] * 16, parts))) == 16


def test_pieces_bound_what_is_merged_at_a_time() -> None:
    assert pieces([1, 2, 3, 4], [0.0, 5.0, 5.0, 30.0, 1.0], 10) == [(1, 2), (3,), (4,)]
    assert pieces([], [], 10) == []


def test_monotonic_keys_fill_all_vnodes_alike(tmp_path: Path) -> None:
    table = StateTable(1, "t", pa.schema([("id", pa.int64())]), ("id",))
    keys = pa.array(range(1_000_000, 1_100_000), pa.int64())
    rows = [0.0] * 256
    for vnode in vnodes([keys], count=256):
        rows[vnode] += 1
    assert table.vnode_count == 256
    sizes = [sum(rows[vnode] for vnode in group) for group in cut(range(256), rows, 8)]
    assert max(sizes) < 1.1 * min(sizes), (
        "the newest keys are everywhere; by ranges of keys all of them are in the last task"
    )


def test_rows_by_vnode_come_from_the_manifest_alone(tmp_path: Path) -> None:
    harness = harness_of(tmp_path)
    rows = rows_of_vnodes(harness.state.runs, TABLE.vnode_count)
    assert sum(rows) == pytest.approx(len(ROWS))


def test_conditions_that_cannot_prune_are_left_to_spark() -> None:
    table = StateTable(
        1,
        "t",
        pa.schema([("f", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int32())]),
        ("f", "at", "n"),
        distribution=("f",),
    )
    assert pushed_values(table, [("f", (0.0,)), ("at", ("x",)), ("n", (2**40,)), ("other", (1,))]) == {}
    assert set(pushed_values(table, [("n", (1, 2)), ("n", (3,))])) == {"n"}
    assert key_rows(table, wanted_values(table, {"n": (1,)})) is None, "the vnode is not known without f"
    keys = key_rows(table, wanted_values(table, {"f": (1.5, 2.5), "n": (1, 1, 2)}))
    assert keys is not None
    assert keys.num_rows == 4
    assert vnode_bits(table, keys).bit_count() == 2
    assert key_rows(table, wanted_values(table, {"f": [*map(float, range(10_001))]})) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"view": "v"}, "pipeline is missing"),
        ({"pipeline": "p"}, "view is missing"),
        ({"pipeline": "p", "view": "v", "epochs": "1"}, "did you mean epoch"),
        ({"pipeline": "p", "view": "v", "groups": "0"}, "at least 1"),
        ({"pipeline": "p", "view": "v", "key": "UA"}, "not JSON"),
        ({"pipeline": "p", "view": "v", "key": "[1]"}, "not a JSON object"),
        ({"pipeline": "p", "view": "v", "pin": "yes"}, "true or false"),
    ],
)
def test_wrong_options_name_the_fix(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        view_options(options)


def test_where_pipelines_live(tmp_path: Path) -> None:
    assert pipeline_directory("flights", {"MAGNETAR_HOME": "/x"}) == "/x/pipelines/flights"
    assert pipeline_directory("flights", {}).endswith("/.magnetar/pipelines/flights")
    assert pipeline_directory("s3://b/p", {}) == "s3://b/p"
    assert pipeline_directory("./p", {}) == "./p"
    for bad in ("", "..", "-x", "a b"):
        with pytest.raises(InvalidArgumentError, match="pipeline name"):
            pipeline_directory(bad, {})
