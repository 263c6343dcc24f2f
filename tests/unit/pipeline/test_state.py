"""Runs, manifests, fencing, damage, collection: what state tables promise besides their rows."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest

from magnetar.base.clock import SystemClock
from magnetar.pipeline.errors import DamagedStateError, DriverFencedError, StateSchemaError, UnknownEpochError
from magnetar.pipeline.serving.reader import LIST_S, Views
from magnetar.pipeline.state import gc
from magnetar.pipeline.state.files import TEMPORARY, StateFiles
from magnetar.pipeline.state.manifest import Manifest, ManifestStore, TableState, file_name
from magnetar.pipeline.state.reader import read_arrow
from magnetar.pipeline.state.run import RunInfo, read_run, write_run
from magnetar.pipeline.state.table import PUT, VNODE, StateTable
from tests.support.state_tables import TABLE, VNODES, StateTableHarness
from tests.unit.managed_ledger.ledger_harness import HandClock

ALL = (1 << VNODES) - 1


def rows(count: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {"k": [f"key{number:09d}" for number in numbers], "n": list(numbers), "v": [number / 2 for number in numbers]}
    )


def one_run(files: StateFiles, count: int) -> RunInfo:
    return write_run(files, TABLE, TABLE.with_vnodes(rows(count), PUT), level=0, oldest=1, newest=1, vnode_bits=ALL)


def test_a_run_is_plain_parquet_in_storage_order(tmp_path: Path) -> None:
    run = one_run(StateFiles(str(tmp_path)), 1000)
    path = str(tmp_path / run.path)
    frames = [
        pandas.read_parquet(path),
        polars.read_parquet(path).to_pandas(),
        duckdb.sql(f"select * from read_parquet('{path}')").df(),
    ]
    for frame in frames:
        assert len(frame) == 1000
        order = list(zip(frame[VNODE], frame["k"], frame["n"], strict=True))
        assert order == sorted(order)
        assert set(frame["_op"]) == {PUT}


def test_only_the_groups_of_the_vnodes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = StateFiles(str(tmp_path))
    run = one_run(files, 300_000)
    assert len(run.groups) > 3
    found = read_run(files, TABLE, run, 1 << 5)
    assert set(found[VNODE]) == {5}
    everything = read_run(files, TABLE, run, ALL)
    assert everything.height == 300_000
    assert found.equals(everything.filter(everything[VNODE] == 5))


def test_keys_find_their_rows(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    harness.epoch({("a", 1): 1.0, ("b", None): 2.0, (None, 3): 3.0})
    harness.epoch({("a", 1): None, ("b", None): 4.0})
    wanted = pa.table({"k": ["a", "b", None, "c"], "n": pa.array([1, None, 3, 1], pa.int64())})
    found = read_arrow(harness.files, harness.state, range(VNODES), wanted)
    assert {(row["k"], row["n"], row["v"]) for row in found.to_pylist()} == {("b", None, 4.0), (None, 3, 3.0)}


def test_flipped_bytes_and_cuts_are_noticed(tmp_path: Path) -> None:
    """Wrong rows are never served: an error, or, where the byte means nothing, the right ones."""
    files = StateFiles(str(tmp_path))
    run = one_run(files, 40)
    path = tmp_path / run.path
    good = path.read_bytes()
    expected = read_run(files, TABLE, run, ALL)
    refused = 0
    for place in range(0, len(good), 5):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        try:
            assert read_run(files, TABLE, run, ALL).equals(expected), f"byte {place}"
        except DamagedStateError:
            refused += 1
    assert refused > len(good) / 5 * 0.9
    for size in range(0, len(good), 3):
        path.write_bytes(good[:size])
        with pytest.raises(DamagedStateError):
            read_run(files, TABLE, run, ALL)
    path.unlink()
    with pytest.raises(DamagedStateError):
        read_run(files, TABLE, run, ALL)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    harness.epoch({("a", 1): 1.0})
    path = tmp_path / file_name(harness.manifest.number)
    good = path.read_bytes()
    for place in range(0, len(good), 7):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(DamagedStateError):
            harness.store.latest()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(DamagedStateError):
        gc.collect(harness.files, SystemClock())
    path.write_bytes(good)
    assert harness.store.latest() == harness.manifest


def test_an_unfinished_manifest_is_not_there(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    harness.epoch({("a", 1): 1.0})
    following = harness.manifest.next(epoch=9).to_bytes()
    (tmp_path / "manifests" / f"{TEMPORARY}x-MANIFEST").write_bytes(following[: len(following) // 2])
    assert harness.store.latest() == harness.manifest


@pytest.mark.parametrize("root", ["{tmp}", "memory://{name}"])
def test_the_driver_that_claims_last_is_the_only_one(root: str, tmp_path: Path) -> None:
    root = root.format(tmp=tmp_path, name=tmp_path.name)
    old, new = StateTableHarness(root), StateTableHarness(root)
    assert new.manifest.term == old.manifest.term + 1
    with pytest.raises(DriverFencedError, match="this one stops"):
        old.epoch({("a", 1): 1.0})
    new.epoch({("b", 1): 2.0})
    assert new.store.latest() == new.manifest
    assert new.rows() == {("b", 1): 2.0}


def test_epochs_are_found_and_missed_ones_named(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    for number in range(12):
        harness.epoch({("a", number): 1.0})
        if number % 3 == 0:
            harness.commit(sinks={"s": number})
    assert len(harness.rows(harness.store.at_epoch(4).tables[7])) == 4
    gc.collect(harness.files, SystemClock(), kept=5)
    with pytest.raises(UnknownEpochError, match="there are: 9 to 12"):
        harness.store.at_epoch(4)
    assert harness.store.at_epoch(10).sinks == {"s": 9}, "the last manifest of the epoch"


def test_pinned_manifests_and_young_files_stay(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    harness.epoch({("a", 1): 1.0})
    pinned = harness.manifest
    name = gc.pin(harness.files, SystemClock(), pinned)
    orphan = one_run(harness.files, 10)
    for number in range(20):
        harness.epoch({("a", 1): float(number)})
    gc.collect(harness.files, SystemClock(), kept=2)
    assert harness.rows(harness.store.read(pinned.number).tables[7]) == {("a", 1): 1.0}
    assert (tmp_path / orphan.path).exists(), "a task may still be at it"
    gc.unpin(harness.files, name)
    long_ago = 1_000_000_000
    os.utime(tmp_path / orphan.path, (long_ago, long_ago))
    gc.collect(harness.files, SystemClock(), kept=2)
    assert not (tmp_path / orphan.path).exists()
    with pytest.raises(UnknownEpochError):
        harness.store.read(pinned.number)
    named = {path for number in harness.store.numbers() for path in harness.store.read(number).run_paths()}
    assert {f"{TABLE.directory}/{path.name}" for path in (tmp_path / TABLE.directory).iterdir()} == named
    assert harness.rows() == {("a", 1): 19.0}


def test_a_reader_sees_the_next_epoch_at_once_and_one_that_fell_behind_what_is_kept_soon(tmp_path: Path) -> None:
    harness, clock = StateTableHarness(str(tmp_path)), HandClock()
    views = Views(harness.files, clock)
    assert views.refresh()
    harness.epoch({("a", 1): 1.0})
    assert views.refresh()
    assert not views.refresh()
    gc.pin(harness.files, SystemClock(), harness.manifest)
    for number in range(20):
        harness.epoch({("a", 1): float(number)})
    gc.collect(harness.files, SystemClock(), kept=2)
    assert not harness.store.has(views.newest().manifest.number + 1)
    clock.ms += int(LIST_S * 1000)
    assert views.refresh()
    assert views.newest().manifest.epoch == harness.manifest.epoch


def test_a_table_without_key_is_one_row(tmp_path: Path) -> None:
    table = StateTable(1, "total", pa.schema([("n", pa.int64())]), (), VNODES)
    files = StateFiles(str(tmp_path))
    runs = tuple(
        write_run(
            files, table, table.with_vnodes(pa.table({"n": [n]}), PUT), level=0, oldest=n, newest=n, vnode_bits=ALL
        )
        for n in (1, 2, 3)
    )
    assert read_arrow(files, TableState(table, runs), range(VNODES)).to_pylist() == [{"n": 3}]


def test_rows_that_do_not_fit_name_the_columns() -> None:
    with pytest.raises(StateSchemaError, match="table t takes"):
        TABLE.with_vnodes(pa.table({"k": ["a"], "n": [1]}), PUT)
    with pytest.raises(StateSchemaError, match="rename it"):
        StateTable(1, "t", pa.schema([("_vnode", pa.int64())]), ())
    with pytest.raises(StateSchemaError, match="key column 'x'"):
        StateTable(1, "t", pa.schema([("a", pa.int64())]), ("x",))


def test_manifests_come_back_as_they_were(tmp_path: Path) -> None:
    harness = StateTableHarness(str(tmp_path))
    harness.epoch({("a", 1): 1.0})
    harness.commit(sources={"s": {"t": [1, 2]}}, watermarks_us={"w": 5}, views={"v": {"sql": "select 'ä'"}})
    data = harness.manifest.to_bytes()
    assert Manifest.from_bytes("m", data) == harness.manifest
    assert ManifestStore(harness.files, SystemClock()).latest() == harness.manifest


def test_rows_of_a_group_share_a_vnode(tmp_path: Path) -> None:
    table = StateTable(8, "g", TABLE.schema, ("k", "n"), VNODES, ("k",))
    assert StateTable.from_description(table.describe()) == table
    found = table.with_vnodes(pa.table({"k": ["a", "b"] * 20, "n": range(40), "v": [0.0] * 40}), PUT)
    assert found.group_by("k").agg(polars.col(VNODE).n_unique())[VNODE].to_list() == [1, 1]
    files = StateFiles(str(tmp_path))
    run = write_run(files, table, found, level=0, oldest=1, newest=1, vnode_bits=ALL)
    rows = read_arrow(files, TableState(table, (run,)), range(VNODES), pa.table({"k": ["a"]}))
    assert sorted(rows["n"].to_pylist()) == list(range(0, 40, 2))
    one_vnode = StateTable(9, "all", TABLE.schema, ("k", "n"), VNODES, ())
    assert set(one_vnode.with_vnodes(pa.table({"k": ["a"], "n": [1], "v": [0.0]}), PUT)[VNODE]) == {0}
    with pytest.raises(StateSchemaError, match="first columns"):
        StateTable(8, "g", TABLE.schema, ("k", "n"), VNODES, ("n",))
