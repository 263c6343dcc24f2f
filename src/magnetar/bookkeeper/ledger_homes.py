"""Whether a bookie still belongs to a ledger's homes, from the ledger's metadata: for its collection of superfluous copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf import text_format

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.wire.bookkeeper.DataFormats_pb2 import LockDataFormat


class MetadataLedgerHomes:
    """Implements `LedgerHomes` for one bookie."""

    def __init__(self, metadata: MetadataStore, bookie_id: str) -> None:
        self._metadata = metadata
        self._manager = LedgerManager(metadata)
        self._bookie_id = bookie_id
        self._lock_data = text_format.MessageToString(LockDataFormat(bookieId=bookie_id)).encode()

    async def stored_elsewhere(self, ledger_id: int) -> bool:
        """A ledger that is gone is not elsewhere: the ordinary collection decides about it."""
        try:
            metadata, _ = await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return False
        closed = metadata.state is LedgerState.CLOSED
        return closed and all(self._bookie_id not in segment.ensemble for segment in metadata.segments)

    @asynccontextmanager
    async def lock(self, ledger_id: int) -> AsyncIterator[bool]:
        """The node that replication workers take too, whether or not the ledger is marked."""
        path = paths.underreplication_lock_path(ledger_id)
        try:
            await self._metadata.put(path, self._lock_data, MUST_NOT_EXIST, ephemeral=True)
        except BadVersionError:
            yield False
            return
        try:
            yield True
        finally:
            try:
                await self._metadata.delete(path)
            except NodeNotFoundError:
                pass  # the session has ended, and the lock with it
