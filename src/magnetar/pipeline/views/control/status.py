"""What a pipeline is doing: gathered by its driver from the reports of epochs, kept in `status.json`, read by everybody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from magnetar.pipeline.views.control.driver_lock import holder
from magnetar.pipeline.views.control.requests import read_document, write_document
from magnetar.pipeline.views.control.rescale import Load
from magnetar.pipeline.views.epoch.progress import EpochReport

FILE: Final = "status.json"
WINDOW_S: Final = 10.0
"""Rates are those of the last so many seconds."""

STARTING: Final = "starting"
RUNNING: Final = "running"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
KILLED: Final = "killed"
"""Its driver is gone without a word; `magnetar pipeline run` continues it."""


@dataclass
class Status:
    """Counts are of this driver, `epoch` and `state_bytes` of the pipeline. Times in ms since the epoch, durations in seconds.

    `views`: changes of each view since the driver began (`changes`) and in the last epoch (`last`). `busy`: share of the last seconds
    spent in epochs. `work`: share of them that a unit worked, the mean of all: what another number of units changes. `rescaled`: the
    last change of parallelism. `adaptive`: between how many units it follows the load, and the last reason; None when it does not.
    `counters`: late rows and the like. `stages`: changes that went into each stage since the driver began, in the last epoch, and a
    second (`rows`, `last`, `rows_per_s`). `sources`: when each last had rows, its watermark, and since when that stands (`rows_at_ms`,
    `watermark_us`, `watermark_at_ms`). `lags`: messages behind by source. `metrics_url`: where its metrics are.
    """

    name: str
    directory: str
    state: str = STARTING
    pid: int = 0
    started_ms: int = 0
    updated_ms: int = 0
    epoch: int = 0
    epochs: int = 0
    units: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    busy: float = 0.0
    work: float = 0.0
    epoch_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)
    lag_messages: int | None = None
    state_bytes: int = 0
    views: dict[str, dict[str, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    rescaled: dict[str, Any] | None = None
    adaptive: dict[str, Any] | None = None
    error: str | None = None
    stages: dict[str, dict[str, float]] = field(default_factory=dict)
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    lags: dict[str, int | None] = field(default_factory=dict)
    metrics_url: str | None = None

    def load(self) -> Load:
        """What the number of units is judged by."""
        return Load(self.units, self.busy, self.work, self.rows_per_s, self.lag_messages)


def write_status(directory: Path, status: Status) -> None:
    """Replaces the file at once."""
    write_document(directory / FILE, asdict(status))


def read_status(directory: Path) -> Status | None:
    """None where no driver has ever run. A driver that died while running is told as such, whatever it last wrote."""
    document = read_document(directory / FILE)
    if document is None:
        return None
    known = {each.name for each in fields(Status)}
    try:
        status = Status(**{name: value for name, value in document.items() if name in known})
    except TypeError:
        return None
    if status.state in (STARTING, RUNNING) and holder(directory) is None:
        status.state = KILLED
        status.rows_per_s = status.busy = status.work = 0.0
        for stage in status.stages.values():
            stage["rows_per_s"] = 0.0
    return status


@dataclass(frozen=True, slots=True)
class _Done:
    """An epoch that is over. `work_s`: of each unit that had a core, the mean."""

    at_s: float
    rows: int
    total_s: float
    work_s: float
    stage_rows: Mapping[str, int]


class Meter:
    """Adds reports up. Pure: times are passed in. `slots`: tasks that Spark runs at a time."""

    def __init__(self, status: Status, slots: int = 1) -> None:
        self.status = status
        self.slots = slots
        self._recent: deque[_Done] = deque()

    def add(self, report: EpochReport, now_s: float, now_ms: int) -> Status:
        """After an epoch. `now_s`: monotonic."""
        status, total_s = self.status, report.duration_s.get("total", 0.0)
        status.state, status.updated_ms = RUNNING, now_ms
        status.epoch, status.units, status.state_bytes = report.epoch, report.units, report.state_bytes
        status.epochs += 1
        status.rows += report.rows_in
        status.epoch_s, status.phases_s = total_s, dict(report.duration_s)
        if report.lag_messages is not None:
            status.lag_messages = report.lag_messages
        for name, changes in report.rows_changed.items():
            before = status.views.get(name, {"changes": 0})
            status.views[name] = {"changes": before["changes"] + changes, "last": changes}
        for name, count in report.counters.items():
            status.counters[name] = status.counters.get(name, 0) + count
        if report.vnodes_moved:
            status.rescaled = {
                "epoch": report.epoch,
                "units": report.units,
                "vnodes_moved": report.vnodes_moved,
                "pause_s": report.pause_s,
                "at_ms": now_ms,
            }
        work_s = report.work_s / max(min(report.units, self.slots), 1)
        for stage, rows in report.stage_rows.items():
            before_rows = status.stages.get(stage, {}).get("rows", 0)
            status.stages[stage] = {"rows": before_rows + rows, "last": rows, "rows_per_s": 0.0}
        self._note_sources(report, now_ms)
        self._recent.append(_Done(now_s, report.rows_in, total_s, work_s, report.stage_rows))
        self.tick(now_s)
        return status

    def _note_sources(self, report: EpochReport, now_ms: int) -> None:
        for name in report.moved:
            self.status.sources.setdefault(name, {})["rows_at_ms"] = now_ms
        for name, mark_us in report.watermarks_us.items():
            known = self.status.sources.setdefault(name, {})
            if known.get("watermark_us") != mark_us:
                known |= {"watermark_us": mark_us, "watermark_at_ms": now_ms}

    def tick(self, now_s: float, under_way_s: float | None = None) -> None:
        """Rates fall while nothing comes. While an epoch is under way, since `under_way_s`, they are those of the time before it, for
        what it does is not known yet; that it takes time is."""
        end_s = now_s if under_way_s is None else min(under_way_s, now_s)
        while self._recent and self._recent[0].at_s < end_s - WINDOW_S:
            self._recent.popleft()
        status = self.status
        for stage in status.stages.values():
            stage["rows_per_s"] = 0.0
        if not self._recent:
            status.rows_per_s = status.work = 0.0
            status.busy = 0.0 if under_way_s is None else 1.0
            return
        first = self._recent[0]
        began_s = first.at_s - first.total_s
        span_s = max(end_s - began_s, 1e-3)
        status.rows_per_s = sum(each.rows for each in self._recent) / span_s
        for each in self._recent:
            for name, rows in each.stage_rows.items():
                status.stages[name]["rows_per_s"] += rows / span_s
        status.work = min(sum(each.work_s for each in self._recent) / span_s, 1.0)
        busy_s = sum(each.total_s for each in self._recent) + now_s - end_s
        status.busy = min(busy_s / max(now_s - began_s, 1e-3), 1.0)
