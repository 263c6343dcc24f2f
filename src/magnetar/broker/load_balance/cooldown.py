"""What the leader remembers from one decision to the next: smoothed usage, and what moved not long ago."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.load_balance.load_report import BrokerLoad
from magnetar.broker.settings.load_balance import LoadBalanceSettings


class LeaderMemory:
    """A new leader's is empty but for the moves of the leaders before it: `recall` what the last one wrote of `recent`. Mutable."""

    def __init__(self) -> None:
        self.usage: dict[str, float] = {}
        """Usage by broker in percent, weighed and smoothed."""
        self._moved_s: dict[str, float] = {}
        self._reported_ms: dict[str, int] = {}

    def observe(self, brokers: Mapping[str, BrokerLoad], settings: LoadBalanceSettings) -> None:
        """Take new reports in. A report that was seen before does not count twice; brokers that are gone are forgotten."""
        for name in [name for name in self.usage if name not in brokers]:
            del self.usage[name], self._reported_ms[name]
        for name, load in brokers.items():
            now = load.weighed_percent(settings)
            if name not in self.usage:
                self.usage[name] = now
            elif load.updated_ms != self._reported_ms[name]:
                self.usage[name] = (
                    settings.load_balancer_history_resource_percentage * self.usage[name]
                    + (1 - settings.load_balancer_history_resource_percentage) * now
                )
            self._reported_ms[name] = load.updated_ms

    def forget(self) -> None:
        """Begin anew: somebody else has decided meanwhile."""
        self.usage.clear()
        self._reported_ms.clear()
        self._moved_s.clear()

    def moved(self, bundle: str, now_s: float, settings: LoadBalanceSettings) -> None:
        """It begins to cool down. Drops what has cooled down already."""
        self._moved_s[bundle] = now_s
        if len(self._moved_s) % 1024 == 0:
            limit = now_s - settings.grace_period_s
            self._moved_s = {name: at_s for name, at_s in self._moved_s.items() if at_s > limit}

    def recent(self, now_s: float, settings: LoadBalanceSettings) -> dict[str, float]:
        """Seconds since their move, of all bundles that still cool down; for the next leader."""
        return {
            bundle: max(0.0, now_s - at_s)
            for bundle, at_s in self._moved_s.items()
            if now_s - at_s < settings.grace_period_s
        }

    def recall(self, ages_s: Mapping[str, float], now_s: float, settings: LoadBalanceSettings) -> None:
        """Take over what earlier leaders moved, and how long ago. Clocks differ: a move in the future has just been made."""
        for bundle, age_s in ages_s.items():
            if age_s < settings.grace_period_s:
                at_s = now_s - max(0.0, age_s)
                self._moved_s[bundle] = max(at_s, self._moved_s.get(bundle, at_s))

    def shifted(self, broker: str, percent: float) -> None:
        """A move was carried out: usage will change by so much. Else the history would have the broker shed again and again."""
        if broker in self.usage:
            self.usage[broker] = min(100.0, max(0.0, self.usage[broker] + percent))

    def cooling_s(self, bundle: str, now_s: float, settings: LoadBalanceSettings) -> float:
        """Seconds for which the bundle still stays where it is; 0: it may move."""
        moved_s = self._moved_s.get(bundle)
        return max(0.0, moved_s + settings.grace_period_s - now_s) if moved_s is not None else 0.0
