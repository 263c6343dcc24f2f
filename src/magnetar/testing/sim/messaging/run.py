"""One seed with brokers from beginning to end: build, publish and consume under faults, heal, compare with what clients were told."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.broker.service import Broker
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.testing.sim.checkers import CRASH
from magnetar.testing.sim.cluster import Cluster
from magnetar.testing.sim.faults import Nemesis
from magnetar.testing.sim.history import History
from magnetar.testing.sim.loop import Process, SimulationError
from magnetar.testing.sim.messaging.clients import Consumer, Message, Producer
from magnetar.testing.sim.messaging.connection import ClientError
from magnetar.testing.sim.messaging.nodes import NAMESPACE, ApplicationNode, BrokerNode
from magnetar.testing.sim.messaging.promises import (
    BACK,
    COMPLETE,
    KEPT,
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    TopicHistory,
    name_of_payload,
)
from magnetar.testing.sim.messaging.scenario import MessagingScenario, messaging_scenario
from magnetar.testing.sim.messaging.transactions import WORK, TransactionHistory, TransactionWorker
from magnetar.testing.sim.metadata import MetadataService, run_now
from magnetar.testing.sim.nodes import BookieNode, Node
from magnetar.testing.sim.run import Result
from magnetar.testing.sim.world import World, until
from magnetar.wire.pulsar.MLDataFormats_pb2 import ManagedLedgerInfo

SETTLE_S: Final = 60.0
"""After healing, everything must be back, published and consumed within this."""

RUN_LIMIT_S: Final = 1800.0

KEEPER: Final = "keeper"

_TOPIC_PATH: Final = re.compile(r"/managed-ledgers/[^/]+/[^/]+/(persistent/[^/]+|segment/[^/]+/[^/]+)")

REST_S: Final = 15.0
"""Rest of all workers beyond the time of a transaction, after which nothing is going to be delivered again: a coordinator tries again
after 10 s at most."""

LOOK_S: Final = 0.05
"""Between two looks whether what is waited for after healing has come."""

QUIET_S: Final = 3.0
"""Silence after which a reader of a whole topic takes it for read."""


def run_messaging_seed(seed: str, chosen: MessagingScenario | None = None, watch: bool = False) -> Result:
    """The whole life of a seed's world. With `chosen`, another configuration than the seed's own."""
    with World(f"{seed}/messaging") as world:
        world.trace.watch = watch
        return lead(seed, world, MessagingRun(world, chosen or messaging_scenario(seed)))


def lead(seed: str, world: World, run: MessagingRun) -> Result:
    """A run through its whole life."""
    started = time.perf_counter()
    try:
        world.run(run.main(), RUN_LIMIT_S)
    except (SimulationError, TimeoutError) as error:
        run.promises.violate(BACK, f"{type(error).__name__}: {error}")
    for crash in world.loop.crashes:
        run.history.violate(CRASH, crash, world.loop.now_s)
    history, loop = run.history, world.loop
    result = Result(
        seed, run.scenario, world.trace.digest(), loop.now_s, 0.0, loop.callbacks_total, history.counts.get("receipts", 0),
        len(run.promises.topics), dict(sorted(history.counts.items())), history.violations, world.trace.lines(200),
    )  # fmt: skip
    result.real_s = time.perf_counter() - started
    return result


class MessagingCluster(Cluster):
    """`clients` are the brokers and the applications: faults of clients hit both."""

    def __init__(self, world: World, only_brokers: bool) -> None:
        super().__init__(world)
        self._only_brokers = only_brokers
        self.brokers: list[BrokerNode] = []
        self.applications: list[ApplicationNode] = []

    @property
    def nodes(self) -> list[Node]:
        return [*self.bookies, *self.brokers, *self.applications]

    @property
    def disturbed(self) -> list[Node]:
        return [*self.brokers] if self._only_brokers else [*self.brokers, *self.applications]

    def others(self, node: Node) -> list[Node]:
        if isinstance(node, BrokerNode):
            return [*self.bookies, *self.applications]
        return list(self.brokers)


class MessagingRun:
    """Builds the cluster of a scenario and leads it through its life."""

    settle_s = SETTLE_S

    def __init__(self, world: World, scenario: MessagingScenario) -> None:
        self.world = world
        self.scenario = scenario
        self.history = History()
        self.promises = Promises(self.history, lambda: world.loop.now_s)
        self.promises.is_deposed = world.metadata.is_deposed
        self.cluster = self._make_cluster()
        self.stopping = False
        """No new messages."""
        self.draining = False
        """Consumers neither leave nor hoard any more."""
        self.ended = False
        self.transactions = TransactionHistory(self.promises)
        self.promises.seen = self.transactions.seen
        self._worked_s = 0.0
        self._numbers: dict[str, int] = {}
        self._sending: dict[str, Producer] = {}
        wires = world.wires
        wires.delay_s, wires.jitter_s = scenario.delay_s, scenario.jitter_s
        wires.spike_probability, wires.split_probability = scenario.spike_probability, scenario.split_probability
        self._make_servers()
        for bookie in self.cluster.bookies:
            medium = bookie.machine.medium
            medium.fsync_s, medium.interleave = scenario.fsync_s, scenario.interleave
            medium.ordered_names = scenario.ordered_names
        self._make_clients()
        skew = world.rng("skew")
        for node in self.cluster.nodes:
            node.session_timeout_s = scenario.session_timeout_s
            node.machine.clock.offset_ms = skew.randint(-scenario.skew_ms, scenario.skew_ms)

    def _make_cluster(self) -> MessagingCluster:
        return MessagingCluster(self.world, self.scenario.only_brokers)

    def _make_servers(self) -> None:
        world, scenario = self.world, self.scenario
        self.cluster.bookies = [
            BookieNode(world, f"bookie-{number}", **scenario.bookie) for number in range(1, scenario.bookies + 1)
        ]
        self.cluster.brokers = [
            BrokerNode(world, f"broker-{number}", **scenario.broker) for number in range(1, scenario.brokers + 1)
        ]

    def _make_clients(self) -> None:
        scenario, applications = self.scenario, self.cluster.applications
        for number in range(1, scenario.topics + 1):
            topic = TopicHistory(f"persistent://{NAMESPACE}/topic-{number}", scenario.deduplicated)
            self.promises.topics[topic.name] = topic
            for index in range(1, scenario.producers + 1):
                name = f"producer-{number}-{index}"
                applications.append(ApplicationNode(self.world, name, partial(self._produce, topic, name)))
            for kind, consumers in scenario.subscriptions:
                subscription = topic.subscriptions[kind] = SubscriptionHistory(kind, kind)
                for index in range(1, consumers + 1):
                    name = f"consumer-{number}-{kind}-{index}"
                    applications.append(ApplicationNode(self.world, name, partial(self._consume, topic, subscription)))
        if scenario.workers:
            first = next(iter(self.promises.topics.values()))
            first.subscriptions[WORK] = SubscriptionHistory(WORK, "Shared")
        for index in range(1, scenario.workers + 1):
            applications.append(ApplicationNode(self.world, f"worker-{index}", self._work))

    @property
    def _by_index(self) -> bool:
        return bool(self.scenario.broker.get("acknowledgment_at_batch_index_level_enabled"))

    @property
    def broker_hosts(self) -> list[str]:
        return [broker.name for broker in self.cluster.brokers]

    def _brokers_of(self, node: ApplicationNode) -> list[str]:
        """The brokers that an application knows."""
        return self.broker_hosts

    # ---- Its life

    async def main(self) -> None:
        """The whole life."""
        await self._initialize()
        self._watch_metadata()
        for bookie in self.cluster.bookies:
            bookie.start()
        await until(lambda: all(bookie.serving for bookie in self.cluster.bookies), SETTLE_S)
        for broker in self.cluster.brokers:
            broker.start()
        await until(lambda: all(broker.serving for broker in self.cluster.brokers), SETTLE_S)
        await self._as_application("setup", self._create_subscriptions)
        for application in self.cluster.applications:
            application.start()
        nemesis = self._make_nemesis()
        strikes = self.world.loop.spawn(self.world.loop.outside, nemesis.run(), "nemesis")
        await asyncio.sleep(self.scenario.duration_s)
        self.stopping = True
        strikes.cancel()
        nemesis.stop()
        await self._heal()
        if self.scenario.keeper:
            await self._as_application("reader", self._read_everything)

    async def _initialize(self) -> None:
        await initialize_cluster(self.world.metadata.eyes, self.world.rng("cluster"))

    def _make_nemesis(self) -> Nemesis:
        return Nemesis(self.cluster, self.scenario, self.history)

    def _watch_metadata(self) -> None:
        self.world.metadata.on_change = Trims(self.cluster, self.promises, self.world.metadata).changed

    async def _heal(self) -> None:
        self.world.note("world", "heals")
        self.draining = True
        for node in self.cluster.nodes:
            node.start()
        await self._wait(
            BACK,
            self._all_serve,
            "bookies and brokers serve",
        )
        await self._wait(BACK, self._all_have_receipts, "every message has a receipt")
        for topic in self.promises.topics.values():
            for subscription in topic.subscriptions.values():
                await self._wait(
                    COMPLETE,
                    lambda topic=topic, subscription=subscription: not topic.missing(subscription),  # type: ignore[misc]
                    f"{topic.name} {subscription.name} delivers {len(topic.receipts)} messages",
                    lambda topic=topic, subscription=subscription: f"missing: {topic.missing(subscription)[:5]}",  # type: ignore[misc]
                )
        if self.scenario.workers:
            self.worked()
            await self._wait(COMPLETE, self._work_is_done, "the workers have nothing left to do")
        await self._before_the_end()
        self.ended = True

    async def _before_the_end(self) -> None:
        """What else has to come while the applications are still there."""

    def _all_have_receipts(self) -> bool:
        return not any(one.pending for one in self._sending.values())

    def worked(self) -> None:
        """A worker has begun or ended a transaction."""
        self._worked_s = self.world.loop.now_s

    def _work_is_done(self) -> bool:
        return self.world.loop.now_s - self._worked_s > self.scenario.ttl_s + REST_S

    def _all_serve(self) -> bool:
        return all(bookie.serving for bookie in self.cluster.bookies) and all(
            broker.serving for broker in self.cluster.brokers
        )

    async def _wait(
        self, promise: str, condition: Callable[[], bool], what: str, more: Callable[[], str] = lambda: ""
    ) -> None:
        try:
            await until(condition, self.settle_s, LOOK_S)
        except TimeoutError:
            self.promises.violate(promise, f"not within {self.settle_s:g} s after healing: {what} {more()}")

    async def _as_application(self, name: str, work: Callable[[ApplicationNode], Awaitable[None]]) -> None:
        """Run a program to its end on a machine of its own, without faults."""
        node = ApplicationNode(self.world, name, work)
        node.start()
        await self._wait(BACK, lambda: node.finished, f"{name} is done")
        node.kill()

    # ---- Programs

    async def _create_subscriptions(self, node: ApplicationNode) -> None:
        """Before the first message, so that each of them concerns every subscription."""
        for topic in self.promises.topics.values():
            kept = [SubscriptionHistory(KEEPER, "Exclusive")] if self.scenario.keeper else []
            for subscription in [*topic.subscriptions.values(), *kept]:
                consumer = self._consumer(node, topic, subscription, queue=1)
                async with asyncio.TaskGroup() as group:
                    group.create_task(consumer.run())
                    await until(lambda consumer=consumer: consumer.registered, SETTLE_S)  # type: ignore[misc]
                    consumer.stop()

    async def _produce(self, topic: TopicHistory, name: str, node: ApplicationNode) -> None:
        scenario = self.scenario
        rng = self._rng(node)
        producer = Producer(
            node, self._brokers_of(node), topic, rng, self.promises, name, lambda: self.next_number(name)
        )
        self._sending[name] = producer
        async with asyncio.TaskGroup() as group:
            group.create_task(producer.run())
            while not self.stopping and self.history.sent_total < scenario.messages_max:
                await until(lambda: len(producer.pending) < scenario.window or self.stopping, RUN_LIMIT_S)
                if self.stopping:
                    break
                key = f"k{rng.randrange(scenario.keys)}"
                count = rng.randint(1, scenario.batch_max)
                producer.send(key, [rng.randbytes(rng.randint(0, scenario.payload_bytes_max)) for _ in range(count)])
                await asyncio.sleep(rng.expovariate(1 / scenario.gap_s) if scenario.gap_s else 0)
            await until(lambda: self.ended, RUN_LIMIT_S, 0.1)
            producer.stop()

    async def _work(self, node: ApplicationNode) -> None:
        await TransactionWorker(self, self.transactions, node, self._rng(node)).work()

    def next_number(self, name: str) -> int:
        number = self._numbers[name] = self._numbers.get(name, -1) + 1
        return number

    async def _consume(self, topic: TopicHistory, subscription: SubscriptionHistory, node: ApplicationNode) -> None:
        consumer = self._consumer(node, topic, subscription, self.scenario.queue)
        worker = Worker(self, consumer, subscription)
        async with asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            await worker.work()
            consumer.stop()

    def _consumer(
        self, node: ApplicationNode, topic: TopicHistory, subscription: SubscriptionHistory, queue: int
    ) -> Consumer:
        return Consumer(
            node, self._brokers_of(node), topic, self._rng(node), self.promises, subscription, queue, self._by_index
        )

    def _rng(self, node: ApplicationNode) -> random.Random:
        assert node.process is not None
        return self.world.rng(f"{node.process.name} program")

    async def _read_everything(self, node: ApplicationNode) -> None:
        """What the topics hold, by the subscription that has acknowledged nothing."""
        contents: dict[str, dict[Place, Name]] = {}
        for topic in self.promises.topics.values():
            consumer = self._consumer(node, topic, SubscriptionHistory(KEEPER, "Exclusive"), queue=100)
            entries: dict[Place, bytes] = {}
            async with asyncio.TaskGroup() as group:
                group.create_task(consumer.run())
                quiet_until_s = self.world.loop.now_s + SETTLE_S
                while self.world.loop.now_s < quiet_until_s:
                    await asyncio.sleep(0.05)
                    while consumer.inbox:
                        message = consumer.take()
                        entries[message.place] = message.payload
                        quiet_until_s = self.world.loop.now_s + QUIET_S
                    if not topic.receipts and consumer.registered:
                        break
                consumer.stop()
            self.promises.stored(topic, list(entries.items()))
            contents[topic.name] = {place: name_of_payload(payload)[0] for place, payload in entries.items()}
        if self.scenario.workers:
            self.transactions.check(contents, next(iter(contents)))


class Trims:
    """Holds each deletion of a topic's ledger against what the broker that deletes it has stored of its cursors.

    Nothing that a client sees tells of it in time: a cursor that comes back behind its ledgers goes on at the first one that is left.
    """

    def __init__(self, cluster: MessagingCluster, promises: Promises, metadata: MetadataService) -> None:
        self._cluster = cluster
        self._metadata = metadata
        self._promises = promises
        self._entries: dict[str, dict[int, int]] = {}
        """Entries by ledger id, by path of the topic's list."""

    def changed(self, process: Process, operation: str, path: str) -> None:
        if operation != "put" or not _TOPIC_PATH.fullmatch(path):
            return
        node = run_now(self._metadata.eyes.get(path))
        assert node is not None
        info = ManagedLedgerInfo.FromString(node.value)
        entries = {ledger.ledgerId: ledger.entries for ledger in info.ledgerInfo}
        before = self._entries.get(path, {})
        self._entries[path] = entries
        removed = {ledger_id: count for ledger_id, count in before.items() if count and ledger_id not in entries}
        broker = self._cluster.node_of(process.name)
        if removed and isinstance(broker, BrokerNode) and broker.broker is not None:
            self._check(broker.broker, path, removed)

    def _check(self, broker: Broker, path: str, removed: dict[int, int]) -> None:
        self._promises.history.count("ledgers trimmed", len(removed))
        for topic in broker.topics.loaded:
            if not isinstance(topic, PersistentTopic) or f"/managed-ledgers/{topic.ledger.name}" != path:
                continue
            for cursor in topic.ledger.cursors.values():
                persister = cursor._persister
                for ledger_id, count in removed.items():
                    if persister is not None and persister.stored_mark_delete < (ledger_id, count - 1):
                        self._promises.violate(
                            KEPT,
                            f"{path}: {ledger_id} is deleted and {cursor.name} has stored {persister.stored_mark_delete}",
                        )


class Worker:
    """What a consumer does with its messages: acknowledge, ask again, keep for a while, leave and come back."""

    def __init__(self, run: MessagingRun, consumer: Consumer, subscription: SubscriptionHistory) -> None:
        self._run = run
        self._scenario = run.scenario
        self._consumer = consumer
        self._subscription = subscription
        self._rng = consumer.rng
        self._hoard: list[Place] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        consumer, scenario, rng, run = self._consumer, self._scenario, self._rng, self._run
        while not run.ended:
            if not consumer.inbox:
                consumer.arrived.clear()
                if run.draining:
                    await self._settle_hoard()
                await self._something_happens()
                continue
            message = consumer.take()
            if scenario.work_s:
                await asyncio.sleep(rng.expovariate(1 / scenario.work_s))
            await self._handle(message)

    async def _something_happens(self) -> None:
        try:
            async with asyncio.timeout(0.2):
                await self._consumer.arrived.wait()
        except TimeoutError:
            if self._rng.random() < 0.3:
                await self._settle_hoard()

    async def _handle(self, message: Message) -> None:
        consumer, scenario, rng, run = self._consumer, self._scenario, self._rng, self._run
        place = message.place
        if not run.draining:
            if rng.random() < scenario.leave:
                consumer.disconnect()
                self._hoard.clear()
                await asyncio.sleep(rng.expovariate(4.0))
                return
            if self._subscription.kind == "Shared" and rng.random() < scenario.negative:
                consumer.ask_again([place])
                return
            if rng.random() < scenario.hoard:
                self._hoard.append(place)
                return
        if self._subscription.ordered and not self._hoard and place.batch_index < 0 and rng.random() < 0.3:
            await self._acknowledge([place], cumulative=True)
        else:
            await self._acknowledge([place])

    async def _settle_hoard(self) -> None:
        hoard, self._hoard = self._hoard, []
        if hoard:
            await self._acknowledge(hoard)

    async def _acknowledge(self, places: list[Place], cumulative: bool = False) -> None:
        try:
            await self._consumer.acknowledge(
                places, cumulative=cumulative, receipt=self._rng.random() < self._scenario.receipts
            )
        except ClientError:
            self._run.history.count("acknowledgements without a receipt")
