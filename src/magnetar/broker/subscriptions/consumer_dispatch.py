"""The pump of a subscription and the dispatcher of its consumers' type: who is admitted, and what happens when the type changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from magnetar.base.clock import Clock
from magnetar.broker.compaction.compacted_source import CompactedSource, CompactedTopic
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.ports import EntrySource, MarkersRead, Scheduler
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.dispatch.throttle import DispatchThrottle, Sent
from magnetar.broker.errors import ConsumerAssignError, ConsumerBusyError, NotAllowedError
from magnetar.broker.rate_limits import UNLIMITED, RateLimit, RateMeter, meter_for
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.delayed_buckets import BucketedDelayedIndex, DelayedStorage
from magnetar.broker.subscriptions.policies import POLICIES, DispatchContext, KeySharedMode, SubscriptionType
from magnetar.hashing.errors import HashingError
from magnetar.managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor.cursor import ManagedCursor
    from magnetar.managed_ledger.ledger import ManagedLedger


def check_admission(
    subscription: str, consumers: Sequence[Consumer], consumer: Consumer, config: SubscriptionConfig
) -> None:
    """ConsumerBusyError or NotAllowedError when `consumer` may not join `consumers`."""
    if not consumers:
        return
    first = consumers[0]
    if consumer.type != first.type:
        raise ConsumerBusyError(
            f"Subscription {subscription} is of different type: it serves {first.type.name} consumers; "
            f"close them before a {consumer.type.name} consumer subscribes"
        )
    if consumer.type is SubscriptionType.Exclusive:
        raise ConsumerBusyError(f"Exclusive consumer is already connected to {subscription}")
    if consumer.read_compacted != first.read_compacted:
        raise NotAllowedError(
            f"the consumers of {subscription} read {'' if first.read_compacted else 'un'}compacted; "
            "close them before one that does otherwise subscribes"
        )
    if consumer.type.keyed and consumer.key_shared_mode != first.key_shared_mode:
        raise ConsumerBusyError(
            f"Subscription {subscription} is of different type: its consumers use Key_Shared mode {first.key_shared_mode.name}"
        )
    if 0 < config.max_consumers <= len(consumers):
        raise ConsumerBusyError(f"Subscription {subscription} reached max consumers limit of {config.max_consumers}")


class Rewind:
    """Makes the pump begin anew at the mark-delete position, for dispatchers; nothing once the subscription is closed."""

    __slots__ = ("pump",)

    def __init__(self) -> None:
        self.pump: Pump | None = None

    def __call__(self) -> None:
        if self.pump is not None:
            self.pump.rewind()


class ConsumerDispatch:
    """Gives consumers to the dispatcher of their type, and the dispatcher to the pump."""

    def __init__(
        self,
        topic_name: str,
        name: str,
        cursor: ManagedCursor,
        ledger: ManagedLedger,
        scheduler: Scheduler,
        clock: Clock,
        config: SubscriptionConfig,
        delayed_storage: DelayedStorage | None,
        compacted: CompactedTopic | None,
    ) -> None:
        self._clock = clock
        self._delayed_storage = delayed_storage
        self._closed = False
        self._topic_name = topic_name
        self._name = name
        self._cursor = cursor
        self._ledger = ledger
        self._scheduler = scheduler
        self._config = config
        self._compacted = compacted
        self._compacted_source: CompactedSource | None = None
        self._buckets: BucketedDelayedIndex | None = None
        """The dispatcher's delayed messages, if it has any and they are stored."""
        self._begin: Position | None = None
        self._mode = KeySharedMode.AUTO_SPLIT
        self.type: SubscriptionType | None = None
        """None until the first consumer came."""
        self._markers_read: MarkersRead | None = None
        self._rewind = Rewind()
        self.dispatcher: Dispatcher = self._new_dispatcher(SubscriptionType.Exclusive)
        self.pump = Pump(
            source=cursor,
            dispatcher=self.dispatcher,
            scheduler=scheduler,
            clock=clock,
            label=f"{topic_name}/{name}",
            turn_max=config.entries_per_dispatch,
        )
        self._rewind.pump = self.pump

    # ---- Consumers

    def add(self, consumers: list[Consumer], consumer: Consumer) -> None:
        """Admit `consumer` and give it its part."""
        check_admission(self._name, consumers, consumer, self._config)
        if not consumers:
            self._prepare(consumer)
        if self.dispatcher.holds_entries:
            consumer.max_unacked = self._config.max_unacked_per_consumer
        try:
            self.dispatcher.add(consumer, consumer.sticky_ranges)
        except HashingError as error:
            raise ConsumerAssignError(str(error)) from error
        consumers.append(consumer)

    def remove(self, consumers: list[Consumer], consumer: Consumer) -> None:
        consumers.remove(consumer)
        self.dispatcher.remove(consumer)

    def _prepare(self, consumer: Consumer) -> None:
        """The first consumer says what the subscription is from now on."""
        compacted = consumer.read_compacted and self._compacted is not None
        if (
            consumer.type is not self.type
            or consumer.key_shared_mode is not self._mode
            or compacted is not self.reads_compacted
        ):
            self._change_type(consumer.type, consumer.key_shared_mode, compacted)
        source, cursor = self._compacted_source, self._cursor
        consumed = cursor.mark_delete_position.entry_id >= 0
        if source is not None and cursor.durable and consumer.from_earliest and not consumed:
            source.begin_at(EARLIEST)

    def _change_type(self, kind: SubscriptionType, mode: KeySharedMode, compacted: bool) -> None:
        first = self.type is None
        self.type = kind
        self._mode = mode
        self.dispatcher.close()
        self._buckets = None
        self._compacted_source = self._new_compacted_source() if compacted else None
        self.dispatcher = self._new_dispatcher(kind)
        self.pump.use(self.dispatcher, self.source)
        if not first:
            self.pump.rewind()
        buckets = self._buckets
        if buckets is not None and buckets.stored_in(self._cursor):
            assert self._delayed_storage is not None
            self.pump.stop()
            self._delayed_storage.spawn(self._recover(buckets), "delayed-recover")

    @property
    def source(self) -> EntrySource:
        return self._compacted_source or self._cursor

    def _new_dispatcher(self, kind: SubscriptionType) -> Dispatcher:
        config = self._config
        dispatcher = POLICIES[kind].make(
            DispatchContext(
                topic_name=self._topic_name,
                source=self.source,
                log=self._ledger,
                config=config,
                mode=self._mode,
                compacted=self.reads_compacted,
                scheduler=self._scheduler,
                rewind=self._rewind,
                new_delayed_index=self._new_delayed_index,
            )
        )
        dispatcher.markers_read = self._markers_read
        dispatcher.configure(config.max_unacked_per_subscription, config.delayed_delivery_enabled)
        return dispatcher

    def _new_compacted_source(self) -> CompactedSource:
        assert self._compacted is not None
        source = CompactedSource(self._cursor, self._ledger, self._compacted, self._scheduler)
        if self._begin is not None:
            source.begin_at(self._begin)
        return source

    def _new_delayed_index(self) -> DelayedIndex:
        if self._delayed_storage is None:
            return DelayedIndex()
        ledger = self._ledger
        self._buckets = BucketedDelayedIndex(
            self._delayed_storage,
            self._cursor,
            self._clock,
            self.pump.wake,
            f"{self._topic_name}/{self._name}",
            lambda: ledger.config,
        )
        return self._buckets

    async def _recover(self, buckets: BucketedDelayedIndex) -> None:
        """Read the stored index before any entry: messages that it has must not be indexed again."""
        await buckets.recover()
        if not self._closed:
            self.pump.start()

    # ---- Changes from outside

    def set_config(self, consumers: Sequence[Consumer], config: SubscriptionConfig) -> None:
        self._config = config
        dispatcher = self.dispatcher
        dispatcher.configure(config.max_unacked_per_subscription, config.delayed_delivery_enabled)
        if dispatcher.holds_entries:
            for consumer in consumers:
                consumer.max_unacked = config.max_unacked_per_consumer
                consumer.recheck_blocked()

    def on_markers(self, read: MarkersRead | None) -> None:
        """Tell `read` of the markers that are read, from now on."""
        self.dispatcher.markers_read = self._markers_read = read

    def begin_at(self, position: Position) -> None:
        """A reader begins there, or the cursor was reset to there: its ledger may be gone, its compacted messages are not."""
        if not self._cursor.durable:
            self._begin = position
        if self._compacted_source is not None:
            self._compacted_source.begin_at(position)

    @property
    def reads_compacted(self) -> bool:
        """True if the consumers read what compaction left."""
        return self._compacted_source is not None

    async def close(self, deleting: bool) -> None:
        """`deleting`: the subscription goes for good, and what it stored with it."""
        self._closed = True
        self.dispatcher.close()
        self._rewind.pump = None
        if self._buckets is not None:
            await (self._buckets.delete() if deleting else self._buckets.close())


def _nothing_sent() -> Sent:
    return Sent(0, 0, 0)


class DispatchLimits:
    """The topic's rate, shared with its other subscriptions, the subscription's own, and that of the resource group."""

    __slots__ = ("_clock", "_group_meter", "_meter", "_pump", "_sent", "_topic_meter")

    def __init__(self, pump: Pump, clock: Clock, sent: Callable[[], Sent]) -> None:
        """`sent`: everything that the subscription has sent so far."""
        self._pump = pump
        self._clock = clock
        self._sent = sent
        self._topic_meter: RateMeter | None = None
        self._meter: RateMeter | None = None
        self._group_meter: RateMeter | None = None

    def apply(
        self, topic_meter: RateMeter | None, own: RateLimit = UNLIMITED, group_meter: RateMeter | None = None
    ) -> None:
        """Rates from now on. The same ones again change nothing."""
        meter = meter_for(own, self._meter, self._clock.monotonic_s())
        now = (meter, topic_meter, group_meter)
        if all(new is old for new, old in zip(now, (self._meter, self._topic_meter, self._group_meter), strict=True)):
            return
        self._meter, self._topic_meter, self._group_meter = now
        meters = [known for known in (topic_meter, meter, group_meter) if known is not None]
        self._pump.limit(DispatchThrottle(meters, self._sent) if meters else None)

    def close(self) -> None:
        """The subscription is closed: nothing more is sent, and its totals are not asked for again."""
        self._pump.limit(None)
        self._sent = _nothing_sent

    def publish_rate_is(self, messages_per_s: float, bytes_per_s: float, now_s: float) -> None:
        """Adapt a rate of the subscription that is relative to the publish rate."""
        if self._meter is not None:
            self._meter.publish_rate_is(messages_per_s, bytes_per_s, now_s)
