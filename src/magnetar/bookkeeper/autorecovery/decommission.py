"""Taking a bookie out for good: every ledger that names it gets its copies elsewhere, then its cookie goes.

(BookKeeper BookKeeperAdmin.decommissionBookie and `recover`.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.errors import LedgerError, NodeNotFoundError
from magnetar.bookkeeper.autorecovery.auditor import Auditor
from magnetar.bookkeeper.autorecovery.fragments import bookies_of
from magnetar.bookkeeper.autorecovery.registered import read_registered
from magnetar.bookkeeper.autorecovery.repair import LedgerRepairer, Outcome, Repair
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.autorecovery.wake import StoreWake
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import BookieStillNeededError, BookieStillRegisteredError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

POLL_INTERVAL_S = 1.0
"""The longest time between two looks at which ledgers still name the bookie."""


class Progress(NamedTuple):
    """Ledgers that named the bookie when it began, and those that still do."""

    total: int
    left: int


Report = Callable[[Progress], None]


class Decommission:
    """Of one bookie. `auditor` and `marks` need not run anywhere: only their single steps are used."""

    def __init__(
        self, store: MetadataStore, marks: UnderreplicationManager, auditor: Auditor, clock: Clock, bookie_id: str
    ) -> None:
        self._store = store
        self._marks = marks
        self._auditor = auditor
        self._clock = clock
        self.bookie_id = bookie_id

    async def check_stopped(self) -> None:
        """Raises BookieStillRegisteredError while the bookie serves: it would go on taking entries."""
        if self.bookie_id in (await read_registered(self._store)).available:
            raise BookieStillRegisteredError(f"bookie {self.bookie_id} is registered; stop it first, or pass --force")

    async def ledgers(self) -> list[int]:
        """Those that name the bookie, ascending."""
        return [id_ async for id_, metadata in self._auditor.all_ledgers() if self.bookie_id in bookies_of(metadata)]

    async def wait_for_workers(self, report: Report, timeout_s: float) -> None:
        """Mark the bookie's ledgers and wait until replication workers have freed all of them.

        Raises BookieStillNeededError when some still name it after `timeout_s`; those stay marked.
        """
        await self._marks.prepare()
        left = await self.ledgers()
        total = len(left)
        report(Progress(total, total))
        end_s = self._clock.monotonic_s() + timeout_s
        with StoreWake(self._store, paths.UNDERREPLICATED_LEDGERS_PATH) as wake:
            while left:
                for ledger_id in left:
                    await self._marks.mark(ledger_id, [self.bookie_id])
                now_s = self._clock.monotonic_s()
                if now_s >= end_s:
                    raise BookieStillNeededError(await self._still_needed(left))
                await wake.wait(min(POLL_INTERVAL_S, end_s - now_s))
                left = [ledger_id for ledger_id in left if await self._names(ledger_id)]
                if not left:
                    left = await self.ledgers()  # some may have been made since
                report(Progress(max(total, len(left)), len(left)))

    async def copy(self, repairer: LedgerRepairer, client: BookKeeperClient, report: Report, password: bytes) -> None:
        """Free the ledgers here, without workers. `repairer` must take the bookie for gone. Open ledgers are taken over.

        Raises BookieStillNeededError when a ledger could not be freed, after all others have been.
        """
        await self._marks.prepare()
        ledgers = await self.ledgers()
        report(Progress(len(ledgers), len(ledgers)))
        failures: list[str] = []
        for done, ledger_id in enumerate(ledgers, 1):
            repair = await self._free(ledger_id, repairer, client, password)
            if repair.outcome is not Outcome.SOUND:
                failures.append(repair.reason)
            report(Progress(len(ledgers), len(ledgers) - done + len(failures)))
        if failures:
            text = f"{len(failures)} of {len(ledgers)} ledgers still name {self.bookie_id}; the first: {failures[0]}"
            raise BookieStillNeededError(text)

    async def forget(self) -> bool:
        """Delete the cookie, so that an empty bookie may use the name; False when there was none."""
        try:
            await self._store.delete(paths.cookie_path(self.bookie_id))
        except NodeNotFoundError:
            return False
        return True

    # ---- Parts

    async def _free(
        self, ledger_id: int, repairer: LedgerRepairer, client: BookKeeperClient, password: bytes
    ) -> Repair:
        await self._marks.mark(ledger_id, [self.bookie_id])
        lock = await self._marks.lock(ledger_id)
        while lock is None:  # a worker has it: it will be through with it
            await asyncio.sleep(POLL_INTERVAL_S)
            if not await self._names(ledger_id):
                return Repair(Outcome.SOUND)
            await self._marks.mark(ledger_id, [self.bookie_id])
            lock = await self._marks.lock(ledger_id)
        try:
            still_ours = partial(self._marks.holds, lock)
            repair = await repairer.repair(ledger_id, still_ours)
            if repair.outcome is Outcome.OPEN:
                metadata = await client.read_metadata(ledger_id)
                key = password if metadata.password is None else metadata.password
                await (await client.open_ledger(ledger_id, recover=True, password=key)).close()
                repair = await repairer.repair(ledger_id, still_ours)
            if repair.outcome is Outcome.SOUND:
                await self._marks.mark_replicated(lock)
            return repair
        except NoSuchLedgerError:
            return Repair(Outcome.SOUND)
        except LedgerError as error:
            return Repair(Outcome.FAILED, str(error))
        finally:
            await self._marks.release(lock)

    async def _names(self, ledger_id: int) -> bool:
        metadata = await self._auditor.read_metadata(ledger_id)
        return metadata is not None and self.bookie_id in bookies_of(metadata)

    async def _still_needed(self, left: list[int]) -> str:
        """What to tell somebody who has waited in vain."""
        first = left[0]
        metadata = await self._auditor.read_metadata(first)
        open_ = metadata is not None and metadata.state is not LedgerState.CLOSED
        why = "it is being written" if open_ else "is an auto-recovery running, and is there a bookie to copy to?"
        return (
            f"{len(left)} ledgers still name {self.bookie_id}, the first is {first}: {why} They stay marked; "
            "run this again, or magnetar bookies recover to copy without auto-recovery"
        )
