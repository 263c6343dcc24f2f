"""Scalable topics as a broker serves them: layouts for those who ask and watch, a controller for each topic that this broker controls.

One broker controls a topic: whoever has the ephemeral node `controller` below its record. It is elected when somebody first needs it, and
again when it is gone and a client here still watches the topic.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.errors import AlreadyExistsError, NotOwnedError, PreconditionFailedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import PERSISTENT, SCALABLE, NamespaceName, TopicName
from magnetar.broker.scalable.autoscale import PolicyInForce
from magnetar.broker.scalable.controller import FINISH_FIRST_S, ControllerContext, TopicController
from magnetar.broker.scalable.layout import LayoutError, Segment, SegmentLayout
from magnetar.broker.scalable.migration import Migrations, classic_name, retire_classic, synthetic_layout
from magnetar.broker.scalable.other_clusters import ClusterRequests
from magnetar.broker.scalable.records import ScalableRecords, TopicRecord, controller_path, topic_of_path
from magnetar.broker.scalable.segments import Segments, segment_name, segment_named
from magnetar.broker.scalable.unfinished import TakeOvers, end_what_was_begun
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.types import SchemaId
from magnetar.metadata import paths
from magnetar.metadata.election import NodeElection
from magnetar.metadata.store import RESYNC

logger = logging.getLogger(__name__)

TAKE_OVER_TIMEOUT_S: Final = 10.0
"""How long a client waits for a topic to have a controller; then it gets the layout without one, and asks again."""


@dataclass(frozen=True, slots=True)
class LayoutView:
    """What clients are told. `brokers`: addresses by segment, as far as they are known. `synthetic`: of a classic topic still."""

    topic: TopicName
    layout: SegmentLayout
    controller: BrokerAddress | None = None
    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    synthetic: bool = False


LayoutListener = Callable[[LayoutView | None], None]
"""Called with each new layout, None when the topic is gone. Must not block."""


class ScalableTopics:
    """One for each broker."""

    def __init__(
        self,
        *,
        context: ControllerContext,
        namespaces: NamespaceRegistry,
        lookup: Lookup,
        ownership: Ownership,
        brokers: BrokerDirectory,
        schemas: SchemaRegistry,
        scope: TaskScope,
    ) -> None:
        self.records: ScalableRecords = context.records
        self.segments: Segments = context.segments
        self.counters = context.counters
        self._context = context
        self._namespaces = namespaces
        self._lookup = lookup
        self._ownership = ownership
        self._brokers = brokers
        self._schemas = schemas
        self._scope = scope
        self._listeners: dict[TopicName, dict[LayoutListener, None]] = {}
        self._namespace_listeners: dict[NamespaceName, dict[Callable[[], None], None]] = {}
        self._controllers: dict[TopicName, TopicController] = {}
        self._elections: dict[TopicName, AsyncExitStack] = {}
        self._taking: dict[TopicName, asyncio.Future[bool]] = {}
        self._stale: dict[TopicName, bool] = {}
        """Topics whose record is being read; True: it has changed once more meanwhile."""
        self._due: dict[TopicName, None] = {}
        self._someone_due = asyncio.Event()
        self._take_overs = TakeOvers(self.find_controller, scope)
        self.migrations = Migrations(
            context.records,
            context.segments,
            namespaces,
            lookup,
            context.clock,
            self.find_controller,
            self._listen_plainly,
        )
        self.subscriptions = context.subscriptions
        self.cluster_requests = ClusterRequests(context.records, context.segments, context.subscriptions, namespaces)
        self._unwatch = context.records.metadata.watch(self._changed, paths.SCALABLE_TOPICS_PATH)

    # ---- Life

    def start(self, interval_s: Callable[[], float]) -> None:
        """End what other brokers, or this one before it died, have begun; and look after controlled topics every so often."""
        work = end_what_was_begun(self.records, self.find_controller)
        self._scope.spawn(work, "end changes of scalable topics", REPORTED)
        self._scope.supervise(lambda: self._upkeep(interval_s), "scalable topics")

    async def _upkeep(self, interval_s: Callable[[], float]) -> None:
        while True:
            try:
                async with asyncio.timeout(interval_s()):
                    await self._someone_due.wait()
                due = list(self._due)
            except TimeoutError:
                due = list(self._controllers)
            self._someone_due.clear()
            self._due.clear()
            for topic in due:
                controller = self._controllers.get(topic)
                try:
                    if controller is not None:
                        await controller.upkeep()
                except MagnetarError as error:
                    logger.warning("upkeep failed topic=%s error=%s", topic, error)

    def look_soon(self, topic: TopicName) -> None:
        """A topic may need another number of segments: look at it without waiting for the next round."""
        self._due[topic] = None
        self._someone_due.set()

    async def close(self) -> None:
        """Give up all controllers, so that other brokers take over at once. Nothing is controlled here any more."""
        self._take_overs.close()
        self._unwatch()
        for topic in list(self._elections):
            await self._give_up(topic)

    @property
    def controllers(self) -> list[TopicController]:
        """Those of this broker."""
        return list(self._controllers.values())

    @property
    def watched(self) -> int:
        """Layouts that clients of this broker watch."""
        return sum(map(len, self._listeners.values()))

    # ---- Layouts

    async def resolve(self, name: TopicName, create: bool) -> LayoutView:
        """The layout behind `topic://` or `persistent://`. A missing scalable topic is created if `create` and the policies say so.

        Raises NotAllowedError for a partition or a non-persistent topic, TopicNotFoundError.
        """
        if name.domain not in (SCALABLE, PERSISTENT) or name.partition >= 0:
            raise NotAllowedError(
                f"{name} cannot be opened as a scalable topic: name the whole topic, as topic:// or persistent://"
            )
        scalable = TopicName(SCALABLE, name.tenant, name.namespace, name.local_name)
        classic = classic_name(name)
        await self._namespaces.effective(name.namespace_name)
        record = await self.records.get(scalable)
        if record is not None:
            return await self._view(scalable, record)
        partitions = await self._namespaces.partitions(classic)
        if name.domain == PERSISTENT or partitions or await self._lookup.stored(classic):
            return LayoutView(scalable, synthetic_layout(classic, partitions), synthetic=True)
        policies = await self._namespaces.effective(name.namespace_name)
        if not create or not policies.auto_topic_creation:
            raise TopicNotFoundError(f"Scalable topic {scalable} does not exist")
        try:
            await self.create(scalable, 1, {})
        except AlreadyExistsError:
            pass
        record = await self.records.get(scalable)
        if record is None:
            raise TopicNotFoundError(f"Scalable topic {scalable} does not exist")
        return await self._view(scalable, record)

    async def _view(self, topic: TopicName, record: TopicRecord) -> LayoutView:
        controller = None
        try:
            async with asyncio.timeout(TAKE_OVER_TIMEOUT_S):
                controller = await self.find_controller(topic)
        except (MagnetarError, TimeoutError) as error:
            logger.warning("scalable topic without a controller topic=%s error=%s", topic, error or "timed out")
        current = await self.records.get(topic)
        return await self._seen(topic, current or record, controller)

    async def _seen(self, topic: TopicName, record: TopicRecord, controller: BrokerAddress | None) -> LayoutView:
        brokers = {}
        for segment in record.layout.active:
            owner = await self._ownership.owner(await self._ownership.bundle_of(segment_name(topic, segment)))
            if owner is not None and not owner.leaving:
                brokers[segment.id] = owner.address
        return LayoutView(topic, record.layout, controller, brokers, synthetic=record.migrating)

    def listen(self, topic: TopicName, listener: LayoutListener) -> Callable[[], None]:
        """Tell `listener` of every change of a topic, also of one that is not scalable yet. Answers the function that ends this."""
        self._listeners.setdefault(topic, {})[listener] = None

        def end() -> None:
            listeners = self._listeners.get(topic, {})
            listeners.pop(listener, None)
            if not listeners:
                self._listeners.pop(topic, None)

        return end

    def _listen_plainly(self, topic: TopicName, listener: Callable[[], None]) -> Callable[[], None]:
        return self.listen(topic, lambda view: listener())

    def listen_to_namespace(self, namespace: NamespaceName, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when a topic of the namespace comes, goes, or changes its properties."""
        self._namespace_listeners.setdefault(namespace, {})[listener] = None

        def end() -> None:
            listeners = self._namespace_listeners.get(namespace, {})
            listeners.pop(listener, None)
            if not listeners:
                self._namespace_listeners.pop(namespace, None)

        return end

    def _changed(self, path: str) -> None:
        if path == RESYNC:
            for topic in {*self._listeners, *self._controllers}:
                self._refresh(topic)
            for each in self._controllers.values():
                each.subscriptions_changed()
            for namespace in self._namespace_listeners:
                self._tell_namespace(namespace)
            return
        found = topic_of_path(path)
        if found is None:
            return
        topic, below = found
        if topic in self._controllers and below.startswith("subscriptions/"):
            self._controllers[topic].subscriptions_changed()
        if below not in ("", "controller"):
            return
        if topic in self._listeners or topic in self._controllers:
            self._refresh(topic)
        if not below:
            self._tell_namespace(topic.namespace_name)

    def _tell_namespace(self, namespace: NamespaceName) -> None:
        for listener in list(self._namespace_listeners.get(namespace, ())):
            listener()

    def _refresh(self, topic: TopicName) -> None:
        if topic in self._stale:
            self._stale[topic] = True
            return
        self._stale[topic] = False
        self._scope.spawn(self._read_again(topic), "scalable topic changed", REPORTED)

    async def _read_again(self, topic: TopicName) -> None:
        try:
            while True:
                self._stale[topic] = False
                try:
                    await self._tell(topic)
                except MetadataError as error:
                    logger.info("layout not read yet topic=%s error=%s", topic, error)
                    await asyncio.sleep(FINISH_FIRST_S)
                    continue
                if not self._stale[topic]:
                    return
        finally:
            del self._stale[topic]

    async def _tell(self, topic: TopicName) -> None:
        record = await self.records.get(topic)
        controller = self._controllers.get(topic)
        if record is None:
            if controller is not None:
                await self._give_up(topic)
            view = None
        else:
            if controller is not None:
                controller.adopt(record)
                if record.pending is not None:
                    controller.finish_later()
            if topic not in self._listeners:
                return
            # an attempt in vain deletes its node, which leads here: the next one comes after a while
            waits = topic in self._take_overs and not await self.records.metadata.exists(controller_path(topic))
            view = await (self._seen(topic, record, None) if waits else self._view(topic, record))
        for listener in list(self._listeners.get(topic, ())):
            listener(view)

    # ---- Controllers

    async def find_controller(self, topic: TopicName) -> BrokerAddress:
        """The broker that controls the topic, this one if there was none; when it answers, it has taken over.

        Raises ServiceNotReadyError, TopicNotFoundError.
        """
        while True:
            if topic in self._controllers:
                return self._ownership.address
            node = await self.records.metadata.get(controller_path(topic))
            if node is not None and node.owner != self.records.metadata.session_id:
                address = await self._brokers.get(str(json.loads(node.value)))
                if address is None:
                    raise ServiceNotReadyError(f"the controller of {topic} is gone, and its successor not elected yet")
                return address
            if await self._take(topic):
                return self._ownership.address

    async def controller(self, topic: TopicName) -> TopicController:
        """The controller, if it is this broker. Raises NotOwnedError for another one's, TopicNotFoundError."""
        address = await self.find_controller(topic)
        controller = self._controllers.get(topic)
        if controller is None:
            raise NotOwnedError(topic, address)
        return controller

    def own_controller(self, topic: TopicName) -> TopicController | None:
        return self._controllers.get(topic)

    async def _take(self, topic: TopicName) -> bool:
        """Stand for controller, once for all who wait for it. False: somebody else was faster."""
        standing = self._taking.get(topic)
        if standing is None:
            standing = self._taking[topic] = asyncio.get_running_loop().create_future()
            self._scope.spawn(self._stand(topic, standing), f"stand for controller of {topic}", REPORTED)
        return await asyncio.shield(standing)

    async def _stand(self, topic: TopicName, standing: asyncio.Future[bool]) -> None:
        try:
            elected = topic in self._controllers or await self._elected(topic)
        except Exception as error:
            standing.set_exception(error)
            standing.exception()  # whoever waited may have given up
            if not isinstance(error, MagnetarError):
                raise
            if not isinstance(error, TopicNotFoundError):
                self._take_overs.again(topic)
        except BaseException:
            standing.cancel()
            raise
        else:
            standing.set_result(elected)
        finally:
            del self._taking[topic]

    async def _elected(self, topic: TopicName) -> bool:
        self._take_overs.check_open(topic)
        self._lookup.check_session()
        record = await self.records.get(topic)
        if record is None:
            raise TopicNotFoundError(f"Scalable topic {topic} does not exist")
        stack = AsyncExitStack()
        value = json.dumps(self._ownership.broker_id).encode()
        election = NodeElection(self.records.metadata, controller_path(topic), value)
        await stack.enter_async_context(election)
        try:
            await self._decided(topic, election)
            if not election.is_leader:
                await stack.aclose()
                return False
            controller = TopicController(topic, record, self._context, lambda: election.is_leader)
            stack.callback(controller.close)
            await controller.start()
            self._take_overs.check_open(topic)
        except BaseException:
            await stack.aclose()
            raise
        self._controllers[topic] = controller
        self._elections[topic] = stack
        election.on_change = lambda leads: None if leads else self._lost(topic)
        if not election.is_leader:
            await self._give_up(topic)
            return False
        logger.info("controls scalable topic topic=%s epoch=%d", topic, controller.layout.epoch)
        return True

    async def _decided(self, topic: TopicName, election: NodeElection) -> None:
        """Until this broker leads, or the node is another's."""
        while not election.is_leader:
            node = await self.records.metadata.get(controller_path(topic))
            if node is not None and node.owner != self.records.metadata.session_id:
                return
            try:
                async with asyncio.timeout(1.0):
                    await election.wait_elected()
            except TimeoutError:
                continue

    def _lost(self, topic: TopicName) -> None:
        self._scope.spawn(self._give_up(topic), f"controls {topic} no more", REPORTED)

    async def _give_up(self, topic: TopicName) -> None:
        self._controllers.pop(topic, None)
        stack = self._elections.pop(topic, None)
        if stack is not None:
            await stack.aclose()

    # ---- Creating and deleting

    async def create(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        """Raises AlreadyExistsError, also where a classic topic has the name, NamespaceNotFoundError, PreconditionFailedError."""
        await self._namespaces.policies(topic.namespace_name)
        classic = classic_name(topic)
        if await self._namespaces.partitions(classic) or await self._lookup.stored(classic):
            raise AlreadyExistsError(f"{classic} already exists; a scalable topic cannot have its name")
        try:
            layout = SegmentLayout.create(segments, self._context.clock.now_ms())
        except LayoutError as error:
            raise PreconditionFailedError(str(error)) from None
        await self.records.create(topic, TopicRecord(layout, dict(properties)))
        await self.find_controller(topic)

    async def delete(self, topic: TopicName, force: bool) -> None:
        """With all its messages. Raises TopicNotFoundError, PreconditionFailedError while somebody is connected to a segment."""
        record = await self.records.get(topic)
        if record is not None and not force:
            for segment in record.layout.segments.values():
                await self._check_unused(topic, segment)
        record = await self.records.mark_deleted(topic)
        await self._give_up(topic)
        pending = record.pending.applied_to(record.layout) if record.pending is not None else record.layout
        for segment in {**record.layout.segments, **pending.segments}.values():
            await self.segments.delete(segment_name(topic, segment), True)
        for descriptor in record.doomed:
            await self.segments.delete(segment_named(topic, descriptor), True)
        if record.migrating:
            await retire_classic(self._namespaces, topic)
        await self._schemas.delete(SchemaId.of(topic), force=True)
        await self._namespaces.topic_policies.delete(topic)
        await self.records.remove(topic)

    async def _check_unused(self, topic: TopicName, segment: Segment) -> None:
        try:
            stats = await self.segments.stats(segment_name(topic, segment))
        except TopicNotFoundError:
            return
        if stats["producers"] or stats["consumers"]:
            raise PreconditionFailedError(
                f"{topic} has connected producers or consumers; delete it with force to disconnect them"
            )

    # ---- Subscriptions

    async def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        """With its place in every segment; its consumers are disconnected. At the topic's controller."""
        controller = await self.controller(topic)
        await self.records.remove_subscription(topic, subscription)
        controller.forget_subscription(subscription)
        for segment in controller.layout.segments.values():
            await self.segments.unsubscribe(segment_name(topic, segment), subscription)

    async def seek(self, topic: TopicName, subscription: str, publish_time_ms: int) -> None:
        """To the first messages published at or after that time. At the topic's controller."""
        controller = await self.controller(topic)
        for segment in controller.layout.segments.values():
            name = segment_name(topic, segment)
            try:
                if not segment.active and segment.sealed_ms <= publish_time_ms:
                    await self.segments.skip_all(name, subscription)
                else:
                    await self.segments.seek(name, subscription, publish_time_ms)
            except (TopicNotFoundError, SubscriptionNotFoundError):
                continue
        controller.sought(subscription)

    async def skip_all(self, topic: TopicName, subscription: str) -> None:
        """Acknowledge everything that is in the segments now."""
        record = await self.records.get(topic)
        for segment in record.layout.segments.values() if record is not None else ():
            try:
                await self.segments.skip_all(segment_name(topic, segment), subscription)
            except (TopicNotFoundError, SubscriptionNotFoundError):
                continue

    def drained(self, name: str, subscription: str) -> None:
        """A subscription has acknowledged everything in a terminated topic of this broker. Called for all topics; plain."""
        if name.startswith("segment://"):
            segment = TopicName.parse(name)
            self._drained(segment.partitioned_name, int(segment.local_name.rpartition("-")[2]), subscription)
        elif name.startswith("persistent://"):
            self._scope.spawn(self._partition_drained(name, subscription), "partition drained", REPORTED)

    def _drained(self, topic: TopicName, segment_id: int, subscription: str) -> None:
        controller = self._controllers.get(topic)
        if controller is not None:
            controller.drained(segment_id, subscription)
        else:
            self._scope.spawn(self._tell_controller(topic, segment_id, subscription), "segment drained", REPORTED)

    async def _partition_drained(self, name: str, subscription: str) -> None:
        """It may have become a segment."""
        found = await self.migrations.segment_of(TopicName.parse(name))
        if found is not None:
            self._drained(*found, subscription)

    async def _tell_controller(self, topic: TopicName, segment_id: int, subscription: str) -> None:
        try:
            await self.segments.tell_drained(await self.find_controller(topic), topic, segment_id, subscription)
        except MagnetarError as error:
            logger.info("controller not told that a segment is drained, it asks: topic=%s error=%s", topic, error)

    # ---- What administrators see

    async def set_policy(self, topic: TopicName, document: Mapping[str, Any] | None) -> None:
        """A topic's own `AutoScalePolicyOverride`; None removes it. Raises PreconditionFailedError for one that is not valid."""
        try:
            in_force = PolicyInForce.of(self._context.policy(), await self._context.namespace_policy(topic), document)
            problem = in_force.values.problem()
        except (TypeError, ValueError) as error:
            problem = str(error)
        if problem:
            raise PreconditionFailedError(f"the policy is not valid: {problem}")
        await self.records.update(topic, lambda record: replace(record, policy=document))

    async def statistics(self, topic: TopicName) -> dict[str, object]:
        """At the topic's controller."""
        controller = await self.controller(topic)
        return controller.statistics(await self.records.subscriptions(topic))
