"""Bugs that seeds have found, as scripts."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.ledger_homes import MetadataLedgerHomes
from magnetar.broker.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.scalable.unfinished import TakeOvers
from magnetar.metadata.errors import MetadataConnectionError
from magnetar.testing.sim.history import History
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.messaging.promises import (
    ACKNOWLEDGED,
    Holder,
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    TopicHistory,
    payload_of_message,
)
from magnetar.testing.sim.messaging.run import run_messaging_seed
from magnetar.testing.sim.metadata import SimMetadataStore
from magnetar.testing.sim.report import seed_report
from magnetar.testing.sim.scalable.mutations import BROKER
from magnetar.testing.sim.scalable.run import run_scalable_seed
from magnetar.testing.sim.scalable.scenario import ScalableScenario
from magnetar.testing.sim.world import World, until


class Session:
    """One process with a session, whose connection breaks at a moment."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.machine = world.machine("worker")
        self.process = world.start(self.machine, "worker")
        self.store = SimMetadataStore(world.metadata, self.process, "worker")

    async def do(self, work: Coroutine[Any, Any, None]) -> None:
        """As the process."""
        await self.world.loop.spawn(self.process, work)

    @asynccontextmanager
    async def broken_at(self, moment: str) -> AsyncIterator[None]:
        """The answer to what is done at `moment` is lost; afterwards the session goes on."""

        def strike(process: Process, told: str) -> None:
            if told.startswith(moment):
                self.world.moments.listeners.clear()
                self.store.drop_connection()

        self.world.moments.listeners.append(strike)
        with pytest.raises(MetadataConnectionError):
            yield
        assert not self.world.moments.listeners
        await until(lambda: self.store._connected)


@pytest.mark.parametrize("moment", ["metadata put after", "metadata delete before", "metadata delete after"])
def test_a_lock_is_not_left_behind_when_an_answer_is_lost(moment: str) -> None:
    """Seed 5153: nobody repaired the ledger until the worker's session ended."""
    with World(1) as world:
        session = Session(world)

        async def main() -> None:
            marks = UnderreplicationManager(session.store, session.machine.clock, "worker")
            await marks.prepare()
            await marks.mark(7, ["bookie-1:3181"])
            rng = random.Random(1)
            async with session.broken_at(f"{moment} /ledgers/underreplication/locks"):
                lock = await marks.acquire(rng)
                assert lock is not None
                await marks.release(lock)
            again = await marks.acquire(rng)
            assert again is not None
            assert await marks.acquire(rng) is None
            await marks.release(again)

        world.run(session.do(main()))


@pytest.mark.parametrize("moment", ["metadata put after", "metadata delete before", "metadata delete after"])
def test_a_collection_leaves_no_lock_behind_either(moment: str) -> None:
    with World(1) as world:
        session = Session(world)

        async def main() -> None:
            marks = UnderreplicationManager(session.store, session.machine.clock, "bookie-1:3181")
            await marks.prepare()
            await marks.mark(7, ["bookie-2:3181"])
            homes = MetadataLedgerHomes(session.store, "bookie-1:3181")
            async with session.broken_at(f"{moment} /ledgers/underreplication/locks"), homes.lock(7) as locked:
                assert locked
                assert await marks.acquire(random.Random(1)) is None
            assert not await homes.stored_elsewhere(8)
            assert await marks.acquire(random.Random(1)) is not None

        world.run(session.do(main()))


def test_a_topic_is_taken_over_later_when_it_could_not_be_at_once() -> None:
    """Seed 19 with a scalable topic: the controller stood still in the middle of a merge and a bookie did too, so the other broker took
    over in vain as often as it could, until the clients were gone; then nobody tried again, and two segments were left terminated."""
    result = run_scalable_seed("19")
    assert not result.failed, seed_report(result)


@pytest.mark.parametrize(
    "outcomes",
    [(ServiceNotReadyError("no bookies"), ServiceNotReadyError("no bookies"), None), (TopicNotFoundError("deleted"),)],
)
def test_taking_over_is_tried_until_it_succeeds_or_the_topic_is_gone(outcomes: tuple[Exception | None, ...]) -> None:
    left = list(outcomes)
    topic = TopicName.parse("topic://public/default/scaled", scalable=True)

    async def control(asked: TopicName) -> None:
        assert asked == topic
        outcome = left.pop(0)
        if outcome is not None:
            raise outcome

    async def main() -> None:
        async with TaskScope("broker") as scope:
            attempts = TakeOvers(control, scope)
            attempts.again(topic)
            attempts.again(topic)
            assert topic in attempts
            await until(lambda: topic not in attempts)
            assert not left
            attempts.close()
            attempts.again(topic)
            assert topic not in attempts
            with pytest.raises(ServiceNotReadyError):
                attempts.check_open(topic)

    with World(1) as world:
        world.run(main())


def test_what_waits_for_a_consumer_that_stands_still_is_no_second_delivery() -> None:
    """Seed 1662 of the brokers: Failover had gone on to another consumer, which had acknowledged it, before the first one read it."""
    history = History()
    now_s = 0.0
    promises = Promises(history, lambda: now_s)
    topic = TopicHistory("topic", False)
    subscription = SubscriptionHistory("Failover", "Failover")
    name, place = Name("producer", 0), Place(1, 0)
    promises.sent(topic, name, payload := payload_of_message(name, "key", b""))
    first, second = (Holder(each, "broker", lambda: True) for each in ("first", "second"))
    promises.delivered(topic, subscription, place, payload, second, 1.0)
    now_s = 2.0
    promises.settled(subscription, [place], "second")
    now_s = 5.0
    promises.delivered(topic, subscription, place, payload, first, 1.5)
    assert history.violations == []
    promises.delivered(topic, subscription, place, payload, first, 2.5)
    assert [violation.checker for violation in history.violations] == [ACKNOWLEDGED]


@pytest.mark.parametrize("seed", ["1662", "7020"])
def test_the_seeds_that_found_errors_of_the_checkers_pass(seed: str) -> None:
    """Seed 7020: a fault ended a broker's session before its lease, and the broker went on delivering until it heard of it."""
    result = run_messaging_seed(seed)
    assert not result.failed, seed_report(result)


def test_a_reader_that_begins_within_a_batch_is_sent_what_follows() -> None:
    """Seed 100230 with a scalable topic: the messages of the first entry that a checkpoint reader had already were not counted as taken,
    and with a small window the broker sent it nothing more."""
    script = ScalableScenario(
        "within a batch",
        subscriptions=(("checkpoint-0", 1),),
        producers=1,
        keeper=True,
        duration_s=2.0,
        messages_max=60,
        batch_max=5,
        queue=1,
        leave=0.5,
        gap_s=0.005,
        patience_s=0.2,
        steps=(("split", (0,)),),
        broker=BROKER,
    )
    result = run_scalable_seed("within a batch", script)
    assert not result.failed, seed_report(result)


def test_the_metadata_session_of_a_dead_process_ends() -> None:
    """Seed 100411 with a scalable topic: its connection was dropped, and then its machine lost power; it came back, its nodes stayed."""

    async def main() -> None:
        machine = world.machine("broker")
        process = world.start(machine, "broker#1")
        store = process.context.run(SimMetadataStore, world.metadata, process, "broker", 4.0)
        await world.loop.spawn(process, store.put("/here", b"", ephemeral=True))
        store.drop_connection()
        world.cut_power(machine)
        store.drop_connection()
        await until(lambda: not world.metadata.tree.is_alive(store.session_id), 10.0)

    with World(1) as world:
        world.run(main())


def test_a_topic_that_rolls_over_while_it_is_trimmed_keeps_its_newest_ledger() -> None:
    """Seed 140656: the ledger that was the newest before the cursors were stored was kept, and the newest one deleted with what had a
    receipt in it and was not consumed."""
    result = run_scalable_seed("140656")
    assert not result.failed, seed_report(result)
