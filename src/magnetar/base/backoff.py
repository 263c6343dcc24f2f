"""How long to wait before the next attempt. Pure."""

from __future__ import annotations

import random


class Backoff:
    """Delays double from `first_s` to `longest_s`; each is shortened at random by up to a fifth, so that many do not come at once."""

    __slots__ = ("_first_s", "_longest_s", "_next_s", "_rng")

    def __init__(self, first_s: float, longest_s: float, rng: random.Random) -> None:
        assert 0 < first_s <= longest_s
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s
        self._rng = rng

    def next_s(self) -> float:
        """Before the attempt that follows a failure."""
        delay_s = self._next_s
        self._next_s = min(2 * delay_s, self._longest_s)
        return delay_s * (1 - 0.2 * self._rng.random())

    def reset(self) -> None:
        """An attempt succeeded."""
        self._next_s = self._first_s
