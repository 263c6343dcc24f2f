"""The hash, ring and vnodes commands as a user runs them."""

from __future__ import annotations

import io
import json
import os
import pty
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from magnetar.cli.main import run

FIVE = [f"192.168.0.{number}:11212" for number in range(241, 246)]


def magnetar(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert run([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("before", "after", "moved"), [(5, 4, 1839416), (5, 2, 5737265), (3, 2, 3072919), (4, 3, 2491462)]
)
def test_migrate_gives_the_articles_figures_to_the_digit(before: int, after: int, moved: int) -> None:
    command = [
        sys.executable, "-m", "magnetar", "ring", "migrate", "--algorithm", "ketama", "--nodes", ",".join(FIVE[:before]),
        "--to", ",".join(FIVE[:after]), "--keys", "10000000", "--key-format", "10.10.10.10_{}", "--json",
    ]  # fmt: skip
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, capture_output=True, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used_s < 15
    figures = json.loads(done.stdout)
    assert (figures["moved"], figures["total"]) == (moved, 10_000_000)
    assert figures["rate"] == pytest.approx(figures["exact"], abs=0.001)
    assert figures["expected"] == pytest.approx(1 - after / before)
    assert figures["needless"] == 0
    assert done.stderr == b""
    # Peak of all children so far; in KiB.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1024 * 1024


def test_progress_shows_on_a_terminal_past_a_second_and_nowhere_else() -> None:
    leader, follower = pty.openpty()
    command = [
        sys.executable, "-m", "magnetar", "ring", "migrate", "--nodes", "A,B", "--to", "A", "--keys", "30000000", "--json",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower) as process:
        os.close(follower)
        drawn = io.BytesIO()
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:
                break
            if not part:
                break
            drawn.write(part)
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["total"] == 30_000_000
    os.close(leader)
    assert b"30000000" in drawn.getvalue()


def test_hash_shows_where_a_key_goes(capsys: pytest.CaptureFixture[str]) -> None:
    found = magnetar(capsys, "hash", "Order-3459134")
    assert found["murmur3"] == 3112179635
    assert found["key_shared_slot"] == 6067
    assert {"java", "crc32", "ketama", "fnv1a_32", "fnv1a_64", "vnode", "bundle"} <= found.keys()
    only = magnetar(capsys, "hash", "123456789", "--algorithm", "crc32")
    assert only == {"key": "123456789", "crc32": 0xCBF43926}


def test_simulate_follows_the_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("join C1  # the first\njoin C2\njoin C3\n\njoin C4\n")
    steps = magnetar(capsys, "ring", "simulate", "--script", str(script), "leave", "C4", "leave", "C1")
    assert [step["moved"] for step in steps] == [0, 32768, 16384, 16384, 16384, 32768]
    assert steps[2]["slots"] == {"C1": 32768, "C2": 16384, "C3": 16384}
    assert steps[5]["ranges"] == [
        {"start": 0, "end": 16383, "member": "C3"},
        {"start": 16384, "end": 65535, "member": "C2"},
    ]
    sticky = magnetar(capsys, "ring", "simulate", "--algorithm", "sticky", "join", "A=0-9,20-29", "join", "B=10-19")
    assert sticky[1]["unowned"] == 65536 - 30
    rings = magnetar(capsys, "ring", "simulate", "--algorithm", "consistent", "join", "A", "join", "B", "leave", "B")
    assert rings[2]["ranges"] == [{"start": 0, "end": 65535, "member": "A"}]


def test_plan_moves_a_quarter_from_three_to_four(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = magnetar(capsys, "vnodes", "plan", "--units", "3", "--to", "4", "--out", str(tmp_path / "mapping.json"))
    assert (plan["moved"], plan["rate"], len(plan["moves"])) == (64, 0.25, 64)
    assert plan["after"] == {"0": 64, "1": 64, "2": 64, "3": 64}
    assert magnetar(capsys, "vnodes", "plan", "--units", "4", "--to", "5")["moved"] == 51
    again = magnetar(capsys, "vnodes", "plan", "--mapping", str(tmp_path / "mapping.json"), "--to", "0,1,2,3,4=2")
    assert again["mapping"]["version"] == 3
    assert {move["to"] for move in again["moves"]} == {"4"}


@pytest.mark.parametrize(("count", "expected"), [("256", 97), ("4096", 1377), ("32768", 21857)])
def test_vnodes_of_typed_keys(capsys: pytest.CaptureFixture[str], count: str, expected: int) -> None:
    found = magnetar(capsys, "vnodes", "key", "114", "514", "--types", "int,int", "--vnodes", count)
    assert found["vnode"] == expected
    nested = magnetar(capsys, "vnodes", "key", "NULL", "[1,null]", "--types", "decimal(10,2),array<int>")
    assert nested["bytes"] == "f0ffffff" "01000000" "f0ffffff"  # fmt: skip


def test_explain_and_balance(capsys: pytest.CaptureFixture[str]) -> None:
    found = magnetar(capsys, "ring", "explain", "k1", "--nodes", "A,B,C", "--count", "2")
    assert (found["hash"], found["owner"], found["successor"]) == (2058434486, "C", "B")
    assert found["owners"] == ["C", "B"]
    slots = magnetar(capsys, "ring", "explain", "k1", "--nodes", "A,B,C", "--algorithm", "autosplit")
    assert (slots["range"], slots["left_neighbour"], slots["right_neighbour"]) == ("16384-32767", "C", "A")
    figures = magnetar(capsys, "ring", "balance", "--nodes", "A=1,B=3", "--keys", "100000")
    assert sum(figures["counts"].values()) == 100_000
    assert figures["counts"]["B"] / figures["counts"]["A"] == pytest.approx(3, rel=0.25)
    everything = magnetar(capsys, "ring", "balance", "--nodes", "A,B", "--keys", "2000", "--algorithm", "all")
    assert len(everything) == 11


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (
        ["ring", "migrate", "--nodes", "A,B", "--to", "A", "--keys", "1000", "--algorithm", "all", "--flows"],
        ["ring", "migrate", "--nodes", "A,B", "--to", "A", "--keys", "1000"],
        ["ring", "balance", "--nodes", "A,B", "--keys", "1000"],
        ["ring", "simulate", "join", "A"],
        ["vnodes", "plan", "--units", "a,b=2", "--to", "a"],
    ):
        assert run([*args, "--table"]) == 0
        assert "\t" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_pictures_are_drawn_and_repeat(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    for number, args in enumerate(
        (
            ["ring", "migrate", "--nodes", "A,B,C", "--to", "A,B", "--keys", "10"],
            ["ring", "balance", "--nodes", "A,B", "--keys", "10", "--algorithm", "consistent"],
            ["ring", "simulate", "join", "A", "join", "B"],
            ["vnodes", "plan", "--units", "3", "--to", "4"],
            ["vnodes", "plan", "--units", "3", "--to", "4", "--vnodes", "5000"],
        )
    ):
        first, second = tmp_path / f"{number}a{suffix}", tmp_path / f"{number}b{suffix}"
        assert run([*args, "--plot", str(first)]) == 0
        assert run([*args, "--plot", str(second)]) == 0
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 5000
    capsys.readouterr()


def test_plot_names_the_extra_when_matplotlib_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["vnodes", "plan", "--units", "1", "--to", "2", "--plot", str(tmp_path / "x.svg")]) == 2
    assert "magnetar[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["ring", "balance", "--nodes", ","], "names nobody"),
        (["ring", "balance", "--nodes", "A,A"], "given twice"),
        (["ring", "migrate", "--nodes", "A", "--to", "A=0"], "above 0"),
        (["ring", "balance", "--nodes", "A=heavy"], "a weight is a number"),
        (["ring", "balance", "--nodes", "A=2,B", "--algorithm", "jump"], "knows no weights"),
        (["ring", "balance", "--nodes", "A", "--keys", "0"], "0 keys"),
        (["ring", "balance", "--nodes", "A", "--key-format", "x"], "exactly one {}"),
        (["ring", "balance", "--nodes", "A", "--replicas", "0"], "at least 1"),
        (["ring", "balance", "--nodes", "A", "--plot", "x.pdf"], ".svg or a .png"),
        (["ring", "balance", "--nodes", "A", "--plot", "/nonexistent/x.svg"], "does not exist"),
        (["ring", "balance", "--nodes", "A", "--keys", "5", "--algorithm", "jump", "--plot", "x.svg"], "no circle"),
        (["ring", "simulate"], "nothing happens"),
        (["ring", "simulate", "join"], "stands alone"),
        (["ring", "simulate", "jump", "A"], "unknown event"),
        (["ring", "simulate", "leave", "A"], "never joined"),
        (["ring", "simulate", "join", "A", "join", "A"], "region already"),
        (["ring", "simulate", "join", "A=0-5"], "only sticky"),
        (["ring", "simulate", "--algorithm", "sticky", "join", "A=-5-9"], "from 0 on"),
        (["ring", "simulate", "--algorithm", "sticky", "join", "A=9-5"], "upwards"),
        (["ring", "simulate", "--algorithm", "sticky", "join", "A=0-5", "join", "B=5-9"], "overlaps"),
        (["vnodes", "plan", "--units", "3", "--to", "4", "--vnodes", "1"], "2 to 32768"),
        (["vnodes", "plan", "--units", "3", "--to", "4", "--vnodes", "32769"], "2 to 32768"),
        (["vnodes", "plan", "--units", "0", "--to", "4"], "at least 1"),
        (["vnodes", "plan", "--units", "3", "--to", "300"], "fewer units"),
        (["vnodes", "plan", "--to", "3"], "--units or --mapping"),
        (["vnodes", "key", "x", "--types", "int"], "not a valid integer"),
        (["vnodes", "key", "1", "2", "--types", "int"], "2 values for 1 types"),
        (["vnodes", "key", "1", "--types", "uuid"], "no vnode encoding"),
        (["hash", "zz", "--hex"], "hexadecimal"),
        (["hash", "x", "--bundles", "0"], "0 bundles"),
    ],
)
def test_bad_input_is_one_clear_line_and_code_2(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
