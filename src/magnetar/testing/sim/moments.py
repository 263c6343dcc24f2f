"""Named moments of the protocol, told as they pass: where a fault can be aimed.

`disk fsync before 0000000000000001.journal`, `metadata put after /ledgers/00/0000/L0001`, `client fence sent bookie-2:3181`, ...
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.testing.sim.loop import Process

OnMoment = Callable[[Process, str], None]
"""`on_moment(process that does it, moment)`: may kill, pause, cut and break whatever it likes."""


class Moments:
    """`listeners` are told in order; with none, nobody spends time on telling."""

    def __init__(self) -> None:
        self.listeners: list[OnMoment] = []

    def tell(self, process: Process, moment: str) -> None:
        for listener in list(self.listeners):
            listener(process, moment)
