"""One seed from beginning to end: build, disturb, heal, look at what is left."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Protocol

from magnetar.base.errors import MagnetarError
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.cluster import initialize_cluster
from magnetar.bookkeeper.errors import NoSuchLedgerError
from magnetar.testing.sim.checkers import CRASH, LIVE, READABLE, REPAIRED, Checkers
from magnetar.testing.sim.cluster import Cluster
from magnetar.testing.sim.durable import durable_problems
from magnetar.testing.sim.faults import Nemesis
from magnetar.testing.sim.history import History, LedgerHistory, Violation
from magnetar.testing.sim.loop import SimulationError
from magnetar.testing.sim.nodes import BookieNode, ClientNode
from magnetar.testing.sim.swarm import Scenario, scenario
from magnetar.testing.sim.workload import Workload
from magnetar.testing.sim.world import World, until

SETTLE_S = 60.0
"""After healing, everything must be back within this."""

REPAIR_S = 120.0
"""And everything copied that was lost."""

RUN_LIMIT_S = 1800.0


class Configuration(Protocol):
    """What a run was made of, as far as its report needs it."""

    def text(self) -> str: ...


@dataclass(slots=True)
class Result:
    """The result of a seed."""

    seed: str
    scenario: Configuration
    digest: str
    virtual_s: float
    real_s: float
    callbacks: int
    acked: int
    ledgers: int
    """Ledgers, or topics in a run with brokers."""
    counts: dict[str, int]
    violations: list[Violation] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return bool(self.violations)


def run_seed(seed: str, chosen: Scenario | None = None, watch: bool = False) -> Result:
    """The whole life of a seed's world. With `chosen`, another configuration than the seed's own."""
    configuration = chosen or scenario(seed)
    started = time.perf_counter()
    with World(seed) as world:
        world.trace.watch = watch
        run = Run(world, configuration)
        try:
            world.run(run.main(), RUN_LIMIT_S)
        except (SimulationError, TimeoutError) as error:
            run.history.violate(LIVE, f"{type(error).__name__}: {error}", world.loop.now_s)
        for crash in world.loop.crashes:
            run.history.violate(CRASH, crash, world.loop.now_s)
        history, loop = run.history, world.loop
        result = Result(
            seed, configuration, world.trace.digest(), loop.now_s, 0.0, loop.callbacks_total, history.acked_total,
            len(history.ledgers), dict(sorted(history.counts.items())), history.violations, world.trace.lines(200),
        )  # fmt: skip
    result.real_s = time.perf_counter() - started
    return result


class Run:
    """Builds the cluster of a scenario and leads it through its life."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world = world
        self.scenario = scenario
        self.history = History()
        self.checkers = Checkers(self.history, world.metadata)
        self.cluster = Cluster(world)
        self.workload = Workload(scenario, self.checkers, world.rng)
        wires = world.wires
        wires.delay_s, wires.jitter_s = scenario.delay_s, scenario.jitter_s
        wires.spike_probability, wires.split_probability = scenario.spike_probability, scenario.split_probability
        for number in range(1, scenario.bookies + 1):
            node = BookieNode(world, f"bookie-{number}", **scenario.bookie)
            medium = node.machine.medium
            medium.fsync_s, medium.interleave, medium.ordered_names = (
                scenario.fsync_s,
                scenario.interleave,
                scenario.ordered_names,
            )
            self.cluster.bookies.append(node)
        for kind, count, work in (
            ("writer", scenario.writers, self.workload.write),
            ("recoverer", scenario.recoverers, self.workload.take_over),
            ("reader", scenario.readers, self.workload.read),
        ):
            self.cluster.clients += [ClientNode(world, f"{kind}-{number + 1}", work) for number in range(count)]
        self.cluster.helpers = [
            ClientNode(world, f"autorecovery-{number + 1}", self._recover) for number in range(scenario.autorecovery)
        ]
        for client in (*self.cluster.clients, *self.cluster.helpers):
            client.config = ClientConfig(**scenario.client)
            client.channel_options = ChannelOptions(**scenario.channel)
        skew = world.rng("skew")
        for one in self.cluster.nodes:
            one.session_timeout_s = scenario.session_timeout_s
            one.machine.clock.offset_ms = skew.randint(-scenario.skew_ms, scenario.skew_ms)
        if scenario.aims:
            for client in (*self.cluster.clients, *self.cluster.helpers):
                client.tapped = True

    async def main(self) -> None:
        """The whole life."""
        await initialize_cluster(self.world.metadata.eyes, self.world.rng("cluster"))
        for bookie in self.cluster.bookies:
            bookie.start()
        await until(lambda: all(bookie.serving for bookie in self.cluster.bookies), SETTLE_S)
        nemesis = Nemesis(self.cluster, self.scenario, self.history)
        for client in (*self.cluster.clients, *self.cluster.helpers):
            client.start()
        strikes = self.world.loop.spawn(self.world.loop.outside, nemesis.run(), "nemesis")
        await self._disturbed(self.scenario.duration_s)
        strikes.cancel()
        nemesis.stop()
        await self._heal()
        await self._verify()

    async def _recover(self, node: ClientNode) -> None:
        """The program of an auto-recovery process."""
        assert node.process is not None
        rng = self.world.rng(f"{node.process.name} autorecovery")
        config = AutoRecoveryConfig(**self.scenario.recovery)
        clock = node.machine.clock
        async with AutoRecovery(node.store, node.client, node.directory, clock, rng, config, node.process.name):
            await asyncio.Event().wait()

    async def _disturbed(self, duration_s: float) -> None:
        """Let it happen; look at the disks now and then."""
        rng = self.world.rng("probes")
        end_s = self.world.loop.now_s + duration_s
        while (rest_s := end_s - self.world.loop.now_s) > 0:
            await asyncio.sleep(min(rest_s, rng.uniform(0.2, 1.0) * duration_s))
            self.check_disks()

    async def _heal(self) -> None:
        self.world.note("world", "heals")
        self.workload.stopping = True
        for node in self.cluster.nodes:
            node.start()
        try:
            await until(lambda: all(bookie.serving for bookie in self.cluster.expected), SETTLE_S)
        except TimeoutError:
            down = [f"{one.name} ({one.refused})" for one in self.cluster.expected if not one.serving]
            self.violate(LIVE, f"not serving {SETTLE_S:g} s after healing: {', '.join(down)}")
        try:
            await until(lambda: all(client.finished for client in self.cluster.clients), SETTLE_S)
        except TimeoutError:
            busy = [client.name for client in self.cluster.clients if not client.finished]
            self.violate(LIVE, f"still waiting for something {SETTLE_S:g} s after healing: {', '.join(busy)}")

    # ---- What is left

    async def _verify(self) -> None:
        node = ClientNode(self.world, "verifier")
        node.start()
        assert node.process is not None
        await self.world.loop.spawn(node.process, node.ready.wait())
        for ledger in list(self.history.ledgers.values()):
            if not ledger.deleted:
                await self.world.loop.spawn(node.process, self._verify_ledger(node, ledger))
        self.check_disks()
        await self._verify_repair()
        await self.world.loop.spawn(node.process, self._verify_liveness(node))

    async def _verify_ledger(self, node: ClientNode, ledger: LedgerHistory) -> None:
        """It can be closed and read, all of it, and every replica says the same."""
        deadline_s = self.world.loop.now_s + SETTLE_S
        while True:
            try:
                reader = await node.client.open_ledger(ledger.ledger_id, recover=True, password=ledger.password)
                break
            except NoSuchLedgerError:
                self.checkers.gone(ledger)
                return
            except MagnetarError as error:
                if self.world.loop.now_s > deadline_s:
                    self.violate(READABLE, f"{ledger.ledger_id} cannot be opened: {type(error).__name__}: {error}")
                    return
                await asyncio.sleep(1.0)
        self.checkers.closed(ledger, reader.last_add_confirmed, reader.length)
        while (problem := await self.workload.read_range(reader, ledger, 0, reader.last_add_confirmed)) is not None:
            if self.world.loop.now_s > deadline_s:
                self.violate(READABLE, f"{ledger.ledger_id} of 0..{reader.last_add_confirmed}: {problem}")
                return
            await asyncio.sleep(1.0)

    async def _verify_repair(self) -> None:
        """Auto-recovery brings every acknowledged entry back to Qw bookies, where there are enough of them."""
        there = len(self.cluster.bookies) - len(self.cluster.lost)
        if not self.cluster.helpers or any(size > there for size, _, _ in self.scenario.quorums):
            return
        deadline_s = self.world.loop.now_s + REPAIR_S
        while problems := durable_problems(self.cluster, self.history, self.checkers, repaired=True):
            if self.world.loop.now_s > deadline_s:
                for _, text in problems:
                    self.violate(REPAIRED, text)
                return
            await asyncio.sleep(2.0)

    async def _verify_liveness(self, node: ClientNode) -> None:
        """A new ledger over every bookie that is there."""
        size = len([bookie for bookie in self.cluster.expected if bookie.serving])
        deadline_s = self.world.loop.now_s + SETTLE_S
        while (problem := await self._try_ledger(node, size)) is not None:
            if self.world.loop.now_s > deadline_s:
                self.violate(LIVE, f"a new ledger on {size} bookies: {problem}")
                return
            await asyncio.sleep(1.0)

    async def _try_ledger(self, node: ClientNode, size: int) -> str | None:
        """Write one entry to each of `size` bookies; what went wrong, if anything."""
        acked: list[MagnetarError | None] = []
        try:
            writer = await node.client.create_ledger(ensemble_size=size, write_quorum=size, ack_quorum=size)
            for _ in range(size):
                writer.append(b"alive", acked.append)
            await until(lambda: len(acked) == size, SETTLE_S)
            await writer.close()
        except (MagnetarError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}, acks {acked}"
        return f"{acked}" if any(acked) else None

    # ---- Disks

    def check_disks(self) -> None:
        """Every acknowledged entry is durable on Qa bookies of its ensemble."""
        for checker, text in durable_problems(self.cluster, self.history, self.checkers):
            self.violate(checker, text)

    def violate(self, checker: str, text: str) -> None:
        self.world.note("checker", f"{checker}: {text}")
        self.history.violate(checker, text, self.world.loop.now_s)
