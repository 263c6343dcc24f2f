"""A bundle goes from its owner to the successor that was named, however long the owner takes to close it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.errors import NotOwnedError
from magnetar.broker.namespaces.ownership import SUCCESSOR_TIMEOUT_S, Ownership
from magnetar.broker.namespaces.records import BrokerAddress, BundleName
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import TopicName
from magnetar.metadata.memory import MemoryMetadataStore, MemoryTree
from tests.unit.managed_ledger.ledger_harness import HandClock

TOPIC = TopicName.parse("persistent://public/default/t")


class Brokers:
    """Three brokers with a session each. `follow` lets one see what has changed at the bundle, as its watch does."""

    def __init__(self) -> None:
        tree = MemoryTree()
        self.clock = HandClock()
        stores = [MemoryMetadataStore(tree) for _ in range(3)]
        self.registries = [NamespaceRegistry(store, BrokerConfig()) for store in stores]
        self.all = [
            Ownership(store, registry, self._address(number), self.clock)
            for number, (store, registry) in enumerate(zip(stores, self.registries, strict=True))
        ]

    @staticmethod
    def _address(number: int) -> BrokerAddress:
        return BrokerAddress(f"pulsar://host:{6650 + number}", "", f"http://host:{8080 + number}", "")

    async def follow(self, bundle: BundleName) -> None:
        for broker in self.all:
            await broker.look(bundle)

    def wait(self, seconds: float) -> None:
        self.clock.ms += int(seconds * 1000)


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    found = Brokers()
    await found.registries[0].create_defaults()
    yield found
    for broker in found.all:
        broker.close()


async def test_the_successor_takes_a_bundle_that_was_closed_for_long(brokers: Brokers) -> None:
    owner, successor, other = brokers.all
    bundle = await owner.require(TOPIC)
    await owner.begin_leaving(bundle, successor.broker_id)
    await brokers.follow(bundle)
    brokers.wait(60 * SUCCESSOR_TIMEOUT_S)
    with pytest.raises(NotOwnedError):
        await other.require(TOPIC)
    await owner.release(bundle)
    await brokers.follow(bundle)
    assert (owner.held, successor.held, other.held) == ([], [bundle], [])


async def test_a_successor_that_does_not_come_is_waited_for_a_while_only(brokers: Brokers) -> None:
    owner, successor, other = brokers.all
    bundle = await owner.require(TOPIC)
    await owner.begin_leaving(bundle, successor.broker_id)
    await other.look(bundle)
    brokers.wait(60 * SUCCESSOR_TIMEOUT_S)
    await owner.release(bundle)
    await other.look(bundle)
    brokers.wait(SUCCESSOR_TIMEOUT_S - 0.1)
    with pytest.raises(NotOwnedError):
        await other.require(TOPIC)
    await other.look(bundle)
    brokers.wait(0.1)
    assert await asyncio.wait_for(other.require(TOPIC), 60) == bundle
    assert (owner.held, successor.held) == ([], [])
