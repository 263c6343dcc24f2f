"""Points of an epoch at which a process is killed, from within: the product has no hook for it, its functions are wrapped.

In the driver's process `install` wraps what marks a point. What units do is in Spark's Python workers: `unit_function` goes there in place
of the product's, with the shot in its closure. A shot hits once, whoever reaches the point first: a file says that it was fired.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from magnetar.pipeline.views.epoch import worker

DRIVER_POINTS: Final = {
    "offsets": "before the batch's offsets are read",
    "collected": "units have reported, before the commit",
    "committed": "after the commit, before the sinks",
    "sinking": "one unit's changes are in the sink's topic, another's are not",
    "delivered": "the sink has all, before the acknowledgement",
    "collecting": "between two files that the collection removes",
}
WORKER_POINTS: Final = {
    "decoded": "a unit has its decoded rows, before its operator",
    "writing": "in a unit, before it writes a run",
    "written": "in a unit, its run is written, before it reports",
}
POINTS: Final = ("offsets", *WORKER_POINTS, *(name for name in DRIVER_POINTS if name != "offsets"))
VICTIMS: Final = ("worker", "jvm", "driver", "broker")


@dataclass(frozen=True)
class Shot:
    """`pids` are those to kill; none: the process that reaches the point, or in the driver all Python workers of `jvm`."""

    point: str
    pids: tuple[int, ...]
    jvm: int
    fired: str

    def fire(self) -> None:
        """Once, whichever process comes first."""
        try:
            os.close(os.open(self.fired, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        own = [os.getpid()] if self.point in WORKER_POINTS else workers(self.jvm)
        for pid in self.pids or own:
            os.kill(pid, signal.SIGKILL)


armed: list[Shot] = []
"""In the driver's process: the shot that waits for its point."""


def reached(point: str) -> None:
    if armed and armed[0].point == point:
        armed.pop().fire()


def install(state: Any) -> None:
    """Wrap the driver's functions. `state`: the modules, so that nothing is imported here that a worker does not need."""
    driver, epoch, stage_job, sinks = state.driver, state.epoch, state.stage_job, state.sinks
    driver.Driver.batch = _before(driver.Driver.batch, "offsets")
    driver.Driver.take = _before(driver.Driver.take, "offsets")
    epoch.run_stage = _after(epoch.run_stage, "collected")
    epoch.EpochRunner.run = _after(epoch.EpochRunner.run, "committed")
    sinks.Sender.finish = _after(sinks.Sender.finish, "sinking")
    driver.Driver._acknowledge = _before(driver.Driver._acknowledge, "delivered")
    driver.EPOCHS_PER_COLLECTION = 1
    collect, remove = driver.gc.collect, state.files.StateFiles.remove

    def collected(files: Any, clock: Any) -> Any:
        removed = 0

        def counted(self: Any, name: str) -> None:
            nonlocal removed
            removed += 1
            if removed == 2:
                reached("collecting")
            remove(self, name)

        state.files.StateFiles.remove = counted
        try:
            return collect(files, clock, kept=2)
        finally:
            state.files.StateFiles.remove = remove

    driver.gc.collect = collected
    stage_job.unit_function = unit_function


def unit_function(
    root: str, options: dict[str, Any], inputs: tuple[str, ...], **named: Any
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The product's, with the shot that is armed now."""
    shot = armed[0] if armed and armed[0].point in WORKER_POINTS else None
    run = worker.unit_function(root, options, inputs, **named)
    if shot is None:
        return run

    def shooting(batches: Iterator[Any]) -> Iterator[Any]:
        from magnetar.pipeline.views.epoch import actor

        run_unit, write_run = actor.run_unit, actor.write_run

        def unit(*arguments: Any, **named: Any) -> Any:
            if shot.point == "decoded":
                shot.fire()
            return run_unit(*arguments, **named)

        def write(*arguments: Any, **named: Any) -> Any:
            if shot.point == "writing":
                shot.fire()
            found = write_run(*arguments, **named)
            if shot.point == "written":
                shot.fire()
            return found

        actor.run_unit, actor.write_run = unit, write
        try:
            yield from run(batches)
        finally:
            actor.run_unit, actor.write_run = run_unit, write_run

    return shooting


def workers(jvm: int) -> list[int]:
    """Spark's Python workers: the processes below the daemons that the JVM starts."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    return [pid for daemon in children.get(jvm, []) for pid in children.get(daemon, [])]


def _before(function: Callable[..., Any], point: str) -> Callable[..., Any]:
    def changed(*arguments: Any, **named: Any) -> Any:
        reached(point)
        return function(*arguments, **named)

    return changed


def _after(function: Callable[..., Any], point: str) -> Callable[..., Any]:
    def changed(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        reached(point)
        return found

    return changed
