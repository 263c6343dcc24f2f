"""Which topics are loaded. The first one to ask loads a topic; everybody else waits for the same load."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from heapq import nsmallest

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL, TaskScope, in_turns
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.namespaces.errors import AlreadyExistsError, NamespaceNotFoundError, PreconditionFailedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import NamespaceName, TopicName, is_transaction_log
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import SchemaId
from magnetar.broker.topics.nonpersistent import NonPersistentTopic
from magnetar.broker.topics.persistent import PersistentTopic, ledger_config
from magnetar.broker.topics.subscription_set import TopicContext
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata import paths

logger = logging.getLogger(__name__)

AnyTopic = PersistentTopic | NonPersistentTopic

BOOKIES_REPORTED_EVERY_S = 10.0
"""Between two lines of the log that say that there are too few bookies."""


RELEASED_AFTER_S = 60.0
"""A topic that somebody asked for stays in memory for so long: who asks connects within this time, or asks again."""

RELEASED_PER_ROUND_MAX = 1_000
"""Topics released from memory one after the other, before it is looked again which ones are unused."""

UNLOADED_MAX = 10_000
"""Topics of which is known when they were unloaded; the one unloaded longest ago is forgotten."""


class TopicRegistry:
    """Topics by complete name, loaded on demand."""

    def __init__(
        self,
        *,
        factory: ManagedLedgerFactory,
        schemas: SchemaRegistry,
        namespaces: NamespaceRegistry,
        lookup: Lookup,
        config: BrokerConfig,
        context: TopicContext,
        scope: TaskScope,
    ) -> None:
        self._factory = factory
        self.schemas = schemas
        self._namespaces = namespaces
        self._lookup = lookup
        self._config = config
        self._context = context
        self._scope = scope
        self._loaded: dict[TopicName, AnyTopic] = {}
        self._busy: dict[TopicName, asyncio.Future[None]] = {}
        self._creation = asyncio.Lock()
        self._closing = False
        self._bookies_reported_s = -BOOKIES_REPORTED_EVERY_S
        self._unloaded_ms: OrderedDict[TopicName, int] = OrderedDict()

    def loaded_non_persistent(self, namespace: NamespaceName) -> list[str]:
        """Non-persistent topics exist only while they are loaded."""
        return sorted(str(name) for name in self._loaded if not name.persistent and name.namespace_name == namespace)

    @property
    def loaded(self) -> list[AnyTopic]:
        """Loaded topics in order of loading."""
        return list(self._loaded.values())

    def get_loaded(self, name: TopicName) -> AnyTopic | None:
        return self._loaded.get(name)

    def unloaded_ms(self, name: TopicName) -> int:
        """Wall time at which the topic was last unloaded here, 0 if that is not known."""
        return self._unloaded_ms.get(name, 0)

    async def get(self, name: TopicName, *, create: bool) -> AnyTopic:
        """The topic, loaded now if it is not yet. `create` says whether it may be brought into being.

        Raises TopicNotFoundError, ServiceNotReadyError, or the storage's error. Without a session at once: what was served here is being
        closed, and waits for a metadata store that may not answer.
        """
        self._lookup.check_session()
        topic = self._asked_for(name)
        if topic is not None:
            return topic
        async with self._exclusive(name):
            topic = self._asked_for(name)
            if topic is not None:
                return topic
            self._lookup.check_session()
            if self._closing:
                raise ServiceNotReadyError("the broker is shutting down")
            try:
                topic = await self._load(name, create)
            except NotEnoughBookiesError as error:
                self._report_bookies(name, error)
                raise
            try:
                await self._lookup.require(name)  # its bundle may have moved while it was being loaded
            except MagnetarError:
                await topic.close()
                raise
            self._loaded[name] = topic
            await self._apply(topic)  # policies may have changed while it was being loaded
            return topic

    def _asked_for(self, name: TopicName) -> AnyTopic | None:
        topic = self._loaded.get(name)
        if isinstance(topic, PersistentTopic):
            topic.used_s = self._context.clock.monotonic_s()
        return topic

    def _report_bookies(self, name: TopicName, error: NotEnoughBookiesError) -> None:
        """Clients come again and again, with many topics: one line tells."""
        now_s = self._context.clock.monotonic_s()
        if now_s - self._bookies_reported_s >= BOOKIES_REPORTED_EVERY_S:
            self._bookies_reported_s = now_s
            logger.warning("topics cannot be opened topic=%s reason=%s", name, error)

    @asynccontextmanager
    async def _exclusive(self, name: TopicName) -> AsyncIterator[None]:
        """One load, unload or deletion of a topic at a time."""
        while name in self._busy:
            await asyncio.wait([self._busy[name]])
        mine = self._busy[name] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._busy[name]
            mine.set_result(None)

    async def _load(self, name: TopicName, create: bool) -> AnyTopic:
        _check_is_topic(name)
        if not await self._lookup.stored(name):
            await self._namespaces.effective(name.namespace_name)
            if (
                not create or name.is_segment
            ):  # a segment is made by its topic's controller, never by whoever connects to it
                if not name.persistent:  # nothing is stored of it: only its own broker knows whether it is there
                    await self._lookup.require(name)
                raise TopicNotFoundError(f"Topic {name} does not exist")
            await self._lookup.check_creatable(name)
            return await self._create(name)
        return await self._open(name)

    async def _create(self, name: TopicName) -> AnyTopic:
        """Where the number of topics is limited, one creation at a time: or several would see the last free place."""
        policies = await self._namespaces.effective(name.namespace_name)
        if not policies.max_topics_per_namespace or not name.persistent or name.is_segment:
            return await self._open(name)
        async with self._creation:
            await self._lookup.check_room(name)
            return await self._open(name)

    async def _open(self, name: TopicName) -> AnyTopic:
        policies = await self._namespaces.effective_of(name)
        await self._lookup.require(name)
        if not name.persistent:
            return NonPersistentTopic(name, self._config, policies, self._context)
        ledger_name = paths.managed_ledger_name(name.tenant, name.namespace, name.domain, name.local_name)
        ledger = await self._factory.open(ledger_name, ledger_config(self._config.managed_ledger, policies))
        topic = PersistentTopic(name, ledger, self._config, policies, self._context)
        fenced = partial(self._fenced, name)
        ledger.add_fence_listener(fenced)
        topic.transactions.log_fenced = fenced
        try:
            await topic.load()
        except BaseException:
            await ledger.close()
            raise
        logger.info("topic loaded topic=%s", name)
        return topic

    def _fenced(self, name: TopicName, error: MagnetarError) -> None:
        """Another broker took the ledger over: serving the topic here would be serving the past."""
        logger.warning("topic taken over by another broker topic=%s", name)
        self._scope.spawn(self._unload_fenced(name), f"unload {name}", FATAL)

    async def _unload_fenced(self, name: TopicName) -> None:
        try:
            await self.unload(name)
        except MagnetarError as error:
            logger.warning("unload failed topic=%s error=%s", name, error)

    async def create(self, name: TopicName) -> AnyTopic:
        """An admin call creates the topic, whatever the auto-creation policy is. Raises AlreadyExistsError."""
        await self._check_unused(name)
        await self._lookup.check_not_scalable(name)
        async with self._exclusive(name):
            await self._check_not_partitioned(name)
            topic = self._loaded.get(name)
            if topic is None:
                _check_is_topic(name)
                topic = self._loaded[name] = await self._create(name)
                await self._apply(topic)
            return topic

    async def register(self, name: TopicName) -> None:
        """As `create`, of a persistent topic, but nothing is loaded, at this broker or another: that is up to its first client."""
        await self._check_unused(name)
        _check_is_topic(name)
        await self._lookup.check_not_scalable(name)
        policies = await self._namespaces.effective(name.namespace_name)
        async with self._exclusive(name):
            await self._check_not_partitioned(name)
            if not policies.max_topics_per_namespace:
                created = await self._namespaces.register(name)
            else:
                async with self._creation:
                    await self._lookup.check_room(name)
                    created = await self._namespaces.register(name)
        if not created:
            raise AlreadyExistsError("This topic already exists")

    async def create_partitioned(self, name: TopicName, partitions: int, properties: dict[str, str]) -> None:
        """A name is a topic or a partitioned one, also when clients ask for it at this moment: what they sent to the topic would be in
        none of the partitions. Raises AlreadyExistsError, PreconditionFailedError."""
        async with self._exclusive(name):
            await self._check_unused(name)
            await self._namespaces.create_partitioned(name, partitions, properties)

    async def _check_unused(self, name: TopicName) -> None:
        if name in self._loaded or await self._lookup.stored(name):
            raise AlreadyExistsError("This topic already exists")

    async def _check_not_partitioned(self, name: TopicName) -> None:
        if name.partition < 0 and await self._namespaces.partitions(name):
            raise AlreadyExistsError("This topic already exists")

    async def unload(self, name: TopicName) -> None:
        """Close a topic here; the clients look it up and come back. Raises TopicNotFoundError."""
        async with self._exclusive(name):
            topic = self._loaded.pop(name, None)
            if topic is not None:
                await self._close(topic)
                return
        if not await self._lookup.stored(name):
            raise TopicNotFoundError(f"Topic {name} does not exist")

    async def _close(self, topic: AnyTopic) -> None:
        """Close a topic that has been taken out of the loaded ones, under its lock."""
        self._unloaded_ms[topic.name] = self._context.clock.now_ms()
        self._unloaded_ms.move_to_end(topic.name)
        if len(self._unloaded_ms) > UNLOADED_MAX:
            self._unloaded_ms.popitem(last=False)
        await topic.close()

    async def release_unneeded(self) -> None:
        """Give back the memory of topics that nobody would miss, those unused longest first, down to the number that the setting says.

        They are closed as by `unload`, but have no clients that would notice, and are loaded by the next one.
        """
        kept = self._config.settings.topics_kept_in_memory
        if not kept or len(self._loaded) <= kept:
            return
        persistent = [topic for topic in self.loaded if isinstance(topic, PersistentTopic)]
        unneeded = [topic async for topic in in_turns(persistent) if self._unneeded(topic)]
        for topic in nsmallest(RELEASED_PER_ROUND_MAX, unneeded, key=lambda topic: topic.used_s):
            if len(self._loaded) <= kept:
                return
            async with self._exclusive(topic.name):
                if self._loaded.get(topic.name) is topic and self._unneeded(topic):
                    del self._loaded[topic.name]
                    await self._release(topic)

    def _unneeded(self, topic: PersistentTopic) -> bool:
        return topic.unneeded(self._context.clock.monotonic_s(), RELEASED_AFTER_S)

    async def _release(self, topic: PersistentTopic) -> None:
        try:
            await self._close(topic)
        except MagnetarError as error:
            logger.warning("released topic not closed cleanly topic=%s error=%s", topic.name, error)

    async def abandon(self, name: TopicName) -> None:
        """Another broker may serve the topic already: serve it here no more, whatever of it can still be stored."""
        async with self._exclusive(name):
            topic = self._loaded.pop(name, None)
            if topic is None:
                return
            try:
                await topic.close()
            except MagnetarError as error:
                logger.info("given up before it was closed topic=%s error=%s", name, error)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Remove a topic with all its data. Raises TopicNotFoundError, or PreconditionFailedError while it is in use."""
        topic = await self.get(name, create=False)
        if not force and topic.in_use:
            raise PreconditionFailedError("Topic has active producers/subscriptions")
        async with self._exclusive(name):
            if self._loaded.pop(name, None) is not None:
                await topic.delete()
                if name.is_segment or await self._lookup.is_scalable(name):
                    return  # schema and policies are those of the scalable topic
                if name.persistent and name.partition < 0:  # partitions share one, which goes with the whole topic
                    await self.schemas.delete(SchemaId.of(name), force=True)
                if name.partition < 0:
                    await self._namespaces.topic_policies.delete(name)

    async def policies_changed(self, namespace: NamespaceName, of: TopicName | None = None) -> None:
        """Apply new policies to the loaded topics of a namespace, or to one topic and its partitions, at once."""
        for topic in self.loaded:
            if topic.name.namespace_name == namespace and (of is None or topic.name.partitioned_name == of):
                await self._apply(topic)

    async def defaults_changed(self) -> None:
        """The broker's own settings, which policies fall back on, have changed: apply what holds now to every loaded topic."""
        for topic in self.loaded:
            await self._apply(topic)

    async def _apply(self, topic: AnyTopic) -> None:
        """Apply the policies that hold now; a topic that fails does not keep the others from theirs."""
        try:
            policies = await self._namespaces.effective_of(topic.name)
            await topic.policies_changed(policies)
        except NamespaceNotFoundError:
            return
        except MagnetarError as error:
            logger.warning("policies not applied topic=%s error=%s", topic.name, error)

    async def delete_abandoned(self, now_s: float) -> None:
        """Delete the loaded topics that nobody has used for as long as their policies say."""
        async for topic in in_turns(self.loaded):
            if topic.name in self._busy or topic.name.is_segment or not topic.abandoned(now_s):
                continue
            if not await self._lookup.is_scalable(topic.name):
                logger.info("unused topic deleted topic=%s", topic.name)
                try:
                    await self.delete(topic.name)
                except MagnetarError as error:
                    logger.warning("unused topic not deleted topic=%s error=%s", topic.name, error)

    async def close(self) -> None:
        """Close every topic; no new ones are loaded afterwards."""
        self._closing = True
        for name in list(self._loaded):
            async with self._exclusive(name):
                topic = self._loaded.pop(name, None)
                if topic is not None:
                    await topic.close()


def _check_is_topic(name: TopicName) -> None:
    """Raises NotAllowedError for what keeps records of transactions: a client that wrote there would destroy them."""
    if name.persistent and is_transaction_log(str(name.namespace_name), name.local_name):
        raise NotAllowedError(f"{name} is not a topic: the server keeps records of transactions there")
