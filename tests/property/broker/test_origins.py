"""Where messages came from: against a plain list of the log."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.replication.origins import Origin, Origins, runs_of
from magnetar.managed_ledger.position import Position

START = Position(0, -1)
CLUSTERS = ("", "b", "c")
ENTRY = st.tuples(
    st.sampled_from(["", "b", "c", "marker", "again"]), st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=2)
)


def log_of(entries: list[tuple[str, frozenset[str]]]) -> list[Origin | None]:
    """Each cluster's messages in order; `again`: a message of b that was sent a second time."""
    sent = {"b": 0, "c": 0}
    log: list[Origin | None] = []
    for kind, audience in entries:
        if kind == "marker":
            log.append(None)
        elif kind == "":
            log.append(Origin("", None, audience))
        elif kind == "again":
            log.append(Origin("b", Position(7, max(0, sent["b"] - 1)), audience))
        else:
            log.append(Origin(kind, Position(7, sent[kind]), audience))
            sent[kind] += 1
    return log


@given(st.lists(ENTRY, max_size=30), st.integers(0, 30), st.integers(0, 30), st.sampled_from(["a", "b", "c"]))
def test_what_a_sender_cannot_have_had(
    entries: list[tuple[str, frozenset[str]]], low: int, count: int, sender: str
) -> None:
    log = log_of(entries)
    origins = noted(log)
    after, upto = Position(0, low - 1), Position(0, low - 1 + count)
    expected = [
        Position(0, number)
        for number, origin in enumerate(log)
        if after < (0, number) <= upto and origin is not None and not origin.seen_by(sender)
    ]
    assert origins.restricted(after, upto, sender) == expected


@given(st.lists(ENTRY, max_size=30), st.integers(0, 10), st.integers(0, 10), st.integers(-1, 30))
def test_places_of_a_run(entries: list[tuple[str, frozenset[str]]], first: int, more: int, forgotten: int) -> None:
    log = log_of(entries)
    origins = noted(log)
    origins.forget_upto(Position(0, forgotten))
    origins.validate()
    run = (7, first, first + more)
    seen = dict[Position, int]()
    for number, origin in enumerate(log):
        if origin is not None and origin.cluster == "b" and origin.source is not None:
            seen.setdefault(origin.source, number)
    expected = [Position(0, n) for source, n in seen.items() if first <= source.entry_id <= first + more]
    found = origins.places("b", run)
    assert set(found) <= set(expected)
    assert {place for place in expected if place.entry_id > forgotten} <= set(found)
    assert origins.complete("b", run) == any(source.entry_id >= first + more for source in seen)


def noted(log: list[Origin | None]) -> Origins:
    origins = Origins(START)
    for number, origin in enumerate(log):
        origins.note(Position(0, number), origin)
        origins.validate()
    return origins


def test_old_names_go_when_there_are_too_many() -> None:
    origins = Origins(START, names_max=10)
    for number in range(25):
        origins.note(Position(0, number), Origin("b", Position(7, number), frozenset()))
        origins.validate()
    assert origins.places("b", (7, 24, 24)) == [Position(0, 24)]
    assert origins.places("b", (7, 0, 0)) == []


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 20))))
def test_runs_cover_the_places_and_nothing_else(places: set[tuple[int, int]]) -> None:
    runs = runs_of(sorted(Position(*place) for place in places))
    covered = [(ledger, entry) for ledger, first, last in runs for entry in range(first, last + 1)]
    assert covered == sorted(places)
    assert all(one[0] != two[0] or one[2] + 1 < two[1] for one, two in pairwise(runs))
