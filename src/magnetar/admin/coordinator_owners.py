"""Transaction coordinators at several brokers: a question about one goes to its broker, one about all is put to every broker."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import quote

from magnetar.admin.call import Call
from magnetar.admin.errors import UnhealthyError
from magnetar.admin.redirects import credentials_of
from magnetar.broker.namespaces.records import BrokerAddress
from magnetar.broker.naming import TopicName
from magnetar.broker.peers import PeerAnswer, raise_for, topic_target
from magnetar.broker.transactions.coordinators import ASSIGN_TOPIC, Coordinators
from magnetar.broker.transactions.types import TxnId

TRANSACTIONS: Final = "/admin/v3/transactions"
HERE: Final = "here"
"""Query: only of the broker that is asked."""

ASKED_AT_ONCE: Final = 16
"""Topics of one answer that other brokers are asked about together; the others wait."""


def coordinators_of(call: Call) -> Coordinators:
    """Raises UnhealthyError where transactions are off."""
    coordinators = call.broker.transactions
    if not coordinators.enabled:
        raise UnhealthyError("This Broker is not configured with transactionCoordinatorEnabled=true.")
    return coordinators


async def require(call: Call, number: int) -> Coordinators:
    """This broker serves the coordinator. Raises NotOwnedError, which redirects, and TransactionCoordinatorNotFoundError."""
    coordinators = coordinators_of(call)
    await coordinators.recounted()
    coordinators.check_served(number)
    await call.broker.lookup.require(ASSIGN_TOPIC.partition_name(number))
    return coordinators


async def from_others(call: Call, leaf: str) -> list[dict[str, Any]]:
    """The other brokers' answers; empty when only this broker was asked."""
    if call.flag(HERE):
        return []
    target = f"{TRANSACTIONS}/{leaf}?{HERE}=true"
    others = await call.broker.cluster.others()
    answers = await asyncio.gather(*(_get(call, address, target) for address in others))
    for answer in answers:
        raise_for(answer)
    return [answer.document for answer in answers]


async def _get(call: Call, address: BrokerAddress, target: str) -> PeerAnswer:
    return await call.broker.peers.call(address, "GET", target, b"", credentials_of(call))


class OtherTopics:
    """What a transaction does in topics that other brokers serve."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._limit = asyncio.Semaphore(ASKED_AT_ONCE)

    async def in_buffer(self, topic: str, txn: TxnId) -> dict[str, Any]:
        """The other broker's document; empty when the topic is at home here, or gone."""
        return await self._ask("transactionInBufferStats", TopicName.parse(topic), f"/{txn.most}/{txn.least}")

    async def in_pending(self, topic: str, subscription: str, txn: TxnId) -> dict[str, Any]:
        leaf = f"/{quote(subscription, safe='')}/{txn.most}/{txn.least}"
        return await self._ask("transactionInPendingAckStats", TopicName.parse(topic), leaf)

    async def _ask(self, what: str, topic: TopicName, leaf: str) -> dict[str, Any]:
        async with self._limit:
            found = await self._call.broker.lookup.find(topic)
            if found.address == self._call.broker.cluster.address:
                return {}
            path = topic_target(topic).removeprefix(f"/admin/v2/{topic.domain}")
            answer = await _get(self._call, found.address, f"{TRANSACTIONS}/{what}{path}{leaf}")
        if answer.status == 404:
            return {}
        raise_for(answer)
        document: dict[str, Any] = answer.document
        return document
