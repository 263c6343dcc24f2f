"""The nemesis: breaks things at random, mends them after a while, and strikes at the moments a scenario aims at."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Protocol

from magnetar.testing.sim.cluster import Cluster
from magnetar.testing.sim.history import History
from magnetar.testing.sim.loop import Process
from magnetar.testing.sim.metadata import MACHINE
from magnetar.testing.sim.nodes import BookieNode, Node
from magnetar.testing.sim.swarm import Aim

Mend = Callable[[], None]


class Disturbance(Protocol):
    """The part of a scenario that says what breaks, how often and for how long. Times in virtual seconds."""

    @property
    def faults(self) -> tuple[str, ...]: ...
    @property
    def fault_gap_s(self) -> float: ...
    @property
    def outage_s(self) -> float: ...
    @property
    def down_max(self) -> int: ...
    @property
    def aims(self) -> tuple[Aim, ...]: ...


class Nemesis:
    """`run()` as a task; `stop` mends everything that can be mended."""

    def __init__(self, cluster: Cluster, scenario: Disturbance, history: History) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._scenario = scenario
        self._history = history
        self._rng = cluster.world.rng("nemesis")
        self._mends: dict[int, Mend] = {}
        self._mends_total = 0
        self._aims = list(scenario.aims)
        self._passed = [0] * len(self._aims)
        self._over = False
        self.victim = self._rng.choice(cluster.bookies)
        """The only bookie that may lose data."""
        if self._aims:
            self._world.moments.listeners.append(self._on_moment)

    async def run(self) -> None:
        """Strike until cancelled."""
        scenario, rng = self._scenario, self._rng
        if not scenario.faults:
            return
        while True:
            await asyncio.sleep(rng.expovariate(1 / scenario.fault_gap_s))
            self.strike(rng.choice(scenario.faults))

    def strike(self, name: str) -> None:
        """One fault."""
        self._history.count(f"fault: {name}")
        self._world.note("nemesis", name)
        _FAULTS[name](self)

    def stop(self) -> None:
        """No more faults; what was broken is mended."""
        self._over = True
        for number in sorted(self._mends):
            self._mends.pop(number)()
        self._world.wires.heal_all()
        for node in self._cluster.nodes:
            node.resume()
            medium = node.machine.medium
            medium.slowness, medium.ballast_bytes = 1.0, 0
            medium.fail_probability.clear()
            medium.fail_next.clear()

    def _later(self, mend: Mend, factor: float = 1.0) -> None:
        """Mend it after an outage."""
        self._mends_total += 1
        number = self._mends_total
        self._mends[number] = mend
        delay_s = self._rng.expovariate(1 / self._scenario.outage_s) * factor

        def now() -> None:
            if self._mends.pop(number, None) is not None:
                mend()

        self._world.loop.call_as(self._world.loop.outside, delay_s, now)

    # ---- Whom

    def _bookie(self) -> BookieNode | None:
        """One that may be taken down now."""
        down = [bookie for bookie in self._cluster.bookies if not bookie.serving]
        up = [bookie for bookie in self._cluster.bookies if bookie.serving]
        return self._rng.choice(up) if up and len(down) < self._scenario.down_max else None

    def _client(self) -> Node | None:
        up = [client for client in self._cluster.disturbed if client.running]
        return self._rng.choice(up) if up else None

    def _any(self) -> Node | None:
        return self._bookie() if self._rng.random() < 0.6 else self._client()

    # ---- Faults

    def down(self, node: Node | None, how: Callable[[Node], None]) -> None:
        if node is not None:
            how(node)
            self._later(node.start)

    def bookie_kill(self) -> None:
        self.down(self._bookie(), lambda node: node.kill())

    def bookie_power(self) -> None:
        self.down(self._bookie(), lambda node: node.cut_power())

    def all_power(self) -> None:
        for bookie in self._cluster.bookies:
            self.down(bookie, lambda node: node.cut_power())

    def bookie_pause(self) -> None:
        self.pause(self._bookie())

    def client_pause(self) -> None:
        self.pause(self._client())

    def client_kill(self) -> None:
        self.down(self._client(), lambda node: node.kill())

    def client_stop(self) -> None:
        self.down(self._client(), lambda node: node.stop())

    def pause(self, node: Node | None) -> None:
        if node is not None:
            node.pause()
            self._later(node.resume, self._rng.choice((0.3, 1.0, 4.0)))

    def cut(self) -> None:
        node = self._any()
        if node is not None:
            pairs = self._cluster.cut(node, self._rng)
            self.cut_pairs(pairs + [(target, source) for source, target in pairs])

    def one_way_cut(self) -> None:
        node = self._any()
        if node is not None:
            self.cut_pairs(self._cluster.cut(node, self._rng))

    def metadata_cut(self) -> None:
        node = self._any()
        if node is not None:
            self.cut_pairs([(node.name, MACHINE), (MACHINE, node.name)])

    def cut_pairs(self, pairs: list[tuple[str, str]]) -> None:
        wires = self._world.wires
        for source, target in pairs:
            wires.cut(source, target)

        def mend() -> None:
            for source, target in pairs:
                wires.heal(source, target)

        self._later(mend)

    def reset(self) -> None:
        node = self._any()
        if node is not None:
            for other in self._cluster.others(node):
                if self._rng.random() < 0.5:
                    self._world.wires.reset(node.name, other.name)

    def metadata_drop(self) -> None:
        node = self._any()
        if node is not None:
            node.store.drop_connection()

    def session_expiry(self) -> None:
        node = self._any()
        if node is not None:
            node.metadata.expire(node.store.session_id)

    def slow_link(self) -> None:
        node = self._any()
        if node is None:
            return
        other = self._rng.choice(self._cluster.others(node))
        wires = self._world.wires
        for pair in ((node.name, other.name), (other.name, node.name)):
            wires.slow_down(*pair, self._rng.choice((10.0, 100.0, 2000.0)))
            self._later(partial(wires.normal_speed, *pair))

    def slow_disk(self) -> None:
        medium = self._rng.choice(self._cluster.bookies).machine.medium
        medium.slowness = self._rng.choice((10.0, 100.0, 2000.0))
        self._later(lambda: setattr(medium, "slowness", 1.0))

    def disk_full(self) -> None:
        medium = self._rng.choice(self._cluster.bookies).machine.medium
        medium.ballast_bytes = medium.capacity_bytes - medium.used_bytes - self._rng.choice((0, 500, 5000, 50_000))
        self._later(lambda: setattr(medium, "ballast_bytes", 0))

    def clock_jump(self) -> None:
        node = self._rng.choice(self._cluster.nodes)
        node.machine.clock.offset_ms += self._rng.choice((-3_600_000, -5000, 5000, 3_600_000))

    def disk_errors(self) -> None:
        medium = self.victim.machine.medium
        operation = self._rng.choice(("read", "write", "fsync"))
        if self._rng.random() < 0.5:
            medium.fail_next.add(operation)
        else:
            medium.fail_probability[operation] = self._rng.choice((0.01, 0.2))
        self._cluster.given_up.add(self.victim.name)
        self._later(medium.fail_probability.clear)

    def bit_rot(self) -> None:
        part = self._rng.choice((".log", ".journal", "/checkpoint", ""))
        found = self.victim.machine.medium.rot(part)
        if found is not None:
            self._cluster.given_up.add(self.victim.name)
            self._world.note("nemesis", f"bit rot: {self.victim.name} {found}")

    def wipe(self) -> None:
        """The disk is replaced; under its old name the bookie must not start."""
        if self.victim.starts and self.victim.name not in self._cluster.given_up:
            self._cluster.given_up.add(self.victim.name)
            self.victim.cut_power()
            self.victim.machine.medium.wipe()
            self._cluster.lost.add(self.victim.name)
            self._later(self.victim.start)

    def bookie_loss(self) -> None:
        self._cluster.given_up.add(self.victim.name)
        self._cluster.lost.add(self.victim.name)
        self.victim.gone = True
        self.victim.cut_power()

    # ---- Aimed

    def _on_moment(self, process: Process, moment: str) -> None:
        if self._over:
            return
        for number, aim in enumerate(self._aims):
            if self._passed[number] < aim.count and re.search(aim.moment, moment):
                self._passed[number] += 1
                if self._passed[number] == aim.count:
                    self._act(aim, process, moment)

    def _act(self, aim: Aim, process: Process, moment: str) -> None:
        node = self._cluster.node_of(process.name)
        if node is None:
            return
        self._history.count(f"aimed: {aim.action}")
        self._world.note("nemesis", f"{aim.action} at {moment!r} of {process}")
        others = [other for other in self._cluster.others(node) if other.running]
        target = self._rng.choice(others) if others else None
        if aim.action in ("kill self", "kill other"):
            self.down(node if aim.action == "kill self" else target, lambda one: one.kill())
        elif aim.action == "stop self":
            self.down(node, lambda one: one.stop())
        elif aim.action in ("power self", "power other"):
            self.down(node if aim.action == "power self" else target, lambda one: one.cut_power())
        elif aim.action in ("pause self", "pause other"):
            self.pause(node if aim.action == "pause self" else target)
        elif aim.action == "cut self":
            self.cut_pairs(self._cluster.cut(node, self._rng))
        elif aim.action == "reset self":
            for other in self._cluster.others(node):
                self._world.wires.reset(node.name, other.name)
        else:
            node.store.drop_connection()


_FAULTS: dict[str, Callable[[Nemesis], None]] = {
    "bookie kill": Nemesis.bookie_kill,
    "bookie power": Nemesis.bookie_power,
    "all power": Nemesis.all_power,
    "bookie pause": Nemesis.bookie_pause,
    "client pause": Nemesis.client_pause,
    "client kill": Nemesis.client_kill,
    "client stop": Nemesis.client_stop,
    "cut": Nemesis.cut,
    "one-way cut": Nemesis.one_way_cut,
    "reset": Nemesis.reset,
    "metadata drop": Nemesis.metadata_drop,
    "metadata cut": Nemesis.metadata_cut,
    "session expiry": Nemesis.session_expiry,
    "slow link": Nemesis.slow_link,
    "slow disk": Nemesis.slow_disk,
    "disk full": Nemesis.disk_full,
    "clock jump": Nemesis.clock_jump,
    "disk errors": Nemesis.disk_errors,
    "bit rot": Nemesis.bit_rot,
    "wipe": Nemesis.wipe,
    "bookie loss": Nemesis.bookie_loss,
}
