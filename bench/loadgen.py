#!/usr/bin/env python3
"""Load generator that speaks the Pulsar binary protocol with pre-built frames, so that the server is the bottleneck.

It works against any server that speaks the protocol. Needs only `google-crc32c`.

  loadgen.py produce  --messages 100000 --size 1024 [--batch 1] [--window 4000] [--connections 1]
  loadgen.py consume  --messages 100000 [--ack individual|cumulative|none] [--type exclusive|shared|failover|key_shared]
                      [--consumers 1]
  loadgen.py latency  --messages 2000 --size 1024 --rate 1000

Each prints one JSON line: entries_per_s, messages_per_s, mb_per_s, and for `latency` p50_ms, p99_ms, p999_ms, max_ms.
`consume` adds least_share: the smallest consumer's part of
the messages. `produce` and `consume` use the topic given by --topic (created on demand); `consume` reads from the earliest message.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

import google_crc32c

# BaseCommand.type values and the field number of each sub-command (equal in this protocol, except where named)
CONNECT, CONNECTED, SUBSCRIBE, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR, MESSAGE, ACK, FLOW = (
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
)
SUCCESS, ERROR, PRODUCER_SUCCESS, PING, PONG = 13, 14, 17, 18, 19
CLOSE_PRODUCER, CLOSE_CONSUMER = 15, 16
REFUSALS = {
    ERROR: "failed",
    SEND_ERROR: "refused a message",
    CLOSE_PRODUCER: "gave the topic up",
    CLOSE_CONSUMER: "gave the topic up",
}
PARTITIONED_METADATA, PARTITIONED_METADATA_RESPONSE, LOOKUP, LOOKUP_RESPONSE = 21, 22, 23, 24
SUBSCRIPTION_TYPES = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, value: int | bytes | str) -> bytes:
    """One protobuf field: varint for an int, length-delimited for bytes and str."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def parse(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of one protobuf message, unknown ones included."""
    fields: dict[int, list[int | bytes]] = {}
    pos = 0
    while pos < len(data):
        tag, pos = read_varint(data, pos)
        if tag & 7 == 0:
            value: int | bytes
            value, pos = read_varint(data, pos)
        elif tag & 7 == 2:
            size, pos = read_varint(data, pos)
            value, pos = data[pos : pos + size], pos + size
        elif tag & 7 == 1:
            value, pos = data[pos : pos + 8], pos + 8
        else:
            value, pos = data[pos : pos + 4], pos + 4
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def command(kind: int, body: bytes) -> bytes:
    base = field(1, kind) + field(kind, body)
    return struct.pack(">II", len(base) + 4, len(base)) + base


class Connection:
    def __init__(self, host: str, port: int, token: str = "") -> None:
        self.sock = socket.create_connection((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        credential = field(3, token) + field(5, "token") if token else b""
        self.request(command(CONNECT, field(1, "loadgen") + field(4, 19) + credential), CONNECTED)

    def frames(self) -> Iterator[list[bytes]]:
        """Lists of whole frames, a list for each read from the socket."""
        while True:
            out, pos, data = [], 0, self.buffer
            while len(data) - pos >= 4:
                size = int.from_bytes(data[pos : pos + 4], "big")
                if len(data) - pos - 4 < size:
                    break
                out.append(data[pos + 4 : pos + 4 + size])
                pos += 4 + size
            self.buffer = data[pos:]
            if out:
                yield out
            more = self.sock.recv(1 << 20)
            if not more:
                raise SystemExit("the server closed the connection")
            self.buffer += more

    def request(self, frame: bytes, answer: int) -> dict[int, list[int | bytes]]:
        self.sock.sendall(frame)
        for frames in self.frames():
            for raw in frames:
                base = parse(raw[4 : 4 + int.from_bytes(raw[:4], "big")])
                kind = base[1][0]
                if kind == answer:
                    return base
                if kind == PING:
                    self.sock.sendall(command(PONG, b""))
                elif kind in (ERROR, SEND_ERROR):
                    raise SystemExit(f"the server answered with an error: {base}")
        raise AssertionError

    def find(self, topic: str) -> None:
        self.request(command(PARTITIONED_METADATA, field(1, topic) + field(2, 1)), PARTITIONED_METADATA_RESPONSE)
        self.request(command(LOOKUP, field(1, topic) + field(2, 2)), LOOKUP_RESPONSE)


def payload(size: int, batch: int, key: str | None = None) -> bytes:
    """Checksummed metadata and payload, the part of a SEND frame behind the command."""
    metadata = field(1, "loadgen") + field(2, 0) + field(3, int(time.time() * 1000))
    if batch > 1:
        metadata += field(11, batch)
        single = field(3, size) + (field(2, key) if key else b"")
        body = (struct.pack(">I", len(single)) + single + b"x" * size) * batch
    else:
        metadata += field(6, key) if key else b""
        body = b"x" * size
    rest = struct.pack(">I", len(metadata)) + metadata + body
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest)) + rest


def send_frame(sequence: int, batch: int, tail: bytes) -> bytes:
    body = field(1, 1) + field(2, sequence) + (field(3, batch) if batch > 1 else b"")
    base = field(1, SEND) + field(SEND, body)
    return struct.pack(">II", len(base) + 4 + len(tail), len(base)) + base + tail


class Publisher:
    """Keeps `window` entries in flight on one connection and counts receipts."""

    def __init__(self, args: argparse.Namespace, entries: int) -> None:
        self.connection = Connection(args.host, args.port, args.token)
        self.connection.find(args.topic)
        self.connection.request(command(PRODUCER, field(1, args.topic) + field(2, 1) + field(3, 3)), PRODUCER_SUCCESS)
        tails = [payload(args.size, args.batch, f"key-{i}" if args.keys else None) for i in range(max(1, args.keys))]
        self.messages = [send_frame(i, args.batch, tails[i % len(tails)]) for i in range(entries)]
        self.window, self.acked, self.ready = args.window, 0, threading.Condition()
        self.failure: BaseException | None = None

    def receive(self) -> None:
        """Until everything has its receipt; a failure is for the sending thread, which waits for receipts."""
        try:
            self.count_receipts()
        except BaseException as error:
            with self.ready:
                self.failure = error
                self.ready.notify()

    def count_receipts(self) -> None:
        for frames in self.connection.frames():
            receipts = 0
            for raw in frames:
                kind = raw[5]  # the command's type stands behind its tag
                if kind == SEND_RECEIPT:
                    receipts += 1
                elif kind == PING:
                    self.connection.sock.sendall(command(PONG, b""))
                elif kind in REFUSALS:
                    raise SystemExit(f"the server {REFUSALS[kind]}")
            with self.ready:
                self.acked += receipts
                self.ready.notify()
            if self.acked >= len(self.messages):
                return

    def run(self) -> None:
        reader = threading.Thread(target=self.receive)
        reader.start()
        chunk = max(1, (1 << 17) // len(self.messages[0]))
        sent = 0
        while sent < len(self.messages):
            with self.ready:
                while sent - self.acked >= self.window and self.failure is None:
                    self.ready.wait()
                if self.failure is not None:
                    break
                room = self.window - (sent - self.acked)
            upto = min(sent + min(room, chunk), len(self.messages))
            self.connection.sock.sendall(b"".join(self.messages[sent:upto]))
            sent = upto
        reader.join()
        if self.failure is not None:
            print(f"{self.failure!r} after {self.acked} of {len(self.messages)} receipts", file=sys.stderr, flush=True)
            os._exit(1)  # whatever other threads wait for does not come


def produce(args: argparse.Namespace) -> dict[str, float]:
    entries = args.messages // args.batch // args.connections
    publishers = [Publisher(args, entries) for _ in range(args.connections)]
    threads = [threading.Thread(target=publisher.run) for publisher in publishers]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates(entries * args.connections, args.batch, args.size, time.perf_counter() - start)


class Subscriber:
    """`--consumers` consumers of one subscription on one connection: receives, acknowledges and grants permits for each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.connection = Connection(args.host, args.port, args.token)
        self.connection.find(args.topic)
        body = field(1, args.topic) + field(2, args.subscription) + field(3, SUBSCRIPTION_TYPES[args.type])
        for consumer in range(1, args.consumers + 1):
            request = (
                body + field(4, consumer) + field(5, 2 + consumer) + field(6, f"consumer-{consumer}") + field(13, 1)
            )
            self.connection.request(command(SUBSCRIBE, request), SUCCESS)
        self.flow = max(1000, args.window) // args.consumers
        self.entries = self.size = 0
        self.got, self.granted = [0] * (args.consumers + 1), [0] * (args.consumers + 1)

    def run(self) -> dict[str, float]:
        start = time.perf_counter()
        flows = [
            command(FLOW, field(1, consumer) + field(2, self.flow)) for consumer in range(1, self.args.consumers + 1)
        ]
        self.connection.sock.sendall(b"".join(flows))
        for frames in self.connection.frames():
            answers = b"".join(self.handle(raw) for raw in frames)
            if answers := answers + self.permits():
                self.connection.sock.sendall(answers)
            if sum(self.got) >= self.args.messages:
                break
        seconds = time.perf_counter() - start
        return {
            "entries_per_s": self.entries / seconds,
            "messages_per_s": sum(self.got) / seconds,
            "mb_per_s": self.size / seconds / 1e6,
            "least_share": min(self.got[1:]) / sum(self.got),
        }

    def handle(self, raw: bytes) -> bytes:
        """Count one frame; the answer to it."""
        if raw[5] == PING:
            return command(PONG, b"")
        if raw[5] in REFUSALS:
            raise SystemExit(f"the server {REFUSALS[raw[5]]} after {sum(self.got)} messages")
        if raw[5] != MESSAGE:
            return b""
        end = 4 + int.from_bytes(raw[:4], "big")
        message = parse(parse(raw[4:end])[MESSAGE][0])
        consumer, identifier = message[1][0], message[2][0]
        rest = raw[end:]
        skip = 6 if rest[:2] == b"\x0e\x01" else 0
        length = int.from_bytes(rest[skip : skip + 4], "big")
        self.got[consumer] += parse(rest[skip + 4 : skip + 4 + length]).get(11, [1])[0]
        self.entries, self.size = self.entries + 1, self.size + len(rest)
        if self.args.ack == "none":
            return b""
        return command(ACK, field(1, consumer) + field(2, int(self.args.ack == "cumulative")) + field(3, identifier))

    def permits(self) -> bytes:
        """FLOW commands for the consumers that used half of theirs."""
        flows = b""
        for consumer in range(1, self.args.consumers + 1):
            used = self.got[consumer] - self.granted[consumer]
            if used >= max(1, self.flow // 2):
                flows += command(FLOW, field(1, consumer) + field(2, used))
                self.granted[consumer] = self.got[consumer]
        return flows


def consume(args: argparse.Namespace) -> dict[str, float]:
    return Subscriber(args).run()


def latency(args: argparse.Namespace) -> dict[str, float]:
    """Publish latency at a fixed rate, send to receipt, measured from the intended send time."""
    publisher = Publisher(args, args.messages)
    due, took = [0.0] * args.messages, []

    def receive() -> None:
        for frames in publisher.connection.frames():
            now = time.perf_counter()
            for raw in frames:
                if raw[5] == SEND_RECEIPT:
                    took.append((now - due[len(took)]) * 1000)
            if len(took) >= args.messages:
                return

    reader = threading.Thread(target=receive)
    reader.start()
    start = time.perf_counter()
    for index, frame in enumerate(publisher.messages):
        due[index] = start + index / args.rate
        wait = due[index] - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        publisher.connection.sock.sendall(frame)
    reader.join()
    took.sort()
    parts = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {name: took[int(len(took) * part)] for name, part in parts.items()} | {"max_ms": took[-1]}


def rates(entries: int, batch: int, size: int, seconds: float) -> dict[str, float]:
    messages = entries * batch
    return {
        "entries_per_s": entries / seconds,
        "messages_per_s": messages / seconds,
        "mb_per_s": messages * size / seconds / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["produce", "consume", "latency"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6650)
    parser.add_argument("--token", default="", help="a JSON web token; none for a server that asks nobody")
    parser.add_argument("--topic", default="persistent://public/default/loadgen")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1024, help="payload bytes of one message")
    parser.add_argument("--batch", type=int, default=1, help="messages in one entry")
    parser.add_argument("--keys", type=int, default=0, help="number of distinct keys, 0 for none")
    parser.add_argument("--window", type=int, default=4000, help="entries (produce) or messages (consume) in flight")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1000, help="latency: entries a second")
    parser.add_argument("--subscription", default="loadgen")
    parser.add_argument(
        "--consumers", type=int, default=1, help="consume: consumers of the subscription, on one connection"
    )
    parser.add_argument("--type", choices=SUBSCRIPTION_TYPES, default="exclusive")
    parser.add_argument("--ack", choices=["individual", "cumulative", "none"], default="individual")
    args = parser.parse_args()
    result = {"produce": produce, "consume": consume, "latency": latency}[args.mode](args)
    json.dump({name: round(value, 3) for name, value in result.items()}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
