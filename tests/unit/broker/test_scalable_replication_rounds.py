"""What the controller of a scalable topic asks and tells other clusters: rounds that are lost, answers that come late, words told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from magnetar.base.clock import SystemClock
from magnetar.base.tasks import TaskScope
from magnetar.broker.config import ReplicatedSubscriptionsConfig
from magnetar.broker.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.replication.ports import SnapshotCounters
from magnetar.broker.scalable.layout import HASH_MAX, SegmentLayout
from magnetar.broker.scalable.other_clusters import OtherClusters, ReplicationRules
from magnetar.broker.scalable.replicated_subscriptions import ReplicatedSubscriptions
from magnetar.broker.scalable.segments import SegmentPlaces
from magnetar.client.errors import UnreachableError
from magnetar.managed_ledger.position import Position

TOPIC = TopicName.parse("topic://t/n/x", scalable=True)


class World:
    """Cluster `here` with one subscription, and others whose answers a test decides. `log`: what they were asked and told."""

    def __init__(self, *clusters: str) -> None:
        self.clusters = clusters
        self.layout = SegmentLayout.create(1, 0)
        self.leads = True
        self.ends = {0: Position(1, 10)}
        self.acknowledged = {0: Position(1, 0)}
        self.log: list[tuple[str, Any]] = []
        self.silent: set[int] = set()
        """Segments whose brokers do not answer."""
        self.lost: Callable[[str, str], bool] = lambda cluster, what: False
        self.late: list[str] = []
        """Clusters whose next answers have not arrived yet."""
        self.counters = SnapshotCounters()

    async def call(self, cluster: str, method: str, path: str, body: Any) -> object:
        what = "tell" if "/subscriptions/" in path else "ask"
        self.log.append((f"{what} {cluster}", body))
        if self.lost(cluster, what):
            raise UnreachableError(f"{cluster} does not answer")
        if what == "tell":
            return None
        places = body or [[0, HASH_MAX, 7, 3, len(self.log)]]
        arrived = cluster not in self.late
        if not arrived:
            self.late.remove(cluster)
        return {"places": places, "arrived": arrived}

    async def places(self, name: TopicName) -> SegmentPlaces:
        segment_id = int(name.local_name.rpartition("-")[2])
        if segment_id in self.silent:
            raise ServiceNotReadyError(f"the broker of {name} does not answer")
        if segment_id not in self.ends:
            raise TopicNotFoundError(f"{name} does not exist")
        end = self.ends[segment_id]
        return SegmentPlaces(end, end, {}, {"s": self.acknowledged.get(segment_id, Position(1, 0))})

    async def rules(self, topic: TopicName) -> ReplicationRules:
        return ReplicationRules(self.clusters, ReplicatedSubscriptionsConfig(interval_ms=1))

    async def current(self) -> SegmentLayout:
        if not self.leads:
            raise ServiceNotReadyError("another broker controls the topic")
        return self.layout

    async def names(self) -> Mapping[str, str]:
        return {"s": "QUEUE"}

    def told(self, cluster: str) -> list[Any]:
        return [body for what, body in self.log if what == f"tell {cluster}"]

    def asked(self, cluster: str) -> list[Any]:
        return [body for what, body in self.log if what == f"ask {cluster}"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


def played(world: World, play: Callable[[World, ReplicatedSubscriptions], Awaitable[None]]) -> None:
    async def run() -> None:
        async with TaskScope("test") as scope:
            core = ReplicatedSubscriptions(
                TOPIC,
                clusters=OtherClusters("here", world.rules, world.call),
                segments=world,  # type: ignore[arg-type]  # of the segments it only asks for places
                names=world.names,
                layout=world.current,
                clock=SystemClock(),
                scope=scope,
                counters=world.counters,
            )
            running = asyncio.create_task(core.run())
            try:
                await play(world, core)
            finally:
                core.close()
                running.cancel()

    asyncio.run(run())


def test_two_rounds_and_the_place_of_the_first_answer() -> None:
    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        await until(lambda: world.counters.completed == 1)
        assert len(world.asked("b")) == 2
        assert world.told("b") == [], "nothing is acknowledged up to the snapshot"
        world.acknowledged[0] = Position(1, 10)
        await until(lambda: bool(world.told("b")))
        assert world.told("b") == [[[0, HASH_MAX, 7, 3, 1]]]
        ticks = len(world.log)
        await asyncio.sleep(0.02)
        assert len(world.log) == ticks, "what is known is not told again, and nothing new asks for no snapshot"

    played(World("b"), play)


def test_an_answer_that_has_not_arrived_is_asked_about_again() -> None:
    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        await until(lambda: world.counters.completed == 1)
        bodies = world.asked("b")
        assert [each is None for each in bodies] == [True, False, False, True]
        assert bodies[1] == bodies[2]

    world = World("b", "c")
    world.late = ["b", "b"]
    played(world, play)


def test_a_round_that_is_lost_drops_the_snapshot() -> None:
    """One cluster answers the first round only: nothing is told until both rounds have been answered by all."""

    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        world.acknowledged[0] = Position(1, 10)
        await until(lambda: world.counters.timed_out >= 3)
        assert world.told("b") == world.told("c") == []
        (status,) = (await core.status()).subscriptions
        assert "cluster c is not asked or told" in status.reason
        world.lost = lambda cluster, what: False
        await until(lambda: bool(world.told("b") and world.told("c")))
        assert (await core.status()).subscriptions[0].would_repeat == 0

    world = World("b", "c")
    world.lost = lambda cluster, what: cluster == "c" and len(world.asked("c")) % 2 == 0
    played(world, play)


def test_what_may_not_have_been_heard_is_told_again() -> None:
    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        world.acknowledged[0] = Position(1, 10)
        await until(lambda: len(world.told("b")) >= 3)
        world.lost = lambda cluster, what: False
        count = len(world.told("b"))
        await until(lambda: len(world.told("b")) > count)
        assert len({str(each) for each in world.told("b")}) == 1

    world = World("b")
    world.lost = lambda cluster, what: what == "tell"
    played(world, play)


def test_a_controller_that_was_deposed_tells_nothing() -> None:
    """Its layout may lack a split, and with it messages that are in a child."""

    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        await until(lambda: world.counters.completed == 1)
        world.leads = False
        world.acknowledged[0] = Position(1, 10)
        await asyncio.sleep(0.05)
        assert world.told("b") == []

    played(World("b"), play)


def test_a_child_is_not_passed_before_its_parent_is_drained() -> None:
    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        await until(lambda: world.counters.completed == 1)
        world.ends |= {1: Position(2, 5), 2: Position(3, 0)}
        world.layout = world.layout.split(0, 0)
        world.acknowledged = {0: Position(1, 9), 1: Position(2, 5), 2: Position(3, 0)}
        await until(lambda: world.counters.completed == 2)
        await asyncio.sleep(0.02)
        assert world.told("b") == []
        world.acknowledged[0] = Position(1, 10)
        await until(lambda: bool(world.told("b")))
        assert world.told("b")[-1][0][4] > 1, "the place of the second snapshot"

    played(World("b"), play)


def test_a_segment_that_cannot_be_asked_holds_up_no_other() -> None:
    """Its place is not known: no snapshot is taken then, and what was taken before is told as far as the other segments are."""

    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        world.layout = SegmentLayout.create(2, 0)
        world.ends = {0: Position(1, 10), 1: Position(1, 20)}
        await until(lambda: world.counters.completed == 1)
        assert not world.told("b"), "nothing is acknowledged"
        world.silent = {1}
        world.ends[0], world.acknowledged[0] = Position(1, 15), Position(1, 10)
        await until(lambda: bool(world.told("b")))
        assert [each[1] for each in world.told("b")[-1]] == [HASH_MAX // 2]
        taken = world.counters.completed
        assert taken == 1, "the end of segment 1 is not known"
        (own,) = (await core.status()).subscriptions
        assert "segment 1: the broker of" in own.reason
        world.silent = set()
        world.acknowledged[1] = Position(1, 20)
        await until(lambda: world.told("b")[-1][-1][1] == HASH_MAX)
        await until(lambda: world.counters.completed > taken)

    played(World("b"), play)


def test_a_segment_that_falls_silent_while_a_snapshot_is_taken_drops_it() -> None:
    async def play(world: World, core: ReplicatedSubscriptions) -> None:
        world.lost = lambda cluster, what: bool(world.silent.add(0))
        await until(lambda: world.counters.timed_out == 1)
        assert world.counters.completed == 0
        world.lost = lambda cluster, what: False
        world.silent.clear()
        await until(lambda: world.counters.completed == 1)

    played(World("b"), play)
