"""What is learned of the sources' rows while they are read: how many, and how far event time has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from magnetar.pipeline.views.program import Program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS: Final = "rows"
_NEWEST: Final = "newest_us"


class Observed:
    """`frames`: the sources' rows, to be used instead of those given. The numbers are there once a job has read them.

    A source whose rows the units count anyway is left alone: an observation takes Spark some 50 ns a row.
    """

    def __init__(self, program: Program, frames: Mapping[str, DataFrame]) -> None:
        self._watermarks = program.watermarks
        self._observations: dict[str, Observation] = {}
        self.frames: dict[str, DataFrame] = {}
        for name, frame in frames.items():
            if name not in program.source_readers:
                continue
            if name in program.counting_stages:
                self.frames[name] = frame
                continue
            columns = [F.count(F.lit(1)).alias(_ROWS)]
            if name in self._watermarks:
                time, _ = self._watermarks[name]
                columns.append(F.expr(f"unix_micros(max(cast({time} AS timestamp)))").alias(_NEWEST))
            observation = Observation()
            self._observations[name] = observation
            self.frames[name] = frame.observe(observation, *columns)

    def rows(self) -> int:
        """Of all sources that units do not count."""
        return sum(int(each.get[_ROWS]) for each in self._observations.values())

    def watermarks_us(self) -> dict[str, int | None]:
        """The newest event time less the delay, by source; None without rows."""
        found: dict[str, int | None] = {}
        for name, observation in self._observations.items():
            if name in self._watermarks:
                newest = observation.get[_NEWEST]
                found[name] = None if newest is None else int(newest) - self._watermarks[name][1]
        return found
