#!/usr/bin/env python3
"""The least that a durable server in Python has to do: what to divide by, in the same run.

All that one read of a socket brought is one piece of work here: it is split, checked (CRC32C), copied into one buffer, written ahead of a
sync (fdatasync, one for all that gathered while the last one ran) into zero-filled space, and answered in one write. Splitting, checksums,
receipts and message headers are the compiled functions that the server has, too. There are no topics beyond a list of entries, no cursors,
index, second copy, limits or recovery, and acknowledgements are ignored: a yardstick, never a server to use. Point loadgen.py or fastgen.py
at its port, and divide.

  ceiling.py --port 7650 --journal /some/dir/ceiling.journal      (omit --journal for memory only)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c

import loadgen as wire
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.frequent import MessageHeads, read_send, send_receipts
from magnetar.wire.pulsar.kernel import kernel

try:
    import uvloop as loops
except ImportError:
    loops = asyncio

NO_LIMIT = 1 << 30
ZERO_FILLED_BYTES = 16 << 20
"""The journal grows in such steps: a sync of space that is there already has data to write and nothing else."""


class Entry(NamedTuple):
    ledger_id: int
    entry_id: int
    data: bytes


class Journal:
    """One writer thread: everything that waits when it wakes is written and synced at once."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.loop = loop
        self.waiting: list[tuple[list[bytes], Callable[[], None]]] = []
        self.written = self.filled = 0
        self.lock, self.wake = threading.Lock(), threading.Event()
        threading.Thread(target=self.work, daemon=True).start()

    def append(self, run: list[bytes], done: Callable[[], None]) -> None:
        with self.lock:
            self.waiting.append((run, done))
        self.wake.set()

    def work(self) -> None:
        while self.wake.wait():
            self.wake.clear()
            with self.lock:
                batch, self.waiting = self.waiting, []
            if not batch:
                continue
            data = b"".join(entry for run, _ in batch for entry in run)
            while self.written + len(data) > self.filled:
                os.pwrite(self.file, bytes(ZERO_FILLED_BYTES), self.filled)
                self.filled += ZERO_FILLED_BYTES
            os.pwrite(self.file, data, self.written)
            os.fdatasync(self.file)
            self.written += len(data)
            self.loop.call_soon_threadsafe(self.finish, batch)

    @staticmethod
    def finish(batch: list[tuple[list[bytes], Callable[[], None]]]) -> None:
        for _, done in batch:
            done()


class Session(asyncio.Protocol):
    def __init__(
        self, topics: dict[bytes, list[Entry]], readers: dict[bytes, list[Callable[[], None]]], journal: Journal | None
    ) -> None:
        self.topics, self.readers, self.journal = topics, readers, journal
        self.decoder = FrameDecoder(NO_LIMIT, NO_LIMIT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        for pumps in self.readers.values():
            if self.pump in pumps:
                pumps.remove(self.pump)

    def data_received(self, data: bytes) -> None:
        frames = deque(self.decoder.feed(data))
        while frames:
            head = read_send(frames[0][0])
            if head is not None:
                self.send_run(frames, head.producer_id)
                continue
            command, _ = frames.popleft()
            kind = command[1]
            if kind != wire.ACK:
                base = wire.parse(command)
                self.handle(kind, wire.parse(base[kind][0]) if kind in base else {})

    def send_run(self, frames: deque[tuple[bytes, bytes]], producer_id: int) -> None:
        if kernel:
            run, sequence_ids, highest, _, _ = kernel.plain_sends(
                frames, producer_id, NO_LIMIT, NO_LIMIT, None, NO_LIMIT, 0
            )
        else:
            run, sequence_ids = [], []
            while frames and (head := read_send(frames[0][0])) is not None:
                run.append(frames.popleft()[1])
                sequence_ids.append(head.sequence_id)
                if google_crc32c.value(run[-1][6:]) != int.from_bytes(run[-1][2:6], "big"):
                    raise ValueError("checksum mismatch")
            highest = [0] * len(run)
        if not run:
            raise ValueError("checksum mismatch, or not a plain message")

        def stored() -> None:
            entries = self.topics[self.topic]
            first = len(entries)
            entries += [Entry(1, first + at, data) for at, data in enumerate(run)]
            if not self.transport.is_closing():
                self.transport.write(send_receipts(producer_id, sequence_ids, highest, 1, first))
            for pump in self.readers[self.topic]:
                pump()

        if self.journal:
            self.journal.append(run, stored)
        else:
            stored()

    def handle(self, kind: int, body: dict) -> None:
        if kind == wire.FLOW:
            self.permits += body[2][0]
            self.pump()
        elif kind == wire.CONNECT:
            self.answer(wire.CONNECTED, wire.field(1, "ceiling") + wire.field(2, 19))
        elif kind == wire.PARTITIONED_METADATA:
            self.answer(
                wire.PARTITIONED_METADATA_RESPONSE,
                wire.field(1, 0) + wire.field(2, body[2][0]) + wire.field(3, 0),
            )
        elif kind == wire.LOOKUP:
            host, port = self.transport.get_extra_info("sockname")[:2]
            url = f"pulsar://{host}:{port}"
            found = wire.field(1, url) + wire.field(3, 1) + wire.field(4, body[2][0]) + wire.field(5, 1)
            self.answer(wire.LOOKUP_RESPONSE, found)
        elif kind == wire.PRODUCER:
            self.topic = body[1][0]
            self.answer(wire.PRODUCER_SUCCESS, wire.field(1, body[3][0]) + wire.field(2, "p"))
        elif kind == wire.SUBSCRIBE:
            self.topic, self.position, self.permits = body[1][0], 0, 0
            self.heads = MessageHeads(body[4][0], -1)
            self.readers[self.topic].append(self.pump)
            self.answer(wire.SUCCESS, wire.field(1, body[5][0]))

    def answer(self, kind: int, body: bytes) -> None:
        self.transport.write(wire.command(kind, body))

    def pump(self) -> None:
        run = self.topics[self.topic][self.position : self.position + self.permits]
        if run and not self.transport.is_closing():
            self.position, self.permits = self.position + len(run), self.permits - len(run)
            pieces: list[bytes] = []
            self.heads.append_frames(run, pieces)
            self.transport.writelines(pieces)


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
