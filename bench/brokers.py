#!/usr/bin/env python3
"""What more broker processes bring on one machine: `magnetar standalone --brokers N` for several N, and the one-process server.

  brokers.py [--brokers 1 2] [--topics 4] [--messages 100000] [--size 1024] [--batch 100] [--keep DIR]

Every topic has a producer of its own (bench/loadgen.py), on the broker that serves it; topics are spread evenly. Then every topic
is read by a consumer of its own. Prints one line of JSON for each N, and a table for Markdown: messages a second of all topics together,
and the CPU that a message costs the brokers, everything else of the server (bookie, metadata), and the load generator: on a machine
where all of them share the cores, the sum of the three is what limits.

The load manager neither moves nor splits bundles meanwhile: a load generator does not look a topic up again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.plan import BROKER

HERE = Path(__file__).resolve().parent
NAMESPACE = "public/bench"
BUNDLES = 32
"""The leader puts each on a broker by drawing lots while nobody has any load: with the usual four, one broker may get none."""
TRIES = 200
LOAD_TIMEOUT_S = 300


def call(method: str, url: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def start(brokers: int, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The server and its admin URL. 0 brokers: one process."""
    words = [
        sys.executable,
        "-m",
        "magnetar",
        "standalone",
        "--data-dir",
        str(folder),
        "--port",
        "0",
        "--http-port",
        "0",
    ]
    still = ("loadBalancerSheddingEnabled=false", "loadBalancerAutoBundleSplitEnabled=false")
    words += [word for setting in still for word in ("--set", setting)]
    words += ["--brokers", str(brokers)] if brokers else []
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=(folder.parent / "log").open("ab"), text=True)
    line = server.stdout.readline().split()
    if line[:2] != ["magnetar", "ready"]:
        raise SystemExit(f"the server did not start; see {folder.parent / 'log'}")
    return server, line[3]


class Usage(NamedTuple):
    """Seconds of CPU: of brokers (or the one process), of the rest of the server, of load generators that have ended."""

    brokers: float
    others: float
    generators: float

    @classmethod
    def now(cls, server: int, data: Path) -> Usage:
        status = Cluster(data / "cluster").status() if (data / "cluster").exists() else []
        brokers = [each.pid for each in status if each.role == BROKER and each.pid] or [server]
        others = [each.pid for each in status if each.role != BROKER and each.pid]
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(sum(map(cpu_s, brokers)), sum(map(cpu_s, others)), children.ru_utime + children.ru_stime)

    def per_message_us(self, before: Usage, messages: int) -> list[float]:
        return [round(1e6 * (now - then) / messages, 1) for now, then in zip(self, before, strict=True)]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spread(http_url: str, count: int) -> dict[str, int]:
    """Topics and the port of their broker, the same number on each."""
    brokers = json.loads(call("GET", f"{http_url}/admin/v2/brokers"))
    call("PUT", f"{http_url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
    room = dict.fromkeys(brokers, -(-count // len(brokers)))
    topics: dict[str, int] = {}
    number = 0
    while len(topics) < count:
        if number == TRIES:
            raise SystemExit(f"{TRIES} topics looked up, and some broker has none of their bundles: {room}")
        topic = f"bench-{number}"
        number += 1
        found = json.loads(call("GET", f"{http_url}/lookup/v2/topic/persistent/{NAMESPACE}/{topic}"))
        owner = urlsplit(found["httpUrl"]).netloc
        if room[owner]:
            room[owner] -= 1
            topics[topic] = urlsplit(found["brokerUrl"]).port
    return topics


def load(mode: str, topics: dict[str, int], args: argparse.Namespace) -> float:
    """Messages a second of all topics together, from the first to the last of any."""
    running = []
    began = time.perf_counter()
    for topic, port in topics.items():
        words = [sys.executable, str(HERE / "loadgen.py"), mode, "--port", str(port), "--messages", str(args.messages)]
        words += [
            "--topic",
            f"persistent://{NAMESPACE}/{topic}",
            "--size",
            str(args.size),
            "--batch",
            str(args.batch),
        ]
        words += ["--ack", "cumulative"] if mode == "consume" else []
        running.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
    try:
        for process in running:
            if process.wait(LOAD_TIMEOUT_S) != 0:
                raise SystemExit(f"{mode} failed")
    finally:
        for process in running:
            process.kill()
    return len(topics) * args.messages / (time.perf_counter() - began)


def measure(brokers: int, args: argparse.Namespace) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-bench-", dir=args.keep))
    server, http_url = start(brokers, folder / "data")
    try:
        topics = spread(http_url, args.topics)
        row: dict[str, object] = {"brokers": brokers}
        for mode in ("produce", "consume"):
            before = Usage.now(server.pid, folder / "data")
            row[f"{mode}_per_s"] = round(load(mode, topics, args))
            after = Usage.now(server.pid, folder / "data")
            row[f"{mode}_us"] = after.per_message_us(before, args.topics * args.messages)
    finally:
        server.terminate()
        server.wait(60)
        if args.keep is None:
            shutil.rmtree(folder)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, nargs="+", default=[0, 1, 2], help="0: all in one process")
    parser.add_argument("--topics", type=int, default=4)
    parser.add_argument("--messages", type=int, default=100_000, help="of each topic")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory that keeps data and logs")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # takes its servers along
    results = [measure(count, args) for count in args.brokers]
    for result in results:
        print(json.dumps(result))
    cost = "brokers + rest + generator, µs CPU"
    print(f"| brokers | published/s | {cost} | consumed/s | {cost} |\n|---|---|---|---|---|")
    for result in results:
        cells = [str(result["brokers"] or "all in one process")]
        for mode in ("produce", "consume"):
            cells += [f"{result[f'{mode}_per_s']:,}", " + ".join(map(str, result[f"{mode}_us"]))]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
