"""Faults, one after the other, at moments that the seed chooses."""

from __future__ import annotations

import random
import threading
import time

from bench.faults.history import History
from bench.faults.targets import START_TIMEOUT_S, Target

FAULTS = ("kill", "pause", "partition", "partition-up", "partition-down", "clock", "disk", "upgrade")
HOUR_S = 3600.0


class Nemesis(threading.Thread):
    """Breaks the target and mends it again until `finish`; every fault stands in the history as an operation of `nemesis`."""

    def __init__(self, target: Target, history: History, faults: tuple[str, ...], gap_s: float, seed: str) -> None:
        super().__init__(name="nemesis", daemon=True)
        self._target, self._history, self._faults, self._gap_s = target, history, faults, gap_s
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.counts = dict.fromkeys(faults, 0)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while self._faults and not self._over.wait(self._random.uniform(0.5, 1.5) * self._gap_s):
                fault = self._random.choice(self._faults)
                outage_s = self._random.uniform(0.1, 2.0)
                self._history.add("nemesis", "info", fault, "begin")
                self.break_it(fault, outage_s)
                self._history.add("nemesis", "info", fault, "end")
                self.counts[fault] += 1
        except BaseException as error:  # the run ends with it
            self.error = error

    def break_it(self, fault: str, outage_s: float) -> None:
        target = self._target
        if fault == "kill":
            target.epoch += 1
            target.kill()
            target.start_again()
        elif fault == "pause":
            target.pause()
            time.sleep(outage_s)
            target.resume()
        elif fault.startswith("partition"):
            target.proxy.stall({"partition": "both", "partition-up": "up", "partition-down": "down"}[fault])
            time.sleep(outage_s)
            target.epoch += 1
            target.proxy.heal()
        elif fault == "upgrade":
            target.epoch += 1
            target.upgrade()
        elif fault == "clock":
            target.clock(self._random.choice((HOUR_S, -HOUR_S, 0.0)))
        elif fault == "disk":
            target.fill()
            time.sleep(outage_s)
            target.empty()
            target.epoch += 1
            target.start_again()  # a failed fsync ends the process

    def finish(self) -> None:
        self._over.set()
        self.join(START_TIMEOUT_S + 20)  # a start may be under way
        if self.error is not None:
            raise self.error
