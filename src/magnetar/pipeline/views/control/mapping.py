"""A driver that follows the mapping in a metadata store: whoever changes it there rescales the pipeline, from any machine.

Runs an event loop in a thread of its own, since the driver's threads are Spark's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.errors import MetadataError
from magnetar.base.executor import ThreadExecutor
from magnetar.hashing.mapping import VnodeMapping
from magnetar.metadata.digest_md5 import Credentials
from magnetar.metadata.open import open_store
from magnetar.metadata.paths import PIPELINES_PATH, encode
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore
from magnetar.pipeline.errors import CatalogError

POLL_S: Final = 0.5
"""How soon a change in the store is seen. It is read anew each time: a mapping is a few hundred bytes."""


class SharedMapping:
    """Between `with`: publishes the mapping that the driver begins with, has it follow what others write, and writes what else took effect.

    `rescale` is called from the thread. Entering raises what opening the store raises.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        clock: Clock,
        mapping: VnodeMapping,
        rescale: Callable[[int], None],
        credentials: Credentials | None = None,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._pipeline = pipeline
        self._clock = clock
        self._effect = mapping
        self._rescale = rescale
        self._ended = threading.Event()
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pipeline-mapping", daemon=True)

    def __enter__(self) -> SharedMapping:
        self._thread.start()
        self._opened.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def took_effect(self, mapping: VnodeMapping) -> None:
        """The manifest has this mapping now; the store is to say the same."""
        self._effect = mapping

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            self._failure = error
            self._opened.set()

    async def _follow(self) -> None:
        executor = ThreadExecutor("metadata")
        try:
            store = await open_store(self._url, clock=self._clock, executor=executor, credentials=self._credentials)
            try:
                mappings = MappingStore(store, self._pipeline)
                known = await mappings.publish(self._effect)
                self._opened.set()
                seen = self._effect
                if len(known.mapping.units) != len(seen.units):
                    self._rescale(len(known.mapping.units))
                while not self._ended.is_set():
                    await asyncio.sleep(POLL_S)
                    try:
                        known = await self._compare(mappings, known, seen)
                        seen = self._effect
                    except MetadataError:
                        continue  # the store is away or somebody was faster: look again
            finally:
                await store.close()
        finally:
            executor.close()

    async def _compare(self, mappings: MappingStore, known: StoredMapping, seen: VnodeMapping) -> StoredMapping:
        stored = await mappings.read()
        if stored is None:
            return await mappings.publish(self._effect)
        if stored.node_version != known.node_version:
            self._rescale(len(stored.mapping.units))
            return stored
        effect = self._effect
        if effect is not seen and not same_places(effect, stored.mapping):
            return await mappings.replace(stored, effect)
        return stored


def same_places(one: VnodeMapping, other: VnodeMapping) -> bool:
    """Whether each vnode has the same unit in both."""
    return one.units == other.units and one.owners == other.owners


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
