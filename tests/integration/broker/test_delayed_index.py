"""The stored index of delayed messages: sealing, loading, restarts, seeks, damage."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from magnetar.base.errors import CorruptionError
from magnetar.base.tasks import FATAL, TaskScope
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.subscriptions.bucket_store import LedgerBucketStore
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.consumer import Consumer
from magnetar.broker.subscriptions.delayed_buckets import BUCKET_PROPERTY, BucketedDelayedIndex, DelayedStorage
from magnetar.broker.subscriptions.delayed_codec import decode_header, decode_segment, encode
from magnetar.broker.subscriptions.policies import SubscriptionType
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.broker.dispatch_fakes import FakeChannel, got, payload
from tests.unit.managed_ledger.ledger_harness import NAME, LedgerHarness, append_all, until

HOUR_MS = 3_600_000
KINDS = [SubscriptionType.Shared, SubscriptionType.Key_Shared]


async def settle() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


async def subscribe(
    harness: LedgerHarness,
    factory: ManagedLedgerFactory,
    scope: TaskScope,
    seal_at: int = 100,
    config: ManagedLedgerConfig | None = None,
) -> Subscription:
    ledger = await factory.open(NAME, config)
    cursor = await ledger.open_cursor("sub", initial=EARLIEST, cursor_properties={"colour": "red"})
    store = LedgerBucketStore(harness.cluster.new_client(7))
    return Subscription(
        topic_name="persistent://tenant/ns/topic",
        name="sub",
        ledger=ledger,
        cursor=cursor,
        clock=harness.clock,
        scheduler=asyncio.get_running_loop(),
        config=SubscriptionConfig(),
        rng=random.Random(1),
        delayed_storage=DelayedStorage(store, partial(scope.spawn, on_failure=FATAL), seal_at),
    )


def join(subscription: Subscription, kind: SubscriptionType) -> Consumer:
    consumer = Consumer(consumer_id=1, name="c", type=kind, channel=FakeChannel())
    subscription.add_consumer(consumer)
    subscription.flow(consumer, 100_000)
    return consumer


def index(subscription: Subscription) -> BucketedDelayedIndex:
    delayed = subscription.dispatch.dispatcher.delayed
    assert isinstance(delayed, BucketedDelayedIndex)
    return delayed


def buckets(subscription: Subscription) -> list[str]:
    return [name for name in subscription.cursor.cursor_properties if name.startswith(BUCKET_PROPERTY)]


async def publish_delayed(harness: LedgerHarness, subscription: Subscription, count: int) -> None:
    """Every second message is delayed by an hour and some ms, in no order."""
    now = harness.clock.now_ms()
    shuffled = list(range(count))
    random.Random(3).shuffle(shuffled)
    await append_all(
        subscription.ledger,
        [
            payload(f"key-{n % 30}", sequence=n, **({"deliver_at_time": now + HOUR_MS + n} if n % 2 else {}))
            for n in shuffled
        ],
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_restart_neither_delivers_early_nor_indexes_again(kind: SubscriptionType) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        assert subscription.properties == {"colour": "red"}
        consumer = join(subscription, kind)
        await publish_delayed(harness, subscription, 600)
        await until(lambda: len(got(consumer)) == 300)
        await until(lambda: len(buckets(subscription)) >= 2)
        await settle()
        assert subscription.delayed_messages == 300
        early = {entry.position for entry in got(consumer)}
        done: list[object] = []
        ids = [(entry.ledger_id, entry.entry_id, None, 0) for entry in got(consumer)]
        subscription.acknowledge(consumer, 0, ids, done.append)
        await until(lambda: bool(done))
        await subscription.close()
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        assert subscription.properties == {"colour": "red"}
        consumer = join(subscription, kind)
        await settle()
        assert got(consumer) == []
        assert subscription.delayed_messages == 300
        assert len(index(subscription)._heap) == 0
        harness.clock.ms += HOUR_MS + 1000
        subscription._pump.wake()
        await until(lambda: len(got(consumer)) == 300)
        await settle()
        positions = [entry.position for entry in got(consumer)]
        assert len(set(positions)) == 300
        assert not set(positions) & early
        assert subscription.delayed_messages == 0
        await until(lambda: not buckets(subscription))
        subscription.acknowledge(consumer, 0, [(*position, None, 0) for position in positions])
        assert subscription.backlog_entries == 0


async def bucket_copies(harness: LedgerHarness, subscription: Subscription) -> list[tuple[int, int, int, int]]:
    """Ensemble, write quorum, ack quorum, and bookies that hold something: of each bucket."""
    manager = LedgerManager(harness.metadata)
    found = []
    for name in buckets(subscription):
        ledger_id = int(subscription.cursor.cursor_properties[name])
        metadata, _ = await manager.read(ledger_id)
        held = [bookie.entries.get(ledger_id, {}) for bookie in harness.cluster.bookies]
        quorums = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        found.append((*quorums, sum(map(bool, held))))
    return found


async def test_buckets_have_the_topics_copies_and_outlive_a_bookie() -> None:
    harness = LedgerHarness(4)
    config = ManagedLedgerConfig(ensemble_size=2, write_quorum=2, ack_quorum=2)
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope, config=config)
        consumer = join(subscription, SubscriptionType.Shared)
        await publish_delayed(harness, subscription, 300)
        await until(lambda: len(got(consumer)) == 150)
        await until(lambda: len(buckets(subscription)) == 1)
        assert await bucket_copies(harness, subscription) == [(2, 2, 2, 2)]
        # the namespace's persistence changes while the topic is loaded: the next bucket has it
        subscription.ledger.set_config(ManagedLedgerConfig(ensemble_size=3, write_quorum=3, ack_quorum=2))
        await publish_delayed(harness, subscription, 300)
        await until(lambda: len(got(consumer)) == 300)
        await until(lambda: len(buckets(subscription)) >= 2)
        await settle()
        assert set(await bucket_copies(harness, subscription)) == {(2, 2, 2, 2), (3, 3, 2, 3)}
        ids = [(entry.ledger_id, entry.entry_id, None, 0) for entry in got(consumer)]
        done: list[object] = []
        subscription.acknowledge(consumer, 0, ids, done.append)
        await until(lambda: bool(done))
        await subscription.close()
        names = [int(subscription.cursor.cursor_properties[name]) for name in buckets(subscription)]
    holder = next(number for number in range(4) if names[0] in harness.cluster.bookies[number].entries)
    harness.cluster.directory.unregister(f"b{holder}")
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope, config=config)
        consumer = join(subscription, SubscriptionType.Shared)
        await until(lambda: subscription.delayed_messages == 300)
        await settle()
        assert (got(consumer), len(index(subscription)._heap)) == ([], 0), "all of them are known from the buckets"
        harness.clock.ms += HOUR_MS + 1000
        subscription._pump.wake()
        await until(lambda: len(got(consumer)) == 300)
        assert len({entry.position for entry in got(consumer)}) == 300


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_process_keeps_messages_back_and_loses_none(kind: SubscriptionType) -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        consumer = join(subscription, kind)
        await publish_delayed(harness, subscription, 500)
        await until(lambda: len(got(consumer)) == 250)
        await until(lambda: len(buckets(subscription)) >= 1)
    harness.clock.ms += HOUR_MS + 250
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        consumer = join(subscription, kind)
        await until(lambda: len(got(consumer)) >= 250 + 120)
        await settle()
        assert len({entry.position for entry in got(consumer)}) == len(got(consumer))
        harness.clock.ms += 1000
        subscription._pump.wake()
        await until(lambda: len(got(consumer)) == 500)
        await settle()
        assert len({entry.position for entry in got(consumer)}) == len(got(consumer)) == 500
        subscription.dispatch.dispatcher.validate()
        await subscription.close()


async def test_a_bucket_that_cannot_be_read_is_replaced_by_the_cursor() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        consumer = join(subscription, SubscriptionType.Shared)
        await publish_delayed(harness, subscription, 400)
        await until(lambda: len(got(consumer)) == 200)
        await until(lambda: len(buckets(subscription)) >= 1)
        await settle()
        numbers = [int(subscription.cursor.cursor_properties[name]) for name in buckets(subscription)]
        await harness.cluster.new_client(9).delete_ledger(numbers[0])
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        consumer = join(subscription, SubscriptionType.Shared)
        await until(lambda: len(got(consumer)) == 200)
        await settle()
        assert subscription.delayed_messages == 200
        harness.clock.ms += HOUR_MS + 1000
        subscription._pump.wake()
        await until(lambda: len(got(consumer)) == 400)
        assert len({entry.position for entry in got(consumer)}) == 400


async def test_a_seek_forgets_the_stored_index() -> None:
    harness = LedgerHarness()
    async with harness.broker() as factory, TaskScope("topic") as scope:
        subscription = await subscribe(harness, factory, scope)
        consumer = join(subscription, SubscriptionType.Shared)
        await publish_delayed(harness, subscription, 400)
        await until(lambda: len(buckets(subscription)) >= 1)
        await settle()
        await subscription.seek(EARLIEST)
        await settle()
        consumer = join(subscription, SubscriptionType.Shared)
        await until(lambda: len(got(consumer)) == 200)
        await settle()
        assert subscription.delayed_messages == 200
        await subscription.close(deleting=True)
        assert not buckets(subscription)


def test_codec_round_trip_and_damage() -> None:
    rng = random.Random(5)
    keys = rng.sample(range(1 << 20), 12_000)
    items = sorted((rng.randrange(1 << 40), (rng.randrange(3) << 32 | key) << 16 | key & 0xFFFF) for key in keys)
    header, chunks = encode(items)
    assert len(chunks) == 4
    read = decode_header(chunks[0])
    assert read.count == 12_000
    assert read.first_due_ms == header.first_due_ms == [items[0][0], items[5000][0], items[10_000][0]]
    assert [item for chunk in chunks[1:] for item in decode_segment(chunk)] == items
    stored = {packed >> 16 for _, packed in items}
    assert all(key in read.positions for key in stored)
    others = [key for key in range(1000) if key not in stored]
    assert not any(key in read.positions for key in others)
    with pytest.raises(CorruptionError):
        decode_header(b"x" * 40)
    with pytest.raises(CorruptionError):
        decode_header(chunks[0][:20])
    with pytest.raises(CorruptionError):
        decode_segment(chunks[1][:-1])


def test_index_in_memory_orders_by_due_time_then_position() -> None:
    index = DelayedIndex()
    for due, key in ((30, 1), (10, 9), (10, 2), (20, 5)):
        index.add(due, key, 7)
    assert index.next_due_ms() == 10
    assert index.take_due(20, 2) == [(2, 7), (9, 7)]
    assert index.take_due(20, 10) == [(5, 7)]
    assert len(index) == 1
    index.clear()
    assert index.next_due_ms() is None
