"""Entries are kept, written and indexed in runs. However they were cut into runs: the same entries, the same bytes, the same answers."""

from __future__ import annotations

import tempfile
from itertools import accumulate, pairwise
from pathlib import Path
from struct import pack

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.storage.compaction import LogCompaction
from magnetar.bookkeeper.bookie.storage.disk import OsDisk
from magnetar.bookkeeper.bookie.storage.entry_log import EntryLogs
from magnetar.bookkeeper.bookie.storage.index_factory import open_index
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage
from magnetar.bookkeeper.bookie.storage.write_cache import CacheHalf, WriteCache

puts = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(0, 40),
        st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=9),
        st.sampled_from([1, 1, 1, 2, 3, 40]),
    ),
    max_size=15,
)
sizes = st.lists(st.sampled_from([0, 1, 8, 8, 8, 900, 70_000, 300_000]) | st.integers(0, 2000), min_size=1, max_size=40)


def entries_of(ledger_id: int, lengths: list[int]) -> list[bytes]:
    return [pack(">qq", ledger_id, entry_id) + b"x" * length for entry_id, length in enumerate(lengths)]


def cuts_of(count: int, cuts: set[int]) -> list[tuple[int, int]]:
    return list(pairwise(sorted({0, count, *(cut % count for cut in cuts)})))


@given(puts=puts, swap_at=st.integers(0, 15))
def test_the_write_cache_is_a_dict_of_entries(puts: list[tuple[int, int, list[bytes], int]], swap_at: int) -> None:
    cache = WriteCache()
    halves: list[dict[int, dict[int, bytes]]] = [{}, {}]
    for number, (ledger_id, first_entry_id, entries, step) in enumerate(puts):
        if number == swap_at:
            cache.swap()
            halves = [{}, halves[0]]
        given_list = list(entries)
        ids = range(first_entry_id, first_entry_id + step * len(entries), step)
        if step == 1:
            cache.active.put_run(ledger_id, first_entry_id, given_list, sum(map(len, entries)))
        else:
            cache.active.put_scattered(ledger_id, ids, given_list)
        halves[0].setdefault(ledger_id, {}).update(zip(ids, entries, strict=True))
        assert given_list == entries, "the list stays the journal's"
    for ledger_id in range(5):
        newer, older = (half.get(ledger_id, {}) for half in halves)
        held = older | newer
        assert cache.last_entry_id(ledger_id) == max(held, default=-1)
        for entry_id in range(420):
            assert cache.get(ledger_id, entry_id) == held.get(entry_id)
    for half, expected in zip((cache.active, cache.flushing or CacheHalf()), halves, strict=True):
        found = [
            (ledger_id, entry_id, entry)
            for ledger_id, first_entry_id, entries in half.runs()
            for entry_id, entry in enumerate(entries, first_entry_id)
            if entry
        ]
        assert all(entries[0] and entries[-1] for _, _, entries in half.runs()), "gaps are within runs"
        assert found == [
            (ledger_id, entry_id, entry)
            for ledger_id, held in sorted(expected.items())
            for entry_id, entry in sorted(held.items())
        ]
        assert {ledger_id: list(entries) for ledger_id, entries in half.ledgers.items()} == {
            ledger_id: sorted(held) for ledger_id, held in expected.items()
        }
        half.discard(lambda: None)
        assert not half.ledgers


@settings(max_examples=40, deadline=None)
@given(lengths=sizes, cuts=st.sets(st.integers(0, 100)), log_bytes_max=st.sampled_from([10_000, 2**28]))
def test_the_entry_log_has_the_same_bytes_however_it_was_cut(
    lengths: list[int], cuts: set[int], log_bytes_max: int
) -> None:
    entries = entries_of(7, lengths)
    with tempfile.TemporaryDirectory() as whole_path, tempfile.TemporaryDirectory() as cut_path:
        locations, contents = [], []
        for path, runs in ((whole_path, [(0, len(entries))]), (cut_path, cuts_of(len(entries), cuts))):
            logs = EntryLogs(OsDisk(), path, log_bytes_max, {}, lambda: None)
            indexed = logs.write((7, start, entries[start:stop]) for start, stop in runs)
            assert [run.first_entry_id for run in indexed] == list(
                accumulate((len(run.sizes) for run in indexed[:-1]), initial=0)
            )
            locations.append([location for run in indexed for location in run.locations()])
            logs.sync()
            logs.seal()
            logs.close()
            contents.append({file.name: file.read_bytes() for file in sorted(Path(path).iterdir())})
        assert contents[0] == contents[1]
        assert locations[0] == locations[1]


@settings(max_examples=15, deadline=None)
@given(
    puts=st.lists(
        st.tuples(
            st.integers(1, 2),
            st.integers(0, 40),
            st.lists(st.sampled_from([8, 8, 8, 700, 3000]), min_size=1, max_size=20),
        ),
        min_size=1,
        max_size=8,
    ),
    step_bytes=st.sampled_from([1, 3000, 10_000]),
    flush_after=st.sets(st.integers(0, 7)),
)
def test_flushes_and_compactions_leave_the_entry_that_was_put_last(
    puts: list[tuple[int, int, list[int]]], step_bytes: int, flush_after: set[int]
) -> None:
    """Also where entries were added again, so that a compaction finds parts of runs elsewhere."""
    with tempfile.TemporaryDirectory() as path:
        config = BookieConfig(data_dir=Path(path))
        OsDisk().make_dir(config.ledger_path)
        index = open_index(config.ledger_path, "rocksdb")
        storage = LedgerStorage(config, OsDisk(), index, lambda: None)
        expected: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
        half = CacheHalf()
        for number, (ledger_id, first_entry_id, lengths) in enumerate(puts):
            entries = [
                pack(">qq", ledger_id, entry_id) + bytes([number]) * length
                for entry_id, length in enumerate(lengths, first_entry_id)
            ]
            expected[ledger_id].update(enumerate(entries, first_entry_id))
            half.put_run(ledger_id, first_entry_id, entries, sum(map(len, entries)))
            if number in flush_after:
                storage.flush(half, [], None, None)
                half = CacheHalf()
        storage.flush(half, [], None, None)
        storage.logs.seal()
        for log_id in sorted(storage.logs.metas):
            compaction = LogCompaction(storage, storage.logs.metas[log_id], step_bytes)
            while compaction.step({1, 2}):
                pass
        for ledger_id, held in expected.items():
            assert index.entry_ids(ledger_id, 0, 1000) == sorted(held)
            for entry_id, entry in held.items():
                assert storage.read(ledger_id, entry_id, 1, 0) == [entry]
        storage.logs.close()
        index.close()
