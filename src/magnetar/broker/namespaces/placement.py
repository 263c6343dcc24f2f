"""Which broker shall serve a bundle that nobody serves: asked of the leader, or of any broker while there is no leader."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol

from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.owners import OwnerIndex
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.naming import NamespaceName

CHOSEN_MAX: Final = 10_000
"""Choices that are remembered until the bundle was taken; further ones count from then on only."""


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
        self._chosen: dict[BundleName, str] = {}
        """Not taken yet, as far as is known: bundles asked for at the same moment go to different brokers."""

    async def choose(self, namespace: NamespaceName, bundle: str, excluded: Collection[str] = ()) -> str | None:
        candidates = [broker for broker in await self._brokers.live() if broker not in excluded]
        if not candidates:
            return None
        owners = {name: owner.broker_id for name, owner in (await self._owners.all()).items()}
        self._chosen = {name: broker for name, broker in self._chosen.items() if owners.get(name) != broker}
        before = self._chosen.get(BundleName(namespace, bundle))
        if before in candidates:
            return before
        counts = Counter((owners | self._chosen).values())
        fewest = min(counts[broker] for broker in candidates)
        chosen = self._rng.choice([broker for broker in candidates if counts[broker] == fewest])
        if len(self._chosen) < CHOSEN_MAX:
            self._chosen[BundleName(namespace, bundle)] = chosen
        return chosen
