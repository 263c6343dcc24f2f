"""TLC over recorded traces.

TLC is not on any package registry: $TLA2TOOLS names its jar, tla2tools.jar of a release of TLA+.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.models.recording import Trace

HERE = Path(__file__).parent


def jar() -> Path | None:
    """TLC's, None where there is none."""
    path = Path(os.environ.get("TLA2TOOLS", "/nowhere"))
    return path if path.is_file() and shutil.which("java") else None


def literal(value: Any) -> str:
    """A value in TLA+."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return "<<" + ", ".join(map(literal, value)) + ">>"
    return str(value)


def run_tlc(module: str, folder: Path, tlc: Path, *more: str) -> str:
    """What TLC says about a module with its .cfg in `folder`."""
    command = ["java", "-XX:+UseSerialGC", "-Xmx1500m", "-Xss16m", f"-Djava.io.tmpdir={folder}", "-cp", str(tlc)]
    command += ["tlc2.TLC", "-workers", "1", "-noGenerateSpecTE", "-metadir", str(folder / "states"), *more, module]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


def model_is_right(module: str, folder: Path, tlc: Path) -> str:
    """Every behaviour of the small model keeps its invariants: TLC's own closing lines. Raises RuntimeError otherwise."""
    lay_out(folder, [])
    output = run_tlc(module, folder, tlc)
    if "No error has been found" not in output:
        raise RuntimeError(f"TLC finds an error in {module}:\n{output[-3000:]}")
    return output


def lay_out(folder: Path, traces: Sequence[Trace]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*HERE.glob("*.tla"), *HERE.glob("*.cfg")):
        shutil.copy(path, folder)
    lines = ",\n".join(literal(trace) for trace in traces)
    (folder / "Traces.tla").write_text(
        f"---- MODULE Traces ----\nEXTENDS Integers\nRecorded == <<\n{lines}\n>>\n====\n"
    )


def refused(module: str, traces: Sequence[Trace], folder: Path, tlc: Path) -> list[int]:
    """Indexes of the traces with an event that the model does not allow. Raises RuntimeError when TLC fails."""
    lay_out(folder, traces)
    output = run_tlc(
        module, folder, tlc, "-deadlock"
    )  # do not look for deadlocks: every trace is followed as far as it goes
    if "No error has been found" not in output:
        raise RuntimeError(f"TLC did not get to a verdict on {module}:\n{output[-3000:]}")
    accepted = {int(number) - 1 for number in re.findall(r'<<"accepted", (\d+)>>', output)}
    return [number for number in range(len(traces)) if number not in accepted]


def first_refused_event(module: str, trace: Trace, folder: Path, tlc: Path) -> int:
    """Index of the event at which a refused trace stops."""
    lay_out(folder, [trace])
    output = run_tlc(module, folder, tlc)
    return int(re.findall(r"^/\\ at = (\d+)$", output, re.MULTILINE)[-1]) - 1
