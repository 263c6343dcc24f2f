"""The controller of one scalable topic: the only one that changes its layout, and tells consumers which segments they read.

A change is written down before it begins (`PendingChange`), so that whoever controls the topic next ends it: at no moment can a range of
hashes be left without a segment that takes messages for longer than that takes. The order of a split:

1. the record says that it has begun;
2. the children are created, each with a cursor at its beginning for every subscription of the parent;
3. the parent is terminated: its producers come back and get an error until they learn the new layout;
4. the subscriptions that came to the parent meanwhile get their cursors, too;
5. the record has the new layout: producers may use the children.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.base.limits import SCALABLE_CONSUMERS_PER_SUBSCRIPTION_MAX
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.dispatch.ports import Scheduler
from magnetar.broker.errors import NotAllowedError, ServiceNotReadyError, SubscriptionNotFoundError, TopicNotFoundError
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.naming import TopicName
from magnetar.broker.replication.ports import SnapshotCounters
from magnetar.broker.scalable.autoscale import Decision, PolicyInForce, Rates, ScalePolicy, SegmentLoad, decide
from magnetar.broker.scalable.consumers import ConsumerLink, SubscriptionConsumers
from magnetar.broker.scalable.layout import Segment, SegmentLayout
from magnetar.broker.scalable.other_clusters import OtherClusters
from magnetar.broker.scalable.records import CHECKPOINT, STREAM, PendingChange, ScalableRecords, TopicRecord
from magnetar.broker.scalable.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.scalable.segments import Segments, segment_name, segment_named
from magnetar.broker.scalable.subscriptions import ScalableSubscriptions

logger = logging.getLogger(__name__)

DRAIN_POLL_FIRST_S: Final = 2.0
DRAIN_POLL_MAX_S: Final = 60.0
"""Pauses between questions whether a sealed segment is drained: a broker that serves it says so at once, and this is for lost words."""

FINISH_FIRST_S: Final = 1.0
FINISH_MAX_S: Final = 60.0
"""Pauses between attempts to end a change that has begun."""


@dataclass(slots=True)
class ScalableCounters:
    """Since the broker's start: splits and merges that were ended here, sealed segments that were deleted."""

    changes: int = 0
    segments_deleted: int = 0


async def _nothing(topic: TopicName) -> None:
    """Nothing is left of a classic topic."""


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """Dependencies of controllers; the same for all of a broker. `grace_s`: see `SubscriptionConsumers`."""

    records: ScalableRecords
    segments: Segments
    subscriptions: ScalableSubscriptions
    clock: Clock
    scheduler: Scheduler
    scope: TaskScope
    grace_s: Callable[[], float]
    policy: Callable[[], ScalePolicy]
    """The broker's."""
    namespace_policy: Callable[[TopicName], Awaitable[Mapping[str, Any] | None]]
    """What the topic's namespace says instead, None if it says nothing."""
    retention_s: Callable[[TopicName], Awaitable[float]]
    """How long a sealed segment of a topic stays after everybody has read it; negative: for ever."""
    look_soon: Callable[[TopicName], None]
    """Called when a topic may need another number of segments."""
    retire_classic: Callable[[TopicName], Awaitable[None]] = _nothing
    """Called when all partitions of a topic that is migrated are terminated: its policies become the scalable topic's, and it is
    partitioned no more. May be called again."""
    counters: ScalableCounters = field(default_factory=ScalableCounters)
    clusters: OtherClusters | None = None
    """None: nothing is replicated."""
    snapshot_counters: SnapshotCounters = field(default_factory=SnapshotCounters)


class TopicController:
    """Works while `leads()`; then `close`."""

    def __init__(
        self, topic: TopicName, record: TopicRecord, context: ControllerContext, leads: Callable[[], bool]
    ) -> None:
        self.topic = topic
        self.record = record
        self._context = context
        self._leads = leads
        self._subscriptions: dict[str, SubscriptionConsumers] = {}
        self._changing = asyncio.Lock()
        self._look = asyncio.Event()
        self._closed = False
        self._finishing = False
        self._quiet_since_s: dict[int, float] = {}
        self.replicated: ReplicatedSubscriptions | None = None
        self._used: set[int] = set()
        """Segments that have had a load, or whose parents have: others were made beforehand, for a load to come, and are not merged."""

    @property
    def layout(self) -> SegmentLayout:
        return self.record.layout

    # ---- Life

    async def start(self) -> None:
        """Take over: end what the controller before began, see that every active segment is there, and expect its consumers."""
        async with self._changing:
            await self._ensure_segments(self.layout)
            if self.record.pending is not None:
                await self._finish(self.record.pending)
        records = self._context.records
        for name in await records.subscriptions(self.topic):
            for consumer, kind in (await records.consumer_kinds(self.topic, name)).items():
                self._subscription(name, kind).expect(consumer)
        self._context.scope.supervise(self._watch_drains, f"drains of {self.topic}")
        self._replicate()

    def _replicate(self) -> None:
        context = self._context
        if context.clusters is None:
            return
        self.replicated = replicated = ReplicatedSubscriptions(
            self.topic,
            clusters=context.clusters,
            segments=context.segments,
            names=lambda: context.records.replicated(self.topic),
            layout=self._certain_layout,
            clock=context.clock,
            scope=context.scope,
            counters=context.snapshot_counters,
        )
        context.scope.supervise(replicated.run, f"replicated subscriptions of {self.topic}")

    def subscriptions_changed(self) -> None:
        if self.replicated is not None:
            self.replicated.changed()

    async def _certain_layout(self) -> SegmentLayout:
        """The stored one. Raises ServiceNotReadyError when another broker may have changed it by now."""
        record = await self._read()
        self._check_leads()
        return record.layout

    async def _ensure_segments(self, layout: SegmentLayout) -> None:
        """A topic that was being created when its broker died has all its segments afterwards; a sealed one is never made again."""
        for segment in layout.active:
            if segment.legacy_topic is None:
                await self._context.segments.create(segment_name(self.topic, segment), ())

    def close(self) -> None:
        """Nothing is written any more; consumers are disconnected, so that they look for the next controller."""
        self._closed = True
        self._look.set()
        if self.replicated is not None:
            self.replicated.close()
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()

    def _check_leads(self) -> None:
        """Raises ServiceNotReadyError when another broker may control the topic by now."""
        if self._closed or not self._leads():
            raise ServiceNotReadyError(f"this broker does not control {self.topic} any more; try again")

    def adopt(self, record: TopicRecord) -> None:
        """The record as it was read or stored; one that is older than what is known has no effect."""
        before = self.record
        if record.layout.epoch < before.layout.epoch:
            return
        self.record = record
        if before.layout == record.layout:
            return
        gone = set(before.layout.segments) - set(record.layout.segments)
        self._used.update(
            each.id for each in record.layout.segments.values() if not self._used.isdisjoint(each.parents)
        )
        for subscription in self._subscriptions.values():
            subscription.forget(gone)
            subscription.rebalance(self.layout)
        self._look.set()

    async def _read(self) -> TopicRecord:
        """What is stored at this moment. Raises TopicNotFoundError."""
        record = await self._context.records.get(self.topic)
        if record is None:
            raise TopicNotFoundError(f"Scalable topic {self.topic} does not exist")
        self.adopt(record)
        return record

    async def _write(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Change the record as it is now, as long as this broker leads: one that has begun to give the topic up writes nothing more.
        Whoever writes has its session's requests done in their order, so the successor's come later. Raises as `ScalableRecords.update`,
        ServiceNotReadyError."""

        def led(record: TopicRecord) -> TopicRecord:
            self._check_leads()
            return change(record)

        self.adopt(await self._context.records.update(self.topic, led))

    # ---- Changes of the layout

    async def split(self, segment_id: int) -> None:
        """Raises PreconditionFailedError, and whatever keeps the change from being ended now: it is then ended later."""
        await self.change((segment_id,))

    async def merge(self, first_id: int, second_id: int) -> None:
        """As `split`, of two neighbours."""
        await self.change((first_id, second_id))

    async def change(self, segment_ids: tuple[int, ...]) -> None:
        """Split one segment, or merge two."""
        async with self._changing:
            self._check_leads()
            before = (await self._read()).pending
            if before is not None:
                await self._finish(before)
            pending = PendingChange(segment_ids, self._context.clock.now_ms())

            def begin(record: TopicRecord) -> TopicRecord:
                pending.applied_to(record.layout)
                return replace(record, pending=pending)

            try:
                await self._write(begin)
                await self._finish(pending)
            except MetadataError:
                self.finish_later()  # it may have been written, whatever the answer
                raise
            except MagnetarError as error:
                if self.record.pending is not None:
                    logger.warning("change not ended yet topic=%s segments=%s error=%s", self.topic, segment_ids, error)
                    self.finish_later()
                raise

    def finish_later(self) -> None:
        """End a change that somebody has begun, unless that is under way."""
        if not self._finishing and not self._closed:
            self._finishing = True
            self._context.scope.spawn(self._finish_pending(), f"end the change of {self.topic}", REPORTED)

    async def _finish_pending(self) -> None:
        pause_s = FINISH_FIRST_S
        try:
            while not self._closed:
                try:
                    async with self._changing:
                        pending = (await self._read()).pending
                        if pending is not None and not self._closed:
                            await self._finish(pending)
                    return
                except TopicNotFoundError:
                    return
                except MagnetarError as error:
                    logger.warning("change not ended yet topic=%s error=%s", self.topic, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, FINISH_MAX_S)
        finally:
            self._finishing = False

    async def _finish(self, pending: PendingChange) -> None:
        """From wherever it was left. Everything in here may be repeated."""
        segments = self._context.segments
        after = pending.applied_to(self.layout)
        parents = [self.layout.segments[each] for each in pending.segment_ids]
        children = [after.segments[each] for each in sorted(set(after.segments) - set(self.layout.segments))]
        cursors = await self._cursors(parents)
        for child in children:
            await segments.create(segment_name(self.topic, child), sorted(cursors))
        for number, parent in enumerate(parents):
            self._check_leads()
            try:
                await segments.terminate(segment_name(self.topic, parent))
            except PreconditionFailedError:
                if number == 0:
                    await self._withdraw(pending, children)
                raise
        for child in children:
            for subscription in sorted(await self._cursors(parents) - cursors):
                await segments.subscribe(segment_name(self.topic, child), subscription, True)
        self._check_leads()
        if pending.migration:
            await self._context.retire_classic(self.topic)

        def end(record: TopicRecord) -> TopicRecord:
            if record.pending != pending:
                return record
            return replace(record, layout=pending.applied_to(record.layout), pending=None)

        self._context.counters.changes += 1
        await self._write(end)
        logger.info("layout changed topic=%s segments=%s epoch=%d", self.topic, pending.segment_ids, self.layout.epoch)

    async def _withdraw(self, pending: PendingChange, children: Iterable[Segment]) -> None:
        """A parent that cannot be terminated (a transaction is open in it) goes on as if nothing had been begun."""
        if pending.migration:
            for child in children:
                await self._context.segments.delete(segment_name(self.topic, child), True)
            self._check_leads()
            await self._context.records.remove(self.topic)
            return
        await self._write(lambda record: replace(record, pending=None) if record.pending == pending else record)
        for child in children:
            await self._context.segments.delete(segment_name(self.topic, child), True)

    async def _cursors(self, parents: Iterable[Segment]) -> set[str]:
        """The subscriptions that must not miss what comes to the children: recorded ones, and those that a parent has."""
        recorded = await self._context.records.subscriptions(self.topic)
        found = {name for name, kind in recorded.items() if kind != CHECKPOINT}
        for parent in parents:
            found.update(await self._context.segments.subscriptions(segment_name(self.topic, parent)))
        return found

    # ---- Upkeep

    async def upkeep(self) -> None:
        """Delete what nobody needs any more, and split or merge where the load asks for it."""
        await self.prune()
        found = await self.decision()
        if found.segment_ids:
            logger.info("scales topic=%s segments=%s reason=%s", self.topic, found.segment_ids, found.reason)
            await self.change(found.segment_ids)

    async def policy(self) -> PolicyInForce:
        context = self._context
        return PolicyInForce.of(
            context.policy(), await context.namespace_policy(self.topic), (await self._read()).policy
        )

    async def decision(self) -> Decision:
        """What should be changed now, and why."""
        context = self._context
        policy = (await self.policy()).values
        if policy.problem():
            return decide(self.layout, {}, 0, policy, context.clock.now_ms())
        now_s = context.clock.monotonic_s()
        loads: dict[int, SegmentLoad] = {}
        quiet: dict[int, float] = {}
        for segment in self.layout.active:
            try:
                stats = await context.segments.stats(segment_name(self.topic, segment))
            except MagnetarError as error:
                logger.info("load not known topic=%s segment=%d error=%s", self.topic, segment.id, error)
                continue
            rates = Rates(stats["msgRateIn"], stats["bytesRateIn"], stats["msgRateOut"], stats["bytesRateOut"])
            if rates != Rates():
                self._used.add(segment.id)
            if segment.id in self._used:
                if rates.over(policy.merge)[0] <= 1:
                    quiet[segment.id] = self._quiet_since_s.get(segment.id, now_s)
                loads[segment.id] = SegmentLoad(rates, now_s - quiet.get(segment.id, now_s))
        self._quiet_since_s = quiet
        consumers = max((len(each.sessions) for each in self._subscriptions.values() if each.kind == STREAM), default=0)
        return decide(self.layout, loads, consumers, policy, context.clock.now_ms())

    async def prune(self) -> None:
        """Forget sealed segments in which every subscription has acknowledged everything, and delete them once that is written down."""
        async with self._changing:
            self._check_leads()
            record = await self._read()
            if record.pending is not None:
                return
            gone = [] if record.doomed else await self._prunable()
            if gone:
                self._check_leads()
                names = tuple(each.legacy_topic or each.descriptor for each in gone)
                ids = [each.id for each in gone]

                def forget(record: TopicRecord) -> TopicRecord:
                    return replace(record, layout=record.layout.without(ids), doomed=names)

                await self._write(forget)
                logger.info("sealed segments deleted topic=%s segments=%s", self.topic, ids)
            if self.record.doomed:
                self._context.counters.segments_deleted += len(self.record.doomed)
                for descriptor in self.record.doomed:
                    await self._context.segments.delete(segment_named(self.topic, descriptor), True)
                await self._write(lambda record: replace(record, doomed=()))

    async def _prunable(self) -> list[Segment]:
        """See `SegmentLayout.removable`."""
        retention_ms = await self._context.retention_s(self.topic) * 1000
        if retention_ms < 0:
            return []
        recorded = await self._context.records.subscriptions(self.topic)
        groups = any(each.kind == CHECKPOINT for each in self._subscriptions.values())
        if groups or CHECKPOINT in recorded.values():
            return []  # nobody but the clients knows how far they are
        now_ms, found = self._context.clock.now_ms(), dict[int, Segment]()
        for segment in self.layout.sealed:
            kept = any(each in self.layout.segments and each not in found for each in segment.parents)
            if not kept and now_ms - segment.sealed_ms >= retention_ms and await self._is_read(segment, set(recorded)):
                found[segment.id] = segment
        return self.layout.removable(found)

    async def _is_read(self, segment: Segment, recorded: set[str]) -> bool:
        """A subscription counts if it is written down or has a cursor; one without a cursor here may be about to read it. So do other
        clusters that it is replicated to."""
        name = segment_name(self.topic, segment)
        try:
            cursors = set(await self._context.segments.subscriptions(name))
            if not recorded <= cursors:
                return False
            for subscription in sorted(cursors):
                if await self._context.segments.backlog(name, subscription) > 0:
                    return False
            if any((await self._context.segments.unsent(name)).values()):
                return False
        except SubscriptionNotFoundError:
            return False
        except TopicNotFoundError:
            return True
        return True

    # ---- Consumers

    def _subscription(self, name: str, kind: str) -> SubscriptionConsumers:
        found = self._subscriptions.get(name)
        if found is None:
            context = self._context
            found = SubscriptionConsumers(name, kind, context.scheduler, context.grace_s(), self._evicted)
            self._subscriptions[name] = found
        return found

    async def subscribe(self, name: str, kind: str, consumer: str, link: ConsumerLink) -> None:
        """Register a consumer, or take it back; `link` is told its segments before this returns.

        Raises NotAllowedError, and for a new subscription as `ScalableSubscriptions.record`.
        """
        self._check_leads()
        known = self._subscriptions.get(name)
        if known is not None and known.kind != kind and known.sessions:
            raise NotAllowedError(f"subscription {name} of {self.topic} has consumers of type {known.kind}, not {kind}")
        if known is not None and len(known.sessions) >= SCALABLE_CONSUMERS_PER_SUBSCRIPTION_MAX:
            raise NotAllowedError(
                f"subscription {name} has {SCALABLE_CONSUMERS_PER_SUBSCRIPTION_MAX} consumers, the most"
            )
        if kind == STREAM:
            await self._context.subscriptions.record(self.topic, name, STREAM, by_client=True)
        await self._context.records.add_consumer(self.topic, name, consumer, kind)
        self._check_leads()
        subscription = self._subscription(name, kind)
        subscription.kind = kind
        subscription.attach(consumer, link)
        if consumer not in subscription.assignment:
            await self._look_for_drained(subscription)
        subscription.rebalance(self.layout)
        self._look.set()
        if kind == STREAM and len(subscription.sessions) > len(self.layout.active):
            self._context.look_soon(self.topic)

    def left(self, link: ConsumerLink) -> None:
        """Its connection broke."""
        for subscription in self._subscriptions.values():
            subscription.lost(link)

    async def unsubscribe(self, consumer_id: int, link: ConsumerLink) -> None:
        """The consumer was closed and gives its segments back at once. Nothing happens if it is not known."""
        for subscription in list(self._subscriptions.values()):
            name = subscription.named(consumer_id, link)
            if name is not None:
                await self._remove(subscription, name)

    def _evicted(self, name: str, consumer: str) -> None:
        subscription = self._subscriptions.get(name)
        if subscription is not None and not self._closed:
            logger.info("consumer did not come back topic=%s subscription=%s consumer=%s", self.topic, name, consumer)
            self._context.scope.spawn(self._forget(subscription, consumer), "consumer did not come back", REPORTED)

    async def _forget(self, subscription: SubscriptionConsumers, consumer: str) -> None:
        """As `_remove`, until it is written down: nobody else asks for it."""
        pause_s = FINISH_FIRST_S
        while not self._closed:
            try:
                await self._remove(subscription, consumer)
                return
            except MetadataError as error:
                logger.info("consumer not removed yet topic=%s consumer=%s error=%s", self.topic, consumer, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, FINISH_MAX_S)
            if consumer in subscription.sessions:
                return  # it is back

    async def _remove(self, subscription: SubscriptionConsumers, consumer: str) -> None:
        if subscription.remove(consumer):
            subscription.rebalance(self.layout)
        await self._context.records.remove_consumer(self.topic, subscription.name, consumer)
        if subscription.kind == CHECKPOINT and not subscription.sessions:
            self._subscriptions.pop(subscription.name, None)
            await self._context.records.remove_group(self.topic, subscription.name)

    def forget_subscription(self, name: str) -> None:
        """It was deleted: its consumers look again, and find that out."""
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.close()

    def sought(self, name: str) -> None:
        """What was drained may have to be read again."""
        subscription = self._subscriptions.get(name)
        if subscription is not None:
            subscription.drained.clear()
            subscription.rebalance(self.layout)
            self._look.set()

    @property
    def consumer_counts(self) -> dict[str, int]:
        """By subscription."""
        return {name: len(each.sessions) for name, each in self._subscriptions.items()}

    @property
    def subscriptions(self) -> list[SubscriptionConsumers]:
        return list(self._subscriptions.values())

    def statistics(self, stored: Iterable[str]) -> dict[str, object]:
        """`stored`: the names of the subscriptions that are written down."""
        layout, counts = self.layout, self.consumer_counts
        return {
            "epoch": layout.epoch,
            "totalSegments": len(layout.segments),
            "activeSegments": len(layout.active),
            "sealedSegments": len(layout.sealed),
            "segments": {
                str(each.id): {"name": str(segment_name(self.topic, each)), "state": each.state.value}
                for each in layout.segments.values()
            },
            "subscriptions": {name: {"consumerCount": counts.get(name, 0)} for name in sorted({*stored, *counts})},
        }

    # ---- Drained segments

    def drained(self, segment_id: int, subscription: str) -> None:
        """A segment's broker says that the subscription has acknowledged everything in it, and that nothing more will come."""
        found = self._subscriptions.get(subscription)
        segment = self.layout.segments.get(segment_id)
        if found is None or segment is None or segment.active or segment_id in found.drained:
            return
        found.drained.add(segment_id)
        found.rebalance(self.layout)
        self._look.set()

    async def _watch_drains(self) -> None:
        pause_s = DRAIN_POLL_FIRST_S
        while not self._closed:
            self._look.clear()
            waiting = False
            for subscription in list(self._subscriptions.values()):
                if subscription.sessions:
                    if await self._look_for_drained(subscription):
                        subscription.rebalance(self.layout)
                    waiting = waiting or bool(subscription.to_drain(self.layout))
            try:
                async with asyncio.timeout(pause_s if waiting else None):
                    await self._look.wait()
                pause_s = DRAIN_POLL_FIRST_S
            except TimeoutError:
                pause_s = min(2 * pause_s, DRAIN_POLL_MAX_S)

    async def _look_for_drained(self, subscription: SubscriptionConsumers) -> bool:
        """Ask about every sealed segment that is read now, and about its children once it is drained. True if something was."""
        found = False
        asked: set[int] = set()
        while ids := [each for each in subscription.to_drain(self.layout) if each not in asked]:
            asked.update(ids)
            for segment_id in ids:
                if await self._is_drained(subscription.name, segment_id):
                    subscription.drained.add(segment_id)
                    found = True
        return found

    async def _is_drained(self, subscription: str, segment_id: int) -> bool:
        segment = self.layout.segments.get(segment_id)
        if segment is None or segment.active:
            return False
        try:
            return await self._context.segments.backlog(segment_name(self.topic, segment), subscription) <= 0
        except TopicNotFoundError:
            return segment.legacy_topic is not None  # whoever deletes a former partition deletes what is unread
        except SubscriptionNotFoundError:
            return False  # it has not subscribed there yet
        except MagnetarError as error:
            logger.info("backlog not known topic=%s segment=%d error=%s", self.topic, segment_id, error)
            return False
