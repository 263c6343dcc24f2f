#!/usr/bin/env python3
"""The least a durable server can do: the physical limit to compare a real server against, in the same run.

For each SEND it splits the frame, checks crc32c, appends the bytes to one file, waits for the group commit (fdatasync) and
answers with a receipt; a subscriber is sent every entry from memory. It has no topics, cursors or recovery: it is a yardstick,
never a server to use. Run it, point loadgen.py at its port, and divide.

  ceiling.py --port 7650 --journal /some/dir/ceiling.journal      (omit --journal for memory only)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import threading
from collections import defaultdict
from collections.abc import Callable

import google_crc32c

import loadgen as wire

try:
    import uvloop as loops
except ImportError:
    loops = asyncio


class Journal:
    """One writer thread: everything that waits when it wakes is written and synced at once."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.loop, self.waiting = loop, []
        self.lock, self.wake = threading.Lock(), threading.Event()
        threading.Thread(target=self.work, daemon=True).start()

    def append(self, data: bytes, done: Callable[[], None]) -> None:
        with self.lock:
            self.waiting.append((data, done))
        self.wake.set()

    def work(self) -> None:
        while self.wake.wait():
            self.wake.clear()
            with self.lock:
                batch, self.waiting = self.waiting, []
            if batch:
                os.write(self.file, b"".join(data for data, _ in batch))
                os.fdatasync(self.file)
                self.loop.call_soon_threadsafe(self.finish, batch)

    @staticmethod
    def finish(batch: list[tuple[bytes, Callable[[], None]]]) -> None:
        for _, done in batch:
            done()


class Session(asyncio.Protocol):
    def __init__(
        self, topics: dict[bytes, list[bytes]], readers: dict[bytes, list[Callable[[], None]]], journal: Journal | None
    ) -> None:
        self.topics, self.readers, self.journal = topics, readers, journal
        self.input, self.output = b"", []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for pumps in self.readers.values():
            if self.pump in pumps:
                pumps.remove(self.pump)

    def write(self, data: bytes) -> None:
        if not self.output:
            asyncio.get_running_loop().call_soon(self.flush)
        self.output.append(data)

    def flush(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(b"".join(self.output))
        self.output.clear()

    def data_received(self, data: bytes) -> None:
        data, pos = self.input + data, 0
        while len(data) - pos >= 4:
            size = int.from_bytes(data[pos : pos + 4], "big")
            if len(data) - pos - 4 < size:
                break
            split = pos + 8 + int.from_bytes(data[pos + 4 : pos + 8], "big")
            end = pos + 4 + size
            base = wire.parse(data[pos + 8 : split])
            kind = base[1][0]
            self.handle(kind, wire.parse(base[kind][0]) if kind in base else {}, data[split:end])
            pos = end
        self.input = data[pos:]

    def handle(self, kind: int, body: dict, rest: bytes) -> None:
        if kind == wire.SEND:
            if google_crc32c.value(rest[6:]) != int.from_bytes(rest[2:6], "big"):
                raise ValueError("checksum mismatch")
            if self.journal:
                self.journal.append(rest, lambda: self.added(body[2][0], rest))
            else:
                self.added(body[2][0], rest)
        elif kind == wire.FLOW:
            self.permits += body[2][0]
            self.pump()
        elif kind == wire.CONNECT:
            self.write(wire.command(wire.CONNECTED, wire.field(1, "ceiling") + wire.field(2, 19)))
        elif kind == wire.PARTITIONED_METADATA:
            answer = wire.field(1, 0) + wire.field(2, body[2][0]) + wire.field(3, 0)
            self.write(wire.command(wire.PARTITIONED_METADATA_RESPONSE, answer))
        elif kind == wire.LOOKUP:
            host, port = self.transport.get_extra_info("sockname")[:2]
            url = f"pulsar://{host}:{port}"
            answer = wire.field(1, url) + wire.field(3, 1) + wire.field(4, body[2][0]) + wire.field(5, 1)
            self.write(wire.command(wire.LOOKUP_RESPONSE, answer))
        elif kind == wire.PRODUCER:
            self.topic = body[1][0]
            self.write(wire.command(wire.PRODUCER_SUCCESS, wire.field(1, body[3][0]) + wire.field(2, "p")))
        elif kind == wire.SUBSCRIBE:
            self.topic, self.consumer, self.position, self.permits = body[1][0], body[4][0], 0, 0
            self.readers[self.topic].append(self.pump)
            self.write(wire.command(wire.SUCCESS, wire.field(1, body[5][0])))

    def added(self, sequence: int, rest: bytes) -> None:
        entries = self.topics[self.topic]
        message_id = wire.field(1, 1) + wire.field(2, len(entries))
        entries.append(rest)
        self.write(
            wire.command(wire.SEND_RECEIPT, wire.field(1, 1) + wire.field(2, sequence) + wire.field(3, message_id))
        )
        for pump in self.readers[self.topic]:
            pump()

    def pump(self) -> None:
        entries = self.topics[self.topic]
        while self.permits > 0 and self.position < len(entries):
            rest = entries[self.position]
            message_id = wire.field(1, 1) + wire.field(2, self.position)
            body = wire.field(1, self.consumer) + wire.field(2, message_id)
            base = wire.field(1, wire.MESSAGE) + wire.field(wire.MESSAGE, body)
            self.write(struct.pack(">II", 4 + len(base) + len(rest), len(base)) + base + rest)
            self.position, self.permits = self.position + 1, self.permits - 1


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    topics, readers = defaultdict(list), defaultdict(list)
    journal = Journal(args.journal, loop) if args.journal else None
    server = await loop.create_server(lambda: Session(topics, readers, journal), "127.0.0.1", args.port)
    print(f"ready on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=7650, help="0: any free one")
    parser.add_argument("--journal", help="file to append to and sync; none: memory only")
    loops.run(serve(parser.parse_args()))
