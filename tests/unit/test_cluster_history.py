"""The checker of cluster histories finds nothing in a good one, and each broken promise in one that breaks it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.e2e.cluster.availability import QUIET, distribution, percentile, table, unavailability_s
from tests.e2e.cluster.history import Append, Consumed, Fault, History, Read, Violation, check

FAULT = Fault("kill -9 owner", "broker1", 10.0, 14.0)


def good() -> History:
    """Two producers into one stream, a fault at 10 s; `a:2` has no receipt before it and is stored twice, in another ledger."""
    history = History(slack_s=0.0, faults=[FAULT])
    sent = [("a", 0, 1.0, (1, 0, -1)), ("b", 0, 2.0, (1, 1, -1)), ("a", 1, 3.0, (1, 2, -1)), ("a", 3, 15.0, (2, 1, -1))]
    for producer, number, at_s, place in sent:
        history.appends.append(Append((producer, number), at_s, at_s + 0.1, "t", place))
    history.appends.append(Append(("a", 2), 9.9, 13.0, "t", (2, 0, -1)))
    log = [((1, 0, -1), ("a", 0)), ((1, 1, -1), ("b", 0)), ((1, 2, -1), ("a", 1)), ((1, 3, -1), ("a", 2))]
    history.logs["t"] = [*log, ((2, 0, -1), ("a", 2)), ((2, 1, -1), ("a", 3))]
    history.subscriptions["s"] = ["t"]
    for at_s, (place, message) in zip((1.2, 2.2, 3.2, 13.1, 13.2, 15.2), history.logs["t"], strict=True):
        history.reads.append(Read("s", "s-1", True, "t", place, message, at_s))
        if message != ("b", 0):
            history.consumed.append(Consumed("s", "t", place, at_s + 0.1))
    history.left["s"] = [("t", (1, 1, -1))]
    return history


def promises(history: History) -> set[str]:
    return {violation.promise for violation in check(history)}


def test_a_good_history_breaks_nothing() -> None:
    assert check(good()) == []


def test_a_send_without_a_receipt_may_be_stored_or_not() -> None:
    history = good()
    history.appends.append(Append(("a", 4), 16.0))
    assert check(history) == []


def _lose(history: History) -> None:
    history.appends.append(Append(("b", 1), 16.0, 16.1, "t", None))


def _misplace(history: History) -> None:
    history.appends[0].place, history.appends[1].place = history.appends[1].place, history.appends[0].place


def _share_a_place(history: History) -> None:
    """Two writers were given the same entry."""
    history.appends.append(Append(("b", 0), 2.0, 2.1, "t", (1, 0, -1)))


def _refuse(history: History) -> None:
    history.appends[4].error = "Timeout"


def _store_twice_before_the_fault(history: History) -> None:
    history.logs["t"].append(((2, 2, -1), ("a", 0)))


def _store_twice_with_deduplication(history: History) -> None:
    history.deduplicated = True


def _swap_the_log(history: History) -> None:
    log = history.logs["t"]
    log[0], log[2] = (log[0][0], log[2][1]), (log[2][0], log[0][1])


def _places_go_back(history: History) -> None:
    log = history.logs["t"]
    log[0], log[1] = log[1], log[0]


def _write_behind_the_new_owner(history: History) -> None:
    """Sent after the receipt of a:3 in ledger 2, and in ledger 1."""
    history.appends.append(Append(("b", 1), 16.0, 16.1, "t", (1, 4, -1)))
    history.logs["t"].insert(4, ((1, 4, -1), ("b", 1)))


def _read_before_it_is_sent(history: History) -> None:
    history.appends[0].called_s = 1.5


def _store_what_nobody_sent(history: History) -> None:
    history.logs["t"].append(((2, 2, -1), ("c", 0)))


def _read_what_does_not_stay(history: History) -> None:
    history.appends.append(Append(("b", 1), 9.9))
    history.reads.append(Read("s", "s-1", True, "t", (1, 4, -1), ("b", 1), 10.0))


def _deliver_out_of_order(history: History) -> None:
    first, third = history.reads[0], history.reads[2]
    history.reads[0] = Read("s", "s-1", True, "t", third.place, third.message, 3.15)
    history.reads[2] = Read("s", "s-1", True, "t", first.place, first.message, 3.2)


def _skip(history: History) -> None:
    del history.reads[1]


def _give_again_without_a_fault(history: History) -> None:
    history.reads.append(Read("s", "s-1", True, "t", (1, 0, -1), ("a", 0), 5.0))


def _undo_an_old_acknowledgement(history: History) -> None:
    history.reads.append(Read("s", "s-1", True, "t", (1, 0, -1), ("a", 0), 13.0))


def _give_acknowledged_at_the_end(history: History) -> None:
    history.left["s"].append(("t", (2, 1, -1)))


def _pass_over_unacknowledged(history: History) -> None:
    history.left["s"] = []


@pytest.mark.parametrize(
    ("spoil", "promise"),
    [
        (_lose, "lost"),
        (_misplace, "misplaced"),
        (_share_a_place, "misplaced"),
        (_refuse, "refused"),
        (_store_twice_before_the_fault, "duplicated"),
        (_store_twice_with_deduplication, "duplicated"),
        (_swap_the_log, "reordered"),
        (_places_go_back, "reordered"),
        (_write_behind_the_new_owner, "out_of_time"),
        (_read_before_it_is_sent, "invented"),
        (_store_what_nobody_sent, "invented"),
        (_read_what_does_not_stay, "vanished"),
        (_deliver_out_of_order, "delivered_out_of_order"),
        (_skip, "skipped"),
        (_give_again_without_a_fault, "undone"),
        (_undo_an_old_acknowledgement, "undone"),
        (_give_acknowledged_at_the_end, "left_over"),
        (_pass_over_unacknowledged, "left_over"),
    ],
)
def test_a_broken_promise_is_found(spoil: Callable[[History], None], promise: str) -> None:
    history = good()
    spoil(history)
    assert promise in promises(history)


def test_an_acknowledgement_that_was_not_written_when_the_fault_came_may_be_undone() -> None:
    history = good()
    history.consumed.append(Consumed("s", "t", (1, 1, -1), 9.5))
    history.reads.append(Read("s", "s-1", True, "t", (1, 1, -1), ("b", 0), 13.05))
    history.left["s"] = []
    assert check(history) == []
    early = copy.deepcopy(history)
    early.consumed[-1] = Consumed("s", "t", (1, 1, -1), 8.0)
    assert promises(early) == {"undone"}


def test_a_violation_says_what_and_where() -> None:
    history = good()
    _lose(history)
    assert check(history) == [Violation("lost", "('b', 1) has a receipt for t None")]


def test_unavailability_is_the_longest_wait_for_a_receipt_around_a_fault() -> None:
    history = good()
    history.faults.append(Fault("unload", "t", 15.05, 15.06))
    waits = unavailability_s(history)
    assert [(kind, round(wait_s, 3)) for kind, wait_s in waits] == [
        ("kill -9 owner", 9.9),  # from 3.1 to 13.0
        ("unload", 2.1),  # from 13.0 to 15.1
        (QUIET, 0.0),
    ]


def test_the_distribution_as_a_table() -> None:
    waits = [("unload", number / 10) for number in (3, 1, 2, 10, 4, 5, 6, 7, 8, 9)]
    kinds = distribution([*waits, ("drain", 2.0)])
    assert list(kinds) == ["drain", "unload"]
    assert (percentile(kinds["unload"], 0.5), percentile(kinds["unload"], 0.9)) == (0.5, 0.9)
    assert table(kinds).splitlines()[2:] == [
        "| drain | 1 | 2.00 | 2.00 | 2.00 |",
        "| unload | 10 | 0.50 | 0.90 | 1.00 |",
    ]
