"""Memory of a server in which topics come and go.

  soak.py [--minutes M] [--keep N] [--dir DIR] [--json]

The official client creates a topic, publishes to it, consumes and acknowledges everything, closes, and deletes it, over and over; every
N-th topic stays (`--keep`, 0: none does). Printed every minute: topics so far, and the server's resident memory. At the end: the objects
of which there are more than after the first tenth of the time, by type, so that what grows has a name. See bench/README.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pulsar
import requests

import servers

MESSAGES_PER_TOPIC = 200
KINDS = (
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
)

LAUNCHER = '''
import collections, gc, signal, sys

def count(*_):
    """SIGUSR1: the number of objects by type, as one line of the log."""
    gc.collect()
    types = collections.Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    print("OBJECTS", dict(types), file=sys.stderr, flush=True)

signal.signal(signal.SIGUSR1, count)
from magnetar.__main__ import main
main()
'''


def launch(folder: Path) -> servers.Server:
    """`magnetar standalone` that counts its objects when it is asked to."""
    launcher = folder / "launch.py"
    launcher.write_text(LAUNCHER)
    options = ["--data-dir", str(folder / "data"), "--port", "0", "--http-port", "0", "--log-level", "warning"]
    return servers.Server([sys.executable, str(launcher), "standalone", *options], folder / "server.log")


def objects(server: servers.Server, folder: Path) -> dict[str, int]:
    """Objects by type that the garbage collector knows of now."""
    log = folder / "server.log"
    before = log.read_text().count("OBJECTS ")
    os.kill(server.pid, signal.SIGUSR1)
    while log.read_text().count("OBJECTS ") == before or not log.read_text().endswith("\n"):
        time.sleep(0.1)
    last = [line for line in log.read_text().splitlines() if line.startswith("OBJECTS ")][-1]
    counts: dict[str, int] = ast.literal_eval(last.removeprefix("OBJECTS "))
    return counts


class Churn:
    """One client, one topic after the other."""

    def __init__(self, server: servers.Server, keep: int) -> None:
        self._admin = f"http://127.0.0.1:{server.http_port}/admin/v2/persistent/public/default"
        self.client = pulsar.Client(
            f"pulsar://127.0.0.1:{server.port}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._keep = keep
        self.topics = 0

    def one_topic(self) -> None:
        number = self.topics
        self.topics += 1
        name = f"churn-{number}"
        producer = self.client.create_producer(name, batching_enabled=number % 2 == 0)
        consumer = self.client.subscribe(name, f"subscription-{number}", consumer_type=KINDS[number % len(KINDS)])
        for message in range(MESSAGES_PER_TOPIC):
            producer.send_async(os.urandom(400), lambda *_: None, partition_key=str(message % 7))
        producer.flush()
        for _ in range(MESSAGES_PER_TOPIC):
            consumer.acknowledge(consumer.receive(10_000))
        consumer.close()
        producer.close()
        if not self._keep or number % self._keep:
            requests.delete(f"{self._admin}/{name}?force=true", timeout=30).raise_for_status()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--keep", type=int, default=0, help="every N-th topic stays; 0: none")
    parser.add_argument("--dir", type=Path, default=None, help="where the server keeps its data")
    parser.add_argument("--json", action="store_true", help="the results as one line of JSON")
    args = parser.parse_args()
    out = sys.stderr if args.json else sys.stdout
    folder = Path(tempfile.mkdtemp(dir=args.dir))
    server = launch(folder)
    started, next_line, early, memory = time.monotonic(), 0.0, None, []
    try:
        churn = Churn(server, args.keep)
        while (passed_s := time.monotonic() - started) < args.minutes * 60:
            churn.one_topic()
            if early is None and passed_s > args.minutes * 6:
                early = objects(server, folder)
            if passed_s >= next_line:
                next_line += 60
                memory.append(round(server.memory_mib, 1))
                print(f"{passed_s / 60:5.1f} min {churn.topics:8,} topics {memory[-1]:8.1f} MiB", file=out, flush=True)
        late = objects(server, folder)
        grown = {name: late[name] - (early or {}).get(name, 0) for name in late}
        grown = {
            name: more for name, more in sorted(grown.items(), key=lambda each: -each[1]) if more > churn.topics // 20
        }
        memory.append(round(server.memory_mib, 1))
        churn.client.close()
    finally:
        server.stop()
        shutil.rmtree(folder)
    print(
        f"at the end {churn.topics:,} topics, {memory[-1]:.1f} MiB; more objects than after a tenth of the time:",
        file=out,
    )
    for name, more in grown.items():
        print(f"  {more:+8,} {name}", file=out)
    if args.json:
        json.dump({"topics": churn.topics, "memory_mib": memory, "grown": grown}, sys.stdout)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
