#!/usr/bin/env python3
"""One hostile neighbour: a process that asks as much as it can of one kind. `neighbours.py` starts it.

  floods.py KIND --port PORT --http-port PORT --token TOKEN --namespace TENANT/NAMESPACE --topics N

It prepares, prints `ready`, and floods for the number of seconds that each line on its input says; then it prints how many of its
requests were answered (or, for what nobody reads, sent), as one line of JSON. It runs at low priority (nice 10): a real neighbour is
another machine and takes no CPU from the server, and what is measured is the server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import loadgen
from magnetar.wire.pulsar.PulsarApi_pb2 import BaseCommand, CommandSubscribe

CONNECTIONS = 8
ANSWER_TIMEOUT_S = 60.0
EVIL_PATTERN = "persistent://.*/(([a-z0-9-])+)+!"
"""Takes a backtracking engine time that is exponential in the length of each name."""

BACKLOG_MESSAGES = 20_000
SUBSCRIPTIONS_PER_TOPIC = 100
RECEIVE_BUFFER_BYTES = 4096

Step = Callable[[], int]
"""Asks some and waits for the answers (unless the kind is one that does not); how many."""


@dataclass
class Site:
    """Whom to flood, and as whom."""

    port: int
    http_port: int
    token: str
    namespace: str
    topics: int

    def topic(self, name: object) -> str:
        return f"persistent://{self.namespace}/{name}"


class Wire:
    """One connection of the binary protocol whose answers are only counted."""

    def __init__(self, site: Site, receive_buffer_bytes: int = 0) -> None:
        self.sock = socket.socket()
        if receive_buffer_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.sock.settimeout(ANSWER_TIMEOUT_S)
        self.sock.connect(("127.0.0.1", site.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        connect = BaseCommand(type=BaseCommand.CONNECT)
        connect.connect.client_version, connect.connect.protocol_version = "flood", 20
        connect.connect.auth_method_name, connect.connect.auth_data = "token", site.token.encode()
        self.ask(frame(connect), 1)

    def ask(self, frames: bytes, answers: int, kind: int = 0) -> int:
        """Send, then read so many frames, of one kind if one is given."""
        self.sock.sendall(frames)
        return self.read(answers, kind)

    def read(self, answers: int, kind: int = 0) -> int:
        """Until so many frames have come; PINGs are answered and not counted."""
        got = 0
        while got < answers:
            got += self._cut(kind)
            if got < answers:
                more = self.sock.recv(1 << 20)
                if not more:
                    raise ConnectionError("the server closed the connection")
                self._buffer += more
        return got

    def _cut(self, kind: int) -> int:
        buffer, position, count = self._buffer, 0, 0
        while len(buffer) - position >= 10:
            size = int.from_bytes(buffer[position : position + 4], "big")
            if len(buffer) - position - 4 < size:
                break
            found = buffer[position + 9]  # behind both sizes and the tag
            if found == BaseCommand.PING:
                self.sock.sendall(loadgen.command(loadgen.PONG, b""))
            else:
                count += not kind or found == kind
            position += 4 + size
        del buffer[:position]
        return count


def frame(command: BaseCommand) -> bytes:
    data = command.SerializeToString()
    return struct.pack(">II", len(data) + 4, len(data)) + data


def each_worker(step: Callable[[Site, int], Step]) -> Callable[[Site], list[Step]]:
    """A kind whose connections all do the same; `step` is given their number."""
    return lambda site: [step(site, number) for number in range(CONNECTIONS)]


# ---- Kinds


def _lookups(site: Site, number: int) -> Step:
    wire, burst = Wire(site), b""
    for index in range(100):
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic, command.lookupTopic.request_id = site.topic(f"looked-up-{number}-{index}"), index
        burst += frame(command)
    return lambda: wire.ask(burst, 100)


def _connects(site: Site, number: int) -> Step:
    def step() -> int:
        Wire(site).sock.close()
        return 1

    return step


def _list_frame(site: Site, pattern: str = "") -> bytes:
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.request_id, command.getTopicsOfNamespace.namespace = 1, site.namespace
    if pattern:
        command.getTopicsOfNamespace.topics_pattern = pattern
    return frame(command)


def _lists(site: Site, number: int) -> Step:
    wire, burst = Wire(site), _list_frame(site) * 4
    return lambda: wire.ask(burst, 4)


def _patterns(site: Site, number: int) -> Step:
    wire, burst = Wire(site), _list_frame(site, EVIL_PATTERN) * 4
    return lambda: wire.ask(burst, 4)


def _get(site: Site, path: str) -> Step:
    connection = http.client.HTTPConnection("127.0.0.1", site.http_port, timeout=ANSWER_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {site.token}"}

    def step() -> int:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return int(answer.status == 200)

    return step


def _http_lists(site: Site, number: int) -> Step:
    return _get(site, f"/admin/v2/persistent/{site.namespace}")


def _stats(site: Site, number: int) -> Step:
    return _get(site, f"/admin/v2/persistent/{site.namespace}/many-0/partitioned-stats?perPartition=true")


_created = itertools.count()


def _create(site: Site, number: int) -> Step:
    wires = [Wire(site)]
    producers = itertools.count()

    def step() -> int:
        burst = b""
        for _ in range(20):
            command = BaseCommand(type=BaseCommand.PRODUCER)
            command.producer.topic = site.topic(f"created-{os.getpid()}-{next(_created)}")
            command.producer.producer_id = command.producer.request_id = next(producers)
            burst += frame(command)
        return wires[0].ask(burst, 20)

    return step


def _subscribe_frame(topic: str, subscription: str, consumer: int, durable: bool = True) -> bytes:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = topic, subscription, CommandSubscribe.Shared
    request.consumer_id = request.request_id = consumer
    request.initialPosition, request.durable = CommandSubscribe.Earliest, durable
    if not durable:
        request.start_message_id.ledgerId = request.start_message_id.entryId = 2**64 - 1
    return frame(command)


def _fill(site: Site, topic: str, messages: int, payload_bytes: int = 1024) -> None:
    publisher = _Publisher(site, topic, payload_bytes)
    for _ in range(messages // publisher.chunk):
        publisher.step()
    publisher.window = 0  # a socket that is closed with receipts unread would lose what is still on its way
    publisher.settle()


def _seeks(site: Site, number: int) -> Step:
    topic = site.topic(f"sought-{number}")
    _fill(site, topic, 1000)
    wire, consumers = Wire(site), itertools.count(1)

    def step() -> int:
        consumer = next(consumers)
        wire.ask(_subscribe_frame(topic, "seeks", consumer), 1, BaseCommand.SUCCESS)
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id = command.seek.request_id = consumer
        command.seek.message_id.ledgerId = command.seek.message_id.entryId = 0
        return wire.ask(frame(command), 1, BaseCommand.SUCCESS)

    return step


def _backlog(site: Site, number: int) -> Step:
    topic = site.topic(f"stored-{number % 2}")
    if number < 2:
        _fill(site, topic, BACKLOG_MESSAGES)
    wire, consumers = Wire(site), itertools.count(1)

    def step() -> int:
        """One read of everything, from the start."""
        consumer = next(consumers)
        wire.ask(_subscribe_frame(topic, f"reads-{number}-{consumer}", consumer, durable=False), 1)
        flow = loadgen.command(loadgen.FLOW, loadgen.field(1, consumer) + loadgen.field(2, BACKLOG_MESSAGES))
        got = wire.ask(flow, BACKLOG_MESSAGES, BaseCommand.MESSAGE)
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id = close.close_consumer.request_id = consumer
        wire.ask(frame(close), 1, BaseCommand.SUCCESS)
        return got

    return step


def _unread(site: Site, number: int) -> Step:
    """Asks and never reads; connects again when it is cut off."""
    wires = [Wire(site, RECEIVE_BUFFER_BYTES)]
    request = _list_frame(site)
    burst = request * 500

    def step() -> int:
        wires[0].sock.settimeout(0.05)
        try:
            return wires[0].sock.send(burst) // len(request)
        except TimeoutError:
            return 0
        except OSError:
            wires[0].sock.close()
            wires[0] = Wire(site, RECEIVE_BUFFER_BYTES)
            return 0

    return step


class _Publisher:
    """Publishes single messages with up to 4,000 in flight."""

    chunk = 100
    window = 4000

    def __init__(self, site: Site, topic: str, payload_bytes: int = 1024) -> None:
        self._wire = Wire(site)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, 1, 1
        self._wire.ask(frame(command), 1)
        self._tail = loadgen.payload(payload_bytes, 1)
        self._sent = self._acked = 0

    def step(self) -> int:
        frames = [loadgen.send_frame(self._sent + index, 1, self._tail) for index in range(self.chunk)]
        self._wire.sock.sendall(b"".join(frames))
        self._sent += self.chunk
        return self.settle()

    def settle(self) -> int:
        """Reads receipts until no more than `window` are missing; how many."""
        got = self._wire.read(max(0, self._sent - self._acked - self.window))
        self._acked += got
        return got


def _publish(site: Site) -> list[Step]:
    return [_Publisher(site, site.topic("published")).step]


def _idle(site: Site) -> list[Step]:
    """So many subscriptions as there are topics in the other kinds, each with a consumer that waits."""
    wires = [Wire(site) for _ in range(CONNECTIONS)]
    for first in range(0, site.topics, SUBSCRIPTIONS_PER_TOPIC):
        topic = site.topic(f"idle-{first}")
        wire = wires[first // SUBSCRIPTIONS_PER_TOPIC % CONNECTIONS]
        numbers = range(first, min(first + SUBSCRIPTIONS_PER_TOPIC, site.topics))
        subscribes = b"".join(_subscribe_frame(topic, f"idle-{number}", number) for number in numbers)
        wire.ask(subscribes, len(numbers), BaseCommand.SUCCESS)
        flows = [loadgen.command(loadgen.FLOW, loadgen.field(1, n) + loadgen.field(2, 1000)) for n in numbers]
        wire.sock.sendall(b"".join(flows))

    def step(wire: Wire) -> int:
        wire.sock.settimeout(0.25)
        with contextlib.suppress(TimeoutError):
            wire.read(1)
        return 0

    return [lambda wire=wire: step(wire) for wire in wires]  # type: ignore[misc]  # mypy knows no default of a lambda


KINDS: dict[str, Callable[[Site], list[Step]]] = {
    "lookups": each_worker(_lookups),
    "connects": each_worker(_connects),
    "lists": each_worker(_lists),
    "http-lists": each_worker(_http_lists),
    "patterns": each_worker(_patterns),
    "create": each_worker(_create),
    "seeks": each_worker(_seeks),
    "backlog": each_worker(_backlog),
    "unread": each_worker(_unread),
    "stats": each_worker(_stats),
    "publish": _publish,
    "idle": _idle,
}


def flood(steps: list[Step], seconds: float) -> dict[str, float]:
    """All steps again and again, each in a thread of its own."""
    counts, failures = [0] * len(steps), list[str]()
    started = time.monotonic()

    def work(number: int) -> None:
        try:
            while time.monotonic() - started < seconds:
                counts[number] += steps[number]()
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - started
    return {"count": sum(counts), "per_s": round(sum(counts) / took_s, 1), "failures": len(failures)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--topics", type=int, required=True)
    args = parser.parse_args()
    os.nice(10)
    site = Site(args.port, args.http_port, args.token, args.namespace, args.topics)
    steps = KINDS[args.kind](site)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(flood(steps, float(line))), flush=True)


if __name__ == "__main__":
    main()
