"""Every fenced block of shell, Python or SQL in README and docs runs, in order, as pasted; what cannot run says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import CATEGORIES, RUNNABLE, SECONDS_MAX, blocks_of, runnable

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
NOT_RUN_MAX = 27
COMMANDS = ("magnetar ", "$ magnetar ", "pip ", "python ", "make ", "curl ", "export ")
NAMESPACES = ["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
ISOLATED = ["unshare", *NAMESPACES, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
"""A network of its own, since ports are those that the documents name; what a run leaves behind ends with it."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def isolation() -> list[str]:
    found = subprocess.run([*ISOLATED, "true"], capture_output=True, check=False)
    return ISOLATED if found.returncode == 0 else []


def documents(*, long: bool) -> list[Path]:
    """Those with blocks to run; with `long` those of which some are marked so."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        if runnable(text, long=True) if not long else any(block.mark == "long" for block in blocks_of(text)):
            found.append(path)
    return found


def run(path: Path, directory: Path, *flags: str) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MAGNETAR_")}
    env = kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "MAGNETAR_HOME": str(directory / "home"),
    }
    words = [*isolation(), sys.executable, "-m", "tests.docs.blocks", str(path), *flags]
    ended = subprocess.run(
        words, cwd=directory, env=env, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-6000:]


@pytest.mark.parametrize("path", documents(long=False), ids=name_of)
def test_blocks_run_as_pasted(path: Path, tmp_path: Path) -> None:
    run(path, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(SECONDS_MAX)
@pytest.mark.parametrize("path", documents(long=True), ids=name_of)
def test_long_blocks_run_as_pasted(path: Path, tmp_path: Path) -> None:
    run(path, tmp_path, "--run-long")


def test_what_does_not_run_says_why() -> None:
    """A ratchet: fewer blocks may be left out, never more."""
    left_out = [
        (name_of(path), block)
        for path in DOCUMENTS
        for block in blocks_of(path.read_text(encoding="utf-8"))
        if block.mark == "not run" and block.language in RUNNABLE
    ]
    without_category = [f"{name}:{block.line}" for name, block in left_out if block.category not in CATEGORIES]
    covered_by_nothing = [
        f"{name}:{block.line}"
        for name, block in left_out
        if block.category == "covered" and not (ROOT / block.reason.split()[0]).exists()
    ]
    assert without_category == []
    assert covered_by_nothing == []
    assert len(left_out) <= NOT_RUN_MAX


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_commands_stand_in_blocks_that_say_so(path: Path) -> None:
    """A block without a language is output or configuration; commands in it would never run."""
    hidden = [
        block.line
        for block in blocks_of(path.read_text(encoding="utf-8"))
        if block.language in ("", "console", "bash", "shell") and block.text.startswith(COMMANDS)
    ]
    assert hidden == []


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    for language, text in (("sh", "false"), ("python", "assert False"), ("sql", "CREATE NOTHING;")):
        document.write_text(f"```{language}\n{text}\n```\n", encoding="utf-8")
        with pytest.raises(AssertionError):
            run(document, tmp_path)


def test_blocks_see_what_came_before(tmp_path: Path) -> None:
    document = tmp_path / "d.md"
    document.write_text(
        '```python title="m.py"\nx = 1\n```\n\n```sh\nN=2\ncd .\n```\n\n```sh\ntest $N = 2 && python m.py\n```\n\n'
        "```python\ny = 1\n```\n\n<!-- not run: no reason -->\n```python\ny = 2\n```\n\n```python\nassert y == 1\n```\n",
        encoding="utf-8",
    )
    run(document, tmp_path)
