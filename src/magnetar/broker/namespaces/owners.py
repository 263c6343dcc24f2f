"""Who serves which bundle, of the whole cluster: a copy of the nodes below `/namespace` that the store's watch keeps true."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.base.errors import MetadataError
from magnetar.broker.namespaces.records import BundleName, Owner, owned_bundles, parse_owner
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore


class OwnerIndex:
    """Reads what has changed when somebody asks. Lookups, which must not be wrong, read the one node instead (`read_owner`)."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._owners: dict[BundleName, Owner] = {}
        self._stale: dict[BundleName, None] = {}
        self._all_stale = True
        self._unwatch = metadata.watch(self._changed, paths.NAMESPACE_OWNERSHIP_PATH)

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        bundle = BundleName.of_path(path)
        if bundle is not None:
            self._stale[bundle] = None
        elif path == RESYNC:
            self._all_stale = True

    async def all(self) -> Mapping[BundleName, Owner]:
        """Every bundle that somebody has."""
        if self._all_stale:
            self._stale |= dict.fromkeys([*self._owners, *await owned_bundles(self._metadata)])
            self._all_stale = False
        while self._stale:
            bundle = next(iter(self._stale))
            del self._stale[bundle]  # before the read: a change meanwhile makes it stale again
            try:
                owner = await read_owner(self._metadata, bundle)
            except MetadataError:
                self._stale[bundle] = None
                raise
            if owner is None:
                self._owners.pop(bundle, None)
            else:
                self._owners[bundle] = owner
        return self._owners

    async def of_broker(self, broker_id: str) -> list[BundleName]:
        """The bundles that a broker has."""
        return [bundle for bundle, owner in (await self.all()).items() if owner.broker_id == broker_id]


async def read_owner(metadata: MetadataStore, bundle: BundleName) -> Owner | None:
    """As the store says it now."""
    node = await metadata.get(bundle.path)
    return None if node is None else parse_owner(node.value, node.owner)
