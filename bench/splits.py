#!/usr/bin/env python3
"""What producers and consumers notice when a scalable topic is split under load.

  splits.py [--rate N] [--splits N] [--dir DIR] [--json] [--check]

One `magnetar standalone`; a process beside it publishes `--rate` messages a second to a topic of one segment (64 keys), reads them back as
a stream and acknowledges each. `--splits` times the topic is split in two, and merged again. Of each split:

- pause: the longest publish latency from the moment of the split on, from the moment at which a message was due;
- hand-over: from the acknowledgement of the parent's last message to the first message of a child.

Goals: the 99th percentile of the pauses below 100 ms, of the hand-overs below 50 ms. `--check` exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import servers
from magnetar.admin.client import AsyncAdminClient
from magnetar.client.scalable import Client, Message, Producer, StreamConsumer

TOPIC = "topic://public/default/splits"
KEYS = [f"key-{number}" for number in range(64)]
SETTLE_S = 1.5
PAUSE_GOAL_MS, HAND_OVER_GOAL_MS = 100.0, 50.0
TICK_S = 0.002


@dataclass
class Seen:
    """Publish latencies with the times at which messages were due; of each segment when it was first read and last acknowledged."""

    sent: list[tuple[float, float]] = field(default_factory=list)
    first_read: dict[int, float] = field(default_factory=dict)
    last_acknowledged: dict[int, float] = field(default_factory=dict)
    received: int = 0


async def publish(producer: Producer, rate: int, seen: Seen, ended: asyncio.Event) -> None:
    """Messages are due at even distances, whatever became of those before."""
    begin_s, number = time.monotonic(), 0
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, due_s: float) -> None:
        await producer.send(b"x" * 100, key=KEYS[number % len(KEYS)])
        seen.sent.append((due_s, time.monotonic() - due_s))

    while not ended.is_set():
        due = int((time.monotonic() - begin_s) * rate)
        for each in range(number, due):
            task = asyncio.get_running_loop().create_task(one(each, begin_s + each / rate))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        number = due
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*tasks)


async def consume(consumer: StreamConsumer, seen: Seen) -> None:
    waiting: list[Message] = []

    async def acknowledge() -> None:
        while True:
            if waiting:
                last = waiting[-1]
                waiting.clear()
                await consumer.acknowledge_cumulative(last)
                now_s = time.monotonic()
                seen.last_acknowledged.update(dict.fromkeys(last.positions, now_s))
            else:
                await asyncio.sleep(TICK_S)

    acknowledging = asyncio.get_running_loop().create_task(acknowledge())
    try:
        async for message in consumer:
            seen.first_read.setdefault(message.id.segment_id, time.monotonic())
            seen.received += 1
            waiting.append(message)
    finally:
        acknowledging.cancel()


async def measure(service_url: str, http_url: str, rate: int, splits: int) -> dict[str, object]:
    seen, ended = Seen(), asyncio.Event()
    pauses_ms, hand_overs_ms = [], []
    async with AsyncAdminClient(http_url) as admin, Client(service_url) as client:
        scalable = admin.scalable_topics
        await scalable.create(TOPIC, 1)
        consumer = await client.stream_consumer(TOPIC, "reader", earliest=True)
        producer = await client.producer(TOPIC, pending_max=200_000, send_timeout_s=120)
        publishing = asyncio.get_running_loop().create_task(publish(producer, rate, seen, ended))
        reading = asyncio.get_running_loop().create_task(consume(consumer, seen))
        await asyncio.sleep(2 * SETTLE_S)
        for number in range(splits):
            active = [each for each in (await scalable.metadata(TOPIC)).segments.values() if each.state == "ACTIVE"]
            parent, split_s = active[0].segment_id, time.monotonic()
            await scalable.split(TOPIC, parent)
            await asyncio.sleep(SETTLE_S)
            found = (await scalable.metadata(TOPIC)).segments.values()
            children = [each.segment_id for each in found if parent in each.parent_ids]
            pauses_ms.append(1000 * max(latency for due_s, latency in seen.sent if split_s - 0.1 <= due_s))
            first = [seen.first_read[each] for each in children if each in seen.first_read]
            if first and parent in seen.last_acknowledged:
                hand_overs_ms.append(1000 * max(0.0, min(first) - _acknowledged_before(seen, parent, min(first))))
            await scalable.merge(TOPIC, children[0], children[1])
            await asyncio.sleep(SETTLE_S)
            seen.sent.clear()
            if sys.stderr.isatty():
                print(f"\r{number + 1} of {splits} splits", end="", file=sys.stderr)
        ended.set()
        await publishing
        await consumer.close()
        await reading
    return {
        "rate": rate,
        "splits": splits,
        "received": seen.received,
        "pause_ms": _figures(pauses_ms),
        "hand_over_ms": _figures(hand_overs_ms),
    }


def _acknowledged_before(seen: Seen, segment: int, at_s: float) -> float:
    return min(seen.last_acknowledged[segment], at_s)


def _figures(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered), 1),
        "p99": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
        "max": round(ordered[-1], 1),
        "measured": len(ordered),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=5000, help="messages a second (5000)")
    parser.add_argument("--splits", type=int, default=20, help="number of splits (20)")
    parser.add_argument("--dir", type=Path, default=None, help="where the server's data goes (a temporary directory)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a goal is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        server = servers.ours(Path(folder))
        try:
            found = asyncio.run(
                measure(
                    f"pulsar://127.0.0.1:{server.port}",
                    f"http://127.0.0.1:{server.http_port}",
                    options.rate,
                    options.splits,
                )
            )
        finally:
            server.stop()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name in ("pause_ms", "hand_over_ms"):
            print(name, found[name])
    pause, hand_over = found["pause_ms"], found["hand_over_ms"]
    assert isinstance(pause, dict)
    assert isinstance(hand_over, dict)
    met = pause["p99"] < PAUSE_GOAL_MS and hand_over.get("p99", 0.0) < HAND_OVER_GOAL_MS
    if options.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
