"""The consumers of a subscription and the dispatcher of their type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.base.clock import Clock
from magnetar.broker.compaction.compacted_source import CompactedSource, CompactedTopic
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.ports import MarkersRead, Scheduler
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.errors import ConsumerAssignError, ConsumerBusyError, NotAllowedError
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.delayed_buckets import BucketedDelayedIndex, DelayedStorage
from magnetar.broker.subscriptions.failover import ActiveConsumer
from magnetar.broker.subscriptions.key_ranges import ranges_for
from magnetar.broker.subscriptions.types import KeySharedMode, SubscriptionType
from magnetar.hashing.errors import HashingError
from magnetar.managed_ledger.position import EARLIEST, Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor import ManagedCursor
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
    if consumer.type is SubscriptionType.Key_Shared and consumer.key_shared_mode != first.key_shared_mode:
        raise ConsumerBusyError(
            f"Subscription {subscription} is of different type: its consumers use Key_Shared mode {first.key_shared_mode.name}"
        )
    if 0 < config.max_consumers <= len(consumers):
        raise ConsumerBusyError(f"Subscription {subscription} reached max consumers limit of {config.max_consumers}")


class Membership:
    """Owns the pump. Exactly one of `single` and `sharing` is set once a consumer has come."""

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
        self._begin: Position | None = None
        self.type: SubscriptionType | None = None
        self._mode = KeySharedMode.AUTO_SPLIT
        self.sharing: SharedDispatcher | KeySharedDispatcher | None = None
        self._markers_read: MarkersRead | None = None
        self._single: SingleActiveDispatcher | None = SingleActiveDispatcher(cursor)
        self._active: ActiveConsumer | None = None
        self.pump = Pump(
            source=cursor,
            dispatcher=self._single,
            scheduler=scheduler,
            clock=clock,
            label=f"{topic_name}/{name}",
            turn_max=config.entries_per_dispatch,
        )

    @property
    def active_consumer(self) -> Consumer | None:
        return self._active.chosen if self._active is not None else None

    @property
    def leftover(self) -> bool:
        """Are entries read and waiting for permits?"""
        dispatcher = self.sharing or self._single
        return dispatcher is not None and dispatcher.leftover

    @property
    def delayed_messages(self) -> int:
        return len(self.sharing.delayed) if self.sharing is not None and self.sharing.delayed is not None else 0

    @property
    def delayed_index_bytes(self) -> int:
        if self.sharing is None or self.sharing.delayed is None:
            return 0
        return self.sharing.delayed.size_bytes

    def key_ranges_of(self, consumer: Consumer) -> list[tuple[int, int]]:
        if not isinstance(self.sharing, KeySharedDispatcher):
            return []
        return self.sharing.lanes.ranges_of(consumer)

    def add(self, consumers: list[Consumer], consumer: Consumer) -> None:
        """Admit `consumer` and give it its part."""
        check_admission(self._name, consumers, consumer, self._config)
        if not consumers:
            self._prepare(consumer)
        if self.sharing is not None:
            consumer.max_unacked = self._config.max_unacked_per_consumer
            try:
                self.sharing.add(consumer, consumer.sticky_ranges)
            except HashingError as error:
                raise ConsumerAssignError(str(error)) from error
        consumers.append(consumer)
        if self._active is not None:
            self._active.consumers_changed(consumers)

    def _prepare(self, consumer: Consumer) -> None:
        """The first consumer says what the subscription is from now on."""
        compacted = consumer.read_compacted and self._compacted is not None
        if (
            consumer.type is not self.type
            or consumer.key_shared_mode is not self._mode
            or compacted is not (self._compacted_source is not None)
        ):
            self._change_type(consumer.type, consumer.key_shared_mode, compacted)
        source, cursor = self._compacted_source, self._cursor
        consumed = cursor.mark_delete_position.entry_id >= 0
        if source is not None and cursor.durable and consumer.from_earliest and not consumed:
            source.begin_at(EARLIEST)

    def remove(self, consumers: list[Consumer], consumer: Consumer) -> None:
        consumers.remove(consumer)
        if self.sharing is not None:
            self.sharing.remove(consumer)
        elif self._active is not None:
            self._active.consumers_changed(consumers)

    def _change_type(self, kind: SubscriptionType, mode: KeySharedMode, compacted: bool) -> None:
        first = self.type is None
        self.type = kind
        self._mode = mode
        if self._active is not None:
            self._active.close()
            self._active = None
        self._single = None
        self.sharing = None
        self._compacted_source = self._new_compacted_source() if compacted else None
        config = self._config
        delayed = self._delayed_index() if kind.sharing else None
        if kind is SubscriptionType.Shared:
            self.sharing = SharedDispatcher(self._cursor, delayed, config.max_unacked_per_subscription)
            self.pump.use(self.sharing, self._cursor)
        elif kind is SubscriptionType.Key_Shared:
            self.sharing = KeySharedDispatcher(
                self._cursor,
                self._ledger,
                delayed,
                config.max_unacked_per_subscription,
                ranges_for(mode, config),
                config.key_shared_waiting_max,
            )
            self.pump.use(self.sharing, self._cursor)
        else:
            source = self._compacted_source or self._cursor
            self._single = SingleActiveDispatcher(source, charges_hidden=compacted)
            self._active = ActiveConsumer(
                self._single, self.pump, self._scheduler, self._topic_name, self._failover_delay_ms(kind)
            )
            self.pump.use(self._single, source)
        self.on_markers(self._markers_read)
        if self.sharing is not None:
            self.sharing.delaying = config.delayed_delivery_enabled
        if not first:
            self.pump.rewind()
        if isinstance(delayed, BucketedDelayedIndex) and delayed.stored_in(self._cursor):
            assert self._delayed_storage is not None
            self.pump.stop()
            self._delayed_storage.spawn(self._recover(delayed), "delayed-recover")

    def _new_compacted_source(self) -> CompactedSource:
        assert self._compacted is not None
        source = CompactedSource(self._cursor, self._ledger, self._compacted, self._scheduler)
        if self._begin is not None:
            source.begin_at(self._begin)
        return source

    def _delayed_index(self) -> DelayedIndex:
        if self._delayed_storage is None:
            return DelayedIndex()
        return BucketedDelayedIndex(
            self._delayed_storage,
            self._cursor,
            self._clock,
            self._wake,
            f"{self._topic_name}/{self._name}",
            lambda: self._ledger.config,
        )

    def _wake(self) -> None:
        self.pump.wake()

    async def _recover(self, delayed: BucketedDelayedIndex) -> None:
        """Nothing is read before the stored index is known: what it has must not be indexed again."""
        await delayed.recover()
        if not self._closed:
            self.pump.start()

    def _failover_delay_ms(self, kind: SubscriptionType) -> int:
        return self._config.failover_delay_ms if kind is SubscriptionType.Failover else 0

    def set_config(self, consumers: Sequence[Consumer], config: SubscriptionConfig) -> None:
        self._config = config
        if self.sharing is not None:
            self.sharing.delaying = config.delayed_delivery_enabled
            self.sharing.max_unacked = config.max_unacked_per_subscription
            self.sharing.recheck_blocked()
            for consumer in consumers:
                consumer.max_unacked = config.max_unacked_per_consumer
                consumer.recheck_blocked()

    def on_markers(self, read: MarkersRead | None) -> None:
        """Who is told of the markers that are read, from now on."""
        self._markers_read = read
        for dispatcher in (self.sharing, self._single):
            if dispatcher is not None:
                dispatcher.markers_read = read

    def forget(self) -> None:
        """The cursor is reset: nothing read or remembered so far counts."""
        dispatcher = self.sharing or self._single
        if dispatcher is not None:
            dispatcher.rewound()

    def begin_at(self, position: Position) -> None:
        """A reader begins there, or the cursor was reset to there: its ledger may be gone, its compacted messages are not."""
        if not self._cursor.durable:
            self._begin = position
        if self._compacted_source is not None:
            self._compacted_source.begin_at(position)

    @property
    def reads_compacted(self) -> bool:
        return self._compacted_source is not None

    def leftover_changed(self) -> None:
        dispatcher = self.sharing or self._single
        if dispatcher is not None:
            dispatcher.leftover_changed()

    def acknowledged_elsewhere(self) -> None:
        """The admin acknowledged many entries at once."""
        self.leftover_changed()
        if self.sharing is not None:
            self.sharing.acknowledged_elsewhere()

    async def close(self, deleting: bool) -> None:
        """`deleting`: the subscription goes for good, and what it stored with it."""
        self._closed = True
        if self._active is not None:
            self._active.close()
        delayed = self.sharing.delayed if self.sharing is not None else None
        if isinstance(delayed, BucketedDelayedIndex):
            await (delayed.delete() if deleting else delayed.close())
