"""The vnode mapping of a pipeline in a metadata store: the one that is wanted, versioned, changed by compare-and-set.

The mapping in effect is the manifest's, since it must change together with everything else of an epoch. With a store, whoever rescales
writes there, from any machine, and the driver follows; without one the request goes to the driver and the manifest is all there is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.hashing.mapping import VnodeMapping
from magnetar.metadata.paths import PIPELINES_PATH, encode
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.pipeline.errors import CatalogError

NODE: Final = "vnode-mapping"


class StoredMapping(NamedTuple):
    """A mapping and the version of its node, which a change has to name."""

    mapping: VnodeMapping
    node_version: int


class MappingStore:
    """One pipeline's mapping."""

    def __init__(self, store: MetadataStore, pipeline: str) -> None:
        self._store = store
        self._pipeline = pipeline
        self.path = f"{PIPELINES_PATH}/{encode(pipeline)}/{NODE}"

    async def read(self) -> StoredMapping | None:
        """None before the first driver published one. HashingError for something else than a mapping."""
        node = await self._store.get(self.path)
        return None if node is None else StoredMapping(VnodeMapping.from_json(node.value.decode()), node.version)

    async def publish(self, mapping: VnodeMapping) -> StoredMapping:
        """The first one; when there is one already that one is returned. BadVersionError when two publish at once."""
        known = await self.read()
        if known is not None:
            return known
        _, version = await self._store.put(self.path, mapping.to_json().encode(), MUST_NOT_EXIST)
        return StoredMapping(mapping, version)

    async def change(self, known: StoredMapping, units: int) -> StoredMapping:
        """The mapping of least movement for so many units. BadVersionError when somebody else changed it since `known` was read."""
        return await self.replace(known, known.mapping.rescale(units))

    async def replace(self, known: StoredMapping, mapping: VnodeMapping) -> StoredMapping:
        """Write another mapping. BadVersionError as `change`."""
        _, version = await self._store.put(self.path, mapping.to_json().encode(), known.node_version)
        return StoredMapping(mapping, version)

    async def rescale(self, units: int) -> StoredMapping:
        """Read and change. CatalogError when no driver has published one yet, BadVersionError when somebody else was faster."""
        known = await self.read()
        if known is None:
            raise CatalogError(
                f"the metadata store knows no pipeline {self._pipeline}; it is published there by `run --metadata`"
            )
        return known if len(known.mapping.units) == units else await self.change(known, units)
