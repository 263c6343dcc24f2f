#!/usr/bin/env python3
"""What producers and consumers notice when a scalable topic is split under load, and how a hot one spreads over two brokers by itself.

  splits.py [--rate N] [--splits N] [--spread-seconds N] [--dir DIR] [--json] [--check]

One `magnetar standalone`; a process beside it publishes `--rate` messages a second to a topic of one segment (64 keys), reads them back as
a stream and acknowledges each. `--splits` times the topic is split in two, and merged again. Of each split:

- pause: the longest publish latency from the moment of the split on, from the moment at which a message was due;
- hand-over: from the acknowledgement of the parent's last message to the first message of a child.

Then `magnetar standalone --brokers 2` with a low threshold of splits: a topic of one segment gets messages as fast as it takes them, with
500 of them under way at a time. Nobody splits or moves anything; measured is what it takes a second before auto-scaling is switched
on for it, and after segments of it are with both brokers, which takes `--spread-seconds` at most (150; 0 leaves this part out).
`waited_for` says how many segments and brokers there were meanwhile, and whether the topic would be split further.

Goals: the 99th percentile of the pauses below 100 ms, of the hand-overs below 50 ms, each measured in every split; both brokers have
segments. The two rates are told and not judged: on one machine brokers share the cores. `--check` exits with 1 when one is missed. All of
it takes less than three minutes with the defaults.
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
from typing import Any

import servers
from magnetar.admin.client import AsyncAdminClient
from magnetar.base.network import AsyncioNetwork
from magnetar.client.client import Endpoint, RemoteClient
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.client.scalable import Client, Message, Producer, StreamConsumer

TOPIC = "topic://public/default/splits"
KEYS = [f"key-{number}" for number in range(64)]
SETTLE_S = 1.5
HOT_NAMESPACE = "public/spread"
HOT_TOPIC = f"topic://{HOT_NAMESPACE}/hot"
LOOK_S = 0.5
HOT_SETTINGS = {
    "scalableTopicAutoScaleIntervalSeconds": "0.5",
    "scalableTopicSplitCooldownSeconds": "2",
    "scalableTopicSplitMsgRateInThreshold": "200",
    "scalableTopicMergeMsgRateInThreshold": "1",
    "scalableTopicMaxSegments": "8",
}
HOT_WINDOW = 500
"""Messages of the hot topic that are under way at a time."""
RATE_OVER_S = 8.0
"""A rate is that of so many seconds."""
BUNDLES = 32
"""So that segments of one topic lie in bundles of both brokers."""
PAUSE_GOAL_MS, HAND_OVER_GOAL_MS = 100.0, 50.0
TICK_S = 0.002


@dataclass
class Seen:
    """Publish latencies with the times at which messages were due; of each segment when it was first read and last acknowledged."""

    sent: list[tuple[float, float]] = field(default_factory=list)
    first_read: dict[int, float] = field(default_factory=dict)
    last_acknowledged: dict[int, float] = field(default_factory=dict)
    received: int = 0
    under_way: dict[int, float] = field(default_factory=dict)
    """When messages that have no receipt yet were due, by their numbers."""

    def waiting(self) -> list[tuple[float, float]]:
        """Of those, as in `sent`, how long they wait by now."""
        now_s = time.monotonic()
        return [(due_s, now_s - due_s) for due_s in self.under_way.values()]


async def publish(producer: Producer, rate: int, seen: Seen, ended: asyncio.Event) -> None:
    """Messages are due at even distances, whatever became of those before."""
    begin_s, number = time.monotonic(), 0
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, due_s: float) -> None:
        seen.under_way[number] = due_s
        await producer.send(b"x" * 100, key=KEYS[number % len(KEYS)])
        del seen.under_way[number]
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
            pauses_ms.append(
                1000 * max(latency for due_s, latency in [*seen.sent, *seen.waiting()] if split_s - 0.1 <= due_s)
            )
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


# ---- A hot topic on two brokers


async def press(producer: Producer, taken: list[float], ended: asyncio.Event, number: int) -> None:
    """One message after another, each with another key; when each was taken goes into `taken`."""
    while not ended.is_set():
        await producer.send(b"x" * 100, key=f"key-{number}")
        taken.append(time.monotonic())
        number += HOT_WINDOW


async def spread(service_url: str, http_url: str, seconds: float) -> dict[str, object]:
    taken, ended = list[float](), asyncio.Event()
    remote = RemoteClient(Endpoint(service_url, Credentials(), TlsTrust()), AsyncioNetwork(), "bench")

    async def rate() -> float:
        begin = len(taken)
        await asyncio.sleep(RATE_OVER_S)
        return round((len(taken) - begin) / RATE_OVER_S, 1)

    async with AsyncAdminClient(http_url) as admin, Client(service_url) as client:
        await admin.namespaces.create(HOT_NAMESPACE, bundles=BUNDLES)
        scalable = admin.scalable_topics
        await scalable.create(HOT_TOPIC, 1)
        await scalable.set_policy(HOT_TOPIC, {"enabled": False})

        async def owners() -> tuple[int, int]:
            """Active segments, and the brokers that have them: a connection each."""
            active = [each for each in (await scalable.metadata(HOT_TOPIC)).segments.values() if each.state == "ACTIVE"]
            names = [segment_topic(each.hash_range.start, each.hash_range.end, each.segment_id) for each in active]
            return len(active), len({id(await remote.broker_of(name)) for name in names})

        producer = await client.producer(HOT_TOPIC, pending_max=2 * HOT_WINDOW, send_timeout_s=120)
        pressing = [asyncio.create_task(press(producer, taken, ended, number)) for number in range(HOT_WINDOW)]
        await asyncio.sleep(2 * SETTLE_S)
        before, (segments, brokers) = await rate(), await owners()
        assert (segments, brokers) == (1, 1)
        await scalable.remove_policy(HOT_TOPIC)
        begin_s = time.monotonic()
        seen = [f"0.0 s: {segments} segments, {brokers} brokers"]
        while brokers < 2 and time.monotonic() - begin_s < seconds:
            await asyncio.sleep(LOOK_S)
            before_look = segments, brokers
            segments, brokers = await owners()
            if (segments, brokers) != before_look:
                seen.append(f"{time.monotonic() - begin_s:.1f} s: {segments} segments, {brokers} brokers")
        took_s = time.monotonic() - begin_s
        decision = await scalable.explain(HOT_TOPIC)
        await asyncio.sleep(SETTLE_S)
        after, (segments, brokers) = await rate(), await owners()
        ended.set()
        await asyncio.gather(*pressing)
    await remote.close()
    return {
        "rate_before": before,
        "rate_after": after,
        "segments": segments,
        "brokers": brokers,
        "spread_after_s": round(took_s, 1),
        "waited_for": [*seen, f"then: {decision.reason}"],
    }


def segment_topic(start: int, end: int, number: int) -> str:
    return f"segment://{HOT_TOPIC.removeprefix('topic://')}/{start:04x}-{end:04x}-{number}"


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
    parser.add_argument(
        "--spread-seconds", type=float, default=150, help="patience with two brokers (150), 0: not tried"
    )
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        if options.splits:
            server = servers.ours(Path(folder) / "one")
            try:
                found |= asyncio.run(measure(*urls(server), options.rate, options.splits))
            finally:
                server.stop()
        if options.spread_seconds:
            settings = [f"{name}={value}" for name, value in HOT_SETTINGS.items()]
            server = servers.ours(Path(folder) / "two", *settings, brokers=2)
            try:
                found["spread"] = asyncio.run(spread(*urls(server), options.spread_seconds))
            finally:
                server.stop()
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name in ("pause_ms", "hand_over_ms", "spread"):
            print(name, found.get(name, "not measured"))
    problems = missed(found, options.splits, bool(options.spread_seconds))
    for problem in problems:
        print(f"missed: {problem}", file=sys.stderr)
    if options.check and problems:
        sys.exit(1)


def urls(server: servers.Server) -> tuple[str, str]:
    return f"pulsar://127.0.0.1:{server.port}", f"http://127.0.0.1:{server.http_port}"


def missed(found: dict[str, Any], splits: int, spread_tried: bool) -> list[str]:
    """The goals that are not reached, or that were not measured."""
    problems = []
    for name, goal in (("pause_ms", PAUSE_GOAL_MS), ("hand_over_ms", HAND_OVER_GOAL_MS)) if splits else ():
        figures = found.get(name) or {}
        if figures.get("measured", 0) < splits:
            problems.append(f"{name} was measured in {figures.get('measured', 0)} of {splits} splits")
        elif figures["p99"] >= goal:
            problems.append(f"{name} of {figures['p99']} at the 99th percentile, the goal is {goal:g}")
    if spread_tried and found["spread"]["brokers"] < 2:
        problems.append("the hot topic stayed with one broker")
    return problems


if __name__ == "__main__":
    main()
