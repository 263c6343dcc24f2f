"""What a coordinator needs of the topics that take part in its transactions."""

from __future__ import annotations

from typing import Protocol

from magnetar.broker.transactions.txn_id import TxnId


class Participants(Protocol):
    """Names are as the client sent them. All may raise BrokerError or the storage's error; `end_*` is then tried again.

    `low_water_mark`: the highest number below which the coordinator of `txn` has no transaction left; what belongs to one of those is
    aborted on the way.
    """

    async def prepare_partition(self, topic: str) -> None:
        """The topic is going to store messages of a transaction. Raises TopicNotFoundError, NotAllowedError."""
        ...

    async def prepare_subscription(self, topic: str, subscription: str) -> None:
        """The subscription is going to hold acknowledgements of a transaction. Raises what `prepare_partition` raises, and
        SubscriptionNotFoundError."""
        ...

    async def end_on_partition(self, topic: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        """Show or hide the topic's messages of the transaction; durable on return. A topic that is gone has none."""
        ...

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low_water_mark: int
    ) -> None:
        """Apply or drop the subscription's acknowledgements of the transaction; durable on return."""
        ...
