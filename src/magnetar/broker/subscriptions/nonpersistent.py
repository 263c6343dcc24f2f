"""A subscription of a non-persistent topic: an entry goes to whoever can take it now, or is dropped and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar.broker.dispatch.entry_metadata import EntryMetadata, metadata_of
from magnetar.broker.dispatch.shared import PriorityLevels
from magnetar.broker.dispatch.single_active import choose_active, partition_index
from magnetar.broker.errors import ConsumerAssignError
from magnetar.broker.rate_limits import Rates
from magnetar.broker.subscriptions.acks import AckDone, AckId, AckType
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.consumer_dispatch import check_admission
from magnetar.broker.subscriptions.policies import KeySharedMode, SubscriptionType, ranges_for
from magnetar.hashing.errors import HashingError
from magnetar.managed_ledger.entry import Entry


class NonPersistentSubscription:
    """Subscription of a topic that keeps nothing: acknowledgements, redelivery and seeks have no effect."""

    durable = False

    def __init__(self, topic_name: str, name: str, config: SubscriptionConfig) -> None:
        self.name = name
        self.config = config
        self.consumers: list[Consumer] = []
        self.messages_dropped = 0
        self.rates = Rates()
        self._topic_name = topic_name
        self._partition = -1 if config.failover_by_ring else partition_index(topic_name)
        self._active: Consumer | None = None
        self._levels = PriorityLevels()
        self._ranges = ranges_for(KeySharedMode.AUTO_SPLIT, config)
        self._owners: list[tuple[int, int, str]] = []
        self._by_key: dict[str, Consumer] = {}
        self._messages_out_before = 0
        self._bytes_out_before = 0
        # What the type of the consumers says, for the message path.
        self._shared = False
        self._keyed = False

    @property
    def type(self) -> SubscriptionType | None:
        return self.consumers[0].type if self.consumers else None

    def add_consumer(self, consumer: Consumer) -> None:
        """ConsumerBusyError, ConsumerAssignError."""
        check_admission(self.name, self.consumers, consumer, self.config)
        if consumer.type.keyed:
            self._add_ranges(consumer)
        self.consumers.append(consumer)
        self._levels.add(consumer)
        consumer.subscription = self
        self._choose()

    def _add_ranges(self, consumer: Consumer) -> None:
        if not self.consumers:
            self._ranges = ranges_for(consumer.key_shared_mode, self.config)
        key = f"{consumer.name}\0{consumer.client_address}\0{consumer.consumer_id}"
        try:
            self._ranges.add(key, consumer.sticky_ranges)
        except HashingError as error:
            raise ConsumerAssignError(str(error)) from error
        self._by_key[key] = consumer
        self._owners = self._ranges.ranges()

    def remove_consumer(self, consumer: Consumer) -> None:
        if consumer not in self.consumers:
            return
        consumer.subscription = None
        self._messages_out_before += consumer.messages_out
        self._bytes_out_before += consumer.bytes_out
        self.consumers.remove(consumer)
        self._levels.remove(consumer)
        for key, member in list(self._by_key.items()):
            if member is consumer:
                self._ranges.remove(key)
                del self._by_key[key]
                self._owners = self._ranges.ranges()
        self._choose()

    def _choose(self) -> None:
        kind = self.type
        self._shared = kind is not None and kind.holds_entries
        self._keyed = kind is not None and kind.keyed
        if kind is None or self._shared:
            return
        chosen = choose_active(self.consumers, self._partition, self._topic_name)
        if chosen is self._active:
            return
        self._active = chosen
        if self.type is SubscriptionType.Failover:
            for consumer in self.consumers:
                consumer.channel.active_changed(consumer is chosen)

    # ---- Message path

    def publish(self, entry: Entry) -> None:
        """Deliver to the consumer whose turn or key it is, if it has permits and room."""
        metadata = metadata_of(entry)
        consumer = self._consumer_for(metadata)
        if consumer is None or consumer.permits <= 0 or not consumer.channel.writable:
            self.messages_dropped += metadata.num_messages
            return
        consumer.permits -= metadata.num_messages
        consumer.messages_out += metadata.num_messages
        consumer.entries_out += 1
        consumer.bytes_out += len(entry.data)
        consumer.channel.deliver(entry, 0, None, consumer.consumer_epoch)

    def _consumer_for(self, metadata: EntryMetadata) -> Consumer | None:
        if not self._shared:
            return self._active
        if self._keyed:
            slot = metadata.slot
            for start, end, key in self._owners:
                if start <= slot <= end:
                    return self._by_key[key]
            return None
        chosen = self._levels.next()
        return chosen if isinstance(chosen, Consumer) else None

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.grant(permits)

    async def entries_discarded(self, consumer: Consumer, ids: Sequence[AckId]) -> None:
        """The client could not read an entry. Entries have no positions here, so what it counted for is not known."""
        consumer.restore(consumer.window)

    def channel_writable(self, consumer: Consumer) -> None:
        """No effect: no entry waits for a consumer."""

    def acknowledge(
        self,
        consumer: Consumer,
        ack_type: AckType | int,
        ids: Sequence[AckId],
        done: AckDone | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        """Answer the receipt; there is nothing to acknowledge."""
        consumer.messages_acked += len(ids)
        if done is not None:
            done(None)

    def redeliver(
        self, consumer: Consumer, positions: Sequence[tuple[int, int]] | None, consumer_epoch: int | None = None
    ) -> None:
        """No effect: entries are not kept."""

    def disconnect(self) -> None:
        for consumer in list(self.consumers):
            consumer.channel.close()
            self.remove_consumer(consumer)

    @property
    def messages_out(self) -> int:
        return self._messages_out_before + sum(consumer.messages_out for consumer in self.consumers)

    @property
    def bytes_out(self) -> int:
        return self._bytes_out_before + sum(consumer.bytes_out for consumer in self.consumers)

    def stats(self) -> dict[str, Any]:
        return {
            "type": self.type.name if self.type is not None else "None",
            "msgRateOut": self.rates.messages_per_s,
            "msgThroughputOut": self.rates.bytes_per_s,
            "msgOutCounter": self.messages_out,
            "bytesOutCounter": self.bytes_out,
            "msgRateRedeliver": 0.0,
            "msgBacklog": 0,
            "unackedMessages": 0,
            "msgDropRate": 0.0,
            "msgDropCount": self.messages_dropped,
            **({"activeConsumerName": self._active.name} if self._active is not None else {}),
            "consumers": [consumer.stats() for consumer in self.consumers],
            "isDurable": False,
            "isReplicated": False,
            "subscriptionProperties": {},
            "consumersAfterMarkDeletePosition": {},
        }
