"""Subscriptions on the real managed ledger and cursor (bookies in memory): reads that end late, rollovers, cold caches, restarts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from magnetar.base.errors import MagnetarError, MetadataError
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.broker.dispatch.entry_metadata import metadata_of
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.position import EARLIEST, Position
from tests.unit.broker.dispatch_fakes import FakeChannel, channel, got, payload
from tests.unit.managed_ledger.ledger_harness import NAME, LedgerHarness, append_all, until

CONFIG = ManagedLedgerConfig(min_rollover_age_ms=0, max_entries_per_ledger=100)


class Bench:
    """One subscription and its consumers."""

    def __init__(self, harness: LedgerHarness, subscription: Subscription) -> None:
        self.harness = harness
        self.subscription = subscription
        self.count = 0

    @classmethod
    async def open(cls, harness: LedgerHarness, factory: ManagedLedgerFactory, **config: Any) -> Bench:
        ledger = await factory.open(NAME, CONFIG)
        cursor = await ledger.open_cursor("sub", initial=EARLIEST)
        subscription = Subscription(
            topic_name="persistent://tenant/ns/topic",
            name="sub",
            ledger=ledger,
            cursor=cursor,
            clock=harness.clock,
            scheduler=asyncio.get_running_loop(),
            config=SubscriptionConfig(**config),
            rng=random.Random(1),
        )
        return cls(harness, subscription)

    def consumer(self, kind: SubscriptionType, permits: int, *, answering: bool = False) -> Consumer:
        self.count += 1
        consumer = Consumer(consumer_id=self.count, name=f"c{self.count}", type=kind, channel=FakeChannel())
        if answering:

            def answer(entry: Entry) -> None:
                self.ack(consumer, entry)
                self.subscription.flow(consumer, 1)

            channel(consumer).on_deliver = answer
        self.subscription.add_consumer(consumer)
        self.subscription.flow(consumer, permits)
        return consumer

    def ack(self, consumer: Consumer, *entries: Entry) -> None:
        self.subscription.acknowledge(consumer, 0, [(entry.ledger_id, entry.entry_id, None, 0) for entry in entries])

    async def publish(self, count: int) -> list[Position]:
        return await append_all(
            self.subscription.ledger, [payload(f"key-{number % 50}", sequence=number) for number in range(count)]
        )


async def settle() -> None:
    """Until nothing has moved for a while."""
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [SubscriptionType.Exclusive, SubscriptionType.Shared, SubscriptionType.Key_Shared])
async def test_every_entry_once_over_rollovers(kind: SubscriptionType) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        positions = await bench.publish(350)
        consumer = bench.consumer(kind, 10, answering=True)
        positions += await bench.publish(150)
        await until(lambda: len(got(consumer)) >= 500)
        await settle()
        assert [entry.position for entry in got(consumer)] == positions
        assert bench.subscription.backlog_entries == 0
        assert consumer.permits == 10


@pytest.mark.parametrize("waiting_max", [0, 40, 100_000])
async def test_frozen_key_shared_consumer(waiting_max: int) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory, key_shared_waiting_max=waiting_max)
        frozen = bench.consumer(SubscriptionType.Key_Shared, 20)
        others = [bench.consumer(SubscriptionType.Key_Shared, 20, answering=True) for _ in range(3)]
        positions = await bench.publish(1500)
        await until(lambda: len(got(frozen)) == 20)
        await settle()
        stuck = {metadata_of(entry).slot for entry in got(frozen)}
        delivered = sum(len(got(consumer)) for consumer in others)
        frozen_total = 1500 - delivered
        assert 1500 * len(stuck) // 50 == frozen_total
        frozen_entries = got(frozen)
        bench.ack(frozen, *frozen_entries)
        channel(frozen).on_deliver = lambda entry: bench.ack(frozen, entry)
        bench.subscription.flow(frozen, 10_000)
        await until(lambda: bench.subscription.backlog_entries == 0)
        everything = [entry.position for consumer in (frozen, *others) for entry in got(consumer)]
        assert sorted(everything) == positions
        assert [entry.position for entry in got(frozen)] == sorted(entry.position for entry in got(frozen))


async def test_restart_delivers_what_was_not_acknowledged() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        positions = await bench.publish(250)
        consumer = bench.consumer(SubscriptionType.Shared, 1000)
        await until(lambda: len(got(consumer)) == 250)
        done: list[object] = []
        ids = [(entry.ledger_id, entry.entry_id, None, 0) for entry in got(consumer)[::2]]
        bench.subscription.acknowledge(consumer, 0, ids, done.append)
        await until(lambda: bool(done))
        assert done == [None]
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        consumer = bench.consumer(SubscriptionType.Key_Shared, 1000)
        await until(lambda: len(got(consumer)) == 125)
        await settle()
        assert [entry.position for entry in got(consumer)] == positions[1::2]


async def test_seek_back_by_position_and_time() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        positions = await bench.publish(250)
        bench.consumer(SubscriptionType.Shared, 1000, answering=True)
        await until(lambda: bench.subscription.backlog_entries == 0)
        await bench.subscription.seek(positions[120])
        assert bench.subscription.consumers == []
        consumer = bench.consumer(SubscriptionType.Shared, 1000)
        await until(lambda: len(got(consumer)) == 130)
        assert got(consumer)[0].position == positions[120]
        await bench.subscription.seek_to_time(2)
        late = bench.consumer(SubscriptionType.Exclusive, 1000)
        await settle()
        assert got(late) == []
        await bench.subscription.close()


async def test_a_seek_that_cannot_be_stored_moves_nothing() -> None:
    """A consumer that comes back gets what it would have got without it; one that came while it was stored gets nothing of before."""
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        positions = await bench.publish(250)
        first = bench.consumer(SubscriptionType.Shared, 1000)
        await until(lambda: len(got(first)) == 250)
        bench.ack(first, *got(first)[:200])
        await bench.subscription.cursor.flush()
        harness.cluster.bookies[0].add_code = ReturnCode.IO_ERROR
        harness.metadata.failures += [MetadataError("no answer")] * 9
        with pytest.raises(MagnetarError):
            await bench.subscription.seek(positions[10])
        assert bench.subscription.cursor.mark_delete_position == positions[199]
        back = bench.consumer(SubscriptionType.Shared, 1000)
        await until(lambda: len(got(back)) == 50)
        assert got(back)[0].position == positions[200]

        harness.cluster.bookies[0].add_code = None
        harness.metadata.failures.clear()
        harness.metadata.gate = asyncio.Event()
        seek = asyncio.create_task(bench.subscription.seek(positions[10]))
        await settle()
        early = bench.consumer(SubscriptionType.Shared, 1000)
        await settle()
        assert got(early) == []
        assert bench.subscription.cursor.mark_delete_position == positions[199]
        harness.metadata.gate.set()
        await seek
        await until(lambda: len(got(early)) == 240)
        assert got(early)[0].position == positions[10]
        await bench.subscription.close()


async def test_partly_acknowledged_batches_survive_a_restart() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        await append_all(bench.subscription.ledger, [payload("k", batch=4)])
        consumer = bench.consumer(SubscriptionType.Shared, 10)
        await until(lambda: len(got(consumer)) == 1)
        entry = got(consumer)[0]
        done: list[object] = []
        for words in ([0b1110], [0b1011]):
            bench.subscription.acknowledge(consumer, 0, [(entry.ledger_id, entry.entry_id, words, 0)], done.append)
        assert consumer.unacked_messages == 2
        await until(lambda: len(done) == 2)
    async with harness.broker() as factory:
        bench = await Bench.open(harness, factory)
        consumer = bench.consumer(SubscriptionType.Shared, 10)
        await until(lambda: len(got(consumer)) == 1)
        assert channel(consumer).got[0][2] == [0b1010]
        assert consumer.permits == 8
