"""`make compat` judges rightly: what it lets pass, what it refuses. The suite itself runs where somebody has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import compat_admin  # noqa: E402  # behind the line that finds it
import compat_v5  # noqa: E402  # behind the line that finds it
from compat import ALLOWED, Outcome, allow_list, judge, listed, tabulate  # noqa: E402  # behind the line that finds it


def test_what_fails_must_be_allowed_and_what_passes_must_not() -> None:
    outcomes = [
        Outcome("a.py::A::good", "passed", ""),
        Outcome("a.py::A::bad", "failed", "why"),
        Outcome("a.py::A::known", "skipped", "why"),
        Outcome("b.py::B::cured", "passed", ""),
    ]
    allowed = {"a.py::A::known": "reason", "b.py::B::cured": "reason", "c.py::C::gone": "reason"}
    problems = judge(outcomes, allowed, complete=True)
    assert [problem.split(":")[0] for problem in problems] == ["FAILED a.py", "PASSED b.py", "UNKNOWN c.py"]
    assert judge(outcomes[:1], {}, complete=True) == []
    assert judge(outcomes[3:], {"b.py::B::cured": "? the machine's"}, complete=True) == []
    assert len(judge(outcomes, allowed, complete=False)) == 2
    assert tabulate(outcomes, allowed).splitlines()[2:] == [
        "| a.py | 1 | 1 | 1 |",
        "| b.py | 1 | 0 | 0 |",
        "| together | 2 | 1 | 1 |",
    ]


def test_every_entry_of_the_list_has_a_reason() -> None:
    entries = allow_list(ALLOWED.read_text(encoding="utf-8"))
    assert entries
    assert all(test.count("::") == 2 and len(reason) > 10 for test, reason in entries.items())
    with pytest.raises(SystemExit, match="no reason"):
        allow_list("a.py::A::bad")


def test_tests_are_found_without_importing_them(tmp_path: Path) -> None:
    file = tmp_path / "x_test.py"
    text = "class A(TestCase):\n    def test_one(self):\n        pass\n    async def test_two(self):\n        pass\n"
    file.write_text(f"import nowhere\n{text}")
    assert listed(file) == ["A::test_one", "A::test_two"]


def test_without_the_suite_it_says_what_to_do() -> None:
    command = [sys.executable, str(ROOT / "tools" / "compat.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "PULSAR_CLIENT_PYTHON" in done.stdout


def test_answers_of_pulsar_admin_are_compared_without_what_two_servers_never_share() -> None:
    ours = (
        '{"ledgerId": 3, "publishTime": 1795575291151, "msgRateIn": 0.1, "names": ["b", "a"], "place": "3:7", "n": 1}'
    )
    theirs = (
        '{"ledgerId": 9, "publishTime": 1795575291999, "msgRateIn": 2.5, "names": ["a", "b"], "place": "9:7", "n": 2}'
    )
    mine, other = compat_admin.plain(ours, "magnetar"), compat_admin.plain(theirs, "pulsar")
    assert list(compat_admin.parts("", mine, other)) == ["/n: 1.0 here, 2.0 there"]
    refused = compat_admin.Answer(1, 404, [], "NotFoundException: gone")
    assert refused.compared == compat_admin.Answer(1, 404, [], "NotFoundException: in other words").compared
    assert compat_admin.plain("b\na\n", "magnetar") == ["a", "b"]


def test_the_commands_that_may_differ_are_on_the_list() -> None:
    asked: dict[str, int] = {}
    names = set()
    for command in compat_admin.commands():
        asked[command] = asked.get(command, 0) + 1
        names.add(command if asked[command] == 1 else f"{command} #{asked[command]}")
    assert len(names) >= 600
    assert allow_list((ROOT / "tests/compat/pulsar-admin.allow").read_text(encoding="utf-8")).keys() <= names


def test_what_a_run_of_java_classes_printed_becomes_an_outcome_for_each_test(tmp_path: Path) -> None:
    package = tmp_path / "org/apache/pulsar/client/api/v5"
    package.mkdir(parents=True)
    for name in ("V5AckTest", "V5ClientBaseTest", "V5AckTest$1", "Helper"):
        (package / f"{name}.class").touch()
    classes = compat_v5.test_classes(tmp_path)
    assert classes == ["org.apache.pulsar.client.api.v5.V5AckTest"]
    text = "\n".join([
        "@ started V5AckTest::good ",
        "@ passed V5AckTest::good ",
        "some line of the client",
        "@ configuration V5AckTest::tearDown java.lang.Exception: late",
        "@ started V5AckTest::bad ",
        "@ failed V5AckTest::bad java.lang.AssertionError: expected [1] but found [2]",
        "@ skipped V5AckTest::left ",
        "@ started V5AckTest::hangs ",
    ])  # fmt: skip
    found = compat_v5.outcomes([*classes, "x.V5GoneTest"], text)
    assert [(each.test, each.outcome) for each in found] == [
        ("V5AckTest::good", "passed"),
        ("V5AckTest::bad", "failed"),
        ("V5AckTest::left", "skipped"),
        ("V5AckTest::hangs", "failed"),
        ("V5GoneTest", "failed"),
    ]
    assert found[1].why == "java.lang.AssertionError: expected [1] but found [2]"
