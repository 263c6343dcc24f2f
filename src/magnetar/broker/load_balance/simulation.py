"""The load manager on paper: the real decision core against random, modulo and consistent-hash placement, on loads that change.

A quarter in, brokers are lost; at half time new ones come; at three quarters some topics become hot. Every placement sees the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.load_balance.config import LoadBalanceConfig
from magnetar.broker.load_balance.paper_loads import MEAN_RATE, PaperLoads
from magnetar.broker.load_balance.placements import (
    Balanced,
    Hashed,
    Modulo,
    PlacementUnderTest,
    Randomly,
    bundle_starts,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LOAD_MANAGER: Final = "load manager"
RANDOM: Final = "random"
MODULO: Final = "modulo"
RING: Final = "consistent hash"


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
    scenario: Scenario, config: LoadBalanceConfig, told: Callable[[int], None] | None = None
) -> dict[str, list[Sample]]:
    """Samples by placement. `told` hears the number of steps done. Raises ImportError without numpy."""
    loads = PaperLoads(scenario.topics, scenario.namespaces, scenario.seed)
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


def _story(scenario: Scenario, names: list[str], loads: PaperLoads) -> Iterator[tuple[int, str, list[str]]]:
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
