"""The topics of the whole cluster as a coordinator sees them: those of this broker directly, others through the broker that has them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import Peers, raise_for
from magnetar.broker.topics.participants import TopicParticipants
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC
from magnetar.broker.transactions.grants import Naming
from magnetar.broker.transactions.types import TxnId

PARTICIPANTS_TARGET = "/admin/v3/transactions/participants"
"""Ours: Pulsar's brokers end transactions on each other's topics over the binary protocol, which has no command to prepare."""


class ClusterParticipants:
    """Implements `Participants` and `OtherCoordinators`."""

    def __init__(self, own: TopicParticipants, lookup: Lookup, peers: Peers) -> None:
        self.own = own
        self._lookup = lookup
        self._peers = peers

    async def prepare_partition(self, topic: str, txn: TxnId, owner: str) -> None:
        here = partial(self.own.prepare_partition, topic, txn, owner)
        await self._at_owner(topic, here, txn, owner=owner)

    async def prepare_subscription(self, topic: str, subscription: str, txn: TxnId, owner: str) -> None:
        here = partial(self.own.prepare_subscription, topic, subscription, txn, owner)
        await self._at_owner(topic, here, txn, subscription=subscription, owner=owner)

    async def end_on_partition(self, topic: str, txn: TxnId, commit: bool, low_water_mark: int) -> None:
        here = partial(self.own.end_on_partition, topic, txn, commit, low_water_mark)
        await self._at_owner(topic, here, txn, commit=commit, lowWaterMark=low_water_mark)

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, commit: bool, low_water_mark: int
    ) -> None:
        here = partial(self.own.end_on_subscription, topic, subscription, txn, commit, low_water_mark)
        request = {"subscription": subscription, "commit": commit, "lowWaterMark": low_water_mark}
        await self._at_owner(topic, here, txn, **request)

    async def _at_owner(self, topic: str, here: Callable[[], Awaitable[None]], txn: TxnId, **request: Any) -> None:
        try:
            await here()
        except NotOwnedError as error:
            owner = error.owner or (await self._lookup.find(TopicName.parse(topic))).address
            named = {"topic": topic, "mostSigBits": txn.most, "leastSigBits": txn.least}
            raise_for(
                await self._peers.call(owner, "POST", PARTICIPANTS_TARGET, json.dumps({**named, **request}).encode())
            )

    async def named(self, coordinator: int, topic: str) -> list[Naming]:
        """Implements `OtherCoordinators`."""
        owner = (await self._lookup.find(ASSIGN_TOPIC.partition_name(coordinator))).address
        answer = await self._peers.call(
            owner, "GET", f"{PARTICIPANTS_TARGET}/{coordinator}?topic={quote(topic, safe='')}"
        )
        if answer.status != 200:
            reason = answer.reason or f"status {answer.status}"
            raise ServiceNotReadyError(f"the broker of transaction coordinator {coordinator} does not answer: {reason}")
        return [Naming(each["leastSigBits"], each["subscription"], each["owner"]) for each in answer.document]
