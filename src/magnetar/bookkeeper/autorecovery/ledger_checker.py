"""What is wrong with a ledger's copies (BookKeeper client/LedgerChecker)."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from magnetar.bookkeeper.autorecovery.fragments import Fragment, fragments_of
from magnetar.bookkeeper.autorecovery.probes import PROVEN, Health, LedgerKeys, Probe, probe
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata


class FragmentCheck(NamedTuple):
    """`bad`: proven, by index; `unknown`: indexes whose bookies are registered and could not say."""

    fragment: Fragment
    bad: dict[int, Health]
    unknown: tuple[int, ...]

    def bookies(self, indexes: Collection[int]) -> list[str]:
        return sorted(self.fragment.ensemble[index] for index in indexes)


class LedgerChecker:
    """Reads the first and the last entry that each bookie has to hold of each fragment, and `percentage` of those between."""

    def __init__(self, bookies: BookieDirectory, rng: random.Random, timeout_s: float, percentage: float = 0.0) -> None:
        self._bookies = bookies
        self._rng = rng
        self._timeout_s = timeout_s
        self._percentage = percentage

    async def check(
        self, ledger_id: int, metadata: LedgerMetadata, available: Collection[str], password: bytes = b""
    ) -> list[FragmentCheck]:
        """All fragments of the ledger, sound ones too. `available`: the registered bookies.

        A bookie that is not registered is bad even where it stores nothing, or a ledger could name it for ever (BookKeeper issue
        3239). Of an open fragment nothing else is looked at: what its writer has under way is missing for good reason.
        """
        keys = LedgerKeys.of(ledger_id, metadata, password)
        return [await self._check(keys, fragment, available) for fragment in fragments_of(ledger_id, metadata)]

    async def _check(self, keys: LedgerKeys, fragment: Fragment, available: Collection[str]) -> FragmentCheck:
        bad: dict[int, Health] = {}
        probes: dict[Probe, int] = {}
        for index, bookie_id in enumerate(fragment.ensemble):
            if bookie_id not in available:
                bad[index] = Health.GONE
            elif fragment.closed:
                for entry_id in fragment.probes(index, self._percentage, self._rng.sample):
                    probes[Probe(bookie_id, entry_id)] = index
        answers = await probe(self._bookies, keys, list(probes), self._timeout_s)
        unknown = set()
        for which, health in answers.items():
            index = probes[which]
            if health in PROVEN:
                bad[index] = health if bad.get(index) is not Health.DAMAGED else Health.DAMAGED
            elif health is Health.UNKNOWN:
                unknown.add(index)
        return FragmentCheck(fragment, bad, tuple(sorted(unknown - bad.keys())))
