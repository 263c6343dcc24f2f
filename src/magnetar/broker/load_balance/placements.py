"""The placements that the simulation compares: each says where every bundle is, step by step, and what that moved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.broker.load_balance.config import LoadBalanceConfig
from magnetar.broker.load_balance.cooldown import Memory
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage
from magnetar.broker.load_balance.paper_loads import MESSAGE_BYTES, SPACE
from magnetar.broker.load_balance.plan import decide, place_all
from magnetar.broker.load_balance.splitting import TopicLoad, boundary
from magnetar.broker.load_balance.view import ClusterView
from magnetar.hashing.bundles import bundle_boundaries
from magnetar.hashing.ring import HashRing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

STEP_S: Final = 60.0
"""A step stands for one decision interval: cool-downs count in it."""


class Change(NamedTuple):
    """`forced`: bundles whose broker was gone. `moved`: those and all others that changed their broker; `moved_rate`: their traffic."""

    forced: int
    moved: int
    moved_rate: float


def bundle_starts(namespaces: int, bundles: int) -> Places:
    """Lower ends of all bundles, as keys of `PaperLoads`."""
    import numpy as np

    lows = np.array(bundle_boundaries(bundles)[:-1], np.int64)
    return (np.arange(namespaces, dtype=np.int64)[:, None] * SPACE + lows).ravel()


class PlacementUnderTest(ABC):
    """`owners`: the broker of each bundle, in the order of `starts`."""

    def __init__(self, starts: Places) -> None:
        self.starts = starts
        self.owners: list[str] = []
        self.split = False
        """Whether the last step split a bundle."""
        self._cuts: Places | None = None

    def bundle_rates(self, rates: Numbers, keys: Places) -> Numbers:
        """Messages a second, in, of each bundle."""
        import numpy as np

        self._topic_rates = rates
        return np.add.reduceat(np.append(rates, 0.0), self._edges(keys)) * (self.counts(keys) > 0)

    def counts(self, keys: Places) -> Places:
        """Topics of each bundle."""
        import numpy as np

        return np.diff(np.append(self._edges(keys), len(keys)))

    def _edges(self, keys: Places) -> Places:
        if self._cuts is None:
            import numpy as np

            self._cuts = np.searchsorted(keys, self.starts).astype(np.int64)
            self._keys = keys
        return self._cuts

    @abstractmethod
    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> Change:
        """React to the brokers that are there and to the load."""

    def _take(self, owners: list[str], brokers: Sequence[str], rates: Numbers) -> Change:
        before, alive = self.owners, set(brokers)
        self.owners = owners
        if not before:
            return Change(0, 0, 0.0)
        changed = [number for number, (old, new) in enumerate(zip(before, owners, strict=True)) if old != new]
        forced = sum(old not in alive for old in before)
        return Change(forced, len(changed), float(sum(rates[number] for number in changed)))


class Randomly(PlacementUnderTest):
    """Every bundle anywhere; it stays while its broker lives."""

    def __init__(self, starts: Places, brokers: Sequence[str], seed: int) -> None:
        import numpy as np

        super().__init__(starts)
        self._rng = np.random.default_rng(seed + 1)

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> Change:
        alive = set(brokers)
        draws = self._rng.integers(0, len(brokers), len(self.starts))
        before = self.owners or [""] * len(self.starts)
        owners = [old if old in alive else brokers[draw] for old, draw in zip(before, draws, strict=True)]
        return self._take(owners, brokers, rates)


class Modulo(PlacementUnderTest):
    """Bundle `i` at broker `i mod n`."""

    def __init__(self, starts: Places, brokers: Sequence[str]) -> None:
        super().__init__(starts)

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> Change:
        owners = [brokers[number % len(brokers)] for number in range(len(self.starts))]
        return self._take(owners, brokers, rates)


class Hashed(PlacementUnderTest):
    """The ketama ring of `hashing.ring`: what a change of members must move and no more."""

    def __init__(self, starts: Places, brokers: Sequence[str]) -> None:
        super().__init__(starts)
        self._names = [str(start) for start in starts]
        self._brokers: list[str] = []

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> Change:
        if self._brokers == list(brokers):
            return Change(0, 0, 0.0)
        self._brokers = list(brokers)
        ring = HashRing(self._brokers)
        owners = [self._brokers[index] for index in ring.owners(self._names)]
        return self._take(owners, brokers, rates)


class Balanced(PlacementUnderTest):
    """The load manager's decision core, carried out at once: splits, moves, and new places for what lost its broker."""

    def __init__(
        self, starts: Places, brokers: Sequence[str], config: LoadBalanceConfig, capacity_rate: float, seed: int
    ) -> None:
        import numpy as np

        super().__init__(starts)
        self._config = config
        self._capacity = capacity_rate
        self._roll = np.random.default_rng(seed + 2).random
        self._memory = Memory()
        self._now_s = 0.0
        self.splits = 0

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> Change:
        """Places first, as lookups would; then one round of decisions on the reports that follow."""
        self._now_s += STEP_S
        self.split = False
        names = self._names()
        loads = dict(zip(names, _loads(rates, counts), strict=True))
        if not self.owners:  # as a cluster grows up: the same number of bundles everywhere, whatever their load
            self.owners = [brokers[number % len(brokers)] for number in range(len(names))]
        owners = dict(zip(names, self.owners, strict=True))
        alive = set(brokers)
        lost = {name: loads[name] for name, owner in owners.items() if owner not in alive}
        if lost:
            view = self._view(brokers, names, loads)
            for name, choice in place_all(lost, view, self._memory, self._config, self._roll).items():
                assert choice.broker is not None
                owners[name] = choice.broker
        change = self._take([owners[name] for name in names], brokers, rates)
        view = self._view(brokers, names, loads)
        self._memory.observe(view.brokers, self._config)
        plan = decide(view, self._memory, self._config, self._now_s, self._roll)
        plan.validate(view, self._memory, self._config, self._now_s)
        for move in plan.moves:
            owners[move.bundle] = move.destination
            self._memory.moved(move.bundle, self._now_s, self._config)
            self._memory.shifted(move.source, -move.percent)
            self._memory.shifted(move.destination, move.percent)
        moved = self._take([owners[name] for name in names], brokers, rates)
        self._cut({names.index(split.bundle): split.algorithm for split in plan.splits}, counts)
        return Change(change.forced, change.moved + moved.moved, change.moved_rate + moved.moved_rate)

    def _names(self) -> list[str]:
        ends = [*self.starts[1:].tolist(), int(self.starts[-1] // SPACE + 1) * SPACE]
        return [
            f"t/n{low // SPACE}/0x{low % SPACE:08x}_0x{min(high - low // SPACE * SPACE, SPACE - 1):08x}"
            for low, high in zip(self.starts.tolist(), ends, strict=True)
        ]

    def _view(self, brokers: Sequence[str], names: list[str], loads: dict[str, BundleLoad]) -> ClusterView:
        owned: dict[str, dict[str, BundleLoad]] = {name: {} for name in brokers}
        for name, owner in zip(names, self.owners, strict=False):
            if owner in owned:
                owned[owner][name] = loads[name]
        return ClusterView({name: self._broker(bundles) for name, bundles in owned.items()})

    def _broker(self, bundles: dict[str, BundleLoad]) -> BrokerLoad:
        rate = sum(load.rate for load in bundles.values())
        return BrokerLoad(cpu=Usage(rate, self._capacity), bundles=bundles, updated_ms=int(self._now_s * 1000))

    def _cut(self, algorithms: dict[int, str], counts: Places) -> None:
        """Both halves stay where the bundle was."""
        import numpy as np

        edges = self._cuts
        assert edges is not None
        for place in sorted(algorithms, reverse=True):
            first, last = int(edges[place]), int(edges[place] + counts[place])
            topics = [
                TopicLoad(key, rate)
                for key, rate in zip(
                    self._keys[first:last].tolist(), self._topic_rates[first:last].tolist(), strict=True
                )
            ]
            low = int(self.starts[place])
            low_end = (low // SPACE + 1) * SPACE
            high = int(self.starts[place + 1]) if place + 1 < len(self.starts) else low_end
            cut = boundary(algorithms[place], low, min(high, low_end), topics)
            if cut is None:
                continue
            self.starts = np.insert(self.starts, place + 1, cut)
            self.owners.insert(place + 1, self.owners[place])
            self._cuts, self.split, self.splits = None, True, self.splits + 1


def _loads(rates: Numbers, counts: Places) -> list[BundleLoad]:
    return [
        BundleLoad(rate, rate, rate * MESSAGE_BYTES, rate * MESSAGE_BYTES, topics)
        for rate, topics in zip(rates.tolist(), counts.tolist(), strict=True)
    ]
