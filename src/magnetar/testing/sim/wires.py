"""The network between machines: delays, cuts, power, and listeners."""

from __future__ import annotations

import random
from typing import Final, Protocol

from magnetar.testing.sim.loop import Process, SimLoop

RETRANSMIT_S: Final = 0.2
"""Pause between attempts to deliver a segment."""


class Line(Protocol):
    """A connection, as far as the wires care."""

    def machines(self) -> tuple[str, str]: ...

    def reset(self) -> None:
        """Both ends see it reset."""
        ...

    def nudge(self) -> None:
        """Something changed (a cut healed, a machine booted): try to deliver again."""
        ...

    def hurry(self) -> None:
        """The way between the machines has its normal speed again: what is late because of the other one is sent once more."""
        ...

    def killed(self, process: Process, silently: bool) -> None: ...


class Port(Protocol):
    """Somebody who listens."""

    process: Process


class Wires:
    """Everything between machines. Delays in seconds."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.delay_s = 0.0002
        self.jitter_s = 0.0002
        self.spike_probability = 0.0
        """Probability that a segment takes `spike_s` longer: it was lost and sent again."""
        self.spike_s = 0.05
        self.split_probability = 0.1
        """Probability that arriving data is handed over in two pieces."""
        self.window_bytes = 64 * 1024
        """Bytes that a sender may have under way before its own buffer grows."""
        self.distance_s: dict[tuple[str, str], float] = {}
        """What the way between two machines adds to each delay."""
        self._slowness: dict[tuple[str, str], float] = {}
        """Factor on the delay from one machine to another."""
        self.boots: dict[str, int] = {}
        """Number of starts of each machine."""
        self.powered: set[str] = set()
        self.ports: dict[tuple[str, int], Port] = {}
        self.lines: dict[int, Line] = {}
        self.connections_total = 0
        self.deliveries_total = 0
        self._cuts: dict[tuple[str, str], int] = {}

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` any more. Cuts add up."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        """Undo one `cut`."""
        count = self._cuts.get((source, target), 0)
        if count > 1:
            self._cuts[source, target] = count - 1
        elif count == 1:
            del self._cuts[source, target]
            self._nudge_all()

    def heal_all(self) -> None:
        self._cuts.clear()
        self.spike_probability = 0.0
        for pair in list(self._slowness):
            self.normal_speed(*pair)
        self._nudge_all()

    def slow_down(self, source: str, target: str, factor: float) -> None:
        """Whatever is sent from now on takes `factor` times as long."""
        self._slowness[source, target] = factor

    def normal_speed(self, source: str, target: str) -> None:
        """Undo `slow_down`. A segment that was sent meanwhile is not late for longer than the fault: TCP sends it again."""
        if self._slowness.pop((source, target), None) is not None:
            for line in list(self.lines.values()):
                if {source, target} == set(line.machines()):
                    line.hurry()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def reset(self, first: str, second: str) -> int:
        """Something in between kills the connections between two machines; returns how many."""
        found = [line for line in self.lines.values() if set(line.machines()) == {first, second}]
        for line in found:
            line.reset()
        return len(found)

    def boot(self, machine: str) -> None:
        """Switch a machine on: what is left of its former connections is reset when the other end sends."""
        self.boots[machine] = self.boots.get(machine, 0) + 1
        self.powered.add(machine)
        self._nudge_all()

    def cut_power(self, machine: str) -> None:
        """The machine is gone without a word; its processes must be killed in the loop too."""
        self.powered.discard(machine)
        for key in [key for key in self.ports if key[0] == machine]:
            del self.ports[key]

    def killed(self, process: Process, silently: bool = False) -> None:
        """The kernel closes the process's sockets; or there is no kernel either, and it is silent."""
        for key in [key for key, port in self.ports.items() if port.process is process]:
            del self.ports[key]
        for line in list(self.lines.values()):
            line.killed(process, silently)

    def delay(self, source: str, target: str) -> float:
        """Delay of the next segment."""
        delay_s = self.delay_s + self.rng.random() * self.jitter_s
        if self.distance_s:
            delay_s += self.distance_s.get((source, target), 0.0)
        if self.spike_probability and self.rng.random() < self.spike_probability:
            delay_s += self.spike_s * (0.5 + self.rng.random())
        return delay_s * self._slowness.get((source, target), 1.0)

    def _nudge_all(self) -> None:
        for line in list(self.lines.values()):
            line.nudge()
