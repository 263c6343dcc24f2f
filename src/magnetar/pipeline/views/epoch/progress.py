"""What an epoch was like, told to whoever asked (`on_epoch`), to the status file and to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One committed epoch. Times in seconds; `duration_s` by phase, with `total`.

    `rows_in`: rows of the sources. `rows_changed`: changes of each view. `lag_messages`: entries of the topics behind the epoch, None
    where they are not known. `work_s`: what the tasks of all units took together. `vnodes_moved`, `pause_s`: of the change of
    parallelism that took effect with it (planning it, and its own commit), else 0. `stage_rows`: changes that went into each stage.
    `moved`: the sources that had rows. `watermarks_us`: of all sources that have one, after the epoch.
    """

    epoch: int
    batch_id: int
    rows_in: int
    rows_changed: Mapping[str, int]
    duration_s: Mapping[str, float]
    units: int
    state_bytes: int
    work_s: float = 0.0
    lag_messages: int | None = None
    vnodes_moved: int = 0
    pause_s: float = 0.0
    counters: Mapping[str, int] = field(default_factory=dict)
    stage_rows: Mapping[str, int] = field(default_factory=dict)
    moved: tuple[str, ...] = ()
    watermarks_us: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
