"""Bundles leave this broker: unloaded, split, drained, or lost. Their clients go on elsewhere at once.

An unload names the successor before it closes anything: clients are sent there while the topics are still being closed here, and wait
there for the bundle, which takes milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, REPORTED, TaskScope
from magnetar.broker.connection.context import Destinations
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.finder import Placement
from magnetar.broker.namespaces.ownership import Ownership, in_bundle
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.naming import TopicName
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC, Coordinators

logger = logging.getLogger(__name__)

TOPICS_AT_ONCE: Final = 50
"""Topics of a bundle that are closed together; the others wait."""


class BundleMoves:
    """One for each broker."""

    def __init__(
        self,
        *,
        ownership: Ownership,
        brokers: BrokerDirectory,
        placement: Placement,
        topics: TopicRegistry,
        coordinators: Coordinators,
        destinations: Destinations,
        scope: TaskScope,
    ) -> None:
        self._ownership = ownership
        self._brokers = brokers
        self._placement = placement
        self._topics = topics
        self._coordinators = coordinators
        self._destinations = destinations
        self._scope = scope
        self.unloads = 0
        """Unloads since the start."""

    async def unload(self, bundle: BundleName, destination: str = "") -> None:
        """Close the bundle here and hand it over to `destination` (a broker's id), or to the broker that the placement chooses.

        Raises NotOwnedError, PreconditionFailedError when the destination is not there.
        """
        if destination and await self._brokers.get(destination) is None:
            raise PreconditionFailedError(f"Broker {destination} is not available")
        if not destination:
            destination = await self._placement.choose(bundle.namespace, bundle.range) or ""
        await self._unload(bundle, destination)

    async def _unload(self, bundle: BundleName, destination: str) -> None:
        address = await self._brokers.get(destination) if destination else None
        await self._ownership.begin_leaving(bundle, destination if address is not None else "")
        topics = self._topics_in(bundle)
        if address is not None:
            self._destinations.set(topics, address)
        try:
            await self._close(topics)
            for number in self._coordinators_in(bundle):
                await self._coordinators.unload(number)
        finally:
            self._destinations.clear(topics)
            self.unloads += 1
            await self._ownership.release(bundle)

    async def split(self, bundle: BundleName, middle: str) -> tuple[BundleName, BundleName]:
        """Two bundles out of one, both of this broker, which goes on serving them. Raises NotOwnedError."""
        return await self._ownership.split(bundle, middle)

    async def drain(self) -> None:
        """Hand every bundle over to another broker, one after the other; they stay when there is no other broker."""
        own = self._ownership.broker_id
        for bundle in self._ownership.held:
            chosen = await self._placement.choose(bundle.namespace, bundle.range, [own])
            if chosen is None:
                logger.info("bundles not handed over: there is no other broker")
                return
            try:
                await self._unload(bundle, chosen)
            except MagnetarError as error:
                logger.warning("bundle not unloaded bundle=%s error=%s", bundle, error)

    # ---- Without asking

    def touched(self, bundle: BundleName) -> None:
        """Somebody has changed a bundle's node."""
        self._scope.spawn(self._follow(bundle), f"follow {bundle}", REPORTED)

    async def _follow(self, bundle: BundleName) -> None:
        try:
            lost = await self._ownership.look(bundle)
            if bundle.namespace == ASSIGN_TOPIC.namespace_name:
                await self.look_for_coordinators()
            if not lost:
                return
            logger.warning("bundle taken away bundle=%s", bundle)
            for name in self._topics_in(bundle):
                await self._topics.abandon(name)
            for number in self._coordinators_in(bundle):
                await self._coordinators.unload(number)
        except MagnetarError as error:
            logger.warning("bundle not followed bundle=%s error=%s", bundle, error)

    async def look_for_coordinators(self) -> None:
        """Finds which transaction coordinators other brokers own. Those of this broker continue their open transactions."""
        elsewhere: list[int] = []
        for number in range(self._coordinators.count):
            owner = await self._ownership.owner(await self._ownership.bundle_of(ASSIGN_TOPIC.partition_name(number)))
            if owner is not None and owner.broker_id != self._ownership.broker_id:
                elsewhere.append(number)
        await self._coordinators.look_around(elsewhere)

    def abandon_all(self) -> None:
        """Nothing is ours any more: close it here, in the background, as far as that goes without others' leave."""
        for topic in self._topics.loaded:
            self._scope.spawn(self._topics.abandon(topic.name), f"abandon {topic.name}", FATAL)
        for coordinator in self._coordinators.loaded:
            number = coordinator.coordinator_id
            self._scope.spawn(self._coordinators.unload(number), f"abandon transaction coordinator {number}", FATAL)

    # ---- What is in a bundle

    def _topics_in(self, bundle: BundleName) -> list[TopicName]:
        loaded = [topic.name for topic in self._topics.loaded if topic.name.namespace_name == bundle.namespace]
        return [name for name in loaded if in_bundle(name, bundle)]

    def _coordinators_in(self, bundle: BundleName) -> list[int]:
        if bundle.namespace != ASSIGN_TOPIC.namespace_name:
            return []
        numbers = [coordinator.coordinator_id for coordinator in self._coordinators.loaded]
        return [number for number in numbers if in_bundle(ASSIGN_TOPIC.partition_name(number), bundle)]

    async def _close(self, topics: list[TopicName]) -> None:
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            group = topics[start : start + TOPICS_AT_ONCE]
            closed = await asyncio.gather(*(self._topics.unload(name) for name in group), return_exceptions=True)
            for name, outcome in zip(group, closed, strict=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, TopicNotFoundError):
                    if not isinstance(outcome, MagnetarError):
                        raise outcome
                    logger.warning("topic not closed cleanly topic=%s error=%s", name, outcome)
