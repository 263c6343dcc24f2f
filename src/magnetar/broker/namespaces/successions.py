"""Bundles on their way: who is to have them next. Between the giving up and the taking, nobody else shall take them."""

from __future__ import annotations

from typing import Final

from magnetar.base.clock import Clock
from magnetar.broker.namespaces.records import BundleName

PATIENCE_S: Final = 3.0
"""A successor that has not taken the bundle by then is not waited for any longer: whoever is asked next decides anew."""


class Successions:
    """What the nodes of leaving bundles said, remembered for a moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[BundleName, tuple[str, float]] = {}

    def expect(self, bundle: BundleName, successor: str) -> None:
        """`successor`: a broker id; empty: nobody, or it has arrived."""
        if successor:
            self._expected[bundle] = successor, self._clock.monotonic_s() + PATIENCE_S
        else:
            self._expected.pop(bundle, None)

    def expected(self, bundle: BundleName) -> str:
        """Empty when nobody is waited for."""
        successor, until_s = self._expected.get(bundle, ("", 0.0))
        if successor and self._clock.monotonic_s() >= until_s:
            del self._expected[bundle]
            return ""
        return successor
