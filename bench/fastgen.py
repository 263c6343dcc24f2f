#!/usr/bin/env python3
"""A load generator that costs less than what it measures: one thread, frames built in advance, answers split by the compiled functions.

  fastgen.py produce  --messages 100000 [--size 1024] [--batch 1] [--window 4000]
  fastgen.py consume  --messages 100000 [--type exclusive|shared|failover|key_shared] [--consumers 1]
  fastgen.py bind     --messages 500000 [--window 4000]

Like loadgen.py, which needs nothing of magnetar, it speaks the protocol by itself and works against any server; each prints one line of
JSON, with `cpu_us`, its own CPU time an entry. `produce` sends what the window allows with one call, out of one buffer of all frames.
`consume` takes stored topics of single messages and acknowledges each of them. `bind` says where the generator itself ends: it produces to
a process that answers receipts and looks at nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from multiprocessing import Process, Queue
from typing import Any

import loadgen as wire
from magnetar.wire.pulsar.frames import split
from magnetar.wire.pulsar.frequent import send_receipts
from magnetar.wire.pulsar.kernel import kernel

READ_BYTES = 1 << 20
SEND_BYTES = 1 << 18
LIMITS = 1 << 30, 1 << 30


class Stream:
    """Frames as they come, without waiting."""

    def __init__(self, connection: wire.Connection) -> None:
        self.sock, self.rest = connection.sock, connection.buffer
        self.sock.setblocking(False)

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Those that are there, PING answered. Raises SystemExit when the server refuses something or leaves."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise SystemExit("the server closed the connection")
        data = self.rest + data if self.rest else data
        frames, end = split(data, *LIMITS)
        self.rest = data[end:]
        return frames

    def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                select.select([], [self.sock], [])

    def other(self, command: bytes) -> None:
        """What is neither a receipt nor a message."""
        if command[1] == wire.PING:
            self.send_all(wire.command(wire.PONG, b""))
        elif command[1] in wire.REFUSALS:
            raise SystemExit(f"the server {wire.REFUSALS[command[1]]}")


def send_to(connection: wire.Connection, frames: list[bytes], window: int) -> float:
    """Seconds from the first frame to the last receipt, with at most `window` entries in flight."""
    ends = [0, *accumulate(map(len, frames))]
    everything = memoryview(b"".join(frames))
    count, size = len(frames), len(everything)
    stream = Stream(connection)
    poll = select.poll()
    poll.register(stream.sock, select.POLLIN)
    receipts = sent = 0
    waits_to_send = False
    begin = time.perf_counter()
    while receipts < count:
        may = ends[min(receipts + window, count)]
        full = False
        while sent < may:
            try:
                sent += stream.sock.send(everything[sent : min(may, sent + SEND_BYTES)])
            except BlockingIOError:
                full = True
                break
        if full is not waits_to_send:
            waits_to_send = full
            poll.modify(stream.sock, select.POLLIN | (select.POLLOUT if full else 0))
        poll.poll()
        for command, _ in stream.frames():
            if command[1] == wire.SEND_RECEIPT:
                receipts += 1
            else:
                stream.other(command)
    assert sent == size
    return time.perf_counter() - begin


def produce(args: argparse.Namespace) -> dict[str, float]:
    connection = wire.Connection(args.host, args.port)
    connection.find(args.topic)
    opening = wire.field(1, args.topic) + wire.field(2, 1) + wire.field(3, 3)
    connection.request(wire.command(wire.PRODUCER, opening), wire.PRODUCER_SUCCESS)
    tails = [wire.payload(args.size, args.batch, f"key-{i}" if args.keys else None) for i in range(max(1, args.keys))]
    entries = args.messages // args.batch
    frames = [wire.send_frame(number, args.batch, tails[number % len(tails)]) for number in range(entries)]
    cpu_s = time.process_time()
    seconds = send_to(connection, frames, args.window)
    return result(args, entries, seconds, time.process_time() - cpu_s)


def result(args: argparse.Namespace, entries: int, seconds: float, cpu_s: float) -> dict[str, float]:
    messages = entries * args.batch
    return {
        "entries_per_s": entries / seconds,
        "messages_per_s": messages / seconds,
        "mb_per_s": messages * args.size / seconds / 1e6,
        "cpu_us": 1e6 * cpu_s / entries,
    }


def consume(args: argparse.Namespace) -> dict[str, float]:
    connection = wire.Connection(args.host, args.port)
    connection.find(args.topic)
    kind = wire.SUBSCRIPTION_TYPES[args.type]
    body = wire.field(1, args.topic) + wire.field(2, args.subscription) + wire.field(3, kind)
    for consumer in range(1, args.consumers + 1):
        more = wire.field(4, consumer) + wire.field(5, 2 + consumer) + wire.field(6, f"c{consumer}") + wire.field(13, 1)
        connection.request(wire.command(wire.SUBSCRIBE, body + more), wire.SUCCESS)
    stream = Stream(connection)
    permits = max(1000, args.window) // args.consumers
    granted, got = [0] * (args.consumers + 1), [0] * (args.consumers + 1)
    beginnings: dict[int, bytes] = {}
    total = 0
    cpu_s, begin = time.process_time(), time.perf_counter()
    answers = [flow(consumer, permits) for consumer in range(1, args.consumers + 1)]
    poll = select.poll()
    poll.register(stream.sock, select.POLLIN)
    while total < args.messages:
        if answers:
            stream.send_all(b"".join(answers))
            answers.clear()
        poll.poll()
        for command, _ in stream.frames():
            if command[1] != wire.MESSAGE:
                stream.other(command)
                continue
            consumer, end = command[5], 8 + command[7]  # fewer than 128 consumers, ids of fewer than 128 bytes
            about = consumer << 8 | command[7]
            start = beginnings.get(about)
            if start is None:
                empty = wire.field(1, consumer) + wire.field(2, 0) + b"\x1a" + command[7:8] + b"\0" * command[7]
                start = beginnings[about] = wire.command(wire.ACK, empty)[: -command[7]]
            answers.append(start + command[8:end])
            got[consumer] += 1
            total += 1
        for consumer in range(1, args.consumers + 1):
            used = got[consumer] - granted[consumer]
            if used >= max(1, permits // 2):
                answers.append(flow(consumer, used))
                granted[consumer] = got[consumer]
    seconds = time.perf_counter() - begin
    cpu_s = time.process_time() - cpu_s
    stream.send_all(b"".join(answers))
    return result(args, total, seconds, cpu_s) | {"least_share": min(got[1:]) / total}


def flow(consumer: int, permits: int) -> bytes:
    return wire.command(wire.FLOW, wire.field(1, consumer) + wire.field(2, permits))


# ---- Where the generator ends


def answer_all(count: int, frame_bytes: list[int], told: Queue[int]) -> None:
    """Take what comes and answer as many receipts as whole frames have come."""
    listener = socket.create_server(("127.0.0.1", 0))
    told.put(listener.getsockname()[1])
    sock, _ = listener.accept()
    sock.recv(READ_BYTES)  # CONNECT
    sock.sendall(wire.command(wire.CONNECTED, wire.field(1, "bind") + wire.field(2, 19)))
    ends = [0, *accumulate(frame_bytes)]
    came = answered = 0
    buffer = bytearray(READ_BYTES)
    while answered < count:
        came += sock.recv_into(buffer)
        upto = answered
        while upto < count and ends[upto + 1] <= came:
            upto += 1
        if upto > answered:
            sock.sendall(send_receipts(1, list(range(answered, upto)), [0] * (upto - answered), 1, answered))
            answered = upto


def bind(args: argparse.Namespace) -> dict[str, float]:
    frames = [wire.send_frame(number, 1, wire.payload(args.size, 1)) for number in range(args.messages)]
    told: Queue[int] = Queue()
    server = Process(target=answer_all, args=(len(frames), list(map(len, frames)), told), daemon=True)
    server.start()
    connection = wire.Connection("127.0.0.1", told.get())
    cpu_s = time.process_time()
    seconds = send_to(connection, frames, args.window)
    server.join()
    return result(args, len(frames), seconds, time.process_time() - cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["produce", "consume", "bind"])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6650)
    parser.add_argument("--topic", default="persistent://public/default/fastgen")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1024, help="payload bytes of one message")
    parser.add_argument("--batch", type=int, default=1, help="produce: messages in one entry")
    parser.add_argument("--keys", type=int, default=0, help="produce: number of distinct keys, 0 for none")
    parser.add_argument("--window", type=int, default=4000, help="entries (produce) or messages (consume) in flight")
    parser.add_argument("--subscription", default="fastgen")
    parser.add_argument("--consumers", type=int, default=1, help="consume: on one connection, at most 127")
    parser.add_argument("--type", choices=wire.SUBSCRIPTION_TYPES, default="exclusive")
    args = parser.parse_args()
    if not kernel:
        print("fastgen: the compiled functions are not built here; it costs twice as much", file=sys.stderr)
    modes: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "produce": produce,
        "consume": consume,
        "bind": bind,
    }
    json.dump({name: round(value, 3) for name, value in modes[args.mode](args).items()}, sys.stdout)
    print(flush=True)
    os._exit(0)  # hundreds of megabytes of frames need not be freed one by one


if __name__ == "__main__":
    main()
