#!/usr/bin/env python3
"""The same loads against `magnetar standalone` and Apache Pulsar's standalone, in turns on one machine.

  tests/compat/pulsar/fetch-jars /tmp/pulsar-jars          (Maven, Java 17; once)
  PULSAR_JARS=/tmp/pulsar-jars bench/apache_pulsar.py [--rounds 5] [--scale 1.0] [--only NAME ...] [--dir DIR] [--json] [--check]

Both keep their data below --dir and sync every entry to disk before its receipt. Pulsar runs as its start script runs it (2 GiB heap,
ZGC), one bookie and its metadata in the process, and gets every load until its rate stops growing before anything counts. The generator is
fastgen.py, for latencies loadgen.py. CPU time is user and system time of the whole server process from /proc, until a second after the
last receipt. Five rounds take about eight minutes on an idle machine with two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.compat.pulsar.standalone import answers, command_of  # noqa: E402

import servers  # noqa: E402
from magnetar.base.ports import free_ports  # noqa: E402

START_TIMEOUT_S = 180.0
SETTLE_S = 1.0
"""What is stored is written to entry logs and indexed by then."""

JAVA_OPTIONS = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseZGC", "-XX:+PerfDisableSharedMem")
WARM_UPS_MAX = 6
WARM_UP_GAIN = 1.05
"""A server is warm when a load is no more than this faster than the time before."""

STORED = "stored"


@dataclass(frozen=True)
class Load:
    """`options` of the generator and how many messages at scale 1; `goal` for the ratio of ours to Pulsar's figure."""

    options: tuple[str, ...]
    messages: int
    goal: str
    per_entry: int = 1


LOADS = {
    "produce": Load(("produce", "--window", "4000"), 200_000, ">= 1.5"),
    "produce-window-64": Load(("produce", "--window", "64"), 50_000, ">= 1.0"),
    "batches": Load(("produce", "--batch", "100", "--window", "100"), 100_000, ">= 1.3", per_entry=100),
    "consume": Load(("consume",), 60_000, ">= 1.0"),
    "shared": Load(("consume", "--type", "shared", "--consumers", "16"), 60_000, ">= 1.0"),
    "key-shared": Load(("consume", "--type", "key_shared", "--consumers", "16"), 60_000, ">= 1.0"),
    "latency": Load(("latency", "--rate", "1000"), 4_000, "<= 0.4"),
}


class Pulsar(servers.Measured):
    """Apache Pulsar's standalone, ready."""

    def __init__(self, jars: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port, http_port, bookie_port = free_ports(3)
        settings = {"brokerServicePort": self.port, "webServicePort": http_port, "journalSyncData": "true"}
        command = command_of(jars, folder, settings, JAVA_OPTIONS)
        command += ["--bookkeeper-port", str(bookie_port)]
        begin = time.perf_counter()
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, text=True, cwd=folder)
        while not answers(http_port):
            if self._process.poll() is not None or time.perf_counter() - begin > START_TIMEOUT_S:
                self._process.kill()
                raise SystemExit(f"Apache Pulsar did not start:\n{(folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)
        self.start_s = time.perf_counter() - begin


@dataclass
class Comparison:
    """Both servers and what was measured: by load and side, a row for each round."""

    sides: dict[str, servers.Measured]
    scale: float
    topics: int = 0
    rows: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)

    def load(self, server: servers.Measured, load: Load, number: int) -> dict[str, float]:
        """Run the generator once, on a topic of its own."""
        messages = max(1000, int(load.messages * self.scale))
        self.topics += 1
        topic = f"persistent://public/default/bench-{self.topics}"
        if load.options[0] == "consume":
            fill = ("produce", "--keys", "1000", "--topic", topic, "--messages", str(messages))
            generate("fastgen.py", server, *fill)
            time.sleep(SETTLE_S)
        before_s = server.cpu_s
        script = "loadgen.py" if load.options[0] == "latency" else "fastgen.py"
        found = generate(script, server, *load.options, "--topic", topic, "--messages", str(messages))
        time.sleep(SETTLE_S)
        found["generator_us"] = found.pop("cpu_us", 0.0)
        return found | {"cpu_us": 1e6 * (server.cpu_s - before_s) / (messages // load.per_entry)}

    def warm_up(self, names: list[str]) -> None:
        for side, server in self.sides.items():
            for name in names:
                last = 0.0
                for _ in range(WARM_UPS_MAX if side == "pulsar" else 1):
                    rate = self.load(server, LOADS[name], 0).get("entries_per_s", 0.0)
                    print(f"warm-up {side} {name}: {rate:,.0f}/s", file=sys.stderr, flush=True)
                    if rate <= last * WARM_UP_GAIN:
                        break
                    last = rate

    def measure(self, names: list[str], rounds: int) -> None:
        for number in range(rounds):
            order = list(self.sides.items())
            for name in names:
                for side, server in order if number % 2 == 0 else reversed(order):
                    found = self.load(server, LOADS[name], number)
                    self.rows.setdefault(name, {}).setdefault(side, []).append(found)
                    print(f"round {number + 1} {side} {name}: {text_of(found)}", file=sys.stderr, flush=True)


def generate(script: str, server: servers.Measured, *options: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / script), *options, "--port", str(server.port)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if made.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {made.stderr.strip() or made.stdout.strip()}")
    found: dict[str, float] = json.loads(made.stdout)
    return found


def text_of(found: dict[str, float]) -> str:
    if "p99_ms" in found:
        return f"p50 {found['p50_ms']:.2f}, p99 {found['p99_ms']:.2f}, p99.9 {found['p999_ms']:.2f}, longest {found['max_ms']:.1f} ms"
    return f"{found['entries_per_s']:,.0f}/s, {found['cpu_us']:.1f} us an entry (generator {found['generator_us']:.1f})"


def median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def table(rows: dict[str, dict[str, list[dict[str, float]]]]) -> tuple[list[str], bool]:
    """Lines of Markdown, and whether all goals are met."""
    lines = [
        "| load | magnetar | Pulsar | ratio | goal | CPU us an entry: magnetar | Pulsar | generator |",
        "|---|---|---|---|---|---|---|---|",
    ]
    all_met = True
    for name, sides in rows.items():
        what = "p99_ms" if name == "latency" else "entries_per_s"
        ours, other = median(sides["magnetar"], what), median(sides["pulsar"], what)
        relation, bound = LOADS[name].goal.split()
        met = ours / other >= float(bound) if relation == ">=" else ours / other <= float(bound)
        all_met = all_met and met
        form = "{:.2f} ms p99" if name == "latency" else "{:,.0f}/s"
        cpu = [f"{median(sides[side], 'cpu_us'):.1f}" for side in ("magnetar", "pulsar")]
        generator = f"{median(sides['magnetar'], 'generator_us'):.1f}"
        goal = LOADS[name].goal + ("" if met else " missed")
        cells = [name, form.format(ours), form.format(other), f"{ours / other:.2f}", goal, *cpu, generator]
        lines.append(f"| {' | '.join(cells)} |")
        if name == "latency":
            for other_what in ("p50_ms", "p999_ms", "max_ms"):
                pair = [median(sides[side], other_what) for side in ("magnetar", "pulsar")]
                label = {"p50_ms": "p50", "p999_ms": "p99.9", "max_ms": "longest"}[other_what]
                lines.append(
                    f"| latency, {label} | {pair[0]:.2f} ms | {pair[1]:.2f} ms | {pair[0] / pair[1]:.2f} |||||"
                )
    return lines, all_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the messages")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--dir", type=Path, default=HERE.parent, help="where both keep their data: on a real disk")
    parser.add_argument("--json", action="store_true", help="all rounds as one line of JSON, besides the table")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    args = parser.parse_args()
    jars = os.environ.get("PULSAR_JARS", "")
    if not any(Path(jars or "/nowhere").glob("pulsar-broker-*.jar")):
        raise SystemExit(
            "PULSAR_JARS names no directory with Pulsar's jars: tests/compat/pulsar/fetch-jars DIRECTORY makes one"
        )
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=args.dir))
    running: list[Any] = []
    try:
        running.append(servers.ours(folder / "magnetar"))
        running.append(Pulsar(jars, folder / "pulsar"))
        comparison = Comparison(dict(zip(("magnetar", "pulsar"), running, strict=True)), args.scale)
        comparison.warm_up(args.only)
        comparison.measure(args.only, args.rounds)
        lines, met = table(comparison.rows)
        print("\n".join(lines))
        for name, server in comparison.sides.items():
            print(f"{name}: ready after {server.start_s:.1f} s, {server.memory_mib:,.0f} MiB resident at the end")
        if args.json:
            print(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "rows": comparison.rows}))
    finally:
        for server in running:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
