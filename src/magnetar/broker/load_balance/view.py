"""The cluster as the load manager sees it, and as the decisions taken so far would leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import sqrt

from magnetar.broker.load_balance.isolation import Eligible, Isolation
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad
from magnetar.broker.settings.load_balance import LoadBalanceSettings


def namespace_of(bundle: str) -> str:
    """`tenant/namespace` of `tenant/namespace/0x..._0x...`."""
    return bundle.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The imbalance over the brokers that take bundles.

    `peak`: the most loaded over the mean, 1.0 is even. `spread`: standard deviation over mean.
    """

    peak: float = 1.0
    spread: float = 0.0

    @classmethod
    def of(cls, loads: Iterable[float]) -> Imbalance:
        values = list(loads)
        mean = sum(values) / len(values) if values else 0.0
        if mean <= 0:
            return cls()
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        return cls(max(values) / mean, sqrt(variance) / mean)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Brokers by id as they last reported. `placed`: bundles given to a broker since then, with the load expected of them."""

    brokers: Mapping[str, BrokerLoad]
    isolation: Isolation = field(default_factory=Isolation)
    placed: Mapping[str, tuple[str, BundleLoad]] = field(default_factory=dict)

    def owner(self, bundle: str) -> str | None:
        return next((name for name, load in self.brokers.items() if bundle in load.bundles), None)


class BrokerProjection:
    """The load of one broker in a projection."""

    __slots__ = ("bundles", "draining", "namespaces", "percent", "rate", "throughput", "topics")

    def __init__(self, load: BrokerLoad, percent: float) -> None:
        self.bundles = dict(load.bundles)
        self.draining = load.draining
        self.percent = percent
        self.rate = load.rate
        self.throughput = load.throughput
        self.topics = load.topics
        self.namespaces: dict[str, int] = {}
        """Number of bundles served, by namespace."""
        for bundle in self.bundles:
            self._count(bundle, 1)

    def percent_of(self, load: BundleLoad) -> float:
        """The part of the broker's usage that one of its bundles accounts for, by its share of the bytes, or of the messages."""
        if self.throughput > 0:
            return self.percent * min(1.0, load.throughput / self.throughput)
        return self.percent * min(1.0, load.rate / self.rate) if self.rate > 0 else 0.0

    def add(self, bundle: str, load: BundleLoad, percent: float) -> None:
        self.bundles[bundle] = load
        self._count(bundle, 1)
        self._change(load, 1, percent)

    def remove(self, bundle: str) -> tuple[BundleLoad, float]:
        """Its load and the percentage of usage that goes with it."""
        load = self.bundles.pop(bundle)
        percent = self.percent_of(load)
        self._count(bundle, -1)
        self._change(load, -1, -percent)
        return load, percent

    def _change(self, load: BundleLoad, sign: int, percent: float) -> None:
        self.rate = max(0.0, self.rate + sign * load.rate)
        self.throughput = max(0.0, self.throughput + sign * load.throughput)
        self.topics += sign * load.topics
        self.percent = max(0.0, self.percent + percent)

    def _count(self, bundle: str, change: int) -> None:
        namespace = namespace_of(bundle)
        self.namespaces[namespace] = self.namespaces.get(namespace, 0) + change
        if not self.namespaces[namespace]:
            del self.namespaces[namespace]


class Projection:
    """The cluster as it would be once the decisions so far have been carried out. Mutable."""

    def __init__(self, view: ClusterView, settings: LoadBalanceSettings, smoothed: Mapping[str, float]) -> None:
        """`smoothed`: usage by broker as the memory has it; the report's own where it has none."""
        self.isolation = view.isolation
        self.standing = {
            name: BrokerProjection(load, smoothed.get(name, load.weighed_percent(settings)))
            for name, load in view.brokers.items()
        }
        for bundle, (broker, load) in view.placed.items():
            standing = self.standing.get(broker)
            if standing is not None and bundle not in standing.bundles:
                standing.add(bundle, load, 0.0)  # its usage is not known before the broker reports it
        self.active = {name: standing for name, standing in self.standing.items() if not standing.draining}
        """Brokers that take bundles."""

    def eligible(self, namespace: str) -> Eligible:
        """The active brokers that may serve a namespace."""
        if not self.isolation.policies:
            return Eligible(list(self.active), "")
        return self.isolation.eligible(namespace, {name: each.percent for name, each in self.active.items()})

    def move(self, bundle: str, source: str, destination: str) -> None:
        load, percent = self.standing[source].remove(bundle)
        self.standing[destination].add(bundle, load, percent)

    def owners(self) -> dict[str, Iterable[str]]:
        """Broker to the namespaces that it serves."""
        return {name: standing.namespaces for name, standing in self.standing.items()}

    def mean_percent(self) -> float:
        active = self.active.values()
        return sum(standing.percent for standing in active) / len(active) if active else 0.0

    def imbalance(self) -> Imbalance:
        """The imbalance of usage, or of the bytes where no usage is known."""
        active = self.active.values()
        if any(standing.percent > 0 for standing in active):
            return Imbalance.of(standing.percent for standing in active)
        return Imbalance.of(standing.throughput for standing in active)
