"""The applications of a run with a scalable topic: producers, consumers of the three kinds, and the operator who changes the layout."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from magnetar.base.errors import MagnetarError
from magnetar.broker.scalable.segments import SCALABLE_TARGET
from magnetar.client.async_http import exchange
from magnetar.client.errors import UnreachableError
from magnetar.client.scalable.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
from magnetar.client.scalable.context import ClientContext
from magnetar.client.scalable.errors import ReceiveTimeoutError
from magnetar.client.scalable.messages import EARLIEST, Checkpoint, Message
from magnetar.client.scalable.producer import Producer
from magnetar.testing.sim.history import History
from magnetar.testing.sim.messaging.nodes import HTTP_PORT, NAMESPACE, ApplicationNode
from magnetar.testing.sim.messaging.promises import (
    Name,
    Place,
    Promises,
    SubscriptionHistory,
    name_of_payload,
    payload_of_message,
)
from magnetar.testing.sim.scalable.clients import client
from magnetar.testing.sim.scalable.promises import ScalablePromises
from magnetar.testing.sim.scalable.scenario import CHECKPOINT, QUEUE, TOPIC, ScalableScenario
from magnetar.testing.sim.world import until

M = TypeVar("M", bound=Producer | QueueConsumer | StreamConsumer | CheckpointConsumer)

FOR_EVER_S: Final = 100_000.0
LOOK_S: Final = 0.2
"""A consumer without messages looks this often whether there is something else to do."""

REDIRECTS_MAX: Final = 5
ANSWER_TIMEOUT_S: Final = 30.0


class Surroundings(Protocol):
    """The part of a run that its programs need."""

    history: History
    promises: Promises
    scalable: ScalablePromises
    stopping: bool
    draining: bool
    ended: bool

    @property
    def plan(self) -> ScalableScenario: ...

    @property
    def broker_hosts(self) -> list[str]: ...

    def next_number(self, name: str) -> int: ...


def place_of(message: Message) -> Place:
    return Place(message.id.ledger_id, message.id.entry_id, message.id.batch_index)


class Sender:
    """A producer. A message that its client gives up has no receipt, and nobody misses it."""

    def __init__(self, run: Surroundings, name: str, rng: random.Random) -> None:
        self._run = run
        self._name = name
        self._rng = rng
        self.pending: set[Name] = set()

    async def work(self, node: ApplicationNode) -> None:
        self.pending.clear()
        run, plan, rng = self._run, self._run.plan, self._rng
        async with client(node, run.broker_hosts, run.scalable) as context:
            producer = await opened(
                lambda: Producer(
                    context,
                    str(run.scalable.name),
                    name=self._name,
                    batching=plan.batch_max > 1,
                    send_timeout_s=FOR_EVER_S,
                    pending_max=plan.window,
                ),
                rng,
            )
            while not run.stopping and run.history.sent_total < plan.messages_max:
                await until(lambda: len(self.pending) < plan.window or run.stopping, FOR_EVER_S)
                for _ in range(rng.randint(1, plan.batch_max)):
                    name = Name(self._name, run.next_number(self._name))
                    key = f"k{rng.randrange(plan.keys)}"
                    payload = payload_of_message(name, key, rng.randbytes(rng.randint(0, plan.payload_bytes_max)))
                    run.promises.sent(run.scalable.topic, name, payload)
                    self.pending.add(name)
                    context.spawn(self._send(producer, name, key, payload), f"send {name}")
                await asyncio.sleep(rng.expovariate(1 / plan.gap_s))
            await until(lambda: run.ended, FOR_EVER_S, 0.1)

    async def _send(self, producer: Producer, name: Name, key: str, payload: bytes) -> None:
        try:
            found = await producer.send(payload, key=key)
        except MagnetarError as error:
            self._run.history.count(f"sends given up: {type(error).__name__}")
        else:
            place = Place(found.ledger_id, found.entry_id, found.batch_index)
            self._run.scalable.stored(found.segment_id, name, place)
        finally:
            self.pending.discard(name)


async def opened(make: Callable[[], M], rng: random.Random) -> M:
    """As an application that does not give up."""
    while True:
        made = make()
        try:
            await made.opened()
            return made
        except MagnetarError:
            await made.close()
            await asyncio.sleep(rng.uniform(0.1, 0.5))


class Reader:
    """A consumer: it acknowledges, keeps messages for a while, leaves and comes back."""

    def __init__(
        self,
        run: Surroundings,
        subscription: SubscriptionHistory,
        name: str,
        rng: random.Random,
        checkpoints: dict[str, bytes],
    ) -> None:
        self._run = run
        self._subscription = subscription
        self._kind = subscription.name.partition("-")[0]
        self._name = name
        self._rng = rng
        self._checkpoints = checkpoints
        """What applications have stored with their results, by name."""
        self._hoard: list[Message] = []

    async def work(self, node: ApplicationNode) -> None:
        run, rng, plan = self._run, self._rng, self._run.plan
        async with client(node, run.broker_hosts, run.scalable) as context:
            while not run.ended:
                consumer = await opened(lambda: self._made(context), rng)
                self._hoard.clear()
                try:
                    while not run.ended:
                        await self._turn(context, consumer)
                        if not run.draining and rng.random() < plan.leave / 4:
                            break
                except MagnetarError as error:
                    run.history.count(f"consumers broken: {type(error).__name__}")
                await consumer.close()
                if not run.draining:
                    await asyncio.sleep(rng.uniform(0.0, plan.patience_s))

    def _made(self, context: ClientContext) -> QueueConsumer | StreamConsumer | CheckpointConsumer:
        topic, name, queue = str(self._run.scalable.name), self._subscription.name, self._run.plan.queue
        if self._kind == QUEUE:
            return QueueConsumer(context, topic, name, name=self._name, earliest=True, queue_messages=queue)
        if self._kind == CHECKPOINT:
            stored = self._checkpoints.get(self._name)
            start = Checkpoint.from_bytes(stored) if stored is not None else EARLIEST
            return CheckpointConsumer(context, topic, start, queue_messages=queue)
        return StreamConsumer(context, topic, name, name=self._name, earliest=True, queue_messages=queue)

    async def _turn(
        self, context: ClientContext, consumer: QueueConsumer | StreamConsumer | CheckpointConsumer
    ) -> None:
        run, rng, plan = self._run, self._rng, self._run.plan
        try:
            message = await consumer.receive(LOOK_S)
        except ReceiveTimeoutError:
            if run.draining or rng.random() < 0.3:
                self._acknowledge(context, consumer)
            return
        assert message.value is not None
        run.scalable.received(self._subscription, place_of(message), message.value, self._name)
        if plan.work_s:
            await asyncio.sleep(rng.expovariate(1 / plan.work_s))
        self._hoard.append(message)
        if isinstance(consumer, CheckpointConsumer):
            self._checkpoints[self._name] = consumer.checkpoint().to_bytes()
        elif isinstance(consumer, QueueConsumer) and not run.draining and rng.random() < plan.negative:
            consumer.negative_acknowledge(self._hoard.pop(), 0.1)
        elif run.draining or rng.random() >= plan.hoard:
            self._acknowledge(context, consumer)

    def _acknowledge(
        self, context: ClientContext, consumer: QueueConsumer | StreamConsumer | CheckpointConsumer
    ) -> None:
        hoard, self._hoard = self._hoard, []
        if hoard and isinstance(consumer, StreamConsumer):
            context.spawn(self._confirm_up_to(consumer, hoard[-1]), "acknowledge")
        elif isinstance(consumer, QueueConsumer):
            for message in hoard:
                context.spawn(self._confirm(consumer, message), "acknowledge")

    async def _confirm(self, consumer: QueueConsumer, message: Message) -> None:
        try:
            await consumer.acknowledge(message)
        except MagnetarError:
            self._run.history.count("acknowledgements without a receipt")

    async def _confirm_up_to(self, consumer: StreamConsumer, message: Message) -> None:
        try:
            await consumer.acknowledge_cumulative(message)
        except MagnetarError:
            self._run.history.count("acknowledgements without a receipt")


class Operator:
    """Splits and merges over HTTP, as `magnetar scalable-topics` does."""

    def __init__(self, run: Surroundings, rng: random.Random) -> None:
        self._run = run
        self._rng = rng
        self._steps = list(run.plan.steps)

    async def work(self, node: ApplicationNode) -> None:
        run, rng, plan = self._run, self._rng, self._run.plan
        while not run.stopping:
            await asyncio.sleep(plan.change_gap_s if plan.steps else rng.expovariate(1 / plan.change_gap_s))
            leaf = self._next()
            if leaf and not run.stopping:
                status = await ask(node, rng.choice(run.broker_hosts), "POST", leaf)
                run.history.count(f"changes answered {status}")

    def _next(self) -> str:
        if self._run.plan.steps:
            if not self._steps:
                return ""
            kind, ids = self._steps.pop(0)
            return f"/{kind}/{'/'.join(map(str, ids))}"
        active, rng = self._run.scalable.layout.active, self._rng
        if len(active) > 1 and (rng.random() < self._run.plan.merges or len(active) >= 12):
            at = rng.randrange(len(active) - 1)
            return f"/merge/{active[at].id}/{active[at + 1].id}"
        return f"/split/{rng.choice(active).id}"


async def ask(node: ApplicationNode, broker: str, method: str, leaf: str) -> int:
    """The status of an admin request about the topic; 0 without an answer."""
    url = f"http://{broker}:{HTTP_PORT}{SCALABLE_TARGET}/{NAMESPACE}/{TOPIC}{leaf}"
    for _ in range(REDIRECTS_MAX):
        try:
            answer = await exchange(
                node.network,
                method,
                url,
                {},
                connect_timeout_s=5.0,
                answer_timeout_s=ANSWER_TIMEOUT_S,
                answer_bytes_max=1 << 20,
            )
        except UnreachableError:
            return 0
        if answer.status != 307:
            return answer.status
        url = answer.headers.get("location", "")
    return 307


async def read_all(
    node: ApplicationNode, run: Surroundings, rng: random.Random, quiet_s: float
) -> list[tuple[Place, bytes]]:
    """Everything from the beginning, until nothing has come for a while."""
    found: list[tuple[Place, bytes]] = []
    async with client(node, run.broker_hosts, run.scalable) as context:
        topic = str(run.scalable.name)
        reader = await opened(lambda: CheckpointConsumer(context, topic, EARLIEST), rng)
        while True:
            try:
                message = await reader.receive(quiet_s)
            except ReceiveTimeoutError:
                break
            assert message.value is not None
            name_of_payload(message.value)
            found.append((place_of(message), message.value))
        await reader.close()
    return found
