"""Planted anomalies in histories of transactions and of a register: our checkers find them, and Elle and Knossos where $ELLE names them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.faults.checkers import CHECKERS
from bench.faults.elle.__main__ import EXCLUDED, kind_of, main, operations, verdicts
from bench.faults.history import Event, History


def history(*operations: tuple[int, str, str, object, object]) -> list[Event]:
    """Process, outcome, f, what is asked and what is answered."""
    made = History()
    made.add("nemesis", "info", "kill", "begin")
    for process, kind, f, asked, answered in operations:
        made.add(process, "invoke", f, asked)
        made.add(process, kind, f, answered, **({"final": True} if process == 9 else {}))
    return made.events


def append(process: int, element: int, kind: str = "ok") -> tuple[int, str, str, object, object]:
    value = [["append", 0, element]]
    return process, kind, "txn", value, value


def reading(process: int, *elements: int) -> tuple[int, str, str, object, object]:
    return process, "ok", "txn", [["r", 0, None]], [["r", 0, list(elements)]]


WHOLE = history(append(0, 1), append(1, 2, "fail"), reading(8, 1), append(0, 3), reading(9, 1, 3))
PLANTED = {
    "G1a": history(append(0, 1), append(1, 2, "fail"), reading(8, 1, 2), reading(9, 1, 2)),
    "incompatible-order": history(append(0, 1), append(0, 2), reading(8, 2, 1), reading(9, 1, 2)),
    "duplicate-elements": history(append(0, 1), reading(9, 1, 1)),
}
OURS = {"G1a": "G1a", "incompatible-order": "incompatible order", "duplicate-elements": "twice"}

REGISTER = history(
    (0, "ok", "write", 1, 1), (1, "ok", "read", None, 1), (0, "info", "write", 2, 2), (2, "ok", "read", None, 2)
)
STALE = history((0, "ok", "write", 1, 1), (0, "ok", "write", 2, 2), (1, "ok", "read", None, 1))


def test_our_own_checker_finds_them_by_the_same_names() -> None:
    assert CHECKERS["transactions"](WHOLE) == []
    for name, events in PLANTED.items():
        found = CHECKERS["transactions"](events)
        assert [each for each in found if each.startswith(OURS[name])], (name, found)
    assert CHECKERS["register"](REGISTER) == []
    assert CHECKERS["register"](STALE)


def test_what_others_are_asked_about() -> None:
    assert [kind_of(events) for events in (WHOLE, STALE)] == ["txn", "register"]
    with pytest.raises(ValueError, match="neither transactions nor register"):
        kind_of(history((0, "ok", "add", "p:0", "p:0")))
    asked = operations(WHOLE, "txn")
    assert [each["index"] for each in asked] == list(range(10))
    assert all(isinstance(each["process"], int) for each in asked)


def test_without_a_class_path_it_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ELLE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "h.jsonl")])
    assert ended.value.code == 2
    assert "ELLE is not set: it takes a Java class path" in capsys.readouterr().err


def test_elle_and_knossos_find_them() -> None:
    class_path = os.environ.get("ELLE", "")
    if not class_path:
        pytest.skip("needs Elle and Knossos: $ELLE is a Java class path with both")
    planted = list(PLANTED.items())
    asked = [("txn", WHOLE), ("register", REGISTER), ("register", STALE), *(("txn", events) for _, events in planted)]
    whole, register, stale, *found = verdicts(asked, class_path)
    assert not EXCLUDED & (whole.keys() | register.keys())
    assert stale == {"nonlinearizable": 1}
    for (name, _), verdict in zip(planted, found, strict=True):
        assert name in verdict, (name, verdict)
