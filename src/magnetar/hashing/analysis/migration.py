"""What moves when the members change: counted on keys, expected by arithmetic, and exact by the scheme's own geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from magnetar.hashing.analysis.schemes import Scheme
from magnetar.hashing.errors import HashingError

Progress = Callable[[int], None]
"""Told after every chunk how many keys are done."""


@dataclass(frozen=True, slots=True)
class Migration:
    """`flows[i, j]`: keys that member `i` of `before` held and member `j` of `after` holds now; nobody is the last index of each."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    flows: npt.NDArray[np.int64]

    @property
    def total(self) -> int:
        """All keys."""
        return int(self.flows.sum())

    @property
    def moved(self) -> int:
        """Keys whose owner has another name now."""
        return self.total - sum(int(self.flows[i, j]) for i, j in self._same())

    @property
    def rate(self) -> float:
        """Moved keys over all keys."""
        return self.moved / self.total

    @property
    def needless(self) -> int:
        """Keys that moved between two members which both stayed: none in a monotone scheme, for pure joins and pure leaves."""
        stayed = {name for name in self.before if name in self.after}
        return sum(
            int(self.flows[i, j])
            for i, source in enumerate(self.before)
            for j, target in enumerate(self.after)
            if source != target and source in stayed and target in stayed
        )

    def counts_before(self) -> dict[str, int]:
        """Keys of every old member."""
        return dict(zip(self.before, self.flows.sum(axis=1).tolist(), strict=False))

    def counts_after(self) -> dict[str, int]:
        """Keys of every new member."""
        return dict(zip(self.after, self.flows.sum(axis=0).tolist(), strict=False))

    def moves(self) -> list[tuple[str, str, int]]:
        """(from, to, keys) of all flows between different members, largest first."""
        found = [
            (source, target, int(self.flows[i, j]))
            for i, source in enumerate(self.before)
            for j, target in enumerate(self.after)
            if source != target and self.flows[i, j]
        ]
        return sorted(found, key=lambda move: (-move[2], move[0], move[1]))

    def _same(self) -> list[tuple[int, int]]:
        pairs = [(i, self.after.index(name)) for i, name in enumerate(self.before) if name in self.after]
        return [*pairs, (len(self.before), len(self.after))]


def measure(old: Scheme, new: Scheme, chunks: Iterable[Any], total: int, progress: Progress | None = None) -> Migration:
    """Count the flows of all keys in `chunks` (`total` of them). Keys are hashed once. HashingError across algorithms."""
    if old.algorithm != new.algorithm:
        raise HashingError(f"{old.algorithm} against {new.algorithm}: compare memberships of one algorithm")
    rows, columns = len(old.members) + 1, len(new.members) + 1
    flows = np.zeros(rows * columns, np.int64)
    old.begin(total)
    new.begin(total)
    done = 0
    for keys in chunks:
        hashes = old.hash(keys)
        source, target = old.owners(hashes), new.owners(hashes)
        # Slots without an owner have -1, which is the last index here.
        pairs = (source % rows) * np.int32(columns) + target % columns
        flows += np.bincount(pairs, minlength=rows * columns)
        done += len(hashes)
        if progress is not None:
            progress(done)
    return Migration(old.members, new.members, flows.reshape(rows, columns))


def expected_rate(algorithm: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The rate of an ideal scheme of this kind: what has to move for fair shares, or the arithmetic of `hash % n`.

    With equal weights and one membership within the other this is 1 - m/n, the article's guess.
    """
    if algorithm == "modulo":
        return _modulo_rate(tuple(before), tuple(after))
    old = {name: Fraction(weight) for name, weight in before.items()}
    new = {name: Fraction(weight) for name, weight in after.items()}
    total_old, total_new = sum(old.values()), sum(new.values())
    gains = (weight / total_new - old.get(name, Fraction(0)) / total_old for name, weight in new.items())
    return float(sum(gain for gain in gains if gain > 0))


def exact_rate(old: Scheme, new: Scheme) -> float | None:
    """The part of the hash space whose owner changes: what `measure` tends to. None for schemes that have no arcs."""
    first, second = old.arcs(), new.arcs()
    if first is None or second is None:
        return None
    names_before, names_after = np.array([*old.members, ""]), np.array([*new.members, ""])
    starts = np.union1d(first[0], second[0])
    widths = np.diff(np.append(starts, np.uint64(first[2]))).astype(np.float64)
    source, target = (
        owners[np.searchsorted(begins, starts, side="right") - 1] for begins, owners, _ in (first, second)
    )
    return float(widths[names_before[source] != names_after[target]].sum() / first[2])


def _modulo_rate(before: tuple[str, ...], after: tuple[str, ...]) -> float:
    # hash % n and hash % m repeat together after lcm(n, m); counted by residues of the greatest common divisor.
    period = lcm(len(before), len(after))
    hashes = np.arange(period)
    names_before, names_after = np.array(before), np.array(after)
    return float((names_before[hashes % len(before)] != names_after[hashes % len(after)]).mean())
