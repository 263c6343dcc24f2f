#!/usr/bin/env python3
"""Ratios of our server to a yardstick, the least that a durable server in Python has to do, in one run: A B A B, a median of each.

  run.py [--quick] [--only NAME ...] [--rounds N] [--dir DIR] [--json] [--record] [--check]

Absolute numbers say as much about the machine as about the code; a ratio of neighbours in time says what the code adds.
`--record` appends the result to bench/history.jsonl. `--check` exits with 1 when a target is missed. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import servers

HERE = Path(__file__).resolve().parent
IDLE_SETTLE_S = 2.0
IDLE_WINDOW_S = 10.0


@dataclass
class Bench:
    """Both servers, and what every measurement needs."""

    folder: Path
    rounds: int
    scale: float
    ours: servers.Server
    ceiling: servers.Server
    out: TextIO
    topics: int = 0
    results: list[dict[str, object]] = field(default_factory=list)

    def messages(self, number: int) -> int:
        return max(1000, int(number * self.scale))

    def topic(self) -> str:
        """A new topic, so that no round inherits anything."""
        self.topics += 1
        return f"persistent://public/default/bench-{self.topics}"

    def load(self, server: servers.Server, *options: object) -> dict[str, float]:
        """Run the load generator once: the one that is not the limit, but for latencies."""
        script = HERE / ("loadgen.py" if options[0] == "latency" else "fastgen.py")
        command = [sys.executable, str(script), *map(str, options), "--port", str(server.port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed: {result.stderr.strip() or result.stdout.strip()}")
        answer: dict[str, float] = json.loads(result.stdout)
        return answer

    def interleave(self, first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
        """Medians of both, taken in turns."""
        pairs = [(first(), second()) for _ in range(self.rounds)]
        return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)

    def add(self, name: str, unit: str, ours: float, other: float | None, target: str) -> None:
        """Note a result. `target` is `>= x` or `<= x` for the ratio, or for the value when there is nothing to divide by."""
        value = ours if other is None else ours / other
        relation, bound = target.split()
        met = value >= float(bound) if relation == ">=" else value <= float(bound)
        ratio = None if other is None else round(value, 3)
        row: dict[str, object] = {
            "name": name,
            "ours": round(ours, 3),
            "against": other and round(other, 3),
            "unit": unit,
        }
        self.results.append(row | {"ratio": ratio, "target": target, "met": met})
        print(line(self.results[-1]), flush=True, file=self.out)


def single(bench: Bench) -> None:
    """Single 1 KiB entries, fsynced."""
    options = ("--messages", bench.messages(100_000), "--size", 1024)
    compare_produce(bench, "produce 1 KiB entries", options, ">= 0.5")


def batches(bench: Bench) -> None:
    """Batches of 100 messages of 1 KiB."""
    options = ("--messages", bench.messages(100_000), "--size", 1024, "--batch", 100, "--window", 100)
    compare_produce(bench, "produce batches of 100", options, ">= 0.7")


def compare_produce(bench: Bench, name: str, options: tuple[object, ...], target: str) -> None:
    def rate(server: servers.Server) -> float:
        return bench.load(server, "produce", "--topic", bench.topic(), *options)["messages_per_s"]

    ours, ceiling = bench.interleave(lambda: rate(bench.ours), lambda: rate(bench.ceiling))
    bench.add(name, "messages/s", ours, ceiling, target)


def consume(bench: Bench) -> None:
    """Consume what is stored, an acknowledgement for each entry."""

    def rate(server: servers.Server) -> float:
        return filled(bench, server)

    ours, ceiling = bench.interleave(lambda: rate(bench.ours), lambda: rate(bench.ceiling))
    bench.add("consume with single acks", "messages/s", ours, ceiling, ">= 0.2")


def key_shared(bench: Bench) -> None:
    """Sixteen Key_Shared consumers against sixteen Shared ones, both ours."""

    def rate(kind: str) -> float:
        return filled(bench, bench.ours, "--type", kind, "--consumers", 16, keys=1000)

    ours, shared = bench.interleave(lambda: rate("key_shared"), lambda: rate("shared"))
    bench.add("Key_Shared against Shared, 16 consumers", "messages/s", ours, shared, ">= 0.6")


def filled(bench: Bench, server: servers.Server, *options: object, keys: int = 0) -> float:
    """Fill a topic, then the rate at which a subscription from its start is served."""
    topic, messages = bench.topic(), bench.messages(60_000)
    bench.load(server, "produce", "--topic", topic, "--messages", messages, "--keys", keys)
    return bench.load(server, "consume", "--topic", topic, "--messages", messages, *options)["messages_per_s"]


def latency(bench: Bench) -> None:
    """Publish latency at 1,000 entries a second, from the intended time of sending."""
    options = ("--messages", bench.messages(5000), "--size", 1024, "--rate", 1000)

    def p99(server: servers.Server) -> float:
        return bench.load(server, "latency", "--topic", bench.topic(), *options)["p99_ms"]

    ours, ceiling = bench.interleave(lambda: p99(bench.ours), lambda: p99(bench.ceiling))
    bench.add("publish p99 at 1,000/s", "ms", ours, ceiling, "<= 2.0")


def start(bench: Bench) -> None:
    """From spawn to the ready line, in a new data directory."""
    times = []
    for number in range(bench.rounds):
        server = servers.ours(bench.folder / f"start-{number}")
        times.append(server.start_s)
        server.stop()
    bench.add("start to ready", "s", statistics.median(times), None, "<= 1.0")


def idle(bench: Bench) -> None:
    """Memory and CPU of a server that nobody talks to."""
    server = servers.ours(bench.folder / "idle")
    time.sleep(IDLE_SETTLE_S)
    before = server.cpu_s
    time.sleep(IDLE_WINDOW_S)
    percent = (server.cpu_s - before) / IDLE_WINDOW_S * 100
    memory = server.memory_mib
    server.stop()
    bench.add("idle memory", "MiB", memory, None, "<= 80")
    bench.add("idle CPU", "%", percent, None, "<= 1.0")


MEASUREMENTS = (start, idle, single, batches, consume, latency, key_shared)


def line(row: dict[str, object]) -> str:
    """A row of the table."""
    against = f"{row['against']:>12,.2f}" if isinstance(row["against"], float) else " " * 12
    ratio = f"{row['ratio']:>7.2f}" if isinstance(row["ratio"], float) else " " * 7
    verdict = "met" if row["met"] else "MISSED"
    return f"{row['name']:<42}{row['ours']:>12,.2f}{against} {row['unit']:<11}{ratio}  {row['target']:<8}{verdict}"


def about() -> dict[str, object]:
    """What a recorded result must say to be comparable."""
    git = subprocess.run(["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True)
    cpu = next(
        (text.split(":")[1].strip() for text in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in text),
        "",
    )
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": git.stdout.strip(),
        "python": platform.python_version(),
        "cpu": cpu,
        "kernel": platform.release(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the messages, three rounds")
    parser.add_argument(
        "--only", nargs="+", choices=[measure.__name__ for measure in MEASUREMENTS], help="some of them"
    )
    parser.add_argument("--rounds", type=int, help="default 5")
    parser.add_argument(
        "--dir", type=Path, default=HERE.parent, help="where both servers keep their data; never a memory filesystem"
    )
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON")
    parser.add_argument("--record", action="store_true", help="append that line to bench/history.jsonl")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=args.dir))
    running: list[servers.Server] = []
    try:
        running += [servers.ours(folder / "ours"), servers.ceiling(folder / "ceiling")]
        rounds = args.rounds or (3 if args.quick else 5)
        bench = Bench(folder, rounds, 0.2 if args.quick else 1.0, *running, out=sys.stderr if args.json else sys.stdout)
        print(f"{'':<42}{'ours':>12}{'against':>12} {'':<11}{'ratio':>7}  target", file=bench.out)
        for measure in MEASUREMENTS:
            if not args.only or measure.__name__ in args.only:
                measure(bench)
    finally:
        for server in running:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    document = json.dumps(about() | {"quick": args.quick, "results": bench.results})
    if args.json:
        print(document)
    if args.record:
        with (HERE / "history.jsonl").open("a", encoding="utf-8") as history:
            history.write(document + "\n")
    return 1 if args.check and not all(row["met"] for row in bench.results) else 0


if __name__ == "__main__":
    sys.exit(main())
