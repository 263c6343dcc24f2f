"""What is wrong with a ledger's copies (BookKeeper client/LedgerChecker, replication/AuditorReplicasCheckTask)."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from magnetar.bookkeeper.autorecovery.fragments import Fragment, fragments_of
from magnetar.bookkeeper.autorecovery.probes import (
    PROVEN,
    Health,
    LedgerKeys,
    Pace,
    Probe,
    ScannedCopies,
    list_entries,
    probe,
    scan_copies,
)
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.wire.bookkeeper.availability import EntryAvailability


class FragmentCheck(NamedTuple):
    """`bad`: proven, by index; `unknown`: indexes whose bookies are registered and could not say; `damaged`: by index, the entries whose
    copies there are damaged, as far as they were read. Of an open fragment, damage is in `damaged` only."""

    fragment: Fragment
    bad: dict[int, Health]
    unknown: tuple[int, ...]
    damaged: dict[int, tuple[int, ...]]

    def bookies(self, indexes: Collection[int]) -> list[str]:
        return sorted(self.fragment.ensemble[index] for index in indexes)


async def no_pace(entries: int, size_bytes: int) -> None:
    """As fast as the bookies answer."""


class LedgerChecker:
    """Reads the first and the last entry that each bookie has to hold of each fragment, and `percentage` of those between; all of them
    when it is 100, at the given pace."""

    def __init__(
        self,
        bookies: BookieDirectory,
        rng: random.Random,
        timeout_s: float,
        percentage: float = 0.0,
        pace: Pace = no_pace,
    ) -> None:
        self._bookies = bookies
        self._rng = rng
        self._timeout_s = timeout_s
        self._percentage = percentage
        self._pace = pace
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
        thorough: Collection[str] = (),
    ) -> list[FragmentCheck]:
        """All fragments of the ledger, sound ones too. `available`: the registered bookies. `lists`: ask each bookie as well which
        entries it holds, which finds holes between those that are read. `thorough`: bookies of which every copy is read.

        A bookie that is not registered is bad even where it stores nothing, or a ledger could name it for ever (BookKeeper issue
        3239). Of an open fragment only damage is looked for, in what its bookies say they hold: what its writer has under way is
        missing for good reason.
        """
        keys = LedgerKeys.of(ledger_id, metadata, password)
        parts = fragments_of(ledger_id, metadata)
        held: dict[str, EntryAvailability] = {}
        every = self._percentage >= 100
        wanted = {
            name
            for part in parts
            for name in part.ensemble
            if name in available and ((lists and part.closed) or (not part.closed and (every or name in thorough)))
        }
        for name in sorted(wanted - self._no_lists):
            found = await list_entries(self._bookies, name, ledger_id, self._timeout_s)
            if found is not None:
                held[name] = found
            else:
                self._no_lists.add(name)
        scanned = available if every else thorough
        return [await self._check(keys, part, available, held, scanned, lists=lists) for part in parts]

    async def _check(
        self,
        keys: LedgerKeys,
        fragment: Fragment,
        available: Collection[str],
        held: dict[str, EntryAvailability],
        scanned: Collection[str],
        *,
        lists: bool,
    ) -> FragmentCheck:
        bad: dict[int, Health] = {}
        unknown: set[int] = set()
        damaged: dict[int, tuple[int, ...]] = {}
        probes: dict[Probe, int] = {}
        for index, bookie_id in enumerate(fragment.ensemble):
            if bookie_id not in available:
                bad[index] = Health.GONE
                continue
            if fragment.closed and lists and bookie_id in held and missing_entries(fragment, index, held[bookie_id]):
                bad[index] = Health.ABSENT
            if bookie_id in scanned:
                found = await self._scan(keys, fragment, index, held.get(bookie_id))
                if found.damaged:
                    damaged[index] = found.damaged
                if found.silent:
                    unknown.add(index)
                elif found.absent is not None:
                    bad[index] = Health.ABSENT
            elif fragment.closed:
                for entry_id in fragment.probes(index, self._percentage, self._rng.sample):
                    probes[Probe(bookie_id, entry_id)] = index
        answers = await probe(self._bookies, keys, list(probes), self._timeout_s)
        for which, health in answers.items():
            index = probes[which]
            if health is Health.UNKNOWN:
                unknown.add(index)
            elif health is Health.DAMAGED:
                damaged[index] = (*damaged.get(index, ()), which.entry_id)
            elif health in PROVEN:
                bad[index] = health
        if fragment.closed:
            bad |= dict.fromkeys(damaged, Health.DAMAGED)
        return FragmentCheck(fragment, bad, tuple(sorted(unknown - bad.keys())), damaged)

    async def _scan(
        self, keys: LedgerKeys, fragment: Fragment, index: int, held: EntryAvailability | None
    ) -> ScannedCopies:
        if fragment.closed:
            entries = fragment.stored(index)
        elif held is None:  # nobody says where it ends: it is looked at when it is closed
            return ScannedCopies()
        else:
            between = range(fragment.first_entry_id, held.last_entry_id + 1)
            entries = (entry for entry in between if fragment.holds(index, entry) and held.holds(entry))
        return await scan_copies(
            self._bookies,
            keys,
            fragment.ensemble[index],
            entries,
            self._timeout_s,
            self._pace,
            closed=fragment.closed,
        )


def missing_entries(fragment: Fragment, index: int, held: EntryAvailability) -> int:
    """How many of the entries that the bookie at `index` has to hold it does not."""
    return sum(not held.holds(entry_id) for entry_id in fragment.stored(index))
