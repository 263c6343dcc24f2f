"""Units that follow a load, against a model of one: within bounds, calm, and enough of them where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.pipeline.views.control.rescale import (
    BUSY_HIGH,
    BUSY_KEPT,
    CAP_S,
    GROW_AFTER_S,
    SETTLE_S,
    SHRINK_AFTER_S,
    WORK_KEPT,
    WORK_LEAST,
    AdaptiveUnits,
    Decision,
    Load,
)

Seen = list[tuple[float, Decision]]
MOST = 16


def model(rate: float, per_unit: float, units: int, fixed: float = 0.0) -> Load:
    """`fixed`: the share of time that no unit makes shorter."""
    work = rate / (per_unit * units)
    busy = fixed + work
    done = rate if busy <= 1 else per_unit * units * max(1 - fixed, 0.0)
    return Load(units, min(busy, 1.0), min(work, 1 - fixed), done, 0 if busy <= 1 else 10**9)


def follow(adaptive: AdaptiveUnits, units: int, load: Callable[[float, int], Load], seconds: int) -> tuple[int, Seen]:
    seen: Seen = []
    for now_s in range(seconds):
        decision = adaptive.look(load(float(now_s), units), float(now_s))
        if decision is not None:
            seen.append((float(now_s), decision))
            units = decision.units
    return units, seen


@given(
    least=st.integers(1, MOST),
    more=st.integers(0, MOST),
    units=st.integers(1, MOST),
    loads=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1e6), st.one_of(st.none(), st.integers(0, 10**7))),
        min_size=50,
        max_size=300,
    ),
)
def test_whatever_comes_it_stays_within_bounds_and_leaves_time_between_changes(
    least: int, more: int, units: int, loads: list[tuple[float, float, float, int | None]]
) -> None:
    adaptive = AdaptiveUnits(least, least + more)
    start = min(max(units, least), least + more)

    def load(now_s: float, now: int) -> Load:
        busy, work, rows, lag = loads[int(now_s)]
        return Load(now, busy, min(work, busy), rows, lag)

    _, seen = follow(adaptive, start, load, len(loads))
    assert all(least <= decision.units <= least + more for _, decision in seen)
    times = [at for at, _ in seen]
    assert all(later - at >= SETTLE_S for at, later in pairwise(times))


@example(rate=12801.0, per_unit=1000.0, units=1, fixed=0.0)  # the last units bring few rows more, and time
@given(rate=st.floats(0, 1e5), per_unit=st.floats(1e3, 1e5), units=st.integers(1, MOST), fixed=st.floats(0, 0.75))
def test_a_steady_load_gets_units_enough_and_then_none_other(
    rate: float, per_unit: float, units: int, fixed: float
) -> None:
    adaptive = AdaptiveUnits(1, MOST)
    found, seen = follow(adaptive, units, lambda _, now: model(rate, per_unit, now, fixed), 2000)
    at_rest = model(rate, per_unit, found, fixed)
    assert at_rest.busy <= BUSY_HIGH or found == MOST or at_rest.work < WORK_LEAST
    half = (found + 1) // 2
    assert found == 1 or at_rest.work_with(half) > WORK_KEPT or at_rest.busy_with(half) > BUSY_KEPT
    assert not [at for at, _ in seen if at > 1000]
    directions = {decision.units > units for _, decision in seen}
    assert len(directions) <= 1, "it does not swing"


@given(fixed=st.floats(0.85, 1.0), rate=st.floats(1, 1e3), units=st.integers(1, MOST // 2))
def test_units_that_bring_nothing_are_given_back(fixed: float, rate: float, units: int) -> None:
    """An epoch's fixed cost takes all of the time, so that more units change nothing."""
    adaptive = AdaptiveUnits(units, MOST)

    def load(_: float, now: int) -> Load:
        return Load(now, fixed, fixed, rate, 0)

    _, seen = follow(adaptive, units, load, 1000)
    sizes = [decision.units for _, decision in seen]
    assert sizes[1::2] == [units] * len(sizes[1::2]), "each try is taken back"
    tries = [at for at, _ in seen][::2]
    assert all(later - at >= CAP_S for at, later in pairwise(tries))


def test_units_that_are_wanted_back_are_kept_for_a_while() -> None:
    """A load at the edge: with fewer units its noise is too much for them."""
    adaptive = AdaptiveUnits(1, MOST)
    _, seen = follow(adaptive, 2, lambda _, now: Load(now, *((0.5, 0.25) if now == 2 else (0.85, 0.5)), 1e3, 0), 1000)
    assert [decision.units for _, decision in seen[:2]] == [1, 2]
    assert all(later - at >= CAP_S for (at, _), (later, _) in pairwise(seen[1::2]))


@given(
    spells=st.lists(
        st.tuples(st.booleans(), st.integers(1, int(GROW_AFTER_S)), st.integers(1, int(SHRINK_AFTER_S))), max_size=20
    )
)
def test_what_passes_soon_changes_nothing(spells: list[tuple[bool, int, int]]) -> None:
    busy: list[float] = []
    for high, short, quiet in spells:
        busy += [0.95] * short if high else [0.01] * quiet
        busy.append(0.75)
    adaptive = AdaptiveUnits(1, MOST)
    _, seen = follow(
        adaptive, 4, lambda now_s, now: Load(now, busy[int(now_s)], busy[int(now_s)] * 0.9, 1e3, 0), len(busy)
    )
    assert seen == []
