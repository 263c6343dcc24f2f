"""Whether a bookie still belongs to a ledger's homes, from the ledger's metadata: for its collection of superfluous copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
        self._left_behind: set[int] = set()
        """Ledgers whose lock may still be there: an answer was lost. Unlocked on the next occasion."""
        # Not the bare id: a replication worker in the same process would take the lock for its own.
        self._lock_data = text_format.MessageToString(LockDataFormat(bookieId=f"{bookie_id} (collection)")).encode()

    async def stored_elsewhere(self, ledger_id: int) -> bool:
        """A ledger that is gone is not elsewhere: the ordinary collection decides about it."""
        for left in sorted(self._left_behind):
            await self._unlock(left)
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
        self._left_behind.add(ledger_id)
        try:
            await self._metadata.put(path, self._lock_data, MUST_NOT_EXIST, ephemeral=True)
        except BadVersionError:
            self._left_behind.discard(ledger_id)
            yield False
            return
        try:
            yield True
        finally:
            await self._unlock(ledger_id)

    async def _unlock(self, ledger_id: int) -> None:
        """Delete the lock if it is ours: with a lost session it went, and may be somebody else's now."""
        path = paths.underreplication_lock_path(ledger_id)
        node = await self._metadata.get(path)
        if node is not None and node.owner == self._metadata.session_id and node.value == self._lock_data:
            with suppress(NodeNotFoundError, BadVersionError):
                await self._metadata.delete(path, node.version)
        self._left_behind.discard(ledger_id)
