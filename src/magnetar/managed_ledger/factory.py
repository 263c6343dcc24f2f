"""Opens managed ledgers: one object per name, however many ask at once."""

from __future__ import annotations

import asyncio
import random

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerClosedError, ManagedLedgerNotFoundError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.list_store import LedgerListStore
from magnetar.managed_ledger.ports import LedgerClient
from magnetar.metadata.paths import named_managed_ledger_path
from magnetar.metadata.store import MetadataStore


class ManagedLedgerFactory:
    """`scope` runs rollovers and recoveries; it must outlive `close`. `rng` spreads the age of rollovers. `cache` may be shared
    with other factories.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        client: LedgerClient,
        clock: Clock,
        scope: TaskScope,
        rng: random.Random,
        cache: EntryCache | None = None,
    ) -> None:
        self.cache = cache or EntryCache()
        self._metadata = metadata
        self._client = client
        self._clock = clock
        self._scope = scope
        self._rng = rng
        self._open: dict[str, ManagedLedger] = {}
        self._opening: dict[str, asyncio.Future[ManagedLedger]] = {}
        self._closed = False

    @property
    def ledgers(self) -> dict[str, ManagedLedger]:
        """Open managed ledgers by name."""
        return self._open

    async def open(self, name: str, config: ManagedLedgerConfig | None = None) -> ManagedLedger:
        """`name` is `tenant/namespace/persistent/encoded-topic`. A missing one is created unless `config.create_if_missing` is off.

        An open one is answered as it is. Raises ManagedLedgerNotFoundError, ManagedLedgerFencedError, LedgerError, MetadataError.
        """
        while True:
            if self._closed:
                raise ManagedLedgerClosedError("the managed ledger factory is closed")
            held = self._open.get(name)
            if held is not None:
                return held
            future = self._opening.get(name)
            if future is None:
                future = self._opening[name] = asyncio.get_running_loop().create_future()
                self._scope.spawn(self._open_one(name, config or ManagedLedgerConfig(), future), f"open {name}", FATAL)
            return await asyncio.shield(future)

    async def exists(self, name: str) -> bool:
        return name in self._open or await self._metadata.exists(named_managed_ledger_path(name))

    async def delete(self, name: str) -> None:
        """Delete it with all its data and cursors, open or not. Raises ManagedLedgerNotFoundError."""
        if not await self.exists(name):
            raise ManagedLedgerNotFoundError(f"managed ledger {name} does not exist")
        ledger = await self.open(name)
        await ledger.delete()

    async def close(self) -> None:
        """Close all. Opens under way are waited for."""
        self._closed = True
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        for ledger in list(self._open.values()):
            await ledger.close()

    async def _open_one(self, name: str, config: ManagedLedgerConfig, future: asyncio.Future[ManagedLedger]) -> None:
        store = LedgerListStore(self._metadata, named_managed_ledger_path(name))
        context = LedgerContext(
            name, config, self._metadata, self._client, self._clock, self._scope, self._rng, self.cache, store
        )
        ledger = ManagedLedger(context, self._forget)
        try:
            await ledger.recover()
        except MagnetarError as error:
            del self._opening[name]
            future.set_exception(error)
            future.exception()  # the askers may all have gone; then nobody else looks at it
        except BaseException:
            del self._opening[name]
            future.cancel()
            raise
        else:
            del self._opening[name]
            self._open[name] = ledger
            future.set_result(ledger)

    def _forget(self, ledger: ManagedLedger) -> None:
        if self._open.get(ledger.name) is ledger:
            del self._open[ledger.name]
