"""`process_*` and `python_*` under the names of Prometheus' own libraries, one of which takes 10 ms of the event loop to be imported."""

from __future__ import annotations

import gc
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from magnetar.admin.metrics.families import families, heading, labels
from magnetar.base.tasks import FAILURES

TASK_FAILURES = "magnetar_task_failures_total"
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OF_GENERATION = {
    "python_gc_objects_collected_total": "collected",
    "python_gc_objects_uncollectable_total": "uncollectable",
    "python_gc_collections_total": "collections",
}


def process_text() -> str:
    """What this process uses, what its garbage collection did, and how often background tasks failed without ending it."""
    failures = [f"{TASK_FAILURES}{labels(task=task)} {count}\n" for task, count in FAILURES.counts.items()]
    return "".join([*families(_process(), ""), *_python(), heading(TASK_FAILURES), *failures])


def _process() -> Iterator[tuple[str, float]]:
    """Nothing where the operating system has no /proc."""
    try:
        fields = (_PROC / "self/stat").read_text().rpartition(")")[2].split()
        booted_s = next(
            float(line.split()[1]) for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime ")
        )
        open_files = len(os.listdir(_PROC / "self/fd"))
    except (OSError, StopIteration):
        return
    yield "process_virtual_memory_bytes", int(fields[20])
    yield "process_resident_memory_bytes", int(fields[21]) * _PAGE_BYTES
    yield "process_start_time_seconds", booted_s + int(fields[19]) / _TICKS_PER_S
    yield "process_cpu_seconds_total", (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    yield "process_open_fds", open_files
    yield "process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _python() -> Iterator[str]:
    major, minor, patch = platform.python_version_tuple()
    about = labels(
        implementation=platform.python_implementation(),
        major=major,
        minor=minor,
        patchlevel=patch,
        version=platform.python_version(),
    )
    yield from families([("python_info", 1)], about)
    generations = gc.get_stats()
    for name, key in _OF_GENERATION.items():
        yield heading(name)
        for number, counted in enumerate(generations):
            yield f"{name}{labels(generation=str(number))} {counted[key]}\n"
