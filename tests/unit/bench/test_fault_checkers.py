"""The checkers of bench/faults: histories that keep each promise, and the same ones broken in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.faults import targets
from bench.faults.checkers import CHECKERS
from bench.faults.history import History, read
from bench.faults.workloads import last_lists

Step = tuple[Any, ...]
"""Process, type, f, value, and what else the event says."""


def history(*steps: Step) -> History:
    made = History()
    for process, kind, f, value, *more in steps:
        made.add(process, kind, f, value, **(more[0] if more else {}))
    return made


def problems(workload: str, *steps: Step) -> list[str]:
    return CHECKERS[workload](history(*steps).events)


def adds(*values: str) -> list[Step]:
    steps: list[Step] = []
    for number, value in enumerate(values):
        steps += [(0, "invoke", "add", value), (0, "ok", "add", value, {"place": [1, number]})]
    return steps


def contents(*values: str) -> Step:
    return ("reader", "ok", "read", list(values), {"places": [[1, number] for number in range(len(values))]})


def test_what_has_a_receipt_is_there_in_order() -> None:
    assert problems("set", *adds("p:0", "p:1"), contents("p:0", "p:1")) == []
    assert problems("set", *adds("p:0", "p:1"), contents("p:0")) == ["P1 p:1 has a receipt for [1, 1] and is not there"]
    swapped = problems("set", *adds("p:0", "p:1"), contents("p:1", "p:0"))
    assert "P2 p:0 is stored behind p:1" in swapped
    assert any(each.startswith("P1") for each in swapped)
    assert problems("set", *adds("p:0"), contents("p:0", "q:7")) == ["P1 q:7 is there, and nobody sent it"]


def test_deduplication_stores_once() -> None:
    twice = [*adds("p:0"), contents("p:0", "p:0")]
    assert problems("set", *twice) == []
    assert problems("dedup", *twice) == ["P3 p:0 is stored 2 times"]


def delivery(consumer: str, number: int, epoch: int = 0) -> Step:
    return (consumer, "ok", "deliver", [f"p:{number}", "k", 1, number], {"epoch": epoch})


def test_a_key_is_at_one_consumer() -> None:
    end = ("reader", "ok", "read", ["p:0", "p:1"])
    acked: Step = ("a", "invoke", "ack", "p:0", {"epoch": 0})
    left: Step = ("a", "info", "left", None, {"epoch": 0})
    for between in (acked, left):
        assert problems("key-shared", delivery("a", 0), between, delivery("b", 1), end) == []
    assert problems("key-shared", delivery("a", 0), delivery("b", 1), end) == [
        "P4 p:1 of key k came to b while a holds ['p:0']"
    ]
    assert problems("key-shared", delivery("a", 0), delivery("b", 1, epoch=1), end) == []
    assert problems("key-shared", delivery("a", 1), delivery("a", 0), end) == [
        "P4 p:0 of key k came for the first time behind number 1"
    ]
    assert problems("key-shared", delivery("a", 0), end) == ["P6 p:1 never came"]


def test_acknowledgements_survive_and_nothing_is_passed_over() -> None:
    def run(*left: tuple[str, list[int]]) -> list[str]:
        place = {"place": [1, 0]}
        steps = [*adds("p:0", "p:1"), ("c", "invoke", "ack", "p:0", place), ("c", "ok", "ack", "p:0", place)]
        return problems("acks", *steps, ("last", "ok", "rest", list(left)), contents("p:0", "p:1"))

    assert run(("p:1", [1, 1])) == []
    assert run() == ["P6 p:1 at [1, 1] was never acknowledged and does not come again"]
    assert run(("p:0", [1, 0]), ("p:1", [1, 1])) == [
        "P5 p:0 at [1, 0] came again at the end, its acknowledgement was confirmed"
    ]


def txn(kind: str, *value: list[Any]) -> list[Step]:
    return [("t", "invoke", "txn", list(value)), ("t", kind, "txn", list(value))]


def final(key: int, *elements: int) -> Step:
    return (9, "ok", "txn", [["r", key, list(elements)]], {"final": True})


@pytest.mark.parametrize(
    ("kind", "first", "second", "found"),
    [
        ("ok", [1], [2], ""),
        ("ok", [1], [], "lost"),
        ("info", [], [], ""),
        ("info", [1], [], "torn"),
        ("fail", [1], [], "G1a"),
        ("ok", [1, 1], [2], "twice"),
    ],
)
def test_transactions_are_whole(kind: str, first: list[int], second: list[int], found: str) -> None:
    steps = [*txn(kind, ["append", 0, 1], ["append", 1, 2]), final(0, *first), final(1, *second)]
    broken = problems("transactions", *steps)
    assert [each.partition(":")[0] for each in broken][:1] == ([found] if found else [])


def test_a_reading_that_a_transaction_held_back_is_not_the_last_one() -> None:
    stored, open_transactions, readings = [1, 2], [1], 0

    def read() -> list[list[int]]:
        nonlocal readings
        readings += 1
        found = [stored[:1] if open_transactions else stored[:]]
        if readings == 2:
            open_transactions.clear()  # it times out while the lists are read
        return found

    assert last_lists(read, lambda: bool(open_transactions), pause_s=0.0) == [[1, 2]]


def test_a_read_is_a_prefix_of_later_ones() -> None:
    early: Step = (8, "ok", "txn", [["r", 0, [2]]])
    (problem,) = problems(
        "transactions", *txn("ok", ["append", 0, 1]), *txn("ok", ["append", 0, 2]), early, final(0, 1, 2)
    )
    assert problem.startswith("incompatible order")


def test_a_pipeline_passes_each_message_on_once() -> None:
    def run(left: list[str], passed: list[str]) -> list[str]:
        steps: list[Step] = [(1, "ok", "pass", "p:0"), ("last", "ok", "rest", [[text, [1, 0]] for text in left])]
        return problems("pipeline", *steps, ("reader", "ok", "passed", passed), contents("p:0", "p:1", "p:1"))

    assert run(["p:1", "p:1"], ["p:0"]) == []
    assert run(["p:1"], ["p:0", "p:1"]) == []
    assert run(["p:1", "p:1"], [])[0] == "lost: p:0 was passed on"
    for left, passed in ((["p:0", "p:1", "p:1"], ["p:0"]), (["p:1"], ["p:0"]), (["p:1", "p:1"], ["p:0", "p:0"])):
        assert [each.partition(":")[0] for each in run(left, passed)] == ["torn"]


def test_a_failover_passes_over_nothing_and_both_clusters_have_all() -> None:
    def run(west: list[str], east: list[str], left: list[str], again: int = 0) -> list[str]:
        steps: list[Step] = [*adds("p:0", "p:1"), *([(0, "info", "again", "p:1")] * again)]
        steps.append((3, "invoke", "ack", "p:0", {"where": "west"}))
        for where, stored in (("west", west), ("east", east)):
            steps.append(("last", "ok", "rest", [[text, [1, 0]] for text in left], {"where": where}))
            steps.append(("reader", "ok", "read", stored, {"where": where}))
        return problems("geo", *steps)

    both = ["p:0", "p:1"]
    assert run(both, both, ["p:1"]) == []
    assert run(both, both, ["p:0", "p:1"]) == []  # a repeat, which is allowed
    assert run(both, both, []) == [
        f"P6 p:1 was never acknowledged, and {where} passes over it" for where in ("west", "east")
    ]
    assert run(both, ["p:0"], ["p:1"]) == ["P1 p:1 has a receipt and is not in east"]
    assert run(both, ["p:1", "p:0"], ["p:1"]) == ["P2 p:0 is stored behind p:1 in east"]
    assert run(["p:0", "p:1", "p:1"], both, ["p:1"]) == ["p:1 is in west 2 times and was sent 1 times"]
    assert run(["p:0", "p:1", "p:1"], both, ["p:1"], again=1) == []


def test_a_view_counts_each_stored_message_once() -> None:
    def run(*rows: list[Any]) -> list[str]:
        steps: list[Step] = [*adds("p:1", "p:2"), (0, "info", "again", "p:2")]
        steps += [(3, "ok", "view", each, {"final": number == len(rows)}) for number, each in enumerate(rows, 1)]
        return problems("view", *steps, contents("p:1", "p:2", "p:2"))

    whole = [["p", 3, 5]]
    assert run([], [["p", 1, 1]], whole) == []
    assert run([["p", 2, 3]]) == ["the view ends with [['p', 2, 3]], and the topic holds [['p', 3, 5]]"]
    assert run([["p", 3, 5]], [["p", 2, 3]], whole) == ["2 of p are counted after 3, and 3 were sent"]
    assert run([["p", 4, 7]], whole)[0] == "4 of p are counted after 0, and 3 were sent"
    assert run([["p", 1, 1]], [], whole) == ["p is missing after 1 of it were counted"]


def call(process: int, f: str, value: int, kind: str = "ok") -> list[Step]:
    return [(process, "invoke", f, value if f == "write" else None), (process, kind, f, value)]


def test_a_register_is_linearizable() -> None:
    assert problems("register", *call(0, "write", 1), *call(1, "read", 1)) == []
    stale = problems("register", *call(0, "write", 1), *call(0, "write", 2), *call(1, "read", 1))
    assert stale == ["not linearizable: read of 1 fits no order of what went before"]
    lost = [*call(0, "write", 1), *call(0, "write", 2), *call(1, "read", 1)]
    assert problems("register", *lost) != []


def test_a_write_without_an_answer_may_take_effect_once_and_is_not_undone() -> None:
    unknown = [*call(0, "write", 1), *call(2, "write", 2, "info")]
    for seen in ((1, 1), (1, 2), (2, 2)):
        assert problems("register", *unknown, *call(1, "read", seen[0]), *call(1, "read", seen[1])) == []
    assert problems("register", *unknown, *call(1, "read", 2), *call(1, "read", 1)) == [
        "not linearizable: read of 1 fits no order of what went before"
    ]
    assert problems("register", *unknown, *call(3, "write", 4), *call(1, "read", 1)) != []


def test_histories_are_written_in_published_forms(tmp_path: Path) -> None:
    made = history(
        *txn("ok", ["append", 0, 1], ["r", 1, None]), ("reader", "ok", "read", ["p:0"], {"places": [[1, 0]]})
    )
    made.write(tmp_path, "h")
    assert read(tmp_path / "h.jsonl") == made.events
    lines = (tmp_path / "h.edn").read_text().splitlines()
    assert lines[1].startswith("{:index 1, :time ")
    assert lines[1].endswith(":process :t, :type :ok, :f :txn, :value [[:append 0 1] [:r 1 nil]]}")
    assert lines[2].endswith(':type :ok, :f :read, :value ["p:0"], :places [[1 0]]}')


@pytest.mark.parametrize(
    "target", [targets.Magnetar, targets.ApachePulsar, targets.Cluster, targets.RollingUpgrade, targets.Regions]
)
def test_every_target_can_be_made(target: type[targets.Target]) -> None:
    assert not target.__abstractmethods__


def test_an_upgrade_without_an_older_checkout_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAGNETAR_OLD", raising=False)
    with pytest.raises(SystemExit, match="MAGNETAR_OLD, a checkout of an older version"):
        targets.RollingUpgrade(tmp_path, {}, "")
