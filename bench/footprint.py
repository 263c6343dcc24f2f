#!/usr/bin/env python3
"""What a thing that only lies there costs: bytes of memory and disk for each message of a backlog, topic, subscription and idle connection.

  footprint.py [--n N] [--only NAME ...] [--bytes N] [--set KEY=VALUE ...] [--dir DIR] [--json]

A new `magnetar standalone` for each kind; memory is the resident set of the server after N of them less that before, so that buffers which
are full by then (write cache, entry cache, the index's) are in it: the more, the truer. Connections are as many as open files of a process
allow, from one address of 127.0.0.0/8 for each 25,000; their PINGs are answered meanwhile. Topics and subscriptions that nobody uses leave
memory above topicsKeptInMemory: `--set topicsKeptInMemory=0` keeps them all. Disk is what the files take up, apart for the journal, the
entry logs with their index, and the metadata. Says on stderr how far it is. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import servers
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from topics import Wire

HERE = Path(__file__).resolve().parent
CONNECTIONS_PER_ADDRESS = 25_000
"""Fewer than the ports that the system gives away by itself."""
OPEN_FILES_RESERVED = 2000
SAID_EVERY_S = 10.0
UNDER_WAY = 50
SUBSCRIPTIONS_PER_TOPIC = 100
SETTLE_S = 3.0
PARTS = {"journal": "journal", "entry logs and index": "ledgers", "metadata": "metadata"}


def disk_bytes(folder: Path) -> dict[str, int]:
    """What the files of each part take up; what is in none of them is left out."""
    found = dict.fromkeys(PARTS, 0)
    for path in (folder / "data").rglob("*"):
        if path.is_file():
            inside = str(path.relative_to(folder / "data"))
            part = next((name for name, word in PARTS.items() if word in inside), None)
            if part is not None:
                found[part] += path.stat().st_blocks * 512
    return found


class Progress:
    """A line on stderr now and then: how many are done, and when the rest will be."""

    def __init__(self, what: str, count: int) -> None:
        self._what, self._count = what, count
        self._begun_s = self._said_s = time.monotonic()

    def done(self, number: int) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s < SAID_EVERY_S:
            return
        self._said_s = now_s
        per_s = number / (now_s - self._begun_s)
        left_s = (self._count - number) / per_s if per_s else 0.0
        parts = (
            f"{number:,} of {self._count:,} ({number / self._count:.0%}), {per_s:,.0f}/s, {left_s / 60:.0f} min left"
        )
        print(f"{self._what}: {parts}", file=sys.stderr, flush=True)


class Pipeline(Wire):
    """Asks many things at a time."""

    def ask_all(self, commands: Iterator[BaseCommand], wanted: int) -> None:
        under_way = 0
        for command in commands:
            data = command.SerializeToString()
            self._socket.sendall(struct.pack(">II", len(data) + 4, len(data)) + data)
            under_way += 1
            if under_way >= UNDER_WAY:
                self._hear(wanted)
                under_way -= 1
        for _ in range(under_way):
            self._hear(wanted)

    def _hear(self, wanted: int) -> None:
        while True:
            (size,) = struct.unpack(">I", self._exactly(4))
            body = self._exactly(size)
            answer = BaseCommand.FromString(body[4 : 4 + struct.unpack_from(">I", body)[0]])
            if answer.type == wanted:
                return
            if answer.type == BaseCommand.ERROR:
                raise SystemExit(f"the server refused: {answer.error.message}")

    def close(self) -> None:
        self._socket.close()


def subscribe(topic: str, name: str, number: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = topic, name
    command.subscribe.subType, command.subscribe.durable = CommandSubscribe.Shared, True
    command.subscribe.consumer_id = command.subscribe.request_id = number
    return command


def backlog(server: servers.Server, count: int, size: int) -> object:
    topic = "persistent://public/default/backlog"
    wire = Pipeline(server.port)
    wire.ask_all(iter([subscribe(topic, "reader", 1)]), BaseCommand.SUCCESS)
    wire.close()
    command = [sys.executable, str(HERE / "loadgen.py"), "produce", "--topic", topic, "--window", "4000"]
    command += ["--messages", str(count), "--size", str(size), "--port", str(server.port)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return None


def many_topics(server: servers.Server, count: int, size: int) -> object:
    progress = Progress("topics", count)
    for start in range(0, count, 5000):  # a connection has a bound of producers
        wire = Pipeline(server.port)

        def producers(start: int = start) -> Iterator[BaseCommand]:
            for number in range(start, min(start + 5000, count)):
                command = BaseCommand(type=BaseCommand.PRODUCER)
                command.producer.topic = f"persistent://public/default/topic-{number}"
                command.producer.producer_id = command.producer.request_id = number
                yield command

        wire.ask_all(producers(), BaseCommand.PRODUCER_SUCCESS)
        wire.close()
        progress.done(min(start + 5000, count))
    return None


def subscriptions(server: servers.Server, count: int, size: int) -> object:
    progress = Progress("subscriptions", count)
    for start in range(0, count, 5000):
        wire = Pipeline(server.port)
        names = (
            subscribe(f"persistent://public/default/t-{number // SUBSCRIPTIONS_PER_TOPIC}", f"s-{number}", number)
            for number in range(start, min(start + 5000, count))
        )
        wire.ask_all(names, BaseCommand.SUCCESS)
        wire.close()
        progress.done(min(start + 5000, count))
    return None


class Idle:
    """Connections that do nothing but to answer PING, by a thread."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._ready = select.epoll()
        self.lost = 0
        pong = BaseCommand(type=BaseCommand.PONG)
        pong.pong.SetInParent()
        data = pong.SerializeToString()
        self._pong = struct.pack(">II", len(data) + 4, len(data)) + data
        threading.Thread(target=self._answer, daemon=True).start()

    def add(self, connection: socket.socket) -> None:
        self._sockets[connection.fileno()] = connection
        self._ready.register(connection.fileno(), select.EPOLLIN)

    def _answer(self) -> None:
        while True:
            for number, _ in self._ready.poll(maxevents=1000):
                connection = self._sockets[number]
                if connection.recv(4096):
                    connection.sendall(self._pong)
                else:
                    self._ready.unregister(number)
                    self.lost += 1


def connections(server: servers.Server, count: int, size: int) -> object:
    idle, progress = Idle(), Progress("connections", count)
    for number in range(count):
        idle.add(Wire(server.port, f"127.0.0.{2 + number // CONNECTIONS_PER_ADDRESS}").socket)
        progress.done(number + 1)
    if idle.lost:
        raise SystemExit(f"the server closed {idle.lost} of {count} connections")
    return idle


def connections_max() -> int:
    """As many as this process and the server may have open, after asking for as many files as the system allows."""
    possible = int(Path("/proc/sys/fs/nr_open").read_text())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, possible))
    except (ValueError, PermissionError):  # only an administrator may raise the hard limit
        possible = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, possible))
    return possible * 3 // 4 - OPEN_FILES_RESERVED  # a quarter is for HTTP


KINDS: dict[str, Callable[[servers.Server, int, int], object]] = {
    "backlog": backlog,
    "topics": many_topics,
    "subscriptions": subscriptions,
    "connections": connections,
}


def measure(name: str, count: int, options: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=options.dir))
    server = servers.ours(folder, *options.set)
    try:
        time.sleep(SETTLE_S)
        memory, disk = server.memory_mib, disk_bytes(folder)
        held = KINDS[name](server, count, options.bytes)
        time.sleep(SETTLE_S)
        grown = server.memory_mib - memory
        result = {"count": count, "memory B each": round(grown * 2**20 / count, 1), "memory MiB": round(grown, 1)}
        for part, now in disk_bytes(folder).items():
            result[f"{part} B each"] = round((now - disk[part]) / count, 1)
        del held
        return result
    finally:
        server.stop()
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--bytes", type=int, default=1024, help="of each message of the backlog")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the server")
    parser.add_argument("--dir", default=str(HERE), help="where the data goes; not a memory filesystem")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for name in options.only:
        count = min(options.n, connections_max()) if name == "connections" else options.n
        found[name] = measure(name, count, options)
        if not options.json:
            print(f"{name:14}" + "  ".join(f"{key} {value:,}" for key, value in found[name].items()), flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    socket.setdefaulttimeout(120)
    main()
