"""Quantiles of the last operations of a kind, taken when somebody asks; recording costs an index and an addition."""

from __future__ import annotations

from typing import Final, NamedTuple

WINDOW: Final = 1024
"""Samples that quantiles are taken from; older ones only count in number and sum."""

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 1.0)


class LatencySummary(NamedTuple):
    """`samples`: how many there were; `quantiles_ms`: one per QUANTILES, empty before the first sample."""

    samples: int
    sum_ms: float
    quantiles_ms: tuple[float, ...]


class Latencies:
    """Samples in ms."""

    __slots__ = ("_next", "_recent", "count", "sum_ms")

    def __init__(self) -> None:
        self._recent: list[float] = []
        self._next = 0
        self.count = 0
        self.sum_ms = 0.0

    def add(self, elapsed_ms: float) -> None:
        self.count += 1
        self.sum_ms += elapsed_ms
        if len(self._recent) < WINDOW:
            self._recent.append(elapsed_ms)
        else:
            self._recent[self._next] = elapsed_ms
            self._next = (self._next + 1) % WINDOW

    def summary(self) -> LatencySummary:
        recent = sorted(self._recent)
        last = len(recent) - 1
        return LatencySummary(
            self.count, self.sum_ms, tuple(recent[round(quantile * last)] for quantile in QUANTILES) if recent else ()
        )
