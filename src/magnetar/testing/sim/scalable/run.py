"""One seed with a scalable topic from beginning to end."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from magnetar.broker.naming import SCALABLE, TopicName
from magnetar.client.scalable.consumers import QueueConsumer, StreamConsumer
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.messaging.nodes import NAMESPACE, ApplicationNode
from magnetar.testing.sim.messaging.promises import SubscriptionHistory
from magnetar.testing.sim.messaging.run import KEEPER, QUIET_S, MessagingRun, Trims, lead
from magnetar.testing.sim.run import Result
from magnetar.testing.sim.scalable.clients import client
from magnetar.testing.sim.scalable.programs import Operator, Reader, Sender, ask, opened, read_all
from magnetar.testing.sim.scalable.promises import SEALED, ScalablePromises
from magnetar.testing.sim.scalable.scenario import CHECKPOINT, QUEUE, TOPIC, ScalableScenario, scalable_scenario
from magnetar.testing.sim.world import World

SETTLE_S: Final = 180.0
"""After healing everything must be published and consumed within this: a half-open connection is noticed after 60 s, and clients wait up
to 30 s between two attempts."""

CREATE_ATTEMPTS: Final = 100


def run_scalable_seed(seed: str, chosen: ScalableScenario | None = None, watch: bool = False) -> Result:
    """The whole life of a seed's world. With `chosen`, another configuration than the seed's own."""
    with World(f"{seed}/scalable") as world:
        world.trace.watch = watch
        return lead(seed, world, ScalableRun(world, chosen or scalable_scenario(seed)))


class ScalableRun(MessagingRun):
    """One scalable topic with its producers, consumers and operator."""

    settle_s = SETTLE_S

    def __init__(self, world: World, scenario: ScalableScenario) -> None:
        self.plan = scenario
        self._senders: dict[str, Sender] = {}
        self._checkpoints: dict[str, bytes] = {}
        super().__init__(world, scenario)

    def _make_clients(self) -> None:
        plan, applications = self.plan, self.cluster.applications
        tenant, namespace = NAMESPACE.split("/")
        name = TopicName(SCALABLE, tenant, namespace, TOPIC)
        keeper = KEEPER if plan.keeper else None
        self.scalable = ScalablePromises(self.promises, self.world.metadata, name, keeper)
        for index in range(1, plan.producers + 1):
            applications.append(ApplicationNode(self.world, f"producer-{index}", self._produce_scaled))
        for kind, consumers in plan.subscriptions:
            history = SubscriptionHistory(kind, "Shared" if kind.startswith(QUEUE) else "Key_Shared")
            if self._is_complete(kind):
                self.scalable.topic.subscriptions[kind] = history
            for index in range(1, consumers + 1):
                program = partial(self._read_scaled, history)
                applications.append(ApplicationNode(self.world, f"{kind}-{index}", program))
        self._operator = ApplicationNode(self.world, "operator", self._operate)

    def _is_complete(self, subscription: str) -> bool:
        """A checkpoint reader has no place on the server: without another subscription that keeps them, messages go before it comes."""
        return self.plan.keeper or not subscription.startswith(CHECKPOINT)

    def _watch_metadata(self) -> None:
        trims = Trims(self.cluster, self.promises, self.world.metadata)

        def changed(process: Process, operation: str, path: str) -> None:
            trims.changed(process, operation, path)
            self.scalable.changed(process, operation, path)

        self.world.metadata.on_change = changed

    async def _create_subscriptions(self, node: ApplicationNode) -> None:
        """The topic, and every subscription before the first message; by SUBSCRIBE, as clients do it."""
        plan, rng = self.plan, self._rng(node)
        leaf = f"?numInitialSegments={plan.segments}"
        for _ in range(CREATE_ATTEMPTS):
            if await ask(node, self.broker_hosts[0], "PUT", leaf) in (200, 409):
                break
            await asyncio.sleep(0.1)
        kept = [SubscriptionHistory(KEEPER, "Shared")] if plan.keeper else []
        for subscription in [*self.scalable.topic.subscriptions.values(), *kept]:
            if subscription.name.startswith(CHECKPOINT):
                continue
            async with client(node, self.broker_hosts, self.scalable) as context:
                make = StreamConsumer if subscription.name.startswith("stream") else QueueConsumer
                topic, name = str(self.scalable.name), subscription.name
                consumer = await opened(lambda: make(context, topic, name, name="setup", earliest=True), rng)  # noqa: B023
                await consumer.close()
            if subscription.name != KEEPER:
                self.scalable.durable(subscription)
        self._operator.start()

    async def _produce_scaled(self, node: ApplicationNode) -> None:
        sender = self._senders[node.name] = Sender(self, node.name, self._rng(node))
        await sender.work(node)

    async def _read_scaled(self, history: SubscriptionHistory, node: ApplicationNode) -> None:
        await Reader(self, history, node.name, self._rng(node), self._checkpoints).work(node)

    async def _operate(self, node: ApplicationNode) -> None:
        await Operator(self, self._rng(node)).work(node)

    async def _before_the_end(self) -> None:
        """A broker that was killed in the middle of a change leaves it to whoever asks for the topic next: while somebody uses it."""
        unsealed = self.scalable.unsealed
        await self._wait(SEALED, lambda: not unsealed(), "active segments take messages", lambda: str(unsealed()))

    def _all_have_receipts(self) -> bool:
        return not any(each.pending for each in self._senders.values())

    async def _read_everything(self, node: ApplicationNode) -> None:
        self.scalable.check_stored(await read_all(node, self, self._rng(node), 10 * QUIET_S))
