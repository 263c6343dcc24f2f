"""A driver in a process of its own that kills itself at a point of an epoch.

`-m tests.support.pipeline_process DIRECTORY FILE POINT [low-latency]`, where POINT may end with `/jobs`: epochs of few rows are then jobs
of Spark's, all of them, as those of views that are not plain.

Points: `start` (claimed, nothing else), `stage` (before the units' job), `units` (their files are there, no manifest), `commit` (before the
manifest), `committed` (after it, before sinks and acknowledgement), `delivered` (sinks have it, the topic does not know), `log` (while
the epoch runs, before the streaming engine notes the batch), `none`. Whatever it does by then is done as in any driver.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magnetar.pipeline.state.manifest import Manifest, ManifestStore
from magnetar.pipeline.views.control import driver
from magnetar.pipeline.views.epoch import epoch
from magnetar.pipeline.views.epoch.kept_plans import KeptPlans
from magnetar.pipeline.views.epoch.plain_stage import PlainStage
from magnetar.pipeline.views.pipeline import Pipeline

POINTS = ("start", "stage", "units", "commit", "committed", "delivered", "log")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(function: Callable[..., Any], act: Callable[..., None]) -> Callable[..., Any]:
    def changed(*arguments: Any, **named: Any) -> Any:
        act(*arguments)
        return function(*arguments, **named)

    return changed


def after(function: Callable[..., Any], act: Callable[..., None]) -> Callable[..., Any]:
    def changed(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        act(*arguments)
        return found

    return changed


def in_an_epoch(_store: ManifestStore, manifest: Manifest) -> None:
    """The commit of an epoch, not the one that a driver begins with."""
    if manifest.batch_id >= 0:
        die()


def arm(point: str) -> None:
    if point == "start":
        driver.Driver.start = before(driver.Driver.start, die)  # type: ignore[method-assign]
    elif point == "stage":
        epoch.run_stage = before(epoch.run_stage, die)
        PlainStage.run = before(PlainStage.run, die)  # type: ignore[method-assign]
    elif point == "units":
        epoch.run_stage = after(epoch.run_stage, die)
        PlainStage.run = after(PlainStage.run, die)  # type: ignore[method-assign]
    elif point == "commit":
        ManifestStore.commit = before(ManifestStore.commit, in_an_epoch)  # type: ignore[method-assign]
    elif point == "committed":
        ManifestStore.commit = after(ManifestStore.commit, in_an_epoch)  # type: ignore[method-assign]
    elif point == "delivered":
        runner = epoch.EpochRunner
        runner.run = after(runner.run, lambda *_: arm_acknowledgement())  # type: ignore[method-assign]
    elif point == "log":
        driver.Driver.batch = after(driver.Driver.batch, die)  # type: ignore[method-assign]
        driver.Driver.take = after(driver.Driver.take, die)  # type: ignore[method-assign]


def arm_acknowledgement() -> None:
    driver.Driver._acknowledge = die  # type: ignore[method-assign]


def main() -> None:
    directory, file, wanted = sys.argv[1:4]
    point, _, jobs = wanted.partition("/")
    if jobs:
        KeptPlans.plain = lambda *_: None  # type: ignore[method-assign]
    pipeline = Pipeline("p", directory, units=2)
    pipeline.prepare(low_latency="low-latency" in sys.argv)
    pipeline.sql(Path(file).read_text())
    arm(point)
    pipeline.run(once=True)


if __name__ == "__main__":
    main()
