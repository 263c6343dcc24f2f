"""Repairing one ledger: check its copies, copy what is missing, let the metadata name the new bookies.

Never on a guess. A bookie that is registered and does not answer leaves its fragment as it is: the ledger stays marked and is looked
at again. A copy counts as missing when its bookie is not registered, denies an entry, or gives a damaged one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import Enum
from typing import NamedTuple

from magnetar.base.errors import BadVersionError
from magnetar.bookkeeper.autorecovery.fragments import Fragment, fragments_of, replace_in_fragment
from magnetar.bookkeeper.autorecovery.ledger_checker import FragmentCheck, LedgerChecker
from magnetar.bookkeeper.autorecovery.probes import Health, LedgerKeys
from magnetar.bookkeeper.autorecovery.registered import Registered
from magnetar.bookkeeper.autorecovery.replicator import FragmentReplicator
from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import LockLostError, NoSuchLedgerError, NotEnoughBookiesError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

_logger = logging.getLogger(__name__)

ROUNDS_MAX = 5
"""Repairs of one ledger in a row while others change its metadata; then it is left marked for another time."""

ReadRegistered = Callable[[], Awaitable[Registered]]
"""Who is registered now."""

StillOurs = Callable[[], Awaitable[bool]]
"""Whether the lock is still held: asked before the metadata is changed."""

ChooseReplacement = Callable[[tuple[str, ...], int, int, frozenset[str]], str | None]
"""`choose(ensemble, index, write_quorum, excluded)`: a bookie for the place, None without a suitable one."""


class Outcome(Enum):
    SOUND = "sound"
    """Every entry has its Qw copies on registered bookies, or the ledger does not exist any more."""
    OPEN = "open"
    """All that is closed is sound; the part that is being written names a bookie that is not registered."""
    FAILED = "failed"


class Repair(NamedTuple):
    outcome: Outcome
    reason: str = ""


class LedgerRepairer:
    """Stateless but for what it counts: any number of repairs may run at once."""

    def __init__(
        self,
        manager: LedgerManager,
        checker: LedgerChecker,
        replicator: FragmentReplicator,
        registered: ReadRegistered,
        choose: ChooseReplacement,
        statistics: AutoRecoveryStatistics,
        default_password: bytes = b"",
    ) -> None:
        self._manager = manager
        self._checker = checker
        self._replicator = replicator
        self._registered = registered
        self._choose = choose
        self._statistics = statistics
        self._password = default_password

    async def repair(self, ledger_id: int, still_ours: StillOurs, suspects: Collection[str] = ()) -> Repair:
        """Copy until nothing closed misses a copy, and no copy is damaged as far as is known.

        `suspects`: bookies that were found to have damaged copies of the ledger; all that they hold of it is read. Raises what the
        metadata store or a bookie that should take a copy raised.
        """
        problem = "its metadata keeps changing"
        rewritten: dict[tuple[int, str], str] = {}
        for _ in range(ROUNDS_MAX):
            try:
                metadata, _ = await self._manager.read(ledger_id)
            except NoSuchLedgerError:
                return Repair(Outcome.SOUND)
            registered = await self._registered()
            available = registered.available
            checks = await self._checker.check(
                ledger_id, metadata, available, self._password, lists=True, thorough=suspects
            )
            if await self._rewrite(metadata, checks, registered, rewritten):
                continue
            broken = [
                check for check in checks if check.bad and check.fragment.closed and not _hopeless(check, rewritten)
            ]
            damaged = [check for check in checks if check.damaged]
            if not broken and damaged:
                names = sorted({name for check in damaged for name in check.bookies(check.damaged)})
                why = next(filter(None, rewritten.values()), "they do not keep new ones, and the ledger is open")
                return Repair(Outcome.FAILED, f"ledger {ledger_id}: {', '.join(names)} hold damaged copies: {why}")
            if not broken:
                return self._judge(ledger_id, checks)
            for check in broken:
                problem = await self._repair_fragment(metadata, check, registered, still_ours) or problem
        return Repair(Outcome.FAILED, f"ledger {ledger_id} is not whole after {ROUNDS_MAX} repairs: {problem}")

    async def open_members_missing(self, ledger_id: int) -> bool:
        """Whether the ledger is (still) not closed and names, where it is written, a bookie that is not registered."""
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return False
        if metadata.state is LedgerState.CLOSED:
            return False
        return not (await self._registered()).available >= set(metadata.last_segment.ensemble)

    async def _rewrite(
        self,
        metadata: LedgerMetadata,
        checks: Collection[FragmentCheck],
        registered: Registered,
        rewritten: dict[tuple[int, str], str],
    ) -> bool:
        """Write damaged copies anew on the bookies that have them, once; True when any were. A bookie that does not keep them is
        replaced in the next round.

        The damage is in some entries of some files; moving the fragment would copy all that is sound as well.
        """
        any_written = False
        for check in checks:
            fragment = check.fragment
            keys = LedgerKeys.of(fragment.ledger_id, metadata, self._password)
            for index, entries in sorted(check.damaged.items()):
                name = fragment.ensemble[index]
                place = fragment.first_entry_id, name
                if name not in registered.writable or place in rewritten:
                    continue
                failure = await self._replicator.rewrite(keys, fragment, index, entries)
                rewritten[place] = "" if failure is None else str(failure)
                any_written = True
                _logger.warning(
                    "damaged copies written anew: ledger=%d bookie=%s entries=%d first=%d%s",
                    fragment.ledger_id,
                    name,
                    len(entries),
                    entries[0],
                    "" if failure is None else f"; left as they are: {failure}",
                )
        return any_written

    def _judge(self, ledger_id: int, checks: Collection[FragmentCheck]) -> Repair:
        silent = sorted({name for check in checks for name in check.bookies(check.unknown)})
        if silent:
            return Repair(Outcome.FAILED, f"ledger {ledger_id}: {', '.join(silent)} did not say what they hold")
        return Repair(Outcome.OPEN if any(check.bad for check in checks) else Outcome.SOUND)

    async def _repair_fragment(
        self, metadata: LedgerMetadata, check: FragmentCheck, registered: Registered, still_ours: StillOurs
    ) -> str:
        """Answers what stands in the way of the next round finding the fragment whole; empty: nothing."""
        fragment = check.fragment
        targets = self._targets(check, registered.writable)
        keys = LedgerKeys.of(fragment.ledger_id, metadata, self._password)
        copied = await self._replicator.copy(keys, fragment, check.bad, targets)
        if copied:
            self._statistics.fragments_copied_total += 1
        else:
            self._statistics.fragments_replaced_without_copy_total += 1
        moved = {index: name for index, name in targets.items() if name != fragment.ensemble[index]}
        if moved and not await still_ours():
            raise LockLostError(f"ledger {fragment.ledger_id}: the lock was lost with the session; nothing was changed")
        if moved and not await self._rename(fragment, moved):
            return "its metadata was changed meanwhile"
        _logger.info(
            "copies restored: ledger=%d first_entry=%d entries=%d from=%s to=%s",
            fragment.ledger_id,
            fragment.first_entry_id,
            copied,
            ",".join(fragment.ensemble[index] for index in targets),
            ",".join(targets.values()),
        )
        return ""

    def _targets(self, check: FragmentCheck, writable: frozenset[str]) -> dict[int, str]:
        """Who gets the copies, by index. A bookie that is there and merely lacks entries gets them itself.

        Raises NotEnoughBookiesError when there is nobody for any of them.
        """
        fragment = check.fragment
        ensemble = list(fragment.ensemble)
        targets: dict[int, str] = {}
        for index, health in sorted(check.bad.items()):
            here = ensemble[index]
            if health is Health.ABSENT and here in writable:
                targets[index] = here
                continue
            excluded = frozenset(ensemble) | set(fragment.ensemble)
            while chosen := self._choose(tuple(ensemble), index, fragment.write_quorum, excluded):
                if chosen in writable:
                    break
                excluded |= {chosen}  # the directory has not heard that it is no longer writable
            if chosen is not None:
                targets[index] = ensemble[index] = chosen
            elif here in writable:
                targets[index] = here
        if not targets:
            raise NotEnoughBookiesError(
                f"ledger {fragment.ledger_id}: no writable bookie is left to hold the copies of "
                f"{', '.join(check.bookies(check.bad))}; start another bookie"
            )
        return targets

    async def _rename(self, fragment: Fragment, moved: Mapping[int, str]) -> bool:
        """Compare-and-set the segment's ensemble; False when somebody else has changed it."""
        ledger_id = fragment.ledger_id
        while True:
            metadata, version = await self._manager.read(ledger_id)
            changed = replace_in_fragment(metadata, fragment, moved)
            # An open ledger's last segment belongs to its writer: what was closed when it was copied must be so still.
            if changed is None or not _still_closed(ledger_id, metadata, fragment):
                return False
            try:
                await self._manager.write(ledger_id, changed, version)
            except BadVersionError:
                continue
            return True


def _hopeless(check: FragmentCheck, rewritten: Mapping[tuple[int, str], str]) -> bool:
    """All that is wrong is damage of which no other copy is good: moving the fragment would copy the rest for nothing."""
    first, ensemble = check.fragment.first_entry_id, check.fragment.ensemble
    return all(
        health is Health.DAMAGED and bool(rewritten.get((first, ensemble[index])))
        for index, health in check.bad.items()
    )


def _still_closed(ledger_id: int, metadata: LedgerMetadata, fragment: Fragment) -> bool:
    """Whether the fragment ends where it did when it was copied."""
    return fragment in fragments_of(ledger_id, metadata)


def choose_by_placement(bookies: BookieDirectory, rng: random.Random) -> ChooseReplacement:
    """As the directory's placement policy has it: racks, regions, quarantine."""

    def choose(ensemble: tuple[str, ...], index: int, write_quorum: int, excluded: frozenset[str]) -> str | None:
        return bookies.choose_replacement(ensemble, index, write_quorum, excluded, frozenset(), rng)

    return choose
