"""Chooses the bundles that leave an overloaded broker: Pulsar's threshold shedder and its uniform load shedder.

Both give every bundle a destination at once, and move none that would only carry the overload elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.broker.load_balance.load_report import BundleLoad
from magnetar.broker.load_balance.placement import Choice, Roll, choose
from magnetar.broker.load_balance.view import BrokerProjection, Projection
from magnetar.broker.settings.load_balance import MIB, UNIFORM, LoadBalanceSettings

MARGIN_PERCENT: Final = 5.0
"""Shed beyond the threshold, so that the next report is not above it again."""


class Move(NamedTuple):
    """A bundle leaves `source` for `destination`. `percent`: of usage, estimated by its share of the traffic."""

    bundle: str
    source: str
    destination: str
    load: BundleLoad
    percent: float
    reason: str


class Held(NamedTuple):
    """A broker or bundle that should have been relieved, and why it was not."""

    what: str
    reason: str


class Shedder:
    """One round of decisions: changes the projection as it goes, collects moves and what was held back."""

    def __init__(
        self,
        projection: Projection,
        settings: LoadBalanceSettings,
        roll: Roll,
        cooling_s: Callable[[str], float],
    ) -> None:
        """`cooling_s`: how long a bundle must still stay, 0 if it may move."""
        self._projection = projection
        self._settings = settings
        self._roll = roll
        self._cooling = cooling_s
        self._moved: set[str] = set()
        self.moves: list[Move] = []
        self.held: list[Held] = []

    def run(self) -> None:
        if len(self._projection.active) < 2:
            return
        if self._settings.shedder == UNIFORM:
            self._uniform()
        else:
            self._threshold()

    # ---- Threshold

    def _threshold(self) -> None:
        """Takes from every broker above the mean usage by more than the threshold its largest bundles, no more than needed."""
        settings, mean = self._settings, self._projection.mean_percent()
        threshold = settings.load_balancer_broker_threshold_shedder_percentage
        shed_min = settings.load_balancer_bundle_unload_min_throughput_threshold * MIB
        over = mean + threshold
        ranked = sorted(self._projection.active.items(), key=lambda item: (-item[1].percent, item[0]))
        for name, standing in ranked:
            percent = standing.percent
            if percent <= over:
                break
            shed = standing.throughput * (percent - over + MARGIN_PERCENT) / 100
            reason = f"usage {percent:.0f} % is above the mean of {mean:.0f} % by more than {threshold:.0f}"
            if shed < shed_min:
                why = f"{shed:.0f} bytes/s would go; loadBalancerBundleUnloadMinThroughputThreshold is {shed_min:.0f}"
                self.held.append(Held(name, f"{reason}, but only {why}"))
                continue
            self._relieve(name, standing, shed, over, reason)
        if settings.lower_boundary_shedding_enabled:
            self._fill(mean)

    def _relieve(self, name: str, standing: BrokerProjection, shed: float, over: float, reason: str) -> None:
        if len(standing.bundles) < 2:
            self.held.append(Held(name, f"{reason}, but it serves a single bundle, which would only move the overload"))
            return
        gone = 0.0
        cooling = 0
        for bundle, load in sorted(standing.bundles.items(), key=lambda item: (-item[1].throughput, item[0])):
            if gone >= shed or self._full():
                break
            if load.throughput <= 0:
                break
            if self._stays(bundle):
                cooling += 1
                continue
            if self._move(bundle, name, load, over, reason):
                gone += load.throughput
        if gone < shed and cooling:
            self.held.append(Held(name, f"{reason}, but {cooling} of its bundles moved not long ago and cool down"))
        elif not gone and not self._full():
            self.held.append(Held(name, f"{reason}, but no bundle would leave its new broker better off"))

    def _fill(self, mean: float) -> None:
        """Brokers below the mean by more than the threshold get bundles from the most loaded ones, one from each in turn."""
        settings, active = self._settings, self._projection.active
        threshold = settings.load_balancer_broker_threshold_shedder_percentage
        under = mean - threshold
        goal = min(mean, under + MARGIN_PERCENT)
        lowest = sorted((standing.percent, name) for name, standing in active.items() if standing.percent < under)
        sources = [name for name, standing in active.items() if standing.percent > mean]
        for percent, name in lowest:
            reason = f"usage {percent:.0f} % of {name} is below the mean of {mean:.0f} % by more than {threshold:.0f}"
            for source in sorted(sources, key=lambda each: (-active[each].percent, each)):
                if active[name].percent >= goal or self._full():
                    break
                self._give(source, name, mean, reason)

    def _give(self, source: str, name: str, mean: float, reason: str) -> None:
        """The largest bundle of `source` after which neither of the two is beyond the mean."""
        giver, taker = self._projection.active[source], self._projection.active[name]
        if len(giver.bundles) < 2:
            return
        for bundle, load in sorted(giver.bundles.items(), key=lambda item: (-item[1].throughput, item[0])):
            percent = giver.percent_of(load)
            if percent <= 0:
                return
            if (
                taker.percent + percent > mean
                or giver.percent - percent < mean - self._settings.load_balancer_broker_threshold_shedder_percentage
            ):
                continue
            if self._stays(bundle) or self._only(bundle, name).broker is None:
                continue
            self._carry(bundle, source, name, load, percent, reason)
            return

    def _only(self, bundle: str, broker: str) -> Choice:
        """That one broker, if it may serve the bundle."""
        others = [other for other in self._projection.active if other != broker]
        return choose(bundle, self._projection, self._settings, self._roll, without=others)

    def _move(self, bundle: str, source: str, load: BundleLoad, ceiling: float, reason: str) -> bool:
        """Unless its new broker would be above `ceiling`, and then above what the old one is left with."""
        projection = self._projection
        choice = choose(bundle, projection, self._settings, self._roll, without=(source,))
        if choice.broker is None:
            return False
        percent = projection.standing[source].percent_of(load)
        after = projection.standing[choice.broker].percent + percent
        if after > ceiling and after >= projection.standing[source].percent:
            return False
        self._carry(bundle, source, choice.broker, load, percent, f"{reason}; to {choice.broker}: {choice.reason}")
        return True

    # ---- Uniform

    def _uniform(self) -> None:
        """Pairs of the busiest and the idlest broker, as long as they are too far apart in messages or in bytes."""
        settings = self._settings
        spent: set[str] = set()
        for _ in range(len(self._projection.active)):
            active = {name: standing for name, standing in self._projection.active.items() if name not in spent}
            if len(active) < 2 or self._full():
                return
            by_rate = sorted(active, key=lambda name: (active[name].rate, name))
            by_bytes = sorted(active, key=lambda name: (active[name].throughput, name))
            low, high = active[by_rate[0]], active[by_rate[-1]]
            difference = 100.0 * (high.rate - low.rate) / max(low.rate, 1.0)
            small, large = active[by_bytes[0]], active[by_bytes[-1]]
            ratio = large.throughput / max(small.throughput, 1.0)
            if difference > settings.load_balancer_msg_rate_difference_shedder_threshold and self._apart(
                high.rate - low.rate, settings.min_unload_message
            ):
                reason = f"{high.rate:.0f} messages/s are {difference:.0f} % more than {low.rate:.0f}"
                pair, budget, bytes_count = (by_rate[-1], by_rate[0]), high.rate - low.rate, False
            elif ratio > settings.load_balancer_msg_throughput_multiplier_difference_shedder_threshold and self._apart(
                large.throughput - small.throughput, settings.min_unload_message_throughput
            ):
                reason = f"{large.throughput:.0f} bytes/s are {ratio:.1f} times {small.throughput:.0f}"
                pair, budget, bytes_count = (by_bytes[-1], by_bytes[0]), large.throughput - small.throughput, True
            else:
                return
            spent.add(pair[0])
            self._level(*pair, budget * settings.max_unload_percentage, bytes_count, reason)

    def _apart(self, difference: float, least: float) -> bool:
        return difference * self._settings.max_unload_percentage >= least

    def _level(self, source: str, idlest: str, budget: float, bytes_count: bool, reason: str) -> None:
        """Largest bundles first that fit into what is left of `budget`; to the idlest broker if it may serve them."""
        projection = self._projection
        left = budget

        def size(load: BundleLoad) -> float:
            return load.throughput if bytes_count else load.rate

        bundles = projection.standing[source].bundles
        for bundle, load in sorted(bundles.items(), key=lambda item: (-size(item[1]), item[0])):
            if len(bundles) < 2 or not 0 < size(load) <= left or self._full() or self._stays(bundle):
                continue
            choice = self._only(bundle, idlest)
            if choice.broker is None:
                choice = choose(bundle, projection, self._settings, self._roll, without=(source,))
            if choice.broker is None:
                continue
            percent = projection.standing[source].percent_of(load)
            self._carry(bundle, source, choice.broker, load, percent, f"{reason}; to {choice.broker}: {choice.reason}")
            left -= size(load)
        if left == budget:
            self.held.append(Held(source, f"{reason}, but no bundle fits into the difference or may move"))

    # ---- Both

    def _carry(self, bundle: str, source: str, destination: str, load: BundleLoad, percent: float, reason: str) -> None:
        self._projection.move(bundle, source, destination)
        self._moved.add(bundle)
        self.moves.append(Move(bundle, source, destination, load, percent, reason))

    def _stays(self, bundle: str) -> bool:
        """It moved not long ago, or in this very round."""
        return bundle in self._moved or self._cooling(bundle) > 0

    def _full(self) -> bool:
        return 0 <= self._settings.max_unload_bundle_num_per_shedding <= len(self.moves)
