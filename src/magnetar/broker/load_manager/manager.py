"""The load manager of one broker: places bundles, reports this broker's load, and decides for the cluster while it leads."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import TaskScope
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.plan import Plan, decide, place
from magnetar.broker.load_balance.splitting import boundary
from magnetar.broker.load_balance.view import ClusterView
from magnetar.broker.load_manager.bundle_loads import bundle_loads, edges, topic_loads
from magnetar.broker.load_manager.cluster_reader import ClusterReader
from magnetar.broker.load_manager.orders import Executor, give_orders
from magnetar.broker.load_manager.reporter import HostMeter, Reporter
from magnetar.broker.namespaces.brokers import Registration
from magnetar.broker.namespaces.errors import PreconditionFailedError
from magnetar.broker.namespaces.leadership import Leadership
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.naming import NamespaceName
from magnetar.broker.topics.registry import AnyTopic
from magnetar.metadata import paths
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

CHOICE_LIFETIME_S: Final = 10.0
"""A bundle that its chosen broker has not taken by then does not count there any more."""

CHOICES_MAX: Final = 10_000
"""Further choices are not remembered: they count when the bundle was taken."""

REMEMBERED_MAX: Final = 5_000
"""Moves kept, the latest; older ones may move again after a change of leaders. Keeps the node well below ZooKeeper's 1 MiB."""


class LoadPlacement:
    """Implements `Placement` by load. Every broker has one: while there is no leader each decides for itself."""

    def __init__(
        self, reader: ClusterReader, memory: LeaderMemory, config: BrokerConfig, clock: Clock, rng: random.Random
    ) -> None:
        self.reader = reader
        self.memory = memory
        self._config = config
        self._clock = clock
        self._rng = rng
        self._chosen: dict[str, tuple[str, float]] = {}
        self._placing = asyncio.Lock()

    async def choose(self, namespace: NamespaceName, bundle: str, excluded: Collection[str] = ()) -> str | None:
        """Raises ServiceNotReadyError, with the way out, where an isolation policy leaves no broker at all.

        One at a time: each counts where the next one is placed.
        """
        async with self._placing:
            return await self._choose(namespace, bundle, excluded)

    async def _choose(self, namespace: NamespaceName, bundle: str, excluded: Collection[str]) -> str | None:
        name = f"{namespace}/{bundle}"
        await self.reader.expect(BundleName(namespace, bundle))
        view = await self.view(namespace)
        before = view.placed.get(name)
        if before is not None and before[0] in view.brokers and before[0] not in excluded:
            return before[0]
        found = place(name, view, self.memory, self._config.settings, self._rng.random, excluded)
        if found.broker is None:
            logger.warning("no broker for a bundle bundle=%s reason=%s", name, found.reason)
            if not excluded and view.brokers:
                raise ServiceNotReadyError(f"no broker may serve {name}: {found.reason}")
            return None
        if len(self._chosen) < CHOICES_MAX:
            self._chosen[name] = found.broker, self._clock.monotonic_s() + CHOICE_LIFETIME_S
        logger.info("bundle placed bundle=%s broker=%s reason=%s", name, found.broker, found.reason)
        return found.broker

    async def better(self, bundle: BundleName, owner: str) -> str | None:
        """A broker with less usage than the bundle's owner; None: it may as well stay."""
        view = await self.view(bundle.namespace)
        found = place(str(bundle), view, self.memory, self._config.settings, self._rng.random, (owner,)).broker
        if found is None or owner not in view.brokers:
            return None
        usage = {name: view.brokers[name].weighed_percent(self._config.settings) for name in (found, owner)}
        return found if usage[found] < usage[owner] else None

    async def view(self, asked: NamespaceName | None = None) -> ClusterView:
        """Reports, and what was placed since."""
        now_s = self._clock.monotonic_s()
        self._chosen = {name: choice for name, choice in self._chosen.items() if choice[1] > now_s}
        return await self.reader.view({name: broker for name, (broker, _) in self._chosen.items()}, asked=asked)


class LoadedTopics(Protocol):
    """The part of the topic registry that the load manager reads."""

    @property
    def loaded(self) -> Sequence[AnyTopic]: ...


class BundleMover(Protocol):
    """Hands over or splits bundles of this broker."""

    async def unload(self, bundle: BundleName, destination: str = "") -> None: ...

    async def split(self, bundle: BundleName, middle: str) -> tuple[BundleName, BundleName]: ...


@dataclass(slots=True)
class LoadCounters:
    """Decisions that this broker has taken as the leader since its start."""

    decisions: int = 0
    unload_brokers: int = 0
    unload_bundles: int = 0
    split_bundles: int = 0


class LoadManager:
    """Parts are made first and start to work with `start`."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        placement: LoadPlacement,
        registration: Registration,
        leadership: Leadership,
        ownership: Ownership,
        topics: LoadedTopics,
        moves: BundleMover,
        config: BrokerConfig,
        clock: Clock,
        rng: random.Random,
        scope: TaskScope,
        host: HostMeter | None = None,
    ) -> None:
        self._metadata = metadata
        self._past_moves = PastMoves(metadata, clock)
        self._placement = placement
        self._leadership = leadership
        self._ownership = ownership
        self._topics = topics
        self._moves = moves
        self._config = config
        self._clock = clock
        self._rng = rng
        self._scope = scope
        self.counters = LoadCounters()
        self.reporter = Reporter(
            registration=registration, loads=self._bundle_loads, config=config, clock=clock, host=host
        )
        self.executor = Executor(metadata, ownership.broker_id, self, scope)

    async def start(self) -> None:
        await self.executor.start()
        self._scope.supervise(self.reporter.run, "load reports")
        if self._config.settings.load_balancer_enabled:
            self._scope.supervise(self._decide_regularly, "load decisions")

    def close(self) -> None:
        self.executor.close()

    # ---- Decisions

    async def plan(self) -> tuple[ClusterView, Plan]:
        """The plan of a dry run. It changes nothing but what the leader remembers of usage."""
        view = await self._placement.view()
        memory = self._placement.memory
        memory.observe(view.brokers, self._config.settings)
        counts = await self._placement.reader.bundle_counts(view)
        plan = decide(view, memory, self._config.settings, self._clock.monotonic_s(), self._rng.random, counts)
        return view, plan

    async def _decide_regularly(self) -> None:
        led = False
        while True:
            await asyncio.sleep(self._config.settings.load_balancer_shedding_interval_minutes * 60)
            if not self._leadership.is_leader:
                led = False
                continue
            try:
                if not led:
                    await self.take_over()
                    led = True
                else:
                    await self.balance()
            except MagnetarError as error:
                logger.warning("no load decision this time error=%s", error)
            except Exception:  # our bug, in a plan that was not carried out: the broker serves all the same
                logger.exception("no load decision this time")

    async def take_over(self) -> None:
        """Somebody else has decided until now: its moves cool down, and the first round only looks at usage."""
        memory, now_s = self._placement.memory, self._clock.monotonic_s()
        past = await self._past_moves.read()
        memory.forget()
        memory.recall(past, now_s, self._config.settings)
        memory.observe((await self._placement.view()).brokers, self._config.settings)

    async def balance(self) -> Plan:
        """Decide, and tell the owners."""
        view, plan = await self.plan()
        self.counters.decisions += 1
        if not plan.moves and not plan.splits:
            return plan
        now_s, memory = self._clock.monotonic_s(), self._placement.memory
        plan.validate(view, memory, self._config.settings, now_s)
        if plan.moves:  # first what is remembered of them: a leader that is killed in between has moved nothing
            just_moved = dict.fromkeys((move.bundle for move in plan.moves), 0.0)
            await self._past_moves.write(memory.recent(now_s, self._config.settings) | just_moved)
        await give_orders(self._metadata, plan)
        for move in plan.moves:
            memory.moved(move.bundle, now_s, self._config.settings)
            memory.shifted(move.source, -move.percent)
            memory.shifted(move.destination, move.percent)
            logger.info("load balance: %s from %s to %s: %s", move.bundle, move.source, move.destination, move.reason)
        for split in plan.splits:
            logger.info("load balance: split %s of %s: %s", split.bundle, split.broker, split.reason)
        self.counters.unload_brokers += len({move.source for move in plan.moves})
        self.counters.unload_bundles += len(plan.moves)
        self.counters.split_bundles += len(plan.splits)
        return plan

    # ---- What this broker does with bundles of its own

    async def _bundle_loads(self) -> dict[str, Any]:
        return await bundle_loads(self._topics.loaded, self._ownership.held)

    async def unload(self, bundle: BundleName, destination: str = "") -> None:
        await self._moves.unload(bundle, destination)

    async def split_by(self, bundle: BundleName, algorithm: str) -> None:
        """Two bundles out of one; the upper one goes where there is more room, if the settings say so.

        Raises NotOwnedError, PreconditionFailedError where no cut is possible.
        """
        _, upper = await self._moves.split(bundle, self.cut(bundle, algorithm))
        if not self._config.settings.load_balancer_auto_unload_split_bundles_enabled:
            return
        better = await self._placement.better(upper, self._ownership.broker_id)
        if better is not None:
            await self._moves.unload(upper, better)

    def cut(self, bundle: BundleName, algorithm: str) -> str:
        """The boundary that `algorithm` puts into a bundle of this broker. Raises PreconditionFailedError."""
        low, high = edges(bundle)
        middle = boundary(algorithm, low, high, topic_loads(self._topics.loaded, bundle))
        if middle is None:
            raise PreconditionFailedError(f"{bundle.range} cannot be split: it is too narrow, or has too few topics")
        return f"0x{middle:08x}"


class PastMoves:
    """Bundles that leaders have moved recently, in the node `/loadbalance/moves`: bundle to the time of its move in ms, as JSON.

    The leader writes it, so that the next leader lets those bundles cool down, too. Pulsar has no such node: its leaders forget.
    """

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def write(self, ages_s: Mapping[str, float]) -> None:
        """Replace what is remembered."""
        now_ms = self._clock.now_ms()
        latest = sorted(ages_s.items(), key=lambda item: (item[1], item[0]))[:REMEMBERED_MAX]
        value = {bundle: round(now_ms - 1000 * age_s) for bundle, age_s in latest}
        await self._metadata.put(paths.LOAD_MOVES_PATH, json.dumps(value, separators=(",", ":")).encode())

    async def read(self) -> dict[str, float]:
        """Seconds since each move; {} when nothing is remembered, or nothing that can be read."""
        node = await self._metadata.get(paths.LOAD_MOVES_PATH)
        if node is None:
            return {}
        try:
            now_ms = self._clock.now_ms()
            return {str(bundle): (now_ms - int(at_ms)) / 1000 for bundle, at_ms in json.loads(node.value).items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("past moves not read, bundles may move again early error=%s", error)
            return {}
