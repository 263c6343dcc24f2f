"""The load manager on paper: the real decision core against random, modulo and consistent-hash placement, on loads that change.

A quarter in, brokers are lost; at half time new ones come; at three quarters some topics become hot. Every placement sees the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage
from magnetar.broker.load_balance.plan import decide, place_all
from magnetar.broker.load_balance.splitting import TopicLoad, boundary
from magnetar.broker.load_balance.view import ClusterView
from magnetar.broker.settings.load_balance import LoadBalanceSettings
from magnetar.hashing.bundles import LAST_BOUNDARY, bundle_boundaries
from magnetar.hashing.ring import HashRing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

MEAN_RATE: Final = 25.0
"""Messages a second of a topic, in; the same number goes out."""

MESSAGE_BYTES: Final = 1024

SIGMA: Final = 1.5
"""Standard deviation of the logarithm of a rate: a hundredth of the topics carries about a fifth of the traffic."""

DAY_STEPS: Final = 48
"""Steps after which a namespace's day begins again."""

DAY_SWING: Final = 0.5
HOT_TOPICS: Final = 20
HOT_RATE: Final = 20_000.0

RENEWED_SHARE: Final = 0.001
"""Share of the topics that change their rate with every step."""

SPACE: Final = LAST_BOUNDARY + 1

STEP_S: Final = 60.0
"""A step stands for one decision interval: cool-downs count in it."""

LOAD_MANAGER: Final = "load manager"
RANDOM: Final = "random"
MODULO: Final = "modulo"
RING: Final = "consistent hash"


class SyntheticLoads:
    """Made-up loads of many topics over time: heavy-tailed, by the hour of each namespace, with sudden hot topics.

    `keys`: where each topic lies, sorted: its namespace's number times 2^32 plus its hash."""

    def __init__(self, topics: int, namespaces: int, seed: int) -> None:
        import numpy as np

        self._rng = np.random.default_rng(seed)
        namespace = self._rng.integers(0, namespaces, topics, dtype=np.int64)
        self.keys: npt.NDArray[np.int64] = np.sort(namespace * SPACE + self._rng.integers(0, SPACE, topics))
        self._namespace = self.keys // SPACE
        self._phase = self._rng.uniform(0, 2 * np.pi, namespaces)
        self._base = self._drawn(topics)
        self._hot = np.empty(0, np.int64)

    def rates(self, step: int) -> npt.NDArray[np.float64]:
        """Messages a second, in, of each topic."""
        import numpy as np

        count = len(self.keys)
        renewed = self._rng.integers(0, count, max(1, int(count * RENEWED_SHARE)))
        self._base[renewed] = self._drawn(len(renewed))
        hour = 1 + DAY_SWING * np.sin(2 * np.pi * step / DAY_STEPS + self._phase)
        rates = self._base * hour[self._namespace]
        rates[self._hot] += HOT_RATE
        return np.asarray(rates, np.float64)

    def heat(self) -> None:
        """From now on some topics carry much more."""
        self._hot = self._rng.integers(0, len(self.keys), HOT_TOPICS)

    def _drawn(self, count: int) -> npt.NDArray[np.float64]:
        return MEAN_RATE * self._rng.lognormal(-(SIGMA**2) / 2, SIGMA, count)


class StepChange(NamedTuple):
    """`forced`: bundles whose broker was gone. `moved`: those and all others that changed their broker; `moved_rate`: their traffic."""

    forced: int
    moved: int
    moved_rate: float


def bundle_starts(namespaces: int, bundles: int) -> Places:
    """Lower ends of all bundles, as keys of `SyntheticLoads`."""
    import numpy as np

    lows = np.array(bundle_boundaries(bundles)[:-1], np.int64)
    return (np.arange(namespaces, dtype=np.int64)[:, None] * SPACE + lows).ravel()


class PlacementUnderTest(ABC):
    """`owners`: the broker of each bundle, in the order of `starts`."""

    def __init__(self, starts: Places) -> None:
        self.starts = starts
        self.owners: list[str] = []
        self.split = False
        """True if the last step split a bundle."""
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
    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> StepChange:
        """React to the brokers that are there and to the load."""

    def _take(self, owners: list[str], brokers: Sequence[str], rates: Numbers) -> StepChange:
        before, alive = self.owners, set(brokers)
        self.owners = owners
        if not before:
            return StepChange(0, 0, 0.0)
        changed = [number for number, (old, new) in enumerate(zip(before, owners, strict=True)) if old != new]
        forced = sum(old not in alive for old in before)
        return StepChange(forced, len(changed), float(sum(rates[number] for number in changed)))


class Randomly(PlacementUnderTest):
    """Every bundle anywhere; it stays while its broker lives."""

    def __init__(self, starts: Places, brokers: Sequence[str], seed: int) -> None:
        import numpy as np

        super().__init__(starts)
        self._rng = np.random.default_rng(seed + 1)

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> StepChange:
        alive = set(brokers)
        draws = self._rng.integers(0, len(brokers), len(self.starts))
        before = self.owners or [""] * len(self.starts)
        owners = [old if old in alive else brokers[draw] for old, draw in zip(before, draws, strict=True)]
        return self._take(owners, brokers, rates)


class Modulo(PlacementUnderTest):
    """Bundle `i` at broker `i mod n`."""

    def __init__(self, starts: Places, brokers: Sequence[str]) -> None:
        super().__init__(starts)

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> StepChange:
        owners = [brokers[number % len(brokers)] for number in range(len(self.starts))]
        return self._take(owners, brokers, rates)


class Hashed(PlacementUnderTest):
    """The ketama ring of `hashing.ring`: what a change of members must move and no more."""

    def __init__(self, starts: Places, brokers: Sequence[str]) -> None:
        super().__init__(starts)
        self._names = [str(start) for start in starts]
        self._brokers: list[str] = []

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> StepChange:
        if self._brokers == list(brokers):
            return StepChange(0, 0, 0.0)
        self._brokers = list(brokers)
        ring = HashRing(self._brokers)
        owners = [self._brokers[index] for index in ring.owners(self._names)]
        return self._take(owners, brokers, rates)


class Balanced(PlacementUnderTest):
    """The load manager's decision core, carried out at once: splits, moves, and new places for what lost its broker."""

    def __init__(
        self, starts: Places, brokers: Sequence[str], config: LoadBalanceSettings, capacity_rate: float, seed: int
    ) -> None:
        import numpy as np

        super().__init__(starts)
        self._config = config
        self._capacity = capacity_rate
        self._roll = np.random.default_rng(seed + 2).random
        self._memory = LeaderMemory()
        self._now_s = 0.0
        self.splits = 0

    def step(self, brokers: Sequence[str], rates: Numbers, counts: Places) -> StepChange:
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
        return StepChange(change.forced, change.moved + moved.moved, change.moved_rate + moved.moved_rate)

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


@dataclass(frozen=True, slots=True)
class Scenario:
    """`changed_share`: of the brokers, that many are lost and later come anew. A step is one decision interval."""

    brokers: int = 1000
    topics: int = 1_000_000
    bundles_per_broker: int = 16
    steps: int = 60
    namespaces: int = 200
    changed_share: float = 0.05
    mean_percent: float = 50.0
    seed: int = 1

    @property
    def bundles_per_namespace(self) -> int:
        return max(1, self.brokers * self.bundles_per_broker // self.namespaces)

    @property
    def capacity_rate(self) -> float:
        """Messages a second, in and out, at which a broker is fully used."""
        return 2 * MEAN_RATE * self.topics / self.brokers / (self.mean_percent / 100)


@dataclass(frozen=True, slots=True)
class Sample:
    """One placement after one step. `moved`: share of the bundles that changed their broker; `forced`: that had lost it.

    `moved_load`: share of the traffic that moved. `overloaded`: share of the brokers above 85 % of their capacity.
    """

    step: int
    event: str
    peak: float
    spread: float
    overloaded: float
    moved: float
    moved_load: float
    forced: float
    bundles: int


def simulate(
    scenario: Scenario, config: LoadBalanceSettings, told: Callable[[int], None] | None = None
) -> dict[str, list[Sample]]:
    """Samples by placement. `told` hears the number of steps done. Raises ImportError without numpy."""
    loads = SyntheticLoads(scenario.topics, scenario.namespaces, scenario.seed)
    starts = bundle_starts(scenario.namespaces, scenario.bundles_per_namespace)
    names = [f"broker-{number:04d}" for number in range(scenario.brokers)]
    placements: dict[str, PlacementUnderTest] = {
        LOAD_MANAGER: Balanced(starts, names, config, scenario.capacity_rate, scenario.seed),
        RANDOM: Randomly(starts, names, scenario.seed),
        MODULO: Modulo(starts, names),
        RING: Hashed(starts, names),
    }
    found: dict[str, list[Sample]] = {name: [] for name in placements}
    for step, event, brokers in _story(scenario, names, loads):
        rates = loads.rates(step)
        for name, placement in placements.items():
            found[name].append(_sampled(placement, step, event, brokers, rates, loads.keys, scenario.capacity_rate))
        if told is not None:
            told(step + 1)
    return found


def _story(scenario: Scenario, names: list[str], loads: SyntheticLoads) -> Iterator[tuple[int, str, list[str]]]:
    """(step, what happens, the brokers that are there)."""
    changed = max(1, int(len(names) * scenario.changed_share)) if len(names) > 1 else 0
    brokers = names
    for step in range(scenario.steps):
        event = ""
        if changed and step == scenario.steps // 4:
            brokers, event = names[changed:], f"{changed} brokers lost"
        elif changed and step == scenario.steps // 2:
            new = [f"broker-{len(names) + number:04d}" for number in range(changed)]
            brokers, event = [*names[changed:], *new], f"{changed} brokers added"
        elif step == 3 * scenario.steps // 4:
            loads.heat()
            event = "hot topics"
        yield step, event, brokers


def _sampled(
    placement: PlacementUnderTest,
    step: int,
    event: str,
    brokers: list[str],
    rates: npt.NDArray[np.float64],
    keys: npt.NDArray[np.int64],
    capacity_rate: float,
) -> Sample:
    import numpy as np

    bundle_rates = placement.bundle_rates(rates, keys)
    change = placement.step(brokers, bundle_rates, placement.counts(keys))
    if placement.split:
        bundle_rates = placement.bundle_rates(rates, keys)
    place = {name: number for number, name in enumerate(brokers)}
    by_broker = np.bincount([place[name] for name in placement.owners], weights=bundle_rates, minlength=len(brokers))
    percents = 200 * by_broker / capacity_rate
    mean = float(percents.mean())
    total = float(bundle_rates.sum())
    return Sample(
        step=step,
        event=event,
        peak=float(percents.max()) / mean,
        spread=float(percents.std()) / mean,
        overloaded=float((percents > 85).mean()),
        moved=change.moved / len(placement.owners),
        moved_load=change.moved_rate / total,
        forced=change.forced / len(placement.owners),
        bundles=len(placement.owners),
    )
