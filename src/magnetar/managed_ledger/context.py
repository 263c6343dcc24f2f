"""What the parts of one open managed ledger share."""

from __future__ import annotations

import random
from collections.abc import Callable

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry_cache import EntryCache, LedgerCache
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.hidden_entries import HiddenEntries
from magnetar.managed_ledger.ledger_index import LedgerIndex
from magnetar.managed_ledger.ledger_reader import StoredEntryReader
from magnetar.managed_ledger.list_store import LedgerListStore
from magnetar.managed_ledger.ports import LedgerClient
from magnetar.metadata.store import MetadataStore

APPLICATION_METADATA = {"application": b"pulsar", "component": b"managed-ledger"}
"""Custom metadata of every ledger created here, as Pulsar writes it."""


class ReadCounters:
    """What cursors have read. `entries`: from memory or from bookies; `from_bookies`: reads that memory could not answer.

    `passed_over`: times that lost entries were passed over."""

    __slots__ = ("entries", "from_bookies", "passed_over")

    def __init__(self) -> None:
        self.entries = 0
        self.from_bookies = 0
        self.passed_over = 0


class LedgerContext:
    """`fenced_by` is set once, when another owner is seen: from then on nothing here writes metadata."""

    __slots__ = (
        "cache",
        "caches",
        "client",
        "clock",
        "closed",
        "config",
        "fenced_by",
        "hidden",
        "index",
        "metadata",
        "name",
        "on_fenced",
        "orphans",
        "reader",
        "reads",
        "rng",
        "scope",
        "store",
    )

    def __init__(
        self,
        name: str,
        config: ManagedLedgerConfig,
        metadata: MetadataStore,
        client: LedgerClient,
        clock: Clock,
        scope: TaskScope,
        rng: random.Random,
        cache: EntryCache,
        store: LedgerListStore,
    ) -> None:
        self.name = name
        self.config = config
        self.metadata = metadata
        self.client = client
        self.clock = clock
        self.scope = scope
        self.rng = rng
        self.cache = cache
        self.store = store
        self.index: LedgerIndex = store.index
        self.caches: dict[int, LedgerCache] = {}
        self.reader = StoredEntryReader(client, scope, name)
        self.fenced_by: ManagedLedgerFencedError | None = None
        self.closed = False
        """Given back: nothing here may change the list any more, another open in this process may be next."""
        self.on_fenced: Callable[[ManagedLedgerFencedError], None] = lambda _: None
        """Ledgers that were in the list, did not exist, and were passed over."""
        self.reads = ReadCounters()
        self.hidden = HiddenEntries()
        """Entries that count in no backlog. Not stored: whoever hides them does so again after the next open."""
        self.orphans: list[int] = []
        """Ledgers that nothing refers to any more and whose deletion failed; tried again with the next trim."""

    def fence(self, error: ManagedLedgerFencedError) -> None:
        """Another broker owns the managed ledger. Told once; every later call has no effect."""
        if self.fenced_by is None:
            self.fenced_by = error
            self.on_fenced(error)

    def custom_metadata(self, cursor: str | None = None) -> dict[str, bytes]:
        found = {**APPLICATION_METADATA, "pulsar/managed-ledger": self.name.encode()}
        if cursor is not None:
            found["pulsar/cursor"] = cursor.encode()
        return found

    async def delete_orphans(self, *ledger_ids: int) -> None:
        """Delete ledgers that nothing refers to. What fails is kept for the next call: leaked at worst, never lost."""
        self.orphans.extend(ledger_ids)
        for ledger_id in list(self.orphans):
            self.reader.forget(ledger_id)
            cached = self.caches.pop(ledger_id, None)
            if cached is not None:
                cached.detach()
            if (
                await _deleted(self.client, ledger_id) and ledger_id in self.orphans
            ):  # another call may have been faster
                self.orphans.remove(ledger_id)


async def _deleted(client: LedgerClient, ledger_id: int) -> bool:
    try:
        await client.delete_ledger(ledger_id)
    except NoSuchLedgerError:
        return True
    except MagnetarError:
        return False
    return True
