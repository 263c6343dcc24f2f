"""Ledger metadata in the metadata store: ids, create, read, compare-and-set, delete (BookKeeper meta/HierarchicalLedgerManager)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from magnetar.base.errors import BadVersionError, InvalidArgumentError, MetadataError, NodeNotFoundError
from magnetar.bookkeeper.errors import (
    LedgerExistsError,
    LedgerIdsSetBackError,
    LedgerMetadataError,
    NoSuchLedgerError,
)
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata import paths
from magnetar.metadata.errors import MetadataConnectionError, NodeHasChildrenError
from magnetar.metadata.lost_answers import delete_or_look
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

ID_COLLISIONS_MAX = 100
"""Fresh ids that turn out to be taken before `create` gives up: only a foreign or restored tree has any."""

RAISED_TOGETHER: Final = 500
"""Ids taken at a time by `raise_ids`."""


class LedgerManager:
    """Speaks `LedgerMetadata` where the store speaks bytes."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._store = metadata
        self._high_bits = 0
        """Upper part of the ids that are handed out; 0 while the ten-digit ones last."""

    async def create(self, metadata: LedgerMetadata) -> tuple[int, int]:
        """Store a new ledger under a fresh id; answers (ledger id, version)."""
        data = metadata.to_bytes()
        for _ in range(ID_COLLISIONS_MAX):
            ledger_id, id_node = await self._next_id()
            try:
                _, version = await self._store.put(paths.ledger_path(ledger_id), data, MUST_NOT_EXIST)
                return ledger_id, version
            except (BadVersionError, MetadataConnectionError):
                # Our own create may have been done although its answer was lost: the token tells.
                existing = await self._store.get(paths.ledger_path(ledger_id))
                if existing is not None and _is_same(LedgerMetadata.from_bytes(existing.value), metadata):
                    return ledger_id, existing.version
            finally:
                await self._drop(id_node)
        raise LedgerExistsError(f"{ID_COLLISIONS_MAX} fresh ledger ids were taken already; the id counter was set back")

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """(metadata, version). Raises NoSuchLedgerError only when the store says that there is no such node."""
        node = await self._store.get(paths.ledger_path(ledger_id))
        if node is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return LedgerMetadata.from_bytes(node.value), node.version

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
        """Compare-and-set; answers the new version. Raises BadVersionError when somebody else wrote or deleted it."""
        _, written = await self._store.put(paths.ledger_path(ledger_id), metadata.to_bytes(), version)
        return written

    async def exists(self, ledger_id: int) -> bool:
        return await self._store.exists(paths.ledger_path(ledger_id))

    async def must_keep(self, ledger_id: int) -> bool:
        """Whether bookies may not collect the ledger: it exists, or it may be one that was made between a backup of the metadata and its
        restore, and that nobody has given up yet (`magnetar metadata restored --release`)."""
        if await self.exists(ledger_id):
            return True
        return any(first <= ledger_id <= last for first, last in await self.restored_ranges())

    async def restored_ranges(self) -> list[tuple[int, int]]:
        """(first, last) ids of the ledgers that the metadata may have lost by a restore. Raises LedgerMetadataError."""
        node = await self._store.get(paths.RESTORED_PATH)
        if node is None:
            return []
        try:
            return [(int(note["firstLedgerId"]), int(note["lastLedgerId"])) for note in json.loads(node.value)]
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerMetadataError(
                f"{paths.RESTORED_PATH} has a wrong form: {error}; nothing is collected until it is deleted"
            ) from error

    async def adopt(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Store the metadata of a ledger whose entries bookies hold already. Raises LedgerExistsError."""
        try:
            await self._store.put(paths.ledger_path(ledger_id), metadata.to_bytes(), MUST_NOT_EXIST)
        except BadVersionError:
            raise LedgerExistsError(f"ledger {ledger_id} exists; it needs nothing") from None

    async def release_restored(self) -> None:
        """Bookies may collect what the metadata has lost by restores."""
        with suppress(NodeNotFoundError):
            await self._store.delete(paths.RESTORED_PATH)

    async def list_ids(self) -> list[int]:
        """Every ledger there is: what a bookie's garbage collection compares itself with."""
        found: list[int] = []
        await self._list_below(paths.LEDGERS_ROOT, found)
        return found

    async def _list_below(self, path: str, found: list[int]) -> None:
        for name in await self._store.children(path):
            if name.isdigit():
                await self._list_below(f"{path}/{name}", found)
            elif name.startswith("L") and name[1:].isdigit():
                found.append(paths.ledger_id_of_path(f"{path}/{name}"))

    async def delete(self, ledger_id: int) -> None:
        """Delete whatever version is there, and the directories that become empty. A missing ledger is fine."""
        path = paths.ledger_path(ledger_id)
        try:
            await delete_or_look(self._store, path)
        except NodeNotFoundError:
            return
        parent = path.rpartition("/")[0]
        while parent != paths.LEDGERS_ROOT:
            try:
                await self._store.delete(parent)
            except (NodeHasChildrenError, NodeNotFoundError):
                return
            parent = parent.rpartition("/")[0]

    async def check_ids(self, held: Collection[int]) -> None:
        """Compare the next id with the ledgers that a bookie holds, or has held: it is above all of them that the store ever made.

        Ids may also be given by clients (LedgerHandleAdv): those that the store knows are not a conflict. Raises LedgerIdsSetBackError.
        """
        next_id, node = await self._next_id()
        await self._drop(node)
        for ledger_id in sorted(held, reverse=True):
            if ledger_id < next_id or (ledger_id >= paths.SHORT_LEDGER_ID_LIMIT > next_id):
                continue
            if not await self.exists(ledger_id):
                raise LedgerIdsSetBackError(
                    f"the metadata store gives the next ledger the id {next_id}, and this bookie holds ledger {ledger_id}, which the "
                    "store does not know: it has lost commits, or is an older copy. Restore the newest copy of it. To go on "
                    f"without what is missing, raise its ids: magnetar metadata raise-ledger-ids {ledger_id}"
                )

    async def raise_ids(self, above: int) -> None:
        """Hand out no ids up to `above` any more. Raises InvalidArgumentError for ids that a counter does not reach."""
        if not 0 <= above < paths.SHORT_LEDGER_ID_LIMIT - 1:
            raise InvalidArgumentError(f"ledger id {above}: take 0 to {paths.SHORT_LEDGER_ID_LIMIT - 2}")
        while True:
            next_id, node = await self._next_id()
            await self._drop(node)
            if next_id > above:
                return
            count = min(RAISED_TOGETHER, above - next_id)
            taken = await asyncio.gather(*(self._next_id() for _ in range(count)))
            await asyncio.gather(*(self._drop(node) for _, node in taken))

    async def _drop(self, id_node: str) -> None:
        """The ledger counts, not the node that reserved its id: that one goes with the session at the latest."""
        try:
            await self._store.delete(id_node)
        except MetadataError:
            return

    async def _next_id(self) -> tuple[int, str]:
        """(id, the ephemeral node that reserved it: to be deleted once the ledger exists)."""
        if self._high_bits == 0:
            node, _ = await self._store.put(paths.LEDGER_ID_PREFIX, b"", ephemeral=True, sequential=True)
            if paths.sequence_of(node) < paths.SHORT_LEDGER_ID_LIMIT:
                return paths.sequence_of(node), node
            await self._store.delete(node)
            self._high_bits = await self._highest_high_bits()
        while True:
            prefix = paths.long_ledger_id_prefix(self._high_bits)
            node, _ = await self._store.put(prefix, b"", ephemeral=True, sequential=True)
            if paths.sequence_of(node) < paths.SHORT_LEDGER_ID_LIMIT:
                return self._high_bits << 32 | paths.sequence_of(node), node
            await self._store.delete(node)
            self._high_bits += 1

    async def _highest_high_bits(self) -> int:
        names = await self._store.children(paths.LONG_LEDGER_ID_PARENT)
        return max((paths.sequence_of(name) for name in names), default=1)


def _is_same(existing: LedgerMetadata, created: LedgerMetadata) -> bool:
    """Without a token (0) nobody can say."""
    return created.c_token != 0 and existing.c_token == created.c_token
