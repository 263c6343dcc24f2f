"""How far event time has come: what is learned of the sources' rows while they are read, and the watermarks that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from magnetar.pipeline.operators.operator import EpochContext
from magnetar.pipeline.views.lowering.program import Program

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


def advanced(now_us: Mapping[str, int], seen_us: Mapping[str, int | None]) -> dict[str, int]:
    """The watermarks after an epoch. `seen_us`: the newest event time of a relation's rows less its delay, None without rows."""
    found = dict(now_us)
    for relation, seen in seen_us.items():
        if seen is not None:
            found[relation] = max(seen, found.get(relation, seen))
    return found


def combined(watermarks_us: Mapping[str, int], relations: Iterable[str]) -> int | None:
    """Of what is made of several relations: the least; None while one of them has none, or when there are none."""
    found = [watermarks_us.get(relation) for relation in relations]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def context(
    epoch: int, time_us: int, relations: Iterable[str], now_us: Mapping[str, int], before_us: Mapping[str, int]
) -> EpochContext:
    """What a view's operators are told: `now_us` of the manifest before the epoch, `before_us` of the one before that."""
    names = tuple(relations)
    return EpochContext(epoch, time_us, combined(now_us, names), combined(before_us, names))


def is_settled(relations: Iterable[str], now_us: Mapping[str, int], before_us: Mapping[str, int]) -> bool:
    """Whether another epoch without rows would find no window to close."""
    names = tuple(relations)
    return combined(now_us, names) == combined(before_us, names)
