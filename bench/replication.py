#!/usr/bin/env python3
"""What replication costs, in one run: a broker on bookie processes against the standalone server with its bookie inside.

  replication.py [--rounds N] [--messages N] [--only EnQnAn ...] [--json] [--check]

The same load on each server in turns, a median of each: single 1 KiB entries, every one synced before its receipt, by fastgen.py. Then the
latency at a rate that all of them can serve. The CPU time of every process during the runs names the bottleneck: what an entry costs in all
of them together, the client included, bounds the rate on the cores that there are. `--only 322` measures
E=3 Qw=2 Qa=2 alone beside standalone: there the goal is GOAL of standalone's rate, and `--check` fails when it is missed. That takes one
minute, all widths take four.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from magnetar.testing.cluster import ClusterProcesses  # noqa: E402
from magnetar.testing.server import ServerProcess  # noqa: E402

LATENCY_RATE = 500
WIDTHS = {"111": (1, 1, 1), "221": (2, 2, 1), "222": (2, 2, 2), "322": (3, 2, 2), "332": (3, 3, 2), "333": (3, 3, 3)}
"""Ensemble size, write quorum, ack quorum."""

GOAL = 0.8
"""Of the rate of standalone, with E=3 Qw=2 Qa=2."""


@dataclass
class Contender:
    """One server, what it did, and how to tell the CPU seconds of its processes."""

    name: str
    port: int
    cpu: Callable[[], dict[str, float]]
    rates: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    used: dict[str, float] = field(default_factory=dict)
    topics: int = 0
    entries: int = 0
    client_s: float = 0.0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(contender: Contender, *options: object) -> dict[str, float]:
    contender.topics += 1
    topic = f"persistent://public/default/bench-{contender.topics}"
    command = [
        sys.executable,
        str(HERE / ("fastgen.py" if options[0] == "produce" else "loadgen.py")),
        *map(str, options),
        "--port",
        str(contender.port),
        "--topic",
        topic,
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {result.stderr.strip() or result.stdout.strip()}")
    answer: dict[str, float] = json.loads(result.stdout)
    return answer


def measure(contender: Contender, messages: int) -> None:
    before = contender.cpu()
    produced = load(contender, "produce", "--messages", messages)
    contender.rates.append(produced["entries_per_s"])
    contender.entries += messages
    contender.client_s += 1e-6 * produced["cpu_us"] * messages
    for name, seconds in contender.cpu().items():
        contender.used[name] = contender.used.get(name, 0.0) + seconds - before[name]
    contender.p99_ms.append(
        load(contender, "latency", "--messages", LATENCY_RATE * 4, "--rate", LATENCY_RATE)["p99_ms"]
    )


def start_all(stack: ExitStack, folder: Path, names: list[str]) -> list[Contender]:
    standalone = ServerProcess(folder / "standalone").start()
    stack.callback(standalone.close)
    contenders = [Contender("standalone", standalone.port, lambda: {"standalone": cpu_seconds(standalone.pid)})]
    for width in (WIDTHS[name] for name in names):
        cluster = stack.enter_context(ClusterProcesses(folder / "x".join(map(str, width)), bookies=3, ensemble=width))
        port = int(cluster.service_url.rsplit(":", 1)[1])

        def cpu(cluster: ClusterProcesses = cluster) -> dict[str, float]:
            return {status.name: cpu_seconds(status.pid) for status in cluster.cluster.status() if status.pid}

        contenders.append(Contender("E={} Qw={} Qa={}".format(*width), port, cpu))
    return contenders


def report(contenders: list[Contender]) -> list[dict[str, Any]]:
    base = statistics.median(contenders[0].rates)
    rows: list[dict[str, Any]] = []
    for contender in contenders:
        rate = statistics.median(contender.rates)
        busiest = max(contender.used, key=lambda name: contender.used[name])
        total = sum(contender.used.values())
        cpu_us = {name: seconds / contender.entries * 1e6 for name, seconds in sorted(contender.used.items())}
        cpu_us["client"] = contender.client_s / contender.entries * 1e6
        rows.append(
            {
                "name": contender.name,
                "entries_per_s": round(rate),
                "ratio": round(rate / base, 3),
                "p99_ms": round(statistics.median(contender.p99_ms), 2),
                "busiest": busiest,
                "busiest_share": round(contender.used[busiest] / total, 2) if total else None,
                "cpu_us": {name: round(us, 2) for name, us in cpu_us.items()},
                "cores_allow": round(1e6 * len(os.sched_getaffinity(0)) / sum(cpu_us.values())),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--only", nargs="+", choices=WIDTHS, default=list(WIDTHS), help="widths beside standalone")
    parser.add_argument("--dir", type=Path, help="where the data goes: on a real disk")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit code 1 when the goal is missed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder, ExitStack() as stack:
        contenders = start_all(stack, Path(folder), args.only)
        for contender in contenders:  # files are filled, code is warm
            load(contender, "produce", "--messages", 5_000)
        for _ in range(args.rounds):
            for contender in contenders:
                measure(contender, args.messages)
        rows = report(contenders)
    ratios = {row["name"]: row["ratio"] for row in rows}
    missed = ratios.get("E=3 Qw=2 Qa=2", GOAL) < GOAL
    if args.json:
        print(json.dumps(rows))
        sys.exit(args.check and missed)
    print("| | entries/s | of standalone | p99 at 500/s | most CPU |\n|---|---|---|---|---|")
    for row in rows:
        share = f"{row['busiest']} {row['busiest_share']:.0%}" if row["busiest_share"] is not None else ""
        print(f"| {row['name']} | {row['entries_per_s']:,} | {row['ratio']} | {row['p99_ms']} ms | {share} |")
    print("\nCPU time of an entry, us, and what the cores of this machine allow at that:")
    for row in rows:
        parts = ", ".join(f"{name} {us}" for name, us in row["cpu_us"].items())
        print(f"- {row['name']}: {sum(row['cpu_us'].values()):.1f} ({parts}): {row['cores_allow']:,}/s")
    if missed:
        print(f"E=3 Qw=2 Qa=2 is below {GOAL} of standalone")
    sys.exit(args.check and missed)


if __name__ == "__main__":
    main()
