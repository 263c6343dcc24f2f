#!/usr/bin/env python3
"""The slowest publishes, and what the server did meanwhile.

  tails.py [--seconds S] [--only NAME ...] [--topics N] [--subscriptions N] [--dir DIR] [--json] [--check]

A paced generator sends entries of 1 KiB and times each from the moment at which it was due to its receipt; the server is watched.py. One
server a load: `slow` is 1,000 entries/s to one topic, `fast` 20,000/s, `topics` 1,000/s that go round N topics with so many
subscriptions each, `rolls` 20,000/s with files and ledgers so small that journal, entry log, ledger and compaction turn over every few
seconds. Printed are p50, p99, p99.9 and the longest; the longest pauses of the event loop with what was found in them; how often each
kind of work took 5 ms; and for the slowest publishes what ran between sending and receipt, and which threads of server and generator
were runnable meanwhile without getting a core, as the kernel counts it (core_waits.py). A pause that neither the loop's own thread
nor others of the process spent as CPU time was spent waiting for a core: other work on the machine, or the generator. Of the publishes
above 10 ms it says how many are explained: for half of their time the loop paused, a watched piece of work ran, or a thread of the server
or the generator waited.

All loads with their servers take four minutes on an idle machine, 40 s for each load. `--check` fails when the loop was busy
for more than BUSY_MAX_MS at a time by its own CPU time, or when a collection of Python's garbage took that long.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import loadgen
import servers
from core_waits import CoreWaits
from fastgen import Stream

HERE = Path(__file__).resolve().parent
SHOWN = 6
LONG_MS = 5.0
ABOVE_MS = 10.0
BUSY_MAX_MS = 10.0

SMALL = ("journalMaxSizeMB=4", "logSizeLimit=8388608", "managedLedgerMaxEntriesPerLedger=20000")
SMALL += (
    "managedLedgerMinLedgerRolloverTimeMinutes=0",
    "gcWaitTime=2000",
    "minorCompactionInterval=2",
    "flushInterval=1000",
)
"""`rolls`: everything that happens once a minute or later happens within seconds."""

LOADS: dict[str, tuple[int, bool, tuple[str, ...]]] = {
    "slow": (1_000, False, ()),
    "fast": (20_000, False, ()),
    "topics": (1_000, True, ()),
    "rolls": (20_000, False, SMALL),
}
"""By name: entries/s, whether they go round many topics, settings."""


def name_of(number: int) -> str:
    return f"persistent://public/default/tail-{number}"


def open_all(connection: loadgen.Connection, topics: int, subscriptions: int) -> None:
    """A producer for each topic and its subscriptions, by consumers that never take anything."""
    consumer = 0
    for topic in range(topics):
        connection.find(name_of(topic))
        opening = loadgen.field(1, name_of(topic)) + loadgen.field(2, topic + 1) + loadgen.field(3, topic + 1)
        connection.request(loadgen.command(loadgen.PRODUCER, opening), loadgen.PRODUCER_SUCCESS)
        for number in range(subscriptions):
            consumer += 1
            parts = (name_of(topic), f"s-{number}", 1, consumer, consumer)
            body = b"".join(loadgen.field(place, value) for place, value in enumerate(parts, 1))
            connection.request(loadgen.command(loadgen.SUBSCRIBE, body), loadgen.SUCCESS)


def frame_of(tail: bytes, producer: int, sequence: int) -> bytes:
    body = loadgen.field(1, producer) + loadgen.field(2, sequence)
    base = loadgen.field(1, loadgen.SEND) + loadgen.field(loadgen.SEND, body)
    return struct.pack(">II", len(base) + 4 + len(tail), len(base)) + base + tail


def paced(connection: loadgen.Connection, topics: int, rate: int, seconds: float) -> Iterator[tuple[float, float]]:
    """(due, receipt) of each entry."""
    tail = loadgen.payload(1024, 1)
    count = int(rate * seconds)
    frames = [frame_of(tail, number % topics + 1, number // topics) for number in range(count)]
    waiting: list[deque[float]] = [deque() for _ in range(topics + 1)]
    stream = Stream(connection)
    begin = time.perf_counter()
    sent = received = 0
    while received < count:
        may = min(count, int((time.perf_counter() - begin) * rate) + 1)
        if sent < may:
            for number in range(sent, may):
                waiting[number % topics + 1].append(begin + number / rate)
            stream.send_all(b"".join(frames[sent:may]))
            sent = may
        wait_s = begin + sent / rate - time.perf_counter() if sent < count else 1.0
        select.select([stream.sock], [], [], max(0.0, wait_s))
        for command, _ in stream.frames():
            if command[1] == loadgen.SEND_RECEIPT:
                receipt = loadgen.parse(loadgen.parse(command)[loadgen.SEND_RECEIPT][0])  # type: ignore[arg-type]
                received += 1
                yield waiting[receipt[1][0]].popleft(), time.perf_counter()  # type: ignore[index]
            else:
                stream.other(command)


def undisturbed(connection: loadgen.Connection, topics: int, rate: int, seconds: float) -> list[tuple[float, float]]:
    """The times of `paced`, without collections of this process's own garbage: with some 800,000 of them in one list, one collection
    holds the generator up for 20 ms and more, which then looks like a slow publish beside which the server did nothing."""
    gc.collect()
    gc.disable()
    try:
        return list(paced(connection, topics, rate, seconds))
    finally:
        gc.enable()


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rate, many, settings = LOADS[name]
    folder.mkdir(parents=True)
    report = folder / "report.json"
    command = [sys.executable, str(HERE / "watched.py"), str(report), "--data-dir", str(folder / "data"), "--port", "0"]
    command += ["--http-port", "0", "--log-level", "warning"]
    command += [word for setting in settings for word in ("--set", setting)]
    server = servers.Server(command, folder / "server.log")
    try:
        connection = loadgen.Connection("127.0.0.1", server.port)
        topics = options.topics if many else 1
        open_all(connection, topics, options.subscriptions if many else 0)
        list(paced(connection, topics, rate, 1.0))  # files are filled, code is warm
        with CoreWaits({"server": server.pid, "generator": os.getpid()}) as waits:
            began = time.perf_counter()
            times = undisturbed(connection, topics, rate, options.seconds)
            ended = time.perf_counter()
    finally:
        server.stop()
    found = json.loads(report.read_text())
    return summary(times, found, waits, began, ended)


def summary(
    times: list[tuple[float, float]], found: dict[str, Any], waits: CoreWaits, began: float, ended: float
) -> dict[str, Any]:
    took = sorted(1000 * (receipt - due) for due, receipt in times)
    pauses = [pause for pause in found["pauses"] if began < pause["to"] < ended]
    spans = [span for span in found["spans"] if began < span[1] < ended]
    slowest: list[dict[str, Any]] = []
    for due, receipt in sorted(times, key=lambda pair: pair[0] - pair[1]):
        long = 1000 * (receipt - due) > ABOVE_MS
        if not long and len(slowest) >= SHOWN:
            break
        if all(abs(due - other["due"]) > 0.1 for other in slowest):
            slowest.append(explained(due, receipt, spans, pauses, waits))
    pauses.sort(key=lambda pause: -pause["ms"])
    for pause in pauses[:SHOWN]:
        pause["beside"] = during(spans, pause["from"], pause["to"])
    kinds: dict[str, list[float]] = {}
    for start, end, kind, _ in spans:
        kinds.setdefault(kind, []).append(1000 * (end - start))
    collected: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for generation, when, ms in found["collections"]:
        if began < when < ended:
            collected[generation].append(ms)
    parts = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {
        "latency_ms": {name: took[int(len(took) * part)] for name, part in parts.items()} | {"longest": took[-1]},
        "above_10_ms": sum(ms > ABOVE_MS for ms in took),
        "pauses": {"count": len(pauses), "waiting_for_a_core": sum(map(starved, pauses)), "longest": pauses[:SHOWN]},
        "times_above_10_ms": sum(slow["ms"] > ABOVE_MS for slow in slowest),
        "times_explained": sum(slow["ms"] > ABOVE_MS and slow["explained"] for slow in slowest),
        "slowest": slowest[:SHOWN],
        "work": {
            kind: {"above_5_ms": sum(ms > LONG_MS for ms in all_ms), "longest_ms": max(all_ms)}
            for kind, all_ms in kinds.items()
        },
        "collections": {
            generation: {"count": len(all_ms), "longest_ms": max(all_ms, default=0.0)}
            for generation, all_ms in collected.items()
        },
    }


def explained(due: float, receipt: float, spans: list[Any], pauses: list[Any], waits: CoreWaits) -> dict[str, Any]:
    """One slow publish, and what it waited for."""
    ms = 1000 * (receipt - due)
    held = sum(min(receipt, p["to"]) - max(due, p["from"]) for p in pauses if p["from"] < receipt and p["to"] > due)
    waited = waits.between(due, receipt)
    ran = max(
        (min(end, receipt) - max(start, due) for start, end, *_ in spans if start < receipt and end > due), default=0
    )
    longest = max([1000 * held, 1000 * ran, *(each_ms for name, each_ms in waited.items() if name != "generator")])
    return {
        "due": due,
        "ms": ms,
        "loop_paused_ms": 1000 * held,
        "beside": during(spans, due, receipt),
        "waited_for_a_core_ms": waited,
        "explained": longest + waited.get("generator", 0.0) >= ms / 2,
    }


def busy_ms(result: dict[str, Any]) -> float:
    """What held the loop up for longest by itself: its CPU time in a pause, or a collection of garbage."""
    collections = [each["longest_ms"] for each in result["collections"].values()]
    return max([pause["loop_cpu_ms"] for pause in result["pauses"]["longest"]] + collections, default=0.0)


def starved(pause: dict[str, Any]) -> bool:
    """Half of it was spent by nobody in the process."""
    return bool(pause["loop_cpu_ms"] + pause["others_cpu_ms"] < pause["ms"] / 2)


def during(spans: list[Any], since: float, until: float) -> list[str]:
    """What ran then, the longest first."""
    beside: Counter[str] = Counter()
    for start, end, kind, _ in spans:
        if start < until and end > since:
            beside[kind] += round(1e6 * (min(end, until) - max(start, since)))
    return [f"{kind} {micros / 1000:.1f} ms" for kind, micros in beside.most_common(4)]


def show(name: str, result: dict[str, Any]) -> None:
    latency = ", ".join(f"{part} {ms:.2f}" for part, ms in result["latency_ms"].items())
    print(f"{name}: {latency} ms; {result['above_10_ms']} above 10 ms")
    pauses = result["pauses"]
    print(
        f"  pauses of the loop above 5 ms: {pauses['count']}, of which {pauses['waiting_for_a_core']} waited for a core"
    )
    for pause in pauses["longest"]:
        cpu = f"loop {pause['loop_cpu_ms']:.1f}, other threads {pause['others_cpu_ms']:.1f} ms of CPU"
        print(
            f"    {pause['ms']:6.1f} ms ({cpu}) in {pause['in'] or '?'}; {', '.join(pause['beside']) or 'nothing beside it'}"
        )
    times, known = result["times_above_10_ms"], result["times_explained"]
    print(
        f"  moments with publishes above {ABOVE_MS:.0f} ms, at least 0.1 s apart: {times}, of which {known} explained"
    )
    print("  slowest publishes:")
    for slow in result["slowest"]:
        waited = ", ".join(f"{name} {ms:.1f}" for name, ms in slow["waited_for_a_core_ms"].items())
        beside = ", ".join(slow["beside"]) or "nothing beside it"
        print(
            f"    {slow['ms']:6.1f} ms, loop paused {slow['loop_paused_ms']:.1f}; {beside}; no core: {waited or 'nobody'}"
        )
    print("  work of more than 5 ms:")
    for kind, figures in sorted(result["work"].items(), key=lambda pair: -pair[1]["longest_ms"]):
        if figures["above_5_ms"]:
            print(f"    {figures['above_5_ms']:5d} times, longest {figures['longest_ms']:.1f} ms: {kind}")
    for generation, figures in result["collections"].items():
        print(f"  collections of generation {generation}: {figures['count']}, longest {figures['longest_ms']:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each load")
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS), help="loads")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--subscriptions", type=int, default=10, help="of each topic")
    parser.add_argument("--dir", default=str(HERE), help="where the data goes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit code 1 when the loop or a collection took too long")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=options.dir))
    try:
        results = {}
        for name in options.only:
            results[name] = measure(name, options, folder / name)
            if not options.json:
                show(name, results[name])
        if options.json:
            print(json.dumps(results))
    finally:
        shutil.rmtree(folder)
    long = [name for name, result in results.items() if busy_ms(result) > BUSY_MAX_MS]
    if long:
        print(f"held up for more than {BUSY_MAX_MS:.0f} ms by its own work: {', '.join(long)}", file=sys.stderr)
    sys.exit(options.check and bool(long))


if __name__ == "__main__":
    main()
