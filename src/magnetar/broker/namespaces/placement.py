"""Which broker shall serve a bundle that nobody serves: asked of the leader, or of any broker while there is no leader."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.owners import OwnerIndex
from magnetar.broker.naming import NamespaceName


class Placement(Protocol):
    """Decides; taking the bundle is up to the broker that is chosen."""

    async def choose(self, namespace: NamespaceName, bundle: str, excluded: Collection[str] = ()) -> str | None:
        """Id (`host:httpPort`) of a live broker for `bundle` (`0x..._0x...`); None when there is none besides `excluded`.

        `excluded`: brokers that do not answer although they are still registered, or that are about to go.
        """
        ...


class LeastBundles:
    """The live broker with the fewest bundles; among equals any, so that leaders of the same moment do not agree by accident."""

    def __init__(self, owners: OwnerIndex, brokers: BrokerDirectory, rng: random.Random) -> None:
        self._owners = owners
        self._brokers = brokers
        self._rng = rng

    async def choose(self, namespace: NamespaceName, bundle: str, excluded: Collection[str] = ()) -> str | None:
        candidates = [broker for broker in await self._brokers.live() if broker not in excluded]
        if not candidates:
            return None
        counts = Counter(owner.broker_id for owner in (await self._owners.all()).values())
        fewest = min(counts[broker] for broker in candidates)
        return self._rng.choice([broker for broker in candidates if counts[broker] == fewest])
