"""The topics of this broker as a coordinator sees them."""

from __future__ import annotations

from magnetar.broker.errors import NotAllowedError
from magnetar.broker.naming import TopicName
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.broker.topics.transactions import TopicTransactions
from magnetar.broker.transactions.grants import TOPIC_ITSELF
from magnetar.broker.transactions.types import TxnId


class TopicParticipants:
    """Implements `Participants`."""

    def __init__(self, topics: TopicRegistry) -> None:
        self._topics = topics

    async def _of(self, topic: str) -> TopicTransactions:
        """Raises TopicNotFoundError, NotAllowedError for a topic that stores nothing."""
        found = await self._topics.get(TopicName.parse(topic), create=False)
        if not isinstance(found, PersistentTopic):
            raise NotAllowedError(f"{topic} is not persistent: transactions cannot use it")
        return found.transactions

    async def prepare_partition(self, topic: str, txn: TxnId, owner: str) -> None:
        found = await self._of(topic)
        await found.prepare()
        found.grants.add(txn, TOPIC_ITSELF, owner)

    async def prepare_subscription(self, topic: str, subscription: str, txn: TxnId, owner: str) -> None:
        found = await self._of(topic)
        await found.prepare_subscription(subscription)
        found.grants.add(txn, subscription, owner)

    async def end_on_partition(self, topic: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        await (await self._of(topic)).end(txn, commit, low_water_mark)

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low_water_mark: int
    ) -> None:
        await (await self._of(topic)).end_on_subscription(subscription, txn, commit, low_water_mark)
