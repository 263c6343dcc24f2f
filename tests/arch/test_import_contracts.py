"""The import contracts hold, and each of them notices a violation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [
        Path(sys.executable).parent / "lint-imports",
        "--no-logo",
        "--no-cache",
        "--config",
        root / "pyproject.toml",
    ]
    return subprocess.run(
        command,
        cwd=root,
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_the_source_keeps_every_contract() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("additions", "contract"),
    [
        ({"metadata/paths.py": "def f() -> None:\n    import magnetar.broker"}, "imports point down"),
        ({"surprise/__init__.py": "import magnetar.base"}, "imports point down"),
        ({"hashing/murmur3.py": "import random"}, "decision cores are pure"),
        (
            {
                "base/limits.py": "import magnetar.base.listen_settings",
                "base/settings.py": "import magnetar.base.limits",
            },
            "no cycles",
        ),
    ],
    ids=["hidden upward import", "unknown package", "impure core", "cycle"],
)
def test_a_violation_breaks_its_contract(tmp_path: Path, additions: dict[str, str], contract: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name, line in additions.items():
        target = tmp_path / "src" / "magnetar" / name
        target.parent.mkdir(exist_ok=True)
        with target.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0
    report = " ".join(result.stdout.split())  # the verdict may stand on the next line
    assert re.search(rf"{contract}((?!KEPT).)* BROKEN", report.split("Broken contracts")[0]), result.stdout
