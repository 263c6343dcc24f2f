"""The site is built from the repository alone, and no link or anchor of it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_site_is_built_without_a_broken_link_or_anchor(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    assert built.returncode == 0, built.stderr[-4000:]
