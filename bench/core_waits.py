"""Who waited for a core, and when: what the kernel counts for each thread, read every few milliseconds by a process beside.

`/proc/PID/task/TID/schedstat` has the nanoseconds for which a thread ran and those for which it was runnable without a core. The process
that reads is a thread like any other: how late it was itself tells of the whole machine, also where the hypervisor took the core away.
Used by tails.py.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from contextlib import suppress
from multiprocessing import Event, Pipe, Process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event as EventType
from typing import NamedTuple

EVERY_S = 0.004
"""A publish that took 10 ms has at least one reading within it."""

Thread = tuple[str, int]
"""(name of the process, thread id)"""


class Reading(NamedTuple):
    """When it began (time.perf_counter, which all processes of a machine share), how late that was, and the waits of all threads so far."""

    at_s: float
    late_s: float
    waited_ns: dict[Thread, int]


class CoreWaits:
    """`with CoreWaits({"server": pid, ...}) as waits: ...`, then `waits.between(since, until)`."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._ended = Event()
        self._receiver, sender = Pipe(duplex=False)
        self._process = Process(target=_read_all, args=(pids, self._ended, sender), daemon=True)
        self.readings: list[Reading] = []

    def __enter__(self) -> CoreWaits:
        self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        with suppress(EOFError):
            self.readings = self._receiver.recv()
        self._process.join()

    def between(self, since_s: float, until_s: float) -> dict[str, float]:
        """Milliseconds by thread, at least 1 ms: of all that waited between the last reading before and the first one after.

        `machine`: for how long the reader itself had no core.
        """
        times = [reading.at_s for reading in self.readings]
        first = max(0, bisect_right(times, since_s) - 1)
        last = min(len(times) - 1, bisect_left(times, until_s))
        if first >= last:
            return {}
        before, after = self.readings[first].waited_ns, self.readings[last].waited_ns
        found: dict[str, float] = {}
        for thread, waited_ns in after.items():
            name = self._name(thread)
            found[name] = max(found.get(name, 0.0), (waited_ns - before.get(thread, waited_ns)) / 1e6)
        found["machine"] = 1000 * sum(reading.late_s for reading in self.readings[first + 1 : last + 1])
        return {name: ms for name, ms in sorted(found.items(), key=lambda pair: -pair[1]) if ms >= 1.0}

    def _name(self, thread: Thread) -> str:
        process, thread_id = thread
        return process if thread_id == self._pids[process] else f"another thread of the {process}"


def _read_all(pids: dict[str, int], ended: EventType, sender: Connection) -> None:
    readings: list[Reading] = []
    due_s = time.perf_counter()
    while not ended.is_set():
        now_s = time.perf_counter()
        readings.append(Reading(now_s, now_s - due_s, _waits(pids)))
        due_s = time.perf_counter() + EVERY_S
        time.sleep(EVERY_S)
    sender.send(readings)


def _waits(pids: dict[str, int]) -> dict[Thread, int]:
    found: dict[Thread, int] = {}
    for name, pid in pids.items():
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    found[name, int(thread)] = int(file.read().split()[1])
    return found
