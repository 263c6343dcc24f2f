"""The size ratchet: it passes on the tree, and it sees what it is there to see."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("tidy", ROOT / "tools" / "tidy.py")
assert SPEC is not None
assert SPEC.loader is not None
tidy = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tidy)


def test_the_tree_is_tidy() -> None:
    result = subprocess.run([sys.executable, ROOT / "tools" / "tidy.py"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_functions_are_measured_with_their_class() -> None:
    text = "class A:\n    def f(self):\n        def g():\n            pass\n        return g\n"
    assert tidy.measure("src/a.py", text) == {
        "src/a.py": (5, 600),
        "src/a.py::A.f": (4, 70),
        "src/a.py::A.f.g": (2, 70),
    }


@pytest.mark.parametrize(
    ("name", "text", "objection"),
    [
        ("src/a.py", '"""Doc."""\n# TO' + "DO later\n", "unfinished"),
        ("src/a.py", "x = 1\n", "docstring"),
        ("bench/a.py", "x = 1\n", "docstring"),
    ],
)
def test_objections(name: str, text: str, objection: str) -> None:
    assert [problem for problem in tidy.read(name, text) if objection in problem]


def test_no_objection_to_an_empty_package_or_a_plain_test() -> None:
    assert tidy.read("src/pkg/__init__.py", "") == []
    assert tidy.read("tests/test_a.py", "x = 1\n") == []


@pytest.mark.parametrize(("lines", "code"), [(599, 0), (601, 0), (603, 1)])
def test_a_listed_file_may_shrink_but_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, code: int
) -> None:
    for folder in tidy.FILE_LINES:
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "a.py").write_text('"""Doc."""\n' + "x = 1\n" * (lines - 1))
    listed = tmp_path / "tidy.txt"
    listed.write_text("" if lines <= 600 else "src/a.py 602\n")
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy, "LIST", listed)
    monkeypatch.setattr(sys, "argv", ["tidy.py"])
    assert tidy.main() == code


def test_tighten_lowers_and_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in tidy.FILE_LINES:
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "a.py").write_text('"""Doc."""\n' + "x = 1\n" * 649)
    (tmp_path / "src" / "b.py").write_text('"""Doc."""\n')
    (tmp_path / "tidy.txt").write_text("src/a.py 700\nsrc/b.py 700\nsrc/gone.py 700\n")
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    monkeypatch.setattr(tidy, "LIST", tmp_path / "tidy.txt")
    monkeypatch.setattr(sys, "argv", ["tidy.py", "--tighten"])
    assert tidy.main() == 0
    assert tidy.read_list() == {"src/a.py": 650}
