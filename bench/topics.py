#!/usr/bin/env python3
"""What a topic costs that nobody uses: time to create, bytes of metadata, and lookups, at ever more topics in one namespace.

  topics.py [--counts 1000,100000,1000000] [--metadata standalone|server|zookeeper] [--dir DIR] [--json]

The topics are created over the admin API: a hundredth as plain topics, one call each, the others as partitions, 1,000 to a topic. Then
lookups of random ones over the binary protocol, one after the other on one connection: LOOKUP and PARTITIONED_METADATA, and the list.
`server` and `zookeeper` measure a `magnetar broker` whose metadata lies in `magnetar metadata-server` or in ZooKeeper.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import servers
from magnetar.testing.cluster import ClusterProcesses
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand

PARTITIONS = 1000
PLAIN_SHARE = 0.01
CALLERS = 8
LOOKUPS = 1000
NAMESPACE = "persistent/public/default"


class Api:
    """One kept connection to the admin API."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def call(self, method: str, path: str, body: str = "") -> bytes:
        self._connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content


class Wire:
    """One connection of the binary protocol; a question, then its answer."""

    def __init__(self, port: int, source: str = "") -> None:
        """`source`: the address of this end, where it matters."""
        bound = (source, 0) if source else None
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=bound)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connect = BaseCommand(type=BaseCommand.CONNECT)
        connect.connect.client_version = "bench"
        connect.connect.protocol_version = 20
        self.ask(connect)

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def ask(self, command: BaseCommand) -> BaseCommand:
        data = command.SerializeToString()
        self._socket.sendall(struct.pack(">II", len(data) + 4, len(data)) + data)
        while True:
            size = struct.unpack(">I", self._exactly(4))[0]
            body = self._exactly(size)
            answer = BaseCommand.FromString(body[4 : 4 + struct.unpack_from(">I", body)[0]])
            if answer.type != BaseCommand.PING:
                return answer

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise SystemExit("the server closed the connection")
            data += part
        return data

    def lookup(self, topic: str) -> None:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic, command.lookupTopic.request_id = topic, 1
        command.lookupTopic.authoritative = False
        answer = self.ask(command).lookupTopicResponse
        if not answer.brokerServiceUrl:
            raise SystemExit(f"lookup of {topic}: {answer.message}")

    def partitions(self, topic: str) -> None:
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
        command.partitionMetadata.topic, command.partitionMetadata.request_id = topic, 1
        answer = self.ask(command).partitionMetadataResponse
        if answer.message:
            raise SystemExit(f"partitions of {topic}: {answer.message}")


class Site:
    """What is measured: one process, or a broker with metadata and two bookies in processes of their own."""

    def __init__(self, folder: Path, metadata: str) -> None:
        self._folder, self._stack = folder, contextlib.ExitStack()
        self._standalone = metadata == "standalone"
        if self._standalone:
            self._serve()
            self._stack.callback(lambda: self._server.stop())
            return
        cluster = self._stack.enter_context(
            ClusterProcesses(
                folder / "c",
                bookies=2,
                zookeeper=metadata == "zookeeper",
                settings=["broker.metadataStoreSessionTimeoutMillis=10000"],  # a busy machine is not a lost session
            )
        )
        self.port, self.http_port = (int(url.rsplit(":", 1)[1]) for url in (cluster.service_url, cluster.http_url))
        self._cluster = cluster
        self._pid = next(each.pid for each in cluster.status().values() if each.role == "broker")

    def _serve(self) -> None:
        self._server = server = servers.ours(self._folder)
        self.port, self.http_port, self._pid = server.port, server.http_port, server.pid

    def stop(self) -> None:
        self._stack.close()

    def log_tail(self) -> str:
        """What the servers said last."""
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in self._folder.rglob("*.log"))

    @property
    def memory_mib(self) -> float:
        """Resident memory of the broker's process."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def metadata_bytes(self) -> int:
        """Of the tree's files: SQLite's, the log included, or ZooKeeper's log and snapshots."""
        parts = ("metadata.sqlite", "zookeeper", "version-2")
        files = [
            path for path in self._folder.rglob("*") if path.is_file() and any(part in str(path) for part in parts)
        ]
        return sum(min(path.stat().st_size, path.stat().st_blocks * 512) for path in files)

    def fill(self, partitioned: dict[str, int]) -> None:
        """Write the topics' nodes into the metadata's file while nobody runs: as the API would have, but in seconds."""
        if self._standalone:
            self._server.stop()
            self._write(partitioned)
            self._serve()
            return
        processes = self._cluster
        names = [name for name, each in processes.status().items() if each.role in ("broker", "metadata")]
        for name in reversed(names):
            processes.stop(name)
        self._write(partitioned)
        processes.start_again(*names)
        self._pid = next(each.pid for each in processes.status().values() if each.role == "broker")

    def _write(self, partitioned: dict[str, int]) -> None:
        (file,) = self._folder.rglob("metadata.sqlite")
        with contextlib.closing(sqlite3.connect(file)) as tree, tree:
            for parent, nodes in (
                ("/managed-ledgers/public/default/persistent", _ledgers(partitioned)),
                ("/admin/partitioned-topics/public/default/persistent", _documents(partitioned)),
            ):
                self._make(tree, parent)
                tree.executemany(_INSERT, ((parent, name, value) for name, value in nodes))
                count = "SELECT COUNT(*) FROM nodes WHERE parent = :path"
                tree.execute(
                    f"UPDATE nodes SET children = ({count}), next_sequence = ({count}) WHERE parent = :up AND name = :name",
                    {"path": parent, "up": parent.rpartition("/")[0], "name": parent.rpartition("/")[2]},
                )

    @staticmethod
    def _make(tree: sqlite3.Connection, path: str) -> None:
        up, _, name = path.rpartition("/")
        if up:
            Site._make(tree, up)
        here = tree.execute("SELECT 1 FROM nodes WHERE parent = ? AND name = ?", (up or "/", name)).fetchone()
        if here is None:
            tree.execute(_INSERT, (up or "/", name, b""))
            above, _, last = up.rpartition("/")
            tree.execute("UPDATE nodes SET children = children + 1 WHERE parent = ? AND name = ?", (above or "/", last))


_INSERT = "INSERT INTO nodes (parent, name, value, version, owner, next_sequence) VALUES (?, ?, ?, 0, 0, 0)"


def _ledgers(partitioned: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    return ((f"{name}-partition-{index}", b"") for name, count in partitioned.items() for index in range(count))


def _documents(partitioned: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    return (
        (name, json.dumps({"partitions": count, "deleted": False, "properties": {}}).encode())
        for name, count in partitioned.items()
    )


def create(port: int, plain: list[str], partitioned: dict[str, int]) -> None:
    """Eight callers share the work, as several administrators would."""
    work = [(f"{name}", "") for name in plain]
    work += [(f"{name}/partitions", str(count)) for name, count in partitioned.items()]
    lock, failures = threading.Lock(), []

    def caller() -> None:
        api = Api(port)
        while True:
            with lock:
                if not work or failures:
                    return
                path, body = work.pop()
            try:
                api.call("PUT", f"/admin/v2/{NAMESPACE}/{path}", body)
            except BaseException as error:  # the main thread raises it
                failures.append(error)

    threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def rounds(calls: list[tuple], number: int) -> tuple[float, float]:
    """Median and 99th percentile of the quietest of several short rounds: what else the machine has to do only adds."""
    found = [percentiles(timed(calls)) for _ in range(number)]
    return min(each[0] for each in found), min(each[1] for each in found)


def percentiles(times_s: list[float]) -> tuple[float, float]:
    """Median and 99th, in milliseconds."""
    cuts = statistics.quantiles(times_s, n=100)
    return 1000 * cuts[49], 1000 * cuts[98]


def timed(calls: list[tuple]) -> list[float]:
    found = []
    for function, argument in calls:
        started = time.perf_counter()
        function(argument)
        found.append(time.perf_counter() - started)
    return found


def listed(port: int, expected: int) -> float | str:
    """Seconds to list all names; what the server said if it could not. Raises SystemExit when some are missing."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/admin/v2/{NAMESPACE}")
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        return f"HTTP {answer.status}"
    names = json.loads(content)
    if len(names) != expected:
        raise SystemExit(f"{len(names)} topics are listed, {expected} were created")
    return round(time.perf_counter() - started, 2)


def measure(where: Site, total: int, rng: random.Random, prefill: bool, lookup_rounds: int) -> dict[str, object]:
    plain = [] if prefill else [f"plain-{number}" for number in range(int(total * PLAIN_SHARE))]
    rest = total - len(plain)
    partitioned = {f"parts-{n}": min(PARTITIONS, rest - n * PARTITIONS) for n in range(-(-rest // PARTITIONS))}
    before = where.metadata_bytes()
    started = time.perf_counter()
    if prefill:
        where.fill(partitioned)
    else:
        create(where.http_port, plain, partitioned)
    create_s = time.perf_counter() - started
    metadata_bytes = where.metadata_bytes() - before
    single_s = timed(
        [(lambda n: Api(where.http_port).call("PUT", f"/admin/v2/{NAMESPACE}/one-{n}", ""), n) for n in range(200)]
    )
    wire = Wire(where.port)
    names = [f"persistent://public/default/parts-{rng.randrange(len(partitioned))}" for _ in range(LOOKUPS)]
    single = [f"{name}-partition-{rng.randrange(min(partitioned.values()))}" for name in names]
    timed([(wire.lookup, name) for name in single[:500]])  # every bundle has its owner, every cache its namespace
    lookup_ms = rounds([(wire.lookup, name) for name in single], lookup_rounds)
    partitions_ms = rounds([(wire.partitions, name) for name in names], lookup_rounds)
    list_s = listed(where.http_port, total + 200)
    return {
        "topics": total,
        "create_s": "" if prefill else round(create_s, 1),
        "create_per_s": "" if prefill else round(total / create_s),
        "create_one_p99_ms": round(percentiles(single_s)[1], 2),
        "metadata_bytes_per_topic": round(metadata_bytes / total),
        "lookup_p50_ms": round(lookup_ms[0], 3),
        "lookup_p99_ms": round(lookup_ms[1], 3),
        "partitions_p99_ms": round(partitions_ms[1], 3),
        "list_s": list_s,
        "broker_mib": round(where.memory_mib),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="1000,100000,1000000")
    parser.add_argument("--metadata", choices=["standalone", "server", "zookeeper"], default="standalone")
    parser.add_argument("--prefill", action="store_true", help="write the nodes into SQLite's file: lookups only")
    parser.add_argument("--rounds", type=int, default=50, help=f"of {LOOKUPS} lookups; the quietest one counts")
    parser.add_argument("--dir", type=Path, default=None, help="where the data lies while it runs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # takes its servers along
    rows = []
    for count in map(int, arguments.counts.split(",")):
        folder = Path(tempfile.mkdtemp(prefix="magnetar-topics-", dir=arguments.dir))
        where = Site(folder, arguments.metadata)
        try:
            row = measure(where, count, random.Random(count), arguments.prefill, arguments.rounds)
            rows.append({"metadata": arguments.metadata, **row})
            print(f"{count} topics: {rows[-1]}", file=sys.stderr)
        except BaseException:
            print(where.log_tail(), file=sys.stderr)
            raise
        finally:
            where.stop()
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(rows))
        return
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


if __name__ == "__main__":
    main()
