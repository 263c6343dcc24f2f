"""What both indexes promise."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.base.errors import ConfigError, StartupError, StorageError
from magnetar.bookkeeper.bookie.storage.entry_log_format import Location
from magnetar.bookkeeper.bookie.storage.index import Index, IndexedRun
from magnetar.bookkeeper.bookie.storage.index_factory import open_index
from magnetar.bookkeeper.bookie.storage.rocksdb_index import RocksdbIndex

BACKENDS = ["rocksdb", "sqlite"]
BIG = 2**63 - 1


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def index(tmp_path: Path, backend: str) -> Iterator[Index]:
    index = open_index(str(tmp_path), backend)
    yield index
    index.close()


def test_locations_are_consecutive_and_stop_at_the_first_gap(index: Index) -> None:
    index.write(
        [IndexedRun(1, number, 7, number * 10, [5]) for number in (0, 1, 2, 4, 5)] + [IndexedRun(2, 3, 8, 1, [1])], ()
    )
    assert index.locations(1, 0, 10) == [Location(7, 0, 5), Location(7, 10, 5), Location(7, 20, 5)]
    assert index.locations(1, 1, 1) == [Location(7, 10, 5)]
    assert index.locations(1, 3, 5) == []
    assert index.locations(1, 4, 5) == [Location(7, 40, 5), Location(7, 50, 5)]
    assert index.locations(3, 0, 5) == []


def test_many_locations(index: Index) -> None:
    index.write([IndexedRun(1, number, 1, number, [3]) for number in range(5000)], ())
    assert index.locations(1, 0, 10_000) == [Location(1, number, 3) for number in range(5000)]
    assert len(index.locations(1, 4990, 2**62)) == 10


def test_entry_ids_skip_gaps_and_come_in_portions(index: Index) -> None:
    index.write(
        [IndexedRun(1, number, 7, number % 10, [5]) for number in (0, 1, 5, BIG)] + [IndexedRun(2, 3, 8, 1, [1])],
        [(1, b"a")],
    )
    assert index.entry_ids(1, 0, 10) == [0, 1, 5, BIG]
    assert index.entry_ids(1, 0, 2) == [0, 1]
    assert index.entry_ids(1, 2, 2) == [5, BIG]
    assert index.entry_ids(2, 0, 10) == [3]
    assert index.entry_ids(2, 4, 10) == []
    assert index.entry_ids(3, 0, 10) == []


def test_a_later_write_replaces(index: Index) -> None:
    index.write([IndexedRun(1, 0, 1, 1, [1])], [(1, b"a")])
    index.write([IndexedRun(1, 0, 2, 2, [2])], [(1, b"b")])
    assert index.locations(1, 0, 1) == [Location(2, 2, 2)]
    assert index.states() == [(1, b"b")]


def test_last_entry(index: Index) -> None:
    assert index.last_entry_id(1) == -1
    index.write(
        [IndexedRun(1, number, 1, 0, [1]) for number in (5, 300, 70_000)] + [IndexedRun(3, 1, 1, 0, [1])], [(2, b"x")]
    )
    assert [index.last_entry_id(number) for number in range(5)] == [-1, 70_000, -1, 1, -1]


def test_the_largest_ids(index: Index) -> None:
    index.write([IndexedRun(BIG, BIG, 2**32 - 1, 2**32 - 1, [2**31])], [(BIG, b"x")])
    assert index.locations(BIG, BIG, 3) == [Location(2**32 - 1, 2**32 - 1, 2**31)]
    assert index.last_entry_id(BIG) == BIG
    assert index.states() == [(BIG, b"x")]
    index.delete_ledger(BIG, None)
    assert index.last_entry_id(BIG) == -1


def test_deleting_a_ledger_leaves_its_neighbours_and_a_tombstone(index: Index) -> None:
    for ledger_id in (1, 2, 3):
        index.write([IndexedRun(ledger_id, number, 1, 0, [1]) for number in range(300)], [(ledger_id, b"state")])
    index.delete_ledger(2, b"tombstone")
    index.sync()
    assert index.locations(2, 0, 5) == []
    assert index.last_entry_id(2) == -1
    assert (index.last_entry_id(1), index.last_entry_id(3)) == (299, 299)
    assert index.states() == [(1, b"state"), (2, b"tombstone"), (3, b"state")]
    index.delete_ledger(2, None)
    index.sync()
    assert index.states() == [(1, b"state"), (3, b"state")]


def test_log_ends(index: Index) -> None:
    index.write((), (), [(1, 100), (2, 50)])
    index.write((), (), [(1, 2**40)])
    assert index.log_ends() == {1: 2**40, 2: 50}
    index.forget_log(1)
    index.forget_log(9)
    index.sync()
    assert index.log_ends() == {2: 50}
    assert index.states() == []


def test_everything_is_there_after_reopening(tmp_path: Path, backend: str) -> None:
    for start in range(0, 30, 10):
        index = open_index(str(tmp_path), "auto" if start else backend)
        index.write(
            [IndexedRun(1, number, 1, number, [1]) for number in range(start, start + 10)],
            [(start, b"s")],
            [(start, 1)],
        )
        index.close()
    index = open_index(str(tmp_path), backend)
    assert len(index.locations(1, 0, 100)) == 30
    assert [ledger_id for ledger_id, _ in index.states()] == [0, 10, 20]
    assert sorted(index.log_ends()) == [0, 10, 20]
    index.close()


def test_a_directory_keeps_its_index(tmp_path: Path, backend: str) -> None:
    open_index(str(tmp_path), backend).close()
    with pytest.raises(ConfigError, match="index = auto"):
        open_index(str(tmp_path), next(other for other in BACKENDS if other != backend))


def test_a_write_survives_the_death_of_the_process(tmp_path: Path, backend: str) -> None:
    program = f"""
        import os
        from magnetar.bookkeeper.bookie.storage.index import IndexedRun
        from magnetar.bookkeeper.bookie.storage.index_factory import open_index
        index = open_index({str(tmp_path)!r}, {backend!r})
        index.write([IndexedRun(1, n, 1, n, [1]) for n in range(5000)], [(1, b"x")], [(1, 5)])
        index.delete_ledger(2, b"t"); index.sync()
        os.kill(os.getpid(), 9)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False).returncode == -9
    index = open_index(str(tmp_path), backend)
    assert len(index.locations(1, 0, 10_000)) == 5000
    assert index.states() == [(1, b"x"), (2, b"t")]
    index.close()


def test_damage_is_an_error_never_an_absence(tmp_path: Path, backend: str) -> None:
    index = open_index(str(tmp_path), backend)
    index.write([IndexedRun(1, number, 1, number, [1]) for number in range(20_000)], [(1, b"x")])
    index.close()
    if backend == "sqlite":  # everything into the one file
        database = sqlite3.connect(tmp_path / "index.sqlite")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        files = [tmp_path / "index.sqlite"]
    else:
        files = sorted((tmp_path / "index.rocksdb").glob("*.sst"))
    assert files
    for path in files:
        size = path.stat().st_size
        with path.open("r+b") as file:
            for offset in range(size // 4, size * 3 // 4, 64):
                file.seek(offset)
                file.write(os.urandom(32))
    failed = 0
    try:
        index = open_index(str(tmp_path), backend)
    except (StorageError, StartupError):
        failed = 20_000
    else:
        for number in range(0, 20_000, 100):
            try:
                found = index.locations(1, number, 1)
            except StorageError:
                failed += 1
            else:
                if (
                    backend == "rocksdb"
                ):  # SQLite has no checksums of its own; the entry log's reader checks ids and CRC
                    assert found == [Location(1, number, 1)]
        try:
            index.close()
        except StorageError:
            failed += 1
    assert failed > 0


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "reopen"]), st.integers(0, 3), st.integers(0, 12), st.integers(0, 99)
        ),
        max_size=30,
    )
)
def test_like_a_dict(
    tmp_path_factory: pytest.TempPathFactory, backend: str, steps: list[tuple[str, int, int, int]]
) -> None:
    path = str(tmp_path_factory.mktemp("index"))
    index = open_index(path, backend)
    model: dict[tuple[int, int], Location] = {}
    for what, ledger_id, entry_id, value in steps:
        if what == "put":
            index.write([IndexedRun(ledger_id, entry_id, 1, value, [1])], ())
            model[ledger_id, entry_id] = Location(1, value, 1)
        elif what == "delete":
            index.delete_ledger(ledger_id, None)
            model = {key: found for key, found in model.items() if key[0] != ledger_id}
        else:
            index.close()
            index = open_index(path, backend)
    for ledger_id in range(4):
        held = [entry_id for key, entry_id in model if key == ledger_id]
        assert index.last_entry_id(ledger_id) == max(held, default=-1)
        for entry_id in range(13):
            found = index.locations(ledger_id, entry_id, 1)
            assert found == ([model[ledger_id, entry_id]] if entry_id in held else [])
    index.close()


run_sizes = st.one_of(
    st.lists(st.integers(1, 3), min_size=1, max_size=12),
    st.lists(st.sampled_from([0, 0, 2]) | st.integers(0, 3), max_size=30).map(lambda sizes: [2, *sizes, 2]),
)
"""With gaps: a run begins and ends with an entry."""


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "write", "delete", "reopen"]),
            st.lists(
                st.tuples(st.integers(1, 2), st.integers(0, 30), run_sizes),
                max_size=4,
            ),
        ),
        max_size=12,
    )
)
def test_runs_like_a_dict_whatever_they_overlap(
    tmp_path_factory: pytest.TempPathFactory, backend: str, steps: list[tuple[str, list[tuple[int, int, list[int]]]]]
) -> None:
    """Adds that were repeated, compaction, and both within one write: an entry is where the last run with it said."""
    path = str(tmp_path_factory.mktemp("index"))
    index = open_index(path, backend)
    model: dict[int, dict[int, Location]] = {1: {}, 2: {}}
    offset = 0
    for what, runs in steps:
        if what == "write":
            written = []
            for ledger_id, first_entry_id, sizes in runs:
                run = IndexedRun(ledger_id, first_entry_id, 7, offset, sizes)
                written.append(run)
                for entry_id, size in enumerate(sizes, first_entry_id):
                    if size:  # a gap leaves what is there
                        model[ledger_id][entry_id] = Location(7, offset, size)
                        offset += 8 + size
            index.write(written, ())
        elif what == "delete":
            index.delete_ledger(1, None)
            model[1] = {}
        else:
            index.close()
            index = open_index(path, backend)
    for ledger_id, held in model.items():
        assert index.entry_ids(ledger_id, 0, 100) == sorted(held)
        assert index.entry_ids(ledger_id, 5, 3) == [entry_id for entry_id in sorted(held) if entry_id >= 5][:3]
        assert index.last_entry_id(ledger_id) == max(held, default=-1)
        for first in range(64):
            expected = []
            while len(expected) < 9 and (location := held.get(first + len(expected))) is not None:
                expected.append(location)
            assert index.locations(ledger_id, first, 9) == expected
    index.close()


def test_entries_that_an_earlier_version_indexed_are_found_and_replaced(tmp_path: Path) -> None:
    """It wrote a key for each entry."""
    index = RocksdbIndex(str(tmp_path / "index"))
    for entry_id in range(300):
        index._db.put(struct.pack(">cQQ", b"e", 1, entry_id), struct.pack(">III", 7, entry_id * 10, 2))
    assert index.locations(1, 100, 50) == [Location(7, entry_id * 10, 2) for entry_id in range(100, 150)]
    assert (index.last_entry_id(1), index.entry_ids(1, 297, 9)) == (299, [297, 298, 299])
    index.write([IndexedRun(1, 290, 8, 0, [2] * 20)], ())
    assert index.locations(1, 288, 3) == [Location(7, 2880, 2), Location(7, 2890, 2), Location(8, 0, 2)]
    assert index.entry_ids(1, 0, 1000) == list(range(310))
    index.close()


def test_no_step_of_a_write_has_entries_behind_the_end_of_their_log(tmp_path: Path) -> None:
    """Many entries are written in steps. A process that is killed between two of them cuts the log off at its end when it starts again."""
    index = RocksdbIndex(str(tmp_path / "index"))
    steps: list[int] = []
    write = index._write

    def write_and_look(batch: Any, options: Any) -> None:
        write(batch, options)
        steps.append(index.log_ends().get(7, 0))

    index._write = write_and_look  # type: ignore[method-assign]
    index.write([IndexedRun(1, entry_id, 7, 100 * entry_id, [92]) for entry_id in range(1000)], [], [(7, 100_000)])
    assert len(steps) > 1
    assert steps[0] == 100_000
    index.close()
