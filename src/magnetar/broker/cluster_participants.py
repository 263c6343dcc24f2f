"""The topics of the whole cluster as a coordinator sees them: those of this broker directly, others through the broker that has them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import Peers, raise_for
from magnetar.broker.topics.participants import TopicParticipants
from magnetar.broker.transactions.types import TxnId

PARTICIPANTS_TARGET = "/admin/v3/transactions/participants"
"""Ours: Pulsar's brokers end transactions on each other's topics over the binary protocol, which has no command to prepare."""


class ClusterParticipants:
    """Implements `transactions.ports.Participants`."""

    def __init__(self, own: TopicParticipants, lookup: Lookup, peers: Peers) -> None:
        self.own = own
        self._lookup = lookup
        self._peers = peers

    async def prepare_partition(self, topic: str) -> None:
        await self._at_owner(topic, partial(self.own.prepare_partition, topic))

    async def prepare_subscription(self, topic: str, subscription: str) -> None:
        here = partial(self.own.prepare_subscription, topic, subscription)
        await self._at_owner(topic, here, subscription=subscription)

    async def end_on_partition(self, topic: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        here = partial(self.own.end_on_partition, topic, txn, commit, low_water_mark)
        await self._at_owner(topic, here, **_outcome(txn, commit, low_water_mark))

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low_water_mark: int
    ) -> None:
        here = partial(self.own.end_on_subscription, topic, subscription, txn, commit, low_water_mark)
        await self._at_owner(topic, here, subscription=subscription, **_outcome(txn, commit, low_water_mark))

    async def _at_owner(self, topic: str, here: Callable[[], Awaitable[None]], **request: Any) -> None:
        try:
            await here()
        except NotOwnedError as error:
            owner = error.owner or (await self._lookup.find(TopicName.parse(topic))).address
            body = json.dumps({"topic": topic, **request}).encode()
            raise_for(await self._peers.call(owner, "POST", PARTICIPANTS_TARGET, body))


def _outcome(txn: TxnId, commit: bool, low_water_mark: int) -> dict[str, Any]:
    return {"mostSigBits": txn.most, "leastSigBits": txn.least, "commit": commit, "lowWaterMark": low_water_mark}
