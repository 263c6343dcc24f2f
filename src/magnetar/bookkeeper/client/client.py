"""Ledgers: create, open (with or without taking them over), delete."""

from __future__ import annotations

import asyncio
import hmac
import random
from collections.abc import Mapping

from magnetar.base.clock import Clock
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.config import DEFAULT_CONFIG, ClientConfig
from magnetar.bookkeeper.client.context import ClientContext
from magnetar.bookkeeper.client.last_confirmed import LastConfirmedRead
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.client.ledger_source import LedgerSource
from magnetar.bookkeeper.client.range_read import length_up_to
from magnetar.bookkeeper.client.reader import LedgerReader
from magnetar.bookkeeper.client.recovery import recover as recover_ledger
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.client.writer import LedgerWriter
from magnetar.bookkeeper.entry_format import DigestType
from magnetar.bookkeeper.errors import LedgerRecoveryError, LedgerUnauthorizedError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar.bookkeeper.quorum import check_quorum
from magnetar.metadata.store import MetadataStore

OPEN_TIMEOUT_S = 30.0
"""Opening a ledger whose bookies keep it waiting for longer fails with LedgerRecoveryError; opening it again continues a recovery."""

_C_TOKEN_BITS = 63

_OWN_PASSWORD = b"magnetar-ledger-"
"""Begins the passwords of ledgers for which nobody gave one: no secret, and another one in each life of a ledger id."""


class BookKeeperClient:
    """`metadata` holds the ledgers' metadata, `bookies` their entries; `rng` picks ensembles and creation tokens; `scope` runs the
    ensemble changes of its writers and must not end before they are closed."""

    def __init__(
        self,
        metadata: MetadataStore,
        bookies: BookieDirectory,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
        config: ClientConfig = DEFAULT_CONFIG,
    ) -> None:
        self._manager = LedgerManager(metadata)
        self._bookies = bookies
        self._clock = clock
        self._rng = rng
        self.statistics = ClientStatistics()
        self._context = ClientContext(self._manager, bookies, clock, rng, scope, config, self.statistics)

    @property
    def bookies(self) -> BookieDirectory:
        """The bookies that it writes to and reads from."""
        return self._bookies

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 1,
        write_quorum: int = 1,
        ack_quorum: int = 1,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> LedgerWriter:
        """A new, empty ledger. Raises NotEnoughBookiesError, InvalidArgumentError for impossible quorums.

        Without a `password` it gets `ClientConfig.password`, or one of its own. Bookies know a ledger's key, so those that hold an
        older ledger with this id refuse its entries and its recovery (LedgerUnauthorizedError) instead of mixing the two. The
        metadata holds the password, as BookKeeper's does.
        """
        check_quorum(ensemble_size, write_quorum, ack_quorum)
        at_least = write_quorum if self._context.config.opportunistic_striping else ensemble_size
        ensemble = self._bookies.choose_ensemble(ensemble_size, write_quorum, self._rng, at_least=at_least)
        token = self._rng.getrandbits(_C_TOKEN_BITS)
        password = password or self._context.config.password or _OWN_PASSWORD + b"%016x" % token
        metadata = LedgerMetadata(
            ensemble_size=len(ensemble),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            segments=(Segment(0, ensemble),),
            digest_type=digest_type,
            password=password,
            ctime_ms=self._clock.now_ms(),
            custom_metadata=dict(custom_metadata or {}),
            c_token=token,
        )
        ledger_id, version = await self._manager.create(metadata)
        return LedgerWriter(self._source(ledger_id, metadata, password), version, self._context)

    async def open_ledger(self, ledger_id: int, *, recover: bool, password: bytes = b"") -> LedgerReader:
        """`recover`: fence the writer and close the ledger first, so that every confirmed entry is readable and none follows.

        `password`: not needed when the ledger has one of its own.

        Without `recover`, a ledger that is not closed is readable up to what its bookies know to be confirmed. Raises NoSuchLedgerError,
        LedgerUnauthorizedError, LedgerRecoveryError.
        """
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                return await self._open(ledger_id, recover, password)
        except TimeoutError:
            text = f"ledger {ledger_id}: its bookies did not answer within {OPEN_TIMEOUT_S:g} s; open it again"
            raise LedgerRecoveryError(text) from None

    async def ledger_exists(self, ledger_id: int) -> bool:
        """Whether the metadata store has it; bookies collect the entries of ledgers it does not have."""
        return await self._manager.exists(ledger_id)

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Raises NoSuchLedgerError."""
        metadata, _ = await self._manager.read(ledger_id)
        return metadata

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete the metadata; bookies drop the entries when they notice. Deleting a missing ledger is fine."""
        await self._manager.delete(ledger_id)

    def _source(self, ledger_id: int, metadata: LedgerMetadata, password: bytes) -> LedgerSource:
        return LedgerSource(ledger_id, metadata, password, self._bookies, self._context.config, self.statistics)

    async def _open(self, ledger_id: int, recover: bool, password: bytes) -> LedgerReader:
        metadata, version = await self._manager.read(ledger_id)
        password = password or self._context.config.password
        if metadata.password == b"" or (metadata.password or b"").startswith(_OWN_PASSWORD):
            password = metadata.password or b""
        elif metadata.password is not None and not hmac.compare_digest(metadata.password, password):
            raise LedgerUnauthorizedError(f"ledger {ledger_id} has another password")
        source = self._source(ledger_id, metadata, password)
        if recover and metadata.state is not LedgerState.CLOSED:
            metadata = source.metadata = await recover_ledger(source, version, self._context)
        if metadata.state is LedgerState.CLOSED:
            return LedgerReader(source, self._manager, metadata.last_entry_id, metadata.length)
        lac = await LastConfirmedRead(source, fence=False).run()
        return LedgerReader(source, self._manager, lac, await length_up_to(source, lac))
