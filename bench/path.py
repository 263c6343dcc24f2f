#!/usr/bin/env python3
"""The path of an entry, counted: calls of functions on the event loop, and memory that is taken for it, by the length of its run.

  path.py [--old TREE] [--json]

Calls are those of magnetar's functions in Python and those of C functions that Python makes there (sys.setprofile). Memory is the highest
level above the beginning while 1,024 entries pass (tracemalloc), and allocated blocks that are left of each at the end; an entry's own
1,024 bytes are in it where they are held. Each is counted in a process of its own, with the compiled functions and without them; --old adds
those of another checkout. Nothing here depends on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
LENGTHS = (1, 8, 64)
MODES = {"Python": "off", "compiled": "on"}


class Calls:
    """Counts calls on this thread: `python` of magnetar's functions, `c` of C functions that these make."""

    def __init__(self, ours: str) -> None:
        self.python = self.c = 0
        self._ours = ours

    def __enter__(self) -> Calls:
        sys.setprofile(self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(self._ours):
            if event == "call":
                self.python += 1
            elif event == "c_call":
                self.c += 1


class Memory:
    """The highest level above the beginning, and blocks left."""

    def __init__(self) -> None:
        self.peak_bytes = self.blocks = 0

    def __enter__(self) -> Memory:
        tracemalloc.start()
        self._bytes = tracemalloc.get_traced_memory()[0]
        self._blocks = sys.getallocatedblocks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.blocks += sys.getallocatedblocks() - self._blocks
        self.peak_bytes += tracemalloc.get_traced_memory()[1] - self._bytes
        tracemalloc.stop()


def count() -> dict[str, dict[int, dict[str, float]]]:
    """In this process: by path and length of the run."""
    from tests.support import path
    from tests.support.direct import DirectServer

    import magnetar

    ours = str(Path(magnetar.__file__).parent)
    found: dict[str, dict[int, dict[str, float]]] = {"publish": {}, "consume": {}}
    for length in LENGTHS:
        kinds: dict[str, list[Any]] = {}
        for kind, make in (("calls", lambda: Calls(ours)), ("memory", Memory)):
            with tempfile.TemporaryDirectory() as folder, DirectServer(Path(folder) / "data") as server:
                publishing, delivering, acknowledging = make(), make(), make()
                server.run(path.publish(server, length, publishing))
                server.run(path.consume(server, length, delivering, acknowledging))
                kinds[kind] = [publishing, delivering, acknowledging]
        for name, part in (("publish", slice(0, 1)), ("consume", slice(1, 3))):
            calls, memory = kinds["calls"][part], kinds["memory"][part]
            found[name][length] = {
                "python_calls": sum(each.python for each in calls) / path.ENTRIES,
                "c_calls": sum(each.c for each in calls) / path.ENTRIES,
                "peak_bytes": sum(each.peak_bytes for each in memory) / path.ENTRIES,
                "blocks_left": sum(each.blocks for each in memory) / path.ENTRIES,
            }
    return found


def counted_in(tree: Path, switch: str) -> dict[str, dict[str, dict[str, float]]]:
    """`count` in a process of its own, with the sources of `tree` and the paths of this checkout."""
    environment = os.environ | {"MAGNETAR_KERNEL": switch, "PYTHONPATH": f"{tree / 'src'}:{HERE.parent}"}
    command = [sys.executable, str(HERE / Path(__file__).name), "--here"]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=HERE.parent)
    if made.returncode != 0:
        raise SystemExit(made.stderr)
    answer: dict[str, dict[str, dict[str, float]]] = json.loads(made.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="another checkout, counted as well; from 2026-11-24 on")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(count()))
        return
    results = {"old": counted_in(args.old.resolve(), "off")} if args.old else {}
    results |= {mode: counted_in(HERE.parent, switch) for mode, switch in MODES.items()}
    if args.json:
        print(json.dumps(results))
        return
    print(
        "| an entry | runs of | calls of Python functions | of C functions | bytes at the highest level | blocks left |"
    )
    print("|---|---|---|---|---|---|")
    for name in ("publish", "consume"):
        for mode, found in results.items():
            for length, row in found[name].items():
                cells = [f"{row[key]:,.1f}" for key in ("python_calls", "c_calls", "peak_bytes", "blocks_left")]
                print(f"| {name}, {mode} | {length} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
