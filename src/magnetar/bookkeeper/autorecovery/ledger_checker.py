"""What is wrong with a ledger's copies (BookKeeper client/LedgerChecker, replication/AuditorReplicasCheckTask)."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from magnetar.bookkeeper.autorecovery.fragments import Fragment, fragments_of
from magnetar.bookkeeper.autorecovery.probes import PROVEN, Health, LedgerKeys, Probe, list_entries, probe
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.availability import EntryAvailability


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
        self._no_lists: set[str] = set()
        """Bookies that did not answer what they hold: Apache's DbLedgerStorage never does. They are not asked for a while."""

    def ask_all_again(self) -> None:
        """Those that did not say what they hold, too."""
        self._no_lists.clear()

    async def check(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        available: Collection[str],
        password: bytes = b"",
        *,
        lists: bool = False,
    ) -> list[FragmentCheck]:
        """All fragments of the ledger, sound ones too. `available`: the registered bookies. `lists`: ask each bookie as well which
        entries it holds, which finds holes between those that are read.

        A bookie that is not registered is bad even where it stores nothing, or a ledger could name it for ever (BookKeeper issue
        3239). Of an open fragment nothing else is looked at: what its writer has under way is missing for good reason.
        """
        keys = LedgerKeys.of(ledger_id, metadata, password)
        parts = fragments_of(ledger_id, metadata)
        held: dict[str, EntryAvailability] = {}
        if lists:
            names = {name for part in parts if part.closed for name in part.ensemble if name in available}
            for name in sorted(names - self._no_lists):
                found = await list_entries(self._bookies, name, ledger_id, self._timeout_s)
                if found is not None:
                    held[name] = found
                else:
                    self._no_lists.add(name)
        return [await self._check(keys, part, available, held) for part in parts]

    async def _check(
        self, keys: LedgerKeys, fragment: Fragment, available: Collection[str], held: dict[str, EntryAvailability]
    ) -> FragmentCheck:
        bad: dict[int, Health] = {}
        probes: dict[Probe, int] = {}
        for index, bookie_id in enumerate(fragment.ensemble):
            if bookie_id not in available:
                bad[index] = Health.GONE
            elif fragment.closed:
                for entry_id in fragment.probes(index, self._percentage, self._rng.sample):
                    probes[Probe(bookie_id, entry_id)] = index
                if bookie_id in held and missing_entries(fragment, index, held[bookie_id]):
                    bad[index] = Health.ABSENT
        answers = await probe(self._bookies, keys, list(probes), self._timeout_s)
        unknown = set()
        for which, health in answers.items():
            index = probes[which]
            if health is Health.UNKNOWN:
                unknown.add(index)
            elif health in PROVEN and bad.get(index) is not Health.DAMAGED:
                bad[index] = health
        return FragmentCheck(fragment, bad, tuple(sorted(unknown - bad.keys())))


def missing_entries(fragment: Fragment, index: int, held: EntryAvailability) -> int:
    """How many of the entries that the bookie at `index` has to hold it does not."""
    return sum(not held.holds(entry_id) for entry_id in fragment.stored(index))
