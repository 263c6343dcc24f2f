"""How long producers went without a receipt, fault by fault. Pure."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tests.e2e.cluster.history import Fault, History

QUIET = "(no fault)"
"""The longest waits while nothing was wrong: what the machine itself adds."""


def unavailability_s(history: History) -> list[tuple[str, float]]:
    """Kind of fault, the longest time between two receipts of one stream around it; and the same for the times between faults."""
    answered: dict[str, list[float]] = defaultdict(list)
    for append in history.appends:
        if append.acknowledged and append.answered_s is not None:
            answered[append.stream].append(append.answered_s)
    receipts = [sorted(times) for times in answered.values()]
    faults = sorted(history.faults, key=lambda fault: fault.start_s)
    found = [(fault.kind, _longest_s(receipts, fault.start_s, fault.settled_s)) for fault in faults]
    windows = merged(faults)
    for (_, earlier_s), (later_s, _) in itertools.pairwise(windows):
        found.append((QUIET, _longest_within_s(receipts, earlier_s, later_s)))
    return found


def _longest_s(receipts: Sequence[Sequence[float]], start_s: float, end_s: float) -> float:
    """Of the waits that any part of the window falls into."""
    waits = (
        later - earlier
        for times in receipts
        for earlier, later in itertools.pairwise(times)
        if earlier <= end_s and later >= start_s
    )
    return max(waits, default=0.0)


def _longest_within_s(receipts: Sequence[Sequence[float]], start_s: float, end_s: float) -> float:
    waits = (
        later - earlier
        for times in receipts
        for earlier, later in itertools.pairwise(times)
        if earlier >= start_s and later <= end_s
    )
    return max(waits, default=0.0)


def distribution(waits: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Kind -> waits, ascending."""
    kinds: dict[str, list[float]] = defaultdict(list)
    for kind, wait_s in waits:
        kinds[kind].append(wait_s)
    return {kind: sorted(times) for kind, times in sorted(kinds.items())}


def percentile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that so great a share of them does not exceed."""
    return ascending[max(0, math.ceil(len(ascending) * share) - 1)]


def table(kinds: Mapping[str, Sequence[float]]) -> str:
    """Markdown, seconds."""
    rows = ["| fault | times | p50 s | p90 s | max s |", "|---|---|---|---|---|"]
    for kind, waits in kinds.items():
        rows.append(
            f"| {kind} | {len(waits)} | {percentile(waits, 0.5):.2f} | {percentile(waits, 0.9):.2f} | {waits[-1]:.2f} |"
        )
    return "\n".join(rows)


def merged(faults: Iterable[Fault]) -> list[tuple[float, float]]:
    """The times in which something was wrong, without overlaps."""
    windows: list[tuple[float, float]] = []
    for fault in sorted(faults, key=lambda fault: fault.start_s):
        if windows and fault.start_s <= windows[-1][1]:
            windows[-1] = windows[-1][0], max(windows[-1][1], fault.settled_s)
        else:
            windows.append((fault.start_s, fault.settled_s))
    return windows
