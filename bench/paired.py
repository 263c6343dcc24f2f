#!/usr/bin/env python3
"""CPU time of the server for each entry, of two source trees in turns: what a change of the message path costs or saves.

  paired.py --old TREE [--new TREE] [--rounds N] [--messages N] [--only NAME ...] [--dir DIR] [--json]

A TREE is a checkout (`git worktree add --detach /tmp/old COMMIT`); the new one is this checkout unless said otherwise. CPU time is user and
system time of the whole server process until a second after the last receipt, so that what it stores later is in it; other work on the
machine disturbs it less than it does wall time. Each round starts both servers anew. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import servers

HERE = Path(__file__).resolve().parent
SETTLE_S = 1.0
"""What is stored is written to entry logs and indexed by then."""

LOADS: dict[str, tuple[list[str], float]] = {
    "window-4000": (["produce", "--window", "4000"], 1.0),
    "window-64": (["produce", "--window", "64"], 0.25),
    "window-8": (["produce", "--window", "8"], 0.1),
    "batches": (["produce", "--batch", "100", "--window", "100"], 5.0),
    "consume": (["consume", "--topic", "persistent://public/default/stored"], 1.0),
    "shared": (
        ["consume", "--topic", "persistent://public/default/stored", "--type", "shared", "--consumers", "16"],
        1.0,
    ),
    "key-shared": (
        ["consume", "--topic", "persistent://public/default/stored", "--type", "key_shared", "--consumers", "16"],
        1.0,
    ),
}
"""By name: arguments of the load generator, and the part of `--messages` that it sends or reads."""


class Tree:
    """A server of one source tree."""

    def __init__(self, tree: Path, folder: Path) -> None:
        os.environ["PYTHONPATH"] = str(tree / "src")
        try:
            self.server = servers.ours(folder)
        finally:
            del os.environ["PYTHONPATH"]

    def load(self, options: list[str], messages: int) -> dict[str, float]:
        """CPU microseconds an entry, and entries a second."""
        command = [sys.executable, str(HERE / "loadgen.py"), *options]
        command += ["--messages", str(messages), "--port", str(self.server.port)]
        before_s = self.server.cpu_s
        result = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed: {result.stderr.strip() or result.stdout.strip()}")
        time.sleep(SETTLE_S)
        answer = json.loads(result.stdout)
        entries = messages // int(options[options.index("--batch") + 1]) if "--batch" in options else messages
        return {"cpu_us": 1e6 * (self.server.cpu_s - before_s) / entries, "entries_per_s": answer["entries_per_s"]}


def run_round(tree: Path, folder: Path, names: list[str], messages: int) -> dict[str, dict[str, float]]:
    """All loads once, on a new server."""
    side = Tree(tree, folder)
    try:
        side.load(["produce", "--topic", "persistent://public/default/warm"], 5000)
        if any(LOADS[name][0][0] == "consume" for name in names):
            side.load(["produce", "--topic", "persistent://public/default/stored", "--keys", "1000"], messages)
        found = {}
        for name in names:
            options, part = LOADS[name]
            if "--topic" not in options:
                options = [*options, "--topic", f"persistent://public/default/{name}"]
            found[name] = side.load([*options, "--subscription", name], int(messages * part))
        return found
    finally:
        side.server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="checkout to compare with")
    parser.add_argument("--new", type=Path, default=HERE.parent, help="this checkout unless said otherwise")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--dir", type=Path, help="where the data goes: on a real disk")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    trees = {"old": args.old.resolve(), "new": args.new.resolve()}
    results: dict[str, dict[str, list[dict[str, float]]]] = {name: {"old": [], "new": []} for name in args.only}
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        for number in range(args.rounds):
            for side, tree in trees.items():
                found = run_round(tree, Path(folder) / f"{side}-{number}", args.only, args.messages)
                for name, figures in found.items():
                    results[name][side].append(figures)
                    print(
                        f"round {number + 1} {side} {name}: {figures['cpu_us']:.1f} us, {figures['entries_per_s']:,.0f}/s",
                        file=sys.stderr,
                    )
    if args.json:
        json.dump(results, sys.stdout)
        return
    print("| load | old us: least / median | new us: least / median | old entries/s | new entries/s |")
    print("|---|---|---|---|---|")
    for name, by_side in results.items():
        cpu = [[figures["cpu_us"] for figures in by_side[side]] for side in trees]
        rates = [statistics.median(figures["entries_per_s"] for figures in by_side[side]) for side in trees]
        cells = [f"{min(each):.1f} / {statistics.median(each):.1f}" for each in cpu] + [
            f"{rate:,.0f}" for rate in rates
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
