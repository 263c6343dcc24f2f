"""Storage of schemas, with Pulsar's paths and bytes. A locator in the metadata store names the ledger of each version.

Entries never change once written, so what was read once is kept (`SCHEMA_CACHE_BYTES_MAX`); the locator is read every time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.base.clock import Clock
from magnetar.base.errors import CorruptionError, LedgerError, MagnetarError, NodeNotFoundError
from magnetar.base.limits import BYTES_PER_READ_MAX
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.broker.schemas.types import Schema, SchemaId, SchemaType, StoredSchema
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.wire.pulsar.SchemaStorage_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator

SCHEMA_CACHE_BYTES_MAX = 16 * 1024 * 1024
"""Definitions kept in memory over all topics: the least recently used go first and are read from their ledgers again."""

DELETION_HASH = b""
"""The hash of a version that stands for a deletion."""

_NUMBERS = frozenset(SchemaType)


@dataclass(frozen=True, slots=True)
class Quorum:
    """The quorum of schema ledgers."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All versions of one topic, the oldest first, and the locator's own version in the metadata store."""

    entries: tuple[IndexEntry, ...] = ()
    node_version: int = MUST_NOT_EXIST

    @property
    def living(self) -> tuple[IndexEntry, ...]:
        """The versions since the last deletion."""
        start = max((index + 1 for index, entry in enumerate(self.entries) if entry.hash == DELETION_HASH), default=0)
        return self.entries[start:]

    @property
    def next_version(self) -> int:
        return self.entries[-1].version + 1 if self.entries else 0


def hash_of(schema: Schema | None) -> bytes:
    """The hash of a version in the locator; a fixed one for a deletion (None)."""
    return DELETION_HASH if schema is None else hashlib.sha256(schema.data).digest()


class SchemaStorage:
    """Reads and writes versions; which ones there should be is the registry's business."""

    def __init__(self, metadata: MetadataStore, ledgers: BookKeeperClient, clock: Clock, quorum: Quorum) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._clock = clock
        self._quorum = quorum
        self._cache: OrderedDict[int, StoredSchema] = OrderedDict()
        self._cached_bytes = 0

    async def catalogue(self, schema_id: SchemaId) -> Catalogue:
        """The locator; empty when there has never been a schema. Raises CorruptionError."""
        node = await self._metadata.get(schema_id.path)
        if node is None:
            return Catalogue()
        if not node.value:  # a parent made on the way to another node
            return Catalogue(node_version=node.version)
        try:
            return Catalogue(tuple(SchemaLocator.FromString(node.value).index), node.version)
        except ValueError:
            raise CorruptionError(f"{schema_id.path} is not a schema locator") from None

    async def append(self, schema_id: SchemaId, catalogue: Catalogue, schema: Schema | None) -> int:
        """The number of the new version, a deletion for None. Raises BadVersionError when somebody else was faster, LedgerError."""
        stored = StoredSchema(
            catalogue.next_version, schema or Schema(SchemaType.NONE), self._clock.now_ms(), deleted=schema is None
        )
        entry = SchemaEntry(schema_data=_encode(schema_id, stored).SerializeToString(), index=catalogue.entries)
        ledger_id, entry_id = await self._write(schema_id, entry.SerializeToString())
        added = IndexEntry(version=stored.version, hash=hash_of(schema))
        added.position.ledgerId, added.position.entryId = ledger_id, entry_id
        locator = SchemaLocator(info=added, index=[*catalogue.entries, added])
        try:
            await self._metadata.put(schema_id.path, locator.SerializeToString(), catalogue.node_version)
        except MagnetarError:
            await self._ledgers.delete_ledger(ledger_id)
            raise
        self._keep(ledger_id, stored)
        return stored.version

    async def read(self, entry: IndexEntry) -> StoredSchema:
        """Raises LedgerError, CorruptionError."""
        ledger_id = entry.position.ledgerId
        known = self._cache.get(ledger_id)
        if known is not None:
            self._cache.move_to_end(ledger_id)
            return known
        data = await self._read(ledger_id, entry.position.entryId)
        try:
            info = SchemaInfo.FromString(SchemaEntry.FromString(data).schema_data)
        except ValueError:
            raise CorruptionError(f"ledger {ledger_id} holds no schema") from None
        stored = _decode(entry.version, info)
        self._keep(ledger_id, stored)
        return stored

    async def remove(self, schema_id: SchemaId, catalogue: Catalogue) -> None:
        """The locator, then the ledgers: nothing refers to what is gone. Raises BadVersionError."""
        if catalogue.node_version == MUST_NOT_EXIST:
            return
        try:
            await self._metadata.delete(schema_id.path, catalogue.node_version)
        except NodeNotFoundError:
            return
        for entry in catalogue.entries:
            await self._ledgers.delete_ledger(entry.position.ledgerId)
            self._forget(entry.position.ledgerId)

    # ---- Ledgers

    async def _write(self, schema_id: SchemaId, data: bytes) -> tuple[int, int]:
        """Ledger id and entry id of a ledger that is closed when this returns."""
        writer = await self._ledgers.create_ledger(
            ensemble_size=self._quorum.ensemble_size,
            write_quorum=self._quorum.write_quorum,
            ack_quorum=self._quorum.ack_quorum,
            custom_metadata={
                "application": b"pulsar",
                "component": b"schema",
                "pulsar/schemaId": schema_id.text.encode(),
            },
        )
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def added(error: LedgerError | None) -> None:
            if stored.done():
                return
            if error is None:
                stored.set_result(None)
            else:
                stored.set_exception(error)

        try:
            entry_id = writer.append(data, added)
            await stored
            await writer.close()
        except MagnetarError:
            await self._ledgers.delete_ledger(writer.ledger_id)
            raise
        return writer.ledger_id, entry_id

    async def _read(self, ledger_id: int, entry_id: int) -> bytes:
        reader = await self._ledgers.open_ledger(ledger_id, recover=False)
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def done(error: MagnetarError | None, payloads: Sequence[bytes]) -> None:
            if found.done():
                return
            if error is None:
                found.set_result(payloads[0])
            else:
                found.set_exception(error)

        try:
            reader.read(entry_id, entry_id, BYTES_PER_READ_MAX, done)
            return await found
        finally:
            await reader.close()

    # ---- Cache

    def _keep(self, ledger_id: int, stored: StoredSchema) -> None:
        self._forget(ledger_id)
        self._cache[ledger_id] = stored
        self._cached_bytes += len(stored.schema.data)
        while self._cached_bytes > SCHEMA_CACHE_BYTES_MAX:
            self._forget(next(iter(self._cache)))

    def _forget(self, ledger_id: int) -> None:
        stored = self._cache.pop(ledger_id, None)
        if stored is not None:
            self._cached_bytes -= len(stored.schema.data)


def _encode(schema_id: SchemaId, stored: StoredSchema) -> SchemaInfo:
    return SchemaInfo(
        schema_id=schema_id.text,
        user="",
        type=max(stored.schema.type, SchemaType.NONE) + 1,
        schema=stored.schema.data,
        timestamp=stored.timestamp_ms,
        deleted=stored.deleted,
        props=[SchemaInfo.KeyValuePair(key=key, value=value) for key, value in stored.schema.properties.items()],
    )


def _decode(version: int, info: SchemaInfo) -> StoredSchema:
    number = info.type - 1
    schema = Schema(
        SchemaType(number) if number in _NUMBERS else SchemaType.NONE,
        info.schema,
        {pair.key: pair.value for pair in info.props},
    )
    return StoredSchema(version, schema, info.timestamp, info.deleted)
