#!/usr/bin/env python3
"""`magnetar standalone` with a clock beside everything that may hold a publish up; used by tails.py.

  watched.py REPORT [options of magnetar standalone]

Writes REPORT, a document of JSON, when the server ends: `pauses`, the moments at which the event loop came late, with the CPU time that its
own thread and the other threads took meanwhile and the function it was found in; and `spans`, what ran that long: collections of Python's
garbage, every function that was handed to a thread (flush, compaction, journal, metadata), and each write, fsync and rename of the bookie.
Times are those of time.perf_counter, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

LOOK_S = 0.001
PAUSE_S = 0.005
SPAN_S = 0.002
KEPT = 50_000


class Watch:
    """What took long, by when."""

    def __init__(self) -> None:
        self.spans: deque[tuple[float, float, str, str]] = deque(maxlen=KEPT)
        self.pauses: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.collections: list[tuple[int, float, float]] = []
        """Generation, when it ended, ms."""
        self._due = 0.0
        self._seen = ""
        self._loop_thread = threading.main_thread().ident
        self._collecting = 0.0
        self._used = (0.0, 0.0)

    def timed(self, name: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                self._span(began, name(*args))

        return call

    def _span(self, began: float, name: str) -> None:
        ended = time.perf_counter()
        if ended - began >= SPAN_S:
            self.spans.append((began, ended, name, threading.current_thread().name))

    def collecting(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
            return
        ended = time.perf_counter()
        self.collections.append((about["generation"], ended, 1000 * (ended - self._collecting)))
        self._span(self._collecting, f"collection of generation {about['generation']} of Python's garbage")

    async def look(self) -> None:
        """On the event loop: notes the time of each return."""
        threading.Thread(target=self._find, daemon=True, name="watch").start()
        self._used = time.thread_time(), time.process_time()
        while True:
            began = time.perf_counter()
            self._due = began + LOOK_S
            await asyncio.sleep(LOOK_S)
            now, due, self._due = time.perf_counter(), self._due, 0.0
            own, all_threads = time.thread_time(), time.process_time()
            if now - due >= PAUSE_S:
                own_ms = 1000 * (own - self._used[0])
                self.pauses.append(
                    {
                        "from": due,
                        "to": now,
                        "ms": 1000 * (now - due),
                        "loop_cpu_ms": own_ms,
                        "others_cpu_ms": 1000 * (all_threads - self._used[1]) - own_ms,
                        "in": self._seen,
                    }
                )
            self._seen, self._used = "", (own, all_threads)

    def _find(self) -> None:
        """On a thread of its own: notes the function in which an event loop is that does not return in time."""
        while True:
            time.sleep(PAUSE_S / 2)
            if self._due and not self._seen and time.perf_counter() - self._due > PAUSE_S / 2:
                self._seen = place(sys._current_frames().get(self._loop_thread or 0))

    def report(self, path: Path) -> None:
        found = {"pauses": list(self.pauses), "spans": list(self.spans), "collections": self.collections}
        path.write_text(json.dumps(found))


def place(frame: FrameType | None) -> str:
    """The innermost functions of magnetar's."""
    names: list[str] = []
    while frame is not None and len(names) < 3:
        if "/magnetar/" in frame.f_code.co_filename:
            names.append(f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(names) or "the event loop itself"


def kind_of(path: str) -> str:
    return next((name for word, name in {"journal": "journal", ".log": "entry log"}.items() if word in path), "index")


def install(watch: Watch) -> None:
    from magnetar import standalone
    from magnetar.base import executor
    from magnetar.bookkeeper.bookie.storage import disk, entry_log, rocksdb_index, storage

    def method(owner: Any, attribute: str, name: Callable[..., str]) -> None:
        setattr(owner, attribute, watch.timed(name, getattr(owner, attribute)))

    file, own, index = disk._OsFile, disk.OsDisk, rocksdb_index.RocksdbIndex
    method(file, "fsync", lambda self: f"fsync of a {kind_of(self._path)} file")
    method(file, "write_at", lambda self, *rest: f"write to a {kind_of(self._path)} file")
    method(own, "rename", lambda self, source, target: f"rename of a {kind_of(target)} file")
    method(own, "unlink", lambda self, path: f"removal of a {kind_of(path)} file")
    method(own, "fsync_dir", lambda self, path: f"fsync of the directory {Path(path).name}")
    method(index, "write", lambda self, *rest: "write to the index")
    method(index, "sync", lambda self: "fsync of the index")
    method(entry_log.EntryLogs, "seal", lambda self: "roll-over of an entry log")
    method(storage.CheckpointMark, "advance", lambda self, *rest: "checkpoint mark")
    run = executor.ThreadExecutor.run

    async def timed_run(self: Any, function: Callable[..., Any], *args: object) -> Any:
        name = getattr(function, "__qualname__", type(function).__name__)
        return await run(self, watch.timed(lambda *_: f"thread: {name}", function), *args)

    executor.ThreadExecutor.run = timed_run  # type: ignore[method-assign]
    serve = standalone.run

    async def watched(config: Any) -> int:
        looking = asyncio.create_task(watch.look())
        try:
            return await serve(config)
        finally:
            looking.cancel()

    standalone.run = watched


def main() -> None:
    report = Path(sys.argv.pop(1))
    watch = Watch()
    install(watch)
    gc.callbacks.append(watch.collecting)
    atexit.register(watch.report, report)
    from magnetar.cli.main import run

    sys.argv.insert(1, "standalone")
    sys.exit(run())


if __name__ == "__main__":
    main()
