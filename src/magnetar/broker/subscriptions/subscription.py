"""One subscription of one topic: its cursor, its consumers, and the pump that brings entries to them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.limits import DISCARDED_IDS_MAX, REDELIVER_IDS_MAX
from magnetar.broker.compaction.compacted_source import CompactedTopic
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.dispatch.ports import Scheduler
from magnetar.broker.dispatch.pump import Pump
from magnetar.broker.dispatch.throttle import Sent
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.rate_limits import Rates
from magnetar.broker.reasons import EXPIRIES_MAX, Code, Expiry, Rule
from magnetar.broker.subscriptions import maintenance
from magnetar.broker.subscriptions.acks import (
    AckDone,
    AckId,
    AckType,
    acknowledge_cumulative,
    acknowledge_individual,
)
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.consumer_dispatch import ConsumerDispatch, DispatchLimits
from magnetar.broker.subscriptions.delayed_buckets import BUCKET_PROPERTY, DelayedStorage
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.transactions.pending_acks import PendingAcks
from magnetar.managed_ledger.cursor.cursor import REPLICATED_PROPERTY
from magnetar.managed_ledger.position import LATEST, Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.cursor.cursor import ManagedCursor
    from magnetar.managed_ledger.entry import Entry
    from magnetar.managed_ledger.ledger import ManagedLedger


logger = logging.getLogger(__name__)


Followed = Callable[["Subscription", Consumer | None], None]
"""Called after each change of what consumers hold or have acknowledged, with the consumer whose doing it was."""


class Subscription:
    """Data plane calls (`flow`, `acknowledge`, `redeliver`, `wake`) are plain; seeks and admin calls are async.

    The type is that of the consumers connected; when all have left, consumers of another type may come.
    """

    def __init__(
        self,
        *,
        topic_name: str,
        name: str,
        ledger: ManagedLedger,
        cursor: ManagedCursor,
        clock: Clock,
        scheduler: Scheduler,
        config: SubscriptionConfig,
        rng: random.Random,
        delayed_storage: DelayedStorage | None = None,
        compacted: CompactedTopic | None = None,
        begin: Position | None = None,
    ) -> None:
        """`scheduler`: the event loop. `compacted`: what consumers that read compacted read, from `begin` on if it is a reader's.
        `delayed_storage`: where an index of many delayed messages is kept; without it they stay
        in memory and are indexed again after a restart. Takes the ledger's append listener; `close` gives it back."""
        self.topic_name = topic_name
        self.name = name
        self.ledger = ledger
        self.cursor = cursor
        self.config = config
        self.durable: bool = cursor.durable
        self.consumers: list[Consumer] = []
        self.last_used_s = clock.monotonic_s()
        """Monotonic time at which a consumer last came or went, at first when the subscription was loaded."""
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.last_expire_ms = 0
        self.expired_total = 0
        self.expiries: deque[Expiry] = deque(maxlen=EXPIRIES_MAX)
        self.rates = Rates()
        self._out_before = Sent(0, 0, 0)
        self._clock = clock
        self._rng = rng
        if not cursor.durable:
            delayed_storage = None
        self.dispatch = ConsumerDispatch(
            topic_name, name, cursor, ledger, scheduler, clock, config, delayed_storage, compacted
        )
        if begin is not None:
            self.dispatch.begin_at(begin)
        self._pump: Pump = self.dispatch.pump
        self.dispatch_limits = DispatchLimits(self._pump, clock, self.sent)
        self.pending_acks: PendingAcks | None = None
        """Acknowledgements of open transactions; None until there is one."""
        self._followed: Followed | None = None
        self._resetting = asyncio.Lock()
        self._closed = False
        self._terminated = False
        self.drained: Callable[[str, str], None] = lambda topic, subscription: None
        """Called with the names of topic and subscription where `tell_if_ended` tells consumers."""
        ledger.add_append_listener(self.wake)

    # ---- Consumers

    @property
    def type(self) -> SubscriptionType | None:
        """None until the first consumer came."""
        return self.dispatch.type

    def add_consumer(self, consumer: Consumer) -> None:
        """ConsumerBusyError, ConsumerAssignError (sticky ranges that overlap or are missing)."""
        self.dispatch.add(self.consumers, consumer)
        consumer.subscription = self
        self._touch()
        self._pump.wake()
        self.tell_if_ended()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Entries that `consumer` holds go to the others, or are read again by the next one. Removing twice is removing once."""
        if consumer.subscription is not self or consumer not in self.consumers:
            return
        consumer.subscription = None
        before = self._out_before
        self._out_before = Sent(
            before.entries + consumer.entries_out,
            before.messages + consumer.messages_out,
            before.size_bytes + consumer.bytes_out,
        )
        self.last_consumed_ms = max(self.last_consumed_ms, consumer.last_consumed_ms)
        self.dispatch.remove(self.consumers, consumer)
        if self._followed is not None:
            self._followed(self, consumer)
        self._touch()
        self._pump.wake()

    def _touch(self) -> None:
        self.last_used_s = self._clock.monotonic_s()
        self.cursor.touch()

    def set_config(self, config: SubscriptionConfig) -> None:
        """New limits, for consumers that are connected too."""
        self.config = config
        self.dispatch.set_config(self.consumers, config)
        self._pump.wake()

    # ---- Message path

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer can take `permits` more messages."""
        consumer.grant(permits)
        consumer.last_flow_ms = self.last_flow_ms = self._clock.now_ms()
        self._pump.wake()

    async def entries_discarded(self, consumer: Consumer, ids: Sequence[AckId]) -> None:
        """The client found these entries damaged and acknowledges them unread. It gives back one permit for each, whatever their
        batches were said to hold: the others are given back here, or a few such entries would use up all it has."""
        for ledger_id, entry_id, _, _ in ids[:DISCARDED_IDS_MAX]:
            try:
                entry = await self.ledger.read_entry(Position(ledger_id, entry_id))
            except MagnetarError:
                consumer.restore(consumer.window)  # it is gone: what it counted for is not known any more
            else:
                consumer.restore(metadata_of(entry).num_messages - 1)
        self._pump.wake()

    def channel_writable(self, consumer: Consumer) -> None:
        """The consumer's connection drained its output."""
        self._pump.wake()

    def wake(self) -> None:
        """The ledger has new entries."""
        if self.consumers:
            self._pump.wake()

    def acknowledge(
        self,
        consumer: Consumer,
        ack_type: AckType | int,
        ids: Sequence[AckId],
        done: AckDone | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        """Apply an ACK. `done` runs once what it says is durable, or with why it was refused."""
        if not ids:
            if done is not None:
                done(None)
            return
        consumer.last_acked_ms = self.last_acked_ms = self._clock.now_ms()
        dispatcher = self.dispatch.dispatcher
        if ack_type == AckType.INDIVIDUAL:
            held = consumer.unacked_messages
            stuck = consumer.blocked_on_unacked or dispatcher.blocked_on_unacked
            acknowledge_individual(self.cursor, dispatcher, consumer, ids, self.config.batch_index_ack_enabled, done)
            if not dispatcher.holds_entries:
                consumer.messages_acked += len(ids)
            else:
                consumer.messages_acked += max(0, held - consumer.unacked_messages)
                if stuck or dispatcher.unblocked:
                    self._pump.wake()
        elif dispatcher.holds_entries:
            # Pulsar's broker ignores these; its clients refuse them already.
            if done is not None:
                done(
                    NotAllowedError(
                        f"cumulative acknowledgement is not allowed on a {self.type.name if self.type else self.type} subscription"
                    )
                )
            return
        else:
            consumer.messages_acked += 1
            acknowledge_cumulative(
                self.ledger, self.cursor, ids[-1], self.config.batch_index_ack_enabled, properties, done
            )
        if dispatcher.leftover:
            dispatcher.leftover_changed()
        if self._followed is not None:
            self._followed(self, consumer)
        self.tell_if_ended()

    def follow(self, followed: Followed | None) -> None:
        """Call `followed` from now on, while one of the entries is traced; None ends that."""
        self._followed = followed
        self._pump.followed = None if followed is None else partial(followed, self, None)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[tuple[int, int]] | None, consumer_epoch: int | None = None
    ) -> None:
        """Deliver again: `positions` that `consumer` holds, or all it has not acknowledged (None or empty)."""
        if consumer_epoch is not None:
            consumer.consumer_epoch = consumer_epoch
        keys = [ledger << 32 | entry for ledger, entry in (positions or ())[:REDELIVER_IDS_MAX]]
        self.dispatch.dispatcher.redeliver(consumer, keys)
        if self._followed is not None:
            self._followed(self, consumer)
        self._pump.wake()

    # ---- What is left

    @property
    def properties(self) -> dict[str, str]:
        """What clients and operators wrote there, without the server's own."""
        given = self.cursor.cursor_properties
        return {name: value for name, value in given.items() if not name.startswith(BUCKET_PROPERTY)}

    async def replace_properties(self, properties: Mapping[str, str]) -> None:
        """Make `properties` all that clients and operators see there; durable on return."""

        def change(held: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in held.items() if name.startswith(BUCKET_PROPERTY)} | dict(properties)

        await self.cursor.change_cursor_properties(change)

    @property
    def replicated(self) -> bool:
        """True if its place follows it to other clusters."""
        return REPLICATED_PROPERTY in self.cursor.properties

    @property
    def backlog_entries(self) -> int:
        return self.cursor.backlog_entries

    @property
    def backlog_messages(self) -> int:
        """Pulsar's msgBacklog, which counts entries."""
        return self.cursor.backlog_entries

    @property
    def unacked_messages(self) -> int:
        """Messages held by consumers; 0 for Exclusive and Failover, as in Pulsar."""
        return self.dispatch.dispatcher.unacked_messages

    @property
    def delayed_messages(self) -> int:
        """Messages held back until they are due."""
        delayed = self.dispatch.dispatcher.delayed
        return len(delayed) if delayed is not None else 0

    @property
    def messages_out(self) -> int:
        return self._out_before.messages + sum(consumer.messages_out for consumer in self.consumers)

    @property
    def bytes_out(self) -> int:
        return self._out_before.size_bytes + sum(consumer.bytes_out for consumer in self.consumers)

    def sent(self) -> Sent:
        """Everything that went out, for the dispatch rate."""
        entries = self._out_before.entries + sum(consumer.entries_out for consumer in self.consumers)
        return Sent(entries, self.messages_out, self.bytes_out)

    # ---- Control

    async def seek(self, target: Position) -> None:
        """The next entry read is `target` (EARLIEST and LATEST too). All consumers are disconnected before."""
        async with self._resetting:
            self._disconnect()
            self._pump.stop()
            try:
                await self._idle()
                self.dispatch.dispatcher.rewound()
                await self.cursor.reset(target)
                self.dispatch.begin_at(target)
            finally:
                # Consumers that came back meanwhile got nothing yet; whatever was read is of before, or of consumers that are gone.
                self.dispatch.source.rewind()
                self.dispatch.dispatcher.rewound()
                if not self._closed:
                    self._pump.start()

    async def seek_to_time(self, publish_time_ms: int) -> None:
        """The next entry read is the first one published at or after `publish_time_ms`."""
        await self.seek(await maintenance.first_at_or_after(self.ledger, publish_time_ms) or LATEST)

    async def skip_messages(self, count: int) -> int:
        """Acknowledge the first `count` unacknowledged entries; returns how many there were."""
        target, skipped = maintenance.nth_unacknowledged(self.ledger, self.cursor, count)
        if target is not None:
            await self._acknowledge_upto(target)
        return skipped

    async def clear_backlog(self) -> None:
        """Acknowledge everything that may be read so far."""
        await self._acknowledge_upto(maintenance.readable_end(self.ledger, self.cursor))

    async def expire(self, upto: Position, rule: Rule = Rule.REQUEST) -> int:
        """Acknowledge everything up to `upto`, inclusive; returns the entries that expired."""
        upto = min(upto, maintenance.readable_end(self.ledger, self.cursor))
        if upto <= self.cursor.mark_delete_position:
            return 0
        before, after = self.cursor.backlog_entries, self.cursor.mark_delete_position
        await self._acknowledge_upto(upto)
        expired = max(0, before - self.cursor.backlog_entries)
        self.expired_total += expired
        self.last_expire_ms = self._clock.now_ms()
        if expired:
            self.expiries.append(Expiry(after, upto, expired, self.last_expire_ms, rule))
            logger.info(
                "messages expired topic=%s subscription=%s reason=%s entries=%d by=%s",
                self.topic_name,
                self.name,
                Code.EXPIRED,
                expired,
                rule,
            )
        return expired

    async def peek(self, number: int) -> Entry | None:
        """The unacknowledged entry at place `number` (1 = first), None beyond the end."""
        target, counted = maintenance.nth_unacknowledged(self.ledger, self.cursor, number)
        if target is None or counted < number:
            return None
        return await self.ledger.read_entry(target)

    def topic_terminated(self) -> None:
        """No more entries will come: consumers learn it once everything is acknowledged."""
        self._terminated = True
        self.tell_if_ended()

    async def close(self, *, deleting: bool = False) -> None:
        """Disconnect the consumers, stop reading, make what is acknowledged durable. `deleting`: the cursor is deleted next."""
        if self._closed:
            return
        self._closed = True
        self.ledger.remove_append_listener(self.wake)
        self._disconnect()
        self._pump.stop()
        await self._idle()
        await self.dispatch.close(deleting)
        self.dispatch_limits.close()
        if self.pending_acks is not None:
            await self.pending_acks.close(deleting)
        await self.cursor.close()

    def _disconnect(self) -> None:
        for consumer in list(self.consumers):
            consumer.channel.close()
            self.remove_consumer(consumer)

    async def _idle(self) -> None:
        """Wait until no read is under way."""
        if self._pump.reading:
            idle = asyncio.get_running_loop().create_future()
            self._pump.when_idle(lambda: None if idle.done() else idle.set_result(None))
            await idle

    async def _acknowledge_upto(self, position: Position) -> None:
        stored = maintenance.acknowledge_upto(self.cursor, position)
        self.acknowledged_elsewhere()
        await stored

    def acknowledged_elsewhere(self) -> None:
        """The cursor has moved, and no consumer has moved it."""
        dispatcher = self.dispatch.dispatcher
        dispatcher.leftover_changed()
        dispatcher.acknowledged_elsewhere()
        if self._followed is not None:
            self._followed(self, None)
        self._pump.wake()
        self.tell_if_ended()

    def tell_if_ended(self) -> None:
        """Consumers of a terminated topic learn when they have read all of it."""
        if self._terminated and self.cursor.backlog_entries == 0:
            for consumer in list(self.consumers):
                consumer.channel.end_of_topic()
            if self.durable:
                self.drained(self.topic_name, self.name)
