"""Which entries of a ledger a bookie holds: those in memory, and those in the index, in steps that leave room for reads."""

from __future__ import annotations

from typing import Final

from magnetar.base.executor import Executor
from magnetar.bookkeeper.bookie.storage.index import Index
from magnetar.bookkeeper.bookie.storage.write_cache import WriteCache
from magnetar.wire.bookkeeper.availability import EntryAvailability

_IDS_PER_STEP: Final = 20_000
_ENTRY_ID_MAX: Final = 2**63 - 1


async def list_entries(ledger_id: int, cache: WriteCache, index: Index, executor: Executor) -> EntryAvailability:
    """Everything that was held when this was called. Raises StorageError."""
    # Memory first: what a flush moves meanwhile is in the index by the time that is asked.
    halves = [half for half in (cache.active, cache.flushing) if half is not None]
    found = {entry_id for half in halves for entry_id in half.ledgers.get(ledger_id, ())}
    first = 0
    while True:
        ids = await executor.run(index.entry_ids, ledger_id, first, _IDS_PER_STEP)
        found.update(ids)
        if len(ids) < _IDS_PER_STEP or ids[-1] == _ENTRY_ID_MAX:
            return await executor.run(_pack, found)
        first = ids[-1] + 1


def _pack(entry_ids: set[int]) -> EntryAvailability:
    return EntryAvailability.of(sorted(entry_ids))
