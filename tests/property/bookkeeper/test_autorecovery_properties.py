"""Fragments against the write sets themselves, lost bookies against a plain history, and how often a failure is repeated."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.autorecovery.backoff import Backoff
from magnetar.bookkeeper.autorecovery.fragments import UNBOUNDED, Fragment, fragments_of, replace_in_fragment
from magnetar.bookkeeper.autorecovery.lost_bookies import LostBookies
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.quorum import write_set

BOOKIES = [f"b{number}" for number in range(12)]


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    starts = sorted(draw(st.sets(st.integers(1, 60), max_size=4)) | {0})
    segments = tuple(
        Segment(start, tuple(draw(st.permutations(BOOKIES))[:ensemble_size]))  # each bookie once
        for start in starts
    )
    metadata = LedgerMetadata(
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        segments=segments,
    )
    if draw(st.booleans()):
        return metadata.closed(starts[-1] - 1 + draw(st.integers(0, 20)), 0)
    return metadata.in_recovery() if draw(st.booleans()) else metadata


@given(ledgers())
def test_fragments_cover_every_entry_once(metadata: LedgerMetadata) -> None:
    fragments = fragments_of(1, metadata)
    covered = [e for part in fragments if part.closed for e in range(part.first_entry_id, part.last_entry_id + 1)]
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry_id + 1 if closed else metadata.last_segment.first_entry_id
    assert covered == list(range(end))
    assert [part.closed for part in fragments] == [True] * (len(fragments) - 1) + [closed]
    assert closed or fragments[-1].last_entry_id == UNBOUNDED


@given(ledgers(), st.integers(0, 100), st.randoms(use_true_random=False))
def test_what_a_bookie_has_to_hold(metadata: LedgerMetadata, percentage: int, rng: random.Random) -> None:
    for part in fragments_of(1, metadata):
        if not part.closed:
            continue
        for index in range(metadata.ensemble_size):
            held = [
                entry
                for entry in range(part.first_entry_id, part.last_entry_id + 1)
                if index in write_set(entry, metadata.ensemble_size, metadata.write_quorum)
            ]
            assert list(part.stored(index)) == held
            assert part.first_stored(index) == (held[0] if held else None)
            assert part.last_stored(index) == (held[-1] if held else None)
            probes = part.probes(index, percentage, rng.sample)
            assert set(probes) <= set(held)
            assert {*held[:1], *held[-1:]} <= set(probes)
        both = {0, metadata.ensemble_size - 1}
        assert list(part.entries_of(both)) == sorted({e for index in both for e in part.stored(index)})


@given(ledgers(), st.data())
def test_replacing_touches_one_segment_only(metadata: LedgerMetadata, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(fragments_of(1, metadata)))
    indexes = data.draw(st.sets(st.integers(0, metadata.ensemble_size - 1), min_size=1))
    changed = replace_in_fragment(metadata, part, {index: f"new{index}" for index in indexes})
    assert changed is not None
    changed.validate()
    assert (changed.state, changed.last_entry_id, changed.length) == (
        metadata.state,
        metadata.last_entry_id,
        metadata.length,
    )
    for before, after in zip(metadata.segments, changed.segments, strict=True):
        assert before.first_entry_id == after.first_entry_id
        differing = {i for i, (x, y) in enumerate(zip(before.ensemble, after.ensemble, strict=True)) if x != y}
        assert differing == (indexes if before.first_entry_id == part.first_entry_id else set())
    # what was read before somebody else changed the segment is not written over it
    assert replace_in_fragment(changed, part, {0: "other"}) is None
    elsewhere = Fragment(1, 1_000, 1_001, part.ensemble, part.write_quorum, True)
    assert replace_in_fragment(metadata, elsewhere, {0: "other"}) is None


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 20), st.sets(st.sampled_from(BOOKIES[:4]))), max_size=20),
)
def test_lost_bookies(delay_s: int, history: list[tuple[int, set[str]]]) -> None:
    known = set(BOOKIES[:4])
    lost = LostBookies(known, delay_s)
    now_s = 0
    missing: dict[str, int] = {}
    for step_s, available in history:
        now_s += step_s
        given_up = lost.observe(available, now_s)
        lost.validate()
        known |= available
        missing = {bookie: since for bookie, since in missing.items() if bookie not in available}
        for bookie in known - available:
            missing.setdefault(bookie, now_s)
        assert given_up <= missing.keys(), "a bookie that is there is never lost"
        if len(missing) > 1 or (missing and delay_s == 0):
            assert given_up == missing.keys()
        if given_up:
            known -= given_up
            missing.clear()
        assert lost.waiting == missing.keys()
        for since in missing.values():
            assert now_s < since + delay_s, "the delay has passed"
            assert lost.due_s is not None
            assert lost.due_s <= since + delay_s


def test_one_bookie_waits_comes_back_and_is_forgotten() -> None:
    lost = LostBookies(["a", "b", "c"], 10)
    assert lost.observe(["a", "b"], 100) == set()
    assert (lost.due_s, lost.waiting) == (110, {"c"})
    assert lost.observe(["a", "b", "c"], 109) == set()
    assert lost.due_s is None
    assert lost.observe(["a", "b"], 120) == set()
    assert lost.observe(["a", "b"], 130) == {"c"}
    assert lost.observe(["a", "b"], 131) == set()


def test_a_second_one_ends_the_waiting() -> None:
    lost = LostBookies(["a", "b", "c"], 1000)
    assert lost.observe(["a", "b"], 0) == set()
    assert lost.observe(["a"], 1) == {"b", "c"}
    assert lost.due_s is None


def test_a_shorter_delay_holds_at_once() -> None:
    lost = LostBookies(["a", "b"], 1000)
    assert lost.observe(["a"], 0) == set()
    lost.set_delay(5)
    assert lost.observe(["a"], 4) == set()
    assert lost.observe(["a"], 5) == {"b"}


@given(st.integers(1, 40))
def test_delays_double_up_to_the_longest(failures: int) -> None:
    backoff = Backoff(1, 60)
    now_s = 0.0
    waits = []
    for _ in range(failures):
        backoff.failed(7, now_s, "gone")
        assert backoff.waiting(now_s) == {7}
        until_s = backoff.next_s(now_s)
        assert until_s is not None
        waits.append(until_s - now_s)
        now_s = until_s
        assert backoff.waiting(now_s) == set()
    assert waits == [min(2.0**n, 60) for n in range(failures)]


def test_a_change_lets_everything_be_tried_again_once() -> None:
    backoff = Backoff(10, 60)
    assert backoff.failed(1, 0, "gone")
    assert not backoff.failed(1, 10, "gone")
    assert backoff.failed(1, 20, "lost")
    backoff.retry_all(25)
    assert backoff.waiting(25) == set()
    backoff.failed(1, 25, "lost")
    assert backoff.next_s(25) == 85
    assert backoff.reasons() == {1: "lost"}
    backoff.repaired(1)
    assert len(backoff) == 0
