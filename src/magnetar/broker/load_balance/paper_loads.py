"""Made-up loads of many topics over time, for the simulation: heavy-tailed, by the hour of each namespace, with sudden hot topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.hashing.bundles import LAST_BOUNDARY

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MEAN_RATE: Final = 25.0
"""Messages a second of a topic, in; the same number goes out."""

MESSAGE_BYTES: Final = 1024
SIGMA: Final = 1.5
"""Of the logarithm: a hundredth of the topics carries about a fifth of the traffic."""

DAY_STEPS: Final = 48
"""Steps after which a namespace's day begins again."""

DAY_SWING: Final = 0.5
HOT_TOPICS: Final = 20
HOT_RATE: Final = 20_000.0
RENEWED_SHARE: Final = 0.001
"""Of the topics: they change their rate with every step."""

SPACE: Final = LAST_BOUNDARY + 1


class PaperLoads:
    """`keys`: where each topic lies, sorted: its namespace's number times 2^32 plus its hash."""

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
