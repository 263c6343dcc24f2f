"""Bookies that fail often are left out of new ensembles for a while (BookKeeper's bookie health check). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuarantineConfig:
    """More than `errors` failed requests within `interval_s` keep a bookie out for `quarantine_s`. As Pulsar's broker has it."""

    enabled: bool = True
    errors: int = 100
    """bookieErrorThresholdPerInterval."""
    interval_s: float = 60.0
    """bookieHealthCheckIntervalSeconds."""
    quarantine_s: float = 1800.0
    """bookieQuarantineTimeSeconds."""


class Quarantine:
    """Counts failures by bookie. Times are seconds of one monotonic clock."""

    __slots__ = ("_config", "_counts", "_until_s", "count")

    def __init__(self, config: QuarantineConfig) -> None:
        self._config = config
        self._counts: dict[str, tuple[float, int]] = {}
        self._until_s: dict[str, float] = {}
        self.count = 0
        """Quarantines so far."""

    def failed(self, bookie_id: str, now_s: float) -> bool:
        """One more failed request. True when it puts the bookie into quarantine."""
        config = self._config
        if not config.enabled or self.holds(bookie_id, now_s):
            return False
        start_s, errors = self._counts.get(bookie_id, (now_s, 0))
        if now_s - start_s >= config.interval_s:
            start_s, errors = now_s, 0
        if errors + 1 <= config.errors:
            self._counts[bookie_id] = (start_s, errors + 1)
            return False
        self._counts.pop(bookie_id, None)
        self._until_s[bookie_id] = now_s + config.quarantine_s
        self.count += 1
        return True

    def holds(self, bookie_id: str, now_s: float) -> bool:
        until_s = self._until_s.get(bookie_id)
        if until_s is None:
            return False
        if now_s >= until_s:
            del self._until_s[bookie_id]
            return False
        return True

    def forget(self, bookie_id: str) -> None:
        """The bookie has left for good."""
        self._counts.pop(bookie_id, None)
        self._until_s.pop(bookie_id, None)
