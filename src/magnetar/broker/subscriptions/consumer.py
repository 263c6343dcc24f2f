"""One consumer of a subscription: who it is, its limits and its counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from magnetar.base.clock import iso_time
from magnetar.broker.dispatch.ports import ConsumerChannel
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.broker.rate_limits import Rates
from magnetar.broker.subscriptions.acks import AckDone, AckId, AckType
from magnetar.broker.subscriptions.policies import KeySharedMode, SubscriptionType


class ConsumerHost(Protocol):
    """The owner of a consumer: a subscription of a persistent or of a non-persistent topic."""

    @property
    def name(self) -> str: ...

    def remove_consumer(self, consumer: Consumer, /) -> None: ...

    def flow(self, consumer: Consumer, permits: int, /) -> None: ...

    async def entries_discarded(self, consumer: Consumer, ids: Sequence[AckId], /) -> None: ...

    def channel_writable(self, consumer: Consumer, /) -> None: ...

    def acknowledge(
        self,
        consumer: Consumer,
        ack_type: AckType | int,
        ids: Sequence[AckId],
        done: AckDone | None = None,
        properties: Mapping[str, int] | None = None,
        /,
    ) -> None: ...

    def redeliver(
        self,
        consumer: Consumer,
        positions: Sequence[tuple[int, int]] | None,
        consumer_epoch: int | None = None,
        /,
    ) -> None: ...


class Consumer(Receiver):
    """Made by the connection, added to a subscription, gone with either. Counters are plain ints, read at scrape time."""

    __slots__ = (
        "allow_out_of_order",
        "auto_consume",
        "client_address",
        "client_version",
        "connected_since_ms",
        "consumer_id",
        "durable",
        "from_earliest",
        "key_shared_mode",
        "last_acked_ms",
        "last_flow_ms",
        "messages_acked",
        "metadata",
        "rates",
        "read_compacted",
        "sticky_ranges",
        "subscription",
        "type",
    )

    def __init__(
        self,
        *,
        consumer_id: int,
        name: str,
        type: SubscriptionType,
        channel: ConsumerChannel,
        priority_level: int = 0,
        metadata: Mapping[str, str] | None = None,
        durable: bool = True,
        key_shared_mode: KeySharedMode = KeySharedMode.AUTO_SPLIT,
        sticky_ranges: Sequence[tuple[int, int]] = (),
        allow_out_of_order: bool = False,
        auto_consume: bool = False,
        client_address: str = "",
        client_version: str = "",
        connected_since_ms: int = 0,
        read_compacted: bool = False,
        from_earliest: bool = False,
    ) -> None:
        """`sticky_ranges`: inclusive pairs of slots, for KeySharedMode.STICKY. `auto_consume`: it takes whatever schema there is."""
        super().__init__(name=name, channel=channel, priority_level=priority_level)
        self.consumer_id = consumer_id
        self.type = type
        self.metadata = dict(metadata or {})
        self.durable = durable
        self.key_shared_mode = key_shared_mode
        self.sticky_ranges = [(int(start), int(end)) for start, end in sticky_ranges]
        self.allow_out_of_order = allow_out_of_order
        self.auto_consume = auto_consume
        self.client_address = client_address
        self.client_version = client_version
        self.connected_since_ms = connected_since_ms
        self.read_compacted = read_compacted
        """True if it reads what compaction left, and behind that the topic."""
        self.from_earliest = from_earliest
        """A new subscription was to begin with the oldest message there is."""
        self.subscription: ConsumerHost | None = None
        """The subscription, while it is added to one."""
        self.rates = Rates()
        self.messages_acked = 0
        """Messages acknowledged through it; entries for the types that do not hold entries one by one."""
        self.last_flow_ms = 0
        self.last_acked_ms = 0

    def described(self) -> dict[str, Any]:
        return {"consumer": self.name, "address": self.client_address}

    def stats(self) -> dict[str, Any]:
        """Pulsar's ConsumerStats; rates are of the last sampling interval."""
        return {
            "msgRateOut": self.rates.messages_per_s,
            "msgThroughputOut": self.rates.bytes_per_s,
            "bytesOutCounter": self.bytes_out,
            "msgOutCounter": self.messages_out,
            "msgRateRedeliver": 0.0,
            "messageAckRate": 0.0,
            "chunkedMessageRate": 0.0,
            "consumerName": self.name,
            "availablePermits": self.permits,
            "unackedMessages": self.unacked_messages,
            "avgMessagesPerEntry": round(self.messages_out / self.entries_out) if self.entries_out else 0,
            "blockedConsumerOnUnackedMsgs": self.blocked_on_unacked,
            "address": self.client_address,
            "connectedSince": iso_time(self.connected_since_ms),
            "clientVersion": self.client_version,
            "lastAckedTimestamp": self.last_acked_ms,
            "lastConsumedTimestamp": self.last_consumed_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "metadata": dict(self.metadata),
            "priorityLevel": self.priority_level,
        }
