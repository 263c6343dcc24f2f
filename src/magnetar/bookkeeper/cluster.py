"""A BookKeeper cluster's own nodes: its layout, its instance id and its bookies' cookies, with BookKeeper's bytes."""

from __future__ import annotations

import random
import uuid
from typing import Final

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.bookkeeper.errors import ClusterLayoutError
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore

LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
"""Layout format 2; ledgers lie at `NN/NNNN/LNNNN`, and in the long form above 2^31-1."""

_SUPPORTED: Final = ("org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",)


async def initialize_cluster(metadata: MetadataStore, rng: random.Random) -> str:
    """Make the nodes that are missing, in any order that others may do the same in; answers the instance id.

    Raises ClusterLayoutError when there is a cluster with a layout that is not supported.
    """
    if await metadata.exists(paths.LAYOUT_PATH):
        await check_layout(metadata)
    for path in (paths.LEDGERS_ROOT, paths.AVAILABLE_BOOKIES_PATH, paths.READ_ONLY_BOOKIES_PATH):
        await _create(metadata, path, b"")
    fresh = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    await _create(metadata, paths.INSTANCE_ID_PATH, fresh.encode())
    await _create(metadata, paths.LAYOUT_PATH, LAYOUT)
    return await instance_id(metadata)


async def instance_id(metadata: MetadataStore) -> str:
    """The cluster's id, which every cookie carries. Raises ClusterLayoutError when there is no cluster."""
    node = await metadata.get(paths.INSTANCE_ID_PATH)
    if node is None:
        raise ClusterLayoutError(
            f"the metadata store has no {paths.INSTANCE_ID_PATH}, so it is empty or not a cluster's: correct the metadata URL, or "
            "restore the store from a copy; a new cluster is made by the start of its first bookie, with empty directories"
        )
    return node.value.decode()


async def check_layout(metadata: MetadataStore) -> None:
    """Raises ClusterLayoutError unless ledgers lie where this release looks for them."""
    node = await metadata.get(paths.LAYOUT_PATH)
    text = "" if node is None else node.value.decode(errors="replace")
    form, _, manager = text.partition("\n")
    if form != "2" or manager.partition(":")[0] not in _SUPPORTED:
        raise ClusterLayoutError(
            f"{paths.LAYOUT_PATH} says {text!r}; only the hierarchical ledger manager is supported: "
            "use a cluster with ledgerManagerFactoryClass=HierarchicalLedgerManagerFactory"
        )


class MetadataCookies:
    """The `CookieStore` of a bookie: text nodes below `/ledgers/cookies`, as BookKeeper writes them."""

    def __init__(self, metadata: MetadataStore, *, adopts_unmarked: bool = False) -> None:
        self._metadata = metadata
        self.adopts_unmarked = adopts_unmarked

    async def read(self, bookie_id: str) -> bytes | None:
        node = await self._metadata.get(paths.cookie_path(bookie_id))
        return None if node is None else node.value

    async def write(self, bookie_id: str, cookie: bytes, replaced: bytes | None = None) -> None:
        """Raises BadVersionError when the bookie has another cookie than `replaced`."""
        path, expected = paths.cookie_path(bookie_id), MUST_NOT_EXIST
        if replaced is not None:
            node = await self._metadata.get(path)
            if node is None or node.value != replaced:
                raise BadVersionError(f"the cookie of {bookie_id} was changed by somebody else")
            expected = node.version
        try:
            await self._metadata.put(path, cookie, expected)
        except BadVersionError:
            if await self.read(bookie_id) != cookie:  # our own write may have lost its answer
                raise

    async def delete(self, bookie_id: str) -> None:
        """After its entries have been re-replicated: the id may be used by an empty bookie. A missing cookie is fine."""
        try:
            await self._metadata.delete(paths.cookie_path(bookie_id))
        except NodeNotFoundError:
            return

    async def bookie_ids(self) -> list[str]:
        """Every bookie that ever belonged to the cluster, sorted."""
        return await self._metadata.children(paths.COOKIES_PATH)


async def _create(metadata: MetadataStore, path: str, value: bytes) -> None:
    try:
        await metadata.put(path, value, MUST_NOT_EXIST)
    except BadVersionError:
        return
