#!/usr/bin/env python3
"""Replicated subscriptions among three standalone clusters: how far other regions lag, and what it costs.

  geo.py lag       from an acknowledgement in one region to the cursor in another, over links that take 50 ms one way,
                   with a snapshot every 250 ms and at the default, every second
  geo.py overhead  10,000 messages a second into a replicated topic and out of it, subscription replicated or not, in turns
  geo.py           both

Options: --seconds N, --rounds N, --json, --check (exit code 1 when a target is missed: p99 < 1 s at 250 ms and < 2 s at the default;
ratio >= 0.95).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import pulsar  # noqa: E402
from tests.support.geo import NAMESPACE, Region  # noqa: E402
from tests.support.geo_links import far_regions  # noqa: E402
from tests.support.process import cpu_seconds  # noqa: E402

INTERVAL = "replicatedSubscriptionsSnapshotFrequencyMillis"
LAG_RATE = 200
OVERHEAD_RATE = 10_000
BATCH = 100
TARGET_MS = {250: 1000, 1000: 2000}
TARGET_RATIO = 0.95


def lag(folder: Path, interval_ms: int, seconds: float) -> dict[str, float]:
    """Of every message: the time until the other region's cursor has passed it."""
    path, settings = f"{NAMESPACE}/lag", {INTERVAL: interval_ms}
    with far_regions(folder / f"lag-{interval_ms}", "a", "b", "c", settings=settings) as (_, [a, b, c]):
        ready(path, a, b, c)
        consumer = subscribe(a, path, True)
        producer = a.client.create_producer(f"persistent://{path}", batching_enabled=False)
        count = int(LAG_RATE * seconds)
        acknowledged: list[float] = []
        passed: list[float] = []
        threading.Thread(target=publish, args=(producer, count), daemon=True).start()
        watcher = threading.Thread(target=watch, args=(b, path, count, passed), daemon=True)
        watcher.start()
        for _ in range(count):
            consumer.acknowledge(consumer.receive(10_000))
            acknowledged.append(time.monotonic())
        watcher.join(60)
    lags = sorted((after - before) * 1000 for before, after in zip(acknowledged, passed, strict=False))
    lags = lags if len(lags) == count else [float("inf")]
    return {
        "interval_ms": interval_ms,
        "messages": count,
        "p50_ms": lags[len(lags) // 2],
        "p99_ms": lags[int(len(lags) * 0.99)],
        "max_ms": lags[-1],
        "target_ms": TARGET_MS[interval_ms],
    }


def publish(producer: pulsar.Producer, count: int) -> None:
    start = time.monotonic()
    for number in range(count):
        pause_s = start + number / LAG_RATE - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        producer.send_async(b"x" * 100, lambda *_: None)
    producer.flush()


def watch(region: Region, path: str, count: int, passed: list[float]) -> None:
    """When the cursor there has passed each message: all come from one region, so their order is the same."""
    while len(passed) < count:
        stats = region.stats(path)
        subscription = stats["subscriptions"].get("sub")
        if subscription is not None:
            reached = stats["msgInCounter"] - subscription["msgBacklog"]
            passed += [time.monotonic()] * (reached - len(passed))
        time.sleep(0.01)


def overhead(folder: Path, seconds: float, rounds: int) -> dict[str, float]:
    """Medians; `ratio` is of the rates at which all is consumed, `cpu_ratio` of the CPU time of the first region's server."""
    results: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with far_regions(folder / "overhead", "a", "b", "c", delay_s=0.0) as (_, regions):
        for number in range(rounds):
            for replicated in (False, True):
                path = f"{NAMESPACE}/load-{number}-{'on' if replicated else 'off'}"
                ready(path, *regions)
                results[replicated].append(round_of(regions[0], path, replicated, int(OVERHEAD_RATE * seconds)))
    rate_off, rate_on = (statistics.median(each[0] for each in results[kind]) for kind in (False, True))
    cpu_off, cpu_on = (statistics.median(each[1] for each in results[kind]) for kind in (False, True))
    return {
        "messages_per_s_off": rate_off,
        "messages_per_s_on": rate_on,
        "ratio": rate_on / rate_off,
        "cpu_ratio": cpu_off / cpu_on,
        "target_ratio": TARGET_RATIO,
    }


def round_of(region: Region, path: str, replicated: bool, count: int) -> tuple[float, float]:
    """Messages/s from the first to the last one consumed, and CPU seconds."""
    consumer = subscribe(region, path, replicated)
    producer = region.client.create_producer(
        f"persistent://{path}",
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_publish_delay_ms=10,
        max_pending_messages=20_000,
        block_if_queue_full=True,
    )
    cpu_before_s, start = cpu_seconds(region.server.pid), time.monotonic()
    thread = threading.Thread(target=load, args=(producer, count), daemon=True)
    thread.start()
    for _ in range(count):
        message = consumer.receive(30_000)
        consumer.acknowledge_cumulative(message)
    took_s = time.monotonic() - start
    cpu_s = cpu_seconds(region.server.pid) - cpu_before_s
    thread.join()
    consumer.close()
    producer.close()
    return count / took_s, cpu_s


def load(producer: pulsar.Producer, count: int) -> None:
    start = time.monotonic()
    for number in range(0, count, BATCH):
        pause_s = start + number / OVERHEAD_RATE - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        for _ in range(BATCH):
            producer.send_async(b"x" * 100, lambda *_: None)
    producer.flush()


def ready(path: str, *regions: Region) -> None:
    for region in regions:
        region.client.create_producer(f"persistent://{path}").close()
    for region in regions:
        region.wait_connected(path, *(other.name for other in regions if other is not region), timeout_s=60)


def subscribe(region: Region, path: str, replicated: bool) -> pulsar.Consumer:
    return region.client.subscribe(
        f"persistent://{path}",
        "sub",
        initial_position=pulsar.InitialPosition.Earliest,
        replicate_subscription_state_enabled=replicated,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["lag", "overhead", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-geo-") as name:
        folder = Path(name)
        if arguments.what != "overhead":
            for interval_ms in TARGET_MS:
                (folder / f"lag-{interval_ms}").mkdir()
                found[f"lag_{interval_ms}"] = lag(folder, interval_ms, arguments.seconds)
                show(found, arguments.json)
        if arguments.what != "lag":
            (folder / "overhead").mkdir()
            found["overhead"] = overhead(folder, arguments.seconds, arguments.rounds)
            show(found, arguments.json)
    if arguments.json:
        print(json.dumps(found))
    missed = [name for name, row in found.items() if row.get("p99_ms", 0) >= row.get("target_ms", float("inf"))]
    missed += [name for name, row in found.items() if row.get("ratio", 1) < row.get("target_ratio", 0)]
    if arguments.check and missed:
        sys.exit(f"missed: {', '.join(missed)}")


def show(found: dict[str, dict[str, float]], as_json: bool) -> None:
    name, row = list(found.items())[-1]
    if not as_json:
        print(
            name, "  ".join(f"{key}={value:.3g}" if value < 10 else f"{key}={value:,.0f}" for key, value in row.items())
        )


if __name__ == "__main__":
    main()
