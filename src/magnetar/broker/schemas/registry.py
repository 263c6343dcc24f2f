"""The schema registry of one broker: versions of a topic's schema, which ones may follow, and lookups. Control plane only.

Pulsar's rules: a schema that is there already keeps its version; a new one is checked against the latest version since the last
deletion, or against all of them. A deletion is a version, too: nothing from before it can be read any more, and whoever asks for the
latest schema is told that it is NONE.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from magnetar.base.errors import BadVersionError
from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.naming import NamespaceName
from magnetar.broker.schemas.compatibility import (
    Strategy,
    check_pair,
    consumer_strategy,
    fingerprint,
    validate,
)
from magnetar.broker.schemas.storage import Catalogue, SchemaStorage, hash_of
from magnetar.broker.schemas.types import SCHEMALESS, InvalidSchemaError, Schema, SchemaId, StoredSchema
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore
from magnetar.wire.pulsar.SchemaStorage_pb2 import IndexEntry

VERSIONS_MAX = 1000
"""Versions of one topic's schema; more are refused until it is deleted with force. Each is a ledger, and strategies may read all."""


class SchemaRegistry:
    """All calls may raise LedgerError or MetadataError of the storage."""

    def __init__(self, storage: SchemaStorage, metadata: MetadataStore, *, json_schemas: bool = False) -> None:
        """`json_schemas`: see `validate`."""
        self._storage = storage
        self._metadata = metadata
        self._json_schemas = json_schemas
        self._busy: dict[SchemaId, asyncio.Future[None]] = {}

    # ---- Lookups

    async def latest(self, schema_id: SchemaId) -> StoredSchema | None:
        """None when there is no schema, or it was deleted."""
        living = (await self._storage.catalogue(schema_id)).living
        return await self._storage.read(living[-1]) if living else None

    async def latest_or_deletion(self, schema_id: SchemaId) -> StoredSchema | None:
        """As `latest`, but the deletion itself, of type NONE, where that is the last version."""
        entries = (await self._storage.catalogue(schema_id)).entries
        return await self._storage.read(entries[-1]) if entries else None

    async def version(self, schema_id: SchemaId, version: int) -> StoredSchema | None:
        """One version since the last deletion; None for any other."""
        living = (await self._storage.catalogue(schema_id)).living
        entry = next((entry for entry in living if entry.version == version), None)
        return await self._storage.read(entry) if entry is not None else None

    async def living(self, schema_id: SchemaId) -> list[StoredSchema]:
        """The versions since the last deletion, the oldest first."""
        return await self._read_all((await self._storage.catalogue(schema_id)).living)

    async def exists(self, schema_id: SchemaId) -> bool:
        return bool((await self._storage.catalogue(schema_id)).living)

    async def catalogue(self, schema_id: SchemaId) -> Catalogue:
        """The places of the versions."""
        return await self._storage.catalogue(schema_id)

    async def find(self, schema_id: SchemaId, schema: Schema) -> int | None:
        """The version under which this very schema lives."""
        self._check_storable(schema)
        return await self._find((await self._storage.catalogue(schema_id)).living, schema)

    # ---- Changes

    async def put(self, schema_id: SchemaId, schema: Schema, strategy: Strategy, *, may_add: bool = True) -> int:
        """The version of `schema`, a new one unless it lives already. Raises IncompatibleSchemaError, InvalidSchemaError."""
        self._check_storable(schema)
        while True:
            async with self._exclusive(schema_id):
                catalogue = await self._storage.catalogue(schema_id)
                known = await self._find(catalogue.living, schema)
                if known is not None:
                    return known
                if not may_add:
                    raise IncompatibleSchemaError("Schema not found and schema auto updating is disabled.")
                await self._check(schema, catalogue.living, strategy)
                if len(catalogue.entries) >= VERSIONS_MAX:
                    raise IncompatibleSchemaError(
                        f"the topic's schema has {VERSIONS_MAX} versions; delete it with force to start again"
                    )
                try:
                    return await self._storage.append(schema_id, catalogue, schema)
                except BadVersionError:
                    continue  # another broker added one: look again

    async def delete(self, schema_id: SchemaId, *, force: bool = False) -> int | None:
        """Add a deletion; with `force` remove all versions, so that they count from 0 again. Either makes messages that carry them
        unreadable to consumers that look their schema up.

        The version of the deletion, or of the last one removed; None when there has never been a schema.
        """
        while True:
            async with self._exclusive(schema_id):
                catalogue = await self._storage.catalogue(schema_id)
                if not catalogue.entries:
                    return None
                try:
                    if force:
                        await self._storage.remove(schema_id, catalogue)
                        return catalogue.entries[-1].version
                    return await self._storage.append(schema_id, catalogue, None)
                except BadVersionError:
                    continue

    async def delete_namespace(self, name: NamespaceName) -> None:
        """Every schema of a namespace that goes, those of topics without messages as well."""
        parent = f"{paths.SCHEMAS_PATH}/{name.tenant}/{name.namespace}"
        for child in await self._metadata.children(parent):
            await self.delete(SchemaId(name.tenant, name.namespace, paths.decode(child)), force=True)

    # ---- Checks

    async def check_consumer(self, schema_id: SchemaId, schema: Schema, strategy: Strategy) -> None:
        """Check that a consumer that expects `schema` can read the topic. Raises IncompatibleSchemaError, InvalidSchemaError."""
        self._check_storable(schema)
        living = (await self._storage.catalogue(schema_id)).living
        if not living:
            raise IncompatibleSchemaError("Topic does not have schema to check")
        if strategy is Strategy.ALWAYS_INCOMPATIBLE and await self._find(living, schema) is not None:
            return
        await self._check(schema, living, consumer_strategy(strategy))

    async def is_compatible(self, schema_id: SchemaId, schema: Schema, strategy: Strategy) -> bool:
        """True if `put` would accept the schema. Raises InvalidSchemaError."""
        self._check_storable(schema)
        living = (await self._storage.catalogue(schema_id)).living
        try:
            if await self._find(living, schema) is None:
                await self._check(schema, living, strategy)
        except InvalidSchemaError:
            raise
        except IncompatibleSchemaError:
            return False
        return True

    async def _check(self, schema: Schema, living: Sequence[IndexEntry], strategy: Strategy) -> None:
        if strategy is Strategy.ALWAYS_COMPATIBLE:
            return
        wanted = living if strategy.transitive else living[-1:]
        for entry in wanted:
            check_pair(schema, (await self._storage.read(entry)).schema, strategy)
            await asyncio.sleep(0)  # each check is bounded; a thousand of them must not keep messages waiting

    async def _find(self, living: Sequence[IndexEntry], schema: Schema) -> int | None:
        """Byte for byte first, which reads only what looks equal; then by meaning."""
        wanted, digest = fingerprint(schema), hash_of(schema)
        for exact in (True, False):
            for entry in living:
                await asyncio.sleep(0)  # as in `_check`
                if (entry.hash == digest) is exact:
                    stored = (await self._storage.read(entry)).schema
                    if stored.type is schema.type and fingerprint(stored) == wanted:
                        return entry.version
        return None

    async def _read_all(self, entries: Sequence[IndexEntry]) -> list[StoredSchema]:
        return [await self._storage.read(entry) for entry in entries]

    def _check_storable(self, schema: Schema) -> None:
        """Raises InvalidSchemaError for a type that cannot be stored or a malformed definition."""
        if schema.type in SCHEMALESS:
            raise InvalidSchemaError(f"a schema of type {schema.type.name} cannot be stored")
        validate(schema, json_schemas=self._json_schemas)

    @asynccontextmanager
    async def _exclusive(self, schema_id: SchemaId) -> AsyncIterator[None]:
        """One change of a topic's schema at a time: many producers start at once with the same new one."""
        while schema_id in self._busy:
            await asyncio.wait([self._busy[schema_id]])
        mine = self._busy[schema_id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._busy[schema_id]
            mine.set_result(None)
