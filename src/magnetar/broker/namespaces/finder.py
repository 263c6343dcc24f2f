"""Pulsar's lookup: the broker that a client has to connect to, through whichever broker it asks; and where a bundle without an owner goes.

An owned bundle: straight to its owner. One that nobody has: a broker that does not lead sends on to the leader; the leader chooses
and sends on to whom it has chosen, saying that this is authoritative; and that one takes the bundle without asking again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Protocol

from magnetar.base.clock import Clock
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.brokers import BrokerDirectory, Registration
from magnetar.broker.namespaces.leadership import Leadership
from magnetar.broker.namespaces.ownership import OwnerIndex, Ownership, arrival
from magnetar.broker.namespaces.reachability import Reachability
from magnetar.broker.namespaces.records import BrokerAddress, BundleName, Owner
from magnetar.broker.naming import NamespaceName, TopicName

logger = logging.getLogger(__name__)

CHOSEN_MAX: Final = 10_000
"""Choices that are remembered until the bundle was taken; further ones count from then on only."""

PATIENCE_S: Final = 20.0
"""How long a lookup waits for the bundle of a broker that is gone, or leaving; then the client is told to try again. Clients wait 30 s."""

LOOK_AGAIN_S: Final = 1.0
"""Pause after which a waiting lookup tries an owner again that did not answer."""


class Placement(Protocol):
    """Decides which broker shall serve a bundle without an owner; the chosen broker acquires it.

    The leader is asked, or any broker while there is no leader.
    """

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
        """Chosen brokers of bundles that are not acquired yet, as far as known: bundles looked up together go to different brokers."""

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


@dataclass(frozen=True, slots=True)
class Found:
    """`redirect`: ask there again, with this `authoritative`; else connect."""

    address: BrokerAddress
    redirect: bool = False
    authoritative: bool = True


class BrokerFinder:
    """One for each broker."""

    def __init__(
        self,
        *,
        ownership: Ownership,
        brokers: BrokerDirectory,
        registration: Registration,
        leadership: Leadership,
        placement: Placement,
        reachability: Reachability,
        clock: Clock,
    ) -> None:
        self._ownership = ownership
        self._brokers = brokers
        self._registration = registration
        self._leadership = leadership
        self.placement = placement
        self._reachability = reachability
        self._clock = clock

    async def find(self, topic: TopicName, authoritative: bool = False) -> Found:
        """Raises NamespaceNotFoundError, ServiceNotReadyError."""
        ownership = self._ownership
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        while True:
            bundle = await ownership.bundle_of(topic)
            if ownership.serves(bundle):
                return Found(ownership.address)
            with ownership.next_change(bundle) as changed:
                owner = await ownership.owner(bundle)
                found = await (self._place(bundle, authoritative) if owner is None else self._at(bundle, owner))
                if found is not None:
                    return found
                if owner is not None:
                    await self._next_look(changed, bundle, deadline_s)

    async def _next_look(self, changed: asyncio.Future[None], bundle: BundleName, deadline_s: float) -> None:
        """Wait until the bundle's owner changes, or a while: an owner that hung may answer again. Raises ServiceNotReadyError."""
        left_s = max(0.0, deadline_s - self._clock.monotonic_s())
        try:
            await arrival(
                changed,
                f"{bundle} has an owner that is leaving or does not answer; try again",
                min(left_s, LOOK_AGAIN_S),
            )
        except ServiceNotReadyError:
            if left_s <= LOOK_AGAIN_S:
                raise

    async def owner_of(self, bundle: BundleName) -> BrokerAddress | None:
        """The owner of the bundle, or its successor; None if there is neither."""
        owner = await self._ownership.owner(bundle)
        if owner is None or not owner.leaving:
            return None if owner is None else owner.address
        return await self._brokers.get(owner.successor)

    async def _at(self, bundle: BundleName, owner: Owner) -> Found | None:
        """The broker to go to for a bundle with an owner; None: there will be a change soon."""
        ownership = self._ownership
        if owner.leaving:
            successor = await self._brokers.get(owner.successor) if owner.successor else None
            return None if successor is None else Found(successor)
        if owner.broker_id == ownership.broker_id:
            await ownership.take(bundle)
            return Found(ownership.address) if ownership.serves(bundle) else None
        if await self._reachability.away(owner.address):
            return None  # it was killed or hangs: its session will end, or it goes on
        return Found(owner.address)

    async def _place(self, bundle: BundleName, authoritative: bool) -> Found | None:
        """The broker to go to for a bundle without an owner; None: another broker has just acquired it."""
        expected = self._ownership.successors.expected(bundle)
        if expected and expected != self._ownership.broker_id:
            successor = await self._brokers.get(expected)
            if successor is not None and not await self._reachability.away(successor):
                return Found(successor)
        if expected == self._ownership.broker_id or (authoritative and self._registration.registered):
            return await self._take(bundle)
        if not authoritative and not self._leadership.is_leader:
            leader = await self._leader()
            if leader is not None:
                return Found(leader, redirect=True, authoritative=False)
        return await self._choose(bundle)

    async def _leader(self) -> BrokerAddress | None:
        """None while there is none that answers: then this broker decides."""
        leader = await self._leadership.leader()
        if leader is None or leader.broker_id == self._ownership.broker_id:
            return None
        address = await self._brokers.get(leader.broker_id)
        return None if address is None or await self._reachability.away(address) else address

    async def _choose(self, bundle: BundleName) -> Found | None:
        own = self._ownership.broker_id
        excluded: set[str] = set() if self._registration.registered else {own}
        while True:
            chosen = await self.placement.choose(bundle.namespace, bundle.range, excluded)
            if chosen is None or chosen in excluded:
                raise ServiceNotReadyError(
                    f"Failed to acquire ownership: no broker is there to serve {bundle}; start one"
                )
            if chosen == own:
                return await self._take(bundle)
            address = await self._brokers.get(chosen)
            if address is not None and not await self._reachability.away(address):
                return Found(address, redirect=True, authoritative=True)
            excluded.add(chosen)

    async def _take(self, bundle: BundleName) -> Found | None:
        await self._ownership.take(bundle)
        return Found(self._ownership.address) if self._ownership.serves(bundle) else None
