"""The four virtues of the article (Karger et al., 1997): balance, monotonicity, spread, load. Monotonicity is `Migration.needless`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from magnetar.hashing.analysis.schemes import Scheme
from magnetar.hashing.errors import EmptyRingError


@dataclass(frozen=True, slots=True)
class Balance:
    """How evenly keys lie. Figures are relative to each member's fair share by weight; 1 is perfect."""

    counts: dict[str, int]
    max_over_mean: float
    min_over_mean: float
    stddev: float
    """Standard deviation of the relative loads."""


@dataclass(frozen=True, slots=True)
class SpreadAndLoad:
    """What clients with different views of the membership do to one key, and to one member."""

    max_spread: int
    mean_spread: float
    """Members that hold a key because some view sends it there: 1 is perfect, as many as views the worst."""
    max_load: float
    """The most keys a member sees through all views together, relative to its fair share in one view of all members."""


def balance(counts: Mapping[str, int], weights: Mapping[str, float] | None = None) -> Balance:
    """Balance of keys per member. EmptyRingError without members."""
    if not counts:
        raise EmptyRingError("no members: there is nothing to balance")
    shares = weights or dict.fromkeys(counts, 1.0)
    total, weight = sum(counts.values()), sum(shares.values())
    loads = [count / (total * shares[member] / weight) if total else 0.0 for member, count in counts.items()]
    stddev = sqrt(sum((load - 1) ** 2 for load in loads) / len(loads)) if total else 0.0
    return Balance(dict(counts), max(loads), min(loads), stddev)


def count_owners(scheme: Scheme, chunks: Iterable[Any], total: int) -> dict[str, int]:
    """Keys of every member."""
    scheme.begin(total)
    counts = np.zeros(len(scheme.members) + 1, np.int64)
    for keys in chunks:
        owners = scheme.owners(scheme.hash(keys))
        counts += np.bincount(owners % len(counts), minlength=len(counts))
    return dict(zip(scheme.members, counts.tolist(), strict=False))


def spread_and_load(views: Sequence[Scheme], keys: Any) -> SpreadAndLoad:
    """Compare views (memberships that different clients believe in) on the same keys. EmptyRingError without views."""
    if not views:
        raise EmptyRingError("no views: give at least one membership")
    names = sorted({member for view in views for member in view.members})
    index = {name: position for position, name in enumerate(names)}
    hashes = views[0].hash(keys)
    seen = np.zeros((len(names), len(hashes)), np.bool_)
    rows: npt.NDArray[np.int64] = np.arange(len(hashes))
    for view in views:
        view.begin(len(hashes))
        places = np.array([index[member] for member in view.members])
        seen[places[view.owners(hashes)], rows] = True
    spread = seen.sum(axis=0)
    fair = len(hashes) / len(names)
    return SpreadAndLoad(int(spread.max()), float(spread.mean()), float(seen.sum(axis=1).max() / fair))
