"""What surrounds a running driver so that other processes see it and reach it: the lock, the status file, requests, metrics."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Protocol

from magnetar.base.clock import Clock
from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.connect.offsets import total_lag
from magnetar.pipeline.home import Place
from magnetar.pipeline.views.control import requests as control
from magnetar.pipeline.views.control.driver_lock import DriverLock
from magnetar.pipeline.views.control.failures import cause
from magnetar.pipeline.views.control.metrics import PipelineMetrics, serving
from magnetar.pipeline.views.control.requests import Request
from magnetar.pipeline.views.control.rescale import AdaptiveUnits
from magnetar.pipeline.views.control.status import FAILED, RUNNING, STOPPED, Meter, Status, write_status
from magnetar.pipeline.views.epoch.progress import EpochReport

POLL_S: Final = 0.1
"""How soon a request is seen."""

STATUS_S: Final = 1.0
"""How often the lag is measured, and the status written while no epoch comes."""

LAG_QUICK_S: Final = 0.02
"""A lag that is told faster than this is measured with each epoch as well, in the driver's thread."""


class Steered(Protocol):
    """What a driver takes from any thread."""

    def request_stop(self) -> None: ...

    def rescale(self, units: int) -> None: ...

    def follow(self, units: int) -> None:
        """As `rescale`, by load: what was asked for by people stays."""
        ...

    def apply(self, text: str, done: Callable[[dict[str, Any]], None]) -> None:
        """Take statements between two epochs. `done` is told, in another thread, when they are in force or refused."""
        ...


class Operations:
    """Around `Driver.run`: enter before Spark is started, `attach` the driver, hand `on_epoch` to it."""

    def __init__(self, place: Place, clock: Clock, *, metrics_port: int | None = None) -> None:
        self._place = place
        self._clock = clock
        self._metrics_port = metrics_port
        self._lock = threading.Lock()
        self._steered: Steered | None = None
        self._vnodes = 0
        self._cores = 1
        self._adaptive: AdaptiveUnits | None = None
        self._lag: Callable[[], Mapping[str, int | None]] | None = None
        self._lag_took_s = 0.0
        self._under_way: Callable[[], float | None] = lambda: None
        self._waiting: list[Request] = []
        self._ended = threading.Event()
        self._stack = ExitStack()
        self.port: int | None = None
        self.metrics = PipelineMetrics(place.name)
        self.meter = Meter(Status(place.name, place.directory, pid=os.getpid(), started_ms=clock.now_ms()))

    @property
    def status(self) -> Status:
        """As of now; it goes on changing."""
        return self.meter.status

    def __enter__(self) -> Operations:
        """Raises PipelineRunningError, and StartupError when the port of the metrics is taken."""
        with ExitStack() as stack:
            lock = stack.enter_context(DriverLock(self._place.local, self._place.name, self._clock))
            control.clear(self._place.local)
            if self._metrics_port is not None:
                self.port = stack.enter_context(serving(self.metrics, self._metrics_port))
                self.status.metrics_url = f"http://127.0.0.1:{self.port}/"
            self._write()
            lock.announce()
            thread = threading.Thread(target=self._listen, name="pipeline-control", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._ended.set)
            self._stack = stack.pop_all()
        return self

    def attach(
        self,
        steered: Steered,
        mapping: VnodeMapping,
        lag: Callable[[], Mapping[str, int | None]] | None = None,
        *,
        cores: int = 1,
        adaptive_from: int | None = None,
        under_way: Callable[[], float | None] = lambda: None,
    ) -> None:
        """The driver that requests are for, and the mapping it begins with; requests that came earlier are handed to it now.

        `lag`: how far each source is behind, asked for about every second, in another thread than the driver's. `cores`: of Spark, the
        most units that following the load takes unless told otherwise. `adaptive_from`: follow it, with so many units at least.
        `under_way`: when the epoch began that is not done yet, monotonic.
        """
        with self._lock:
            self._steered = steered
            self._lag = lag
            self._vnodes = mapping.vnodes
            self.status.state = RUNNING
            self.status.units = len(mapping.units)
            self._cores = self.meter.slots = cores
            self._under_way = under_way
            if adaptive_from is not None:
                self.adapt(adaptive_from, max(cores, adaptive_from))

    def adapt(self, least: int, most: int) -> None:
        """Have the units follow the load from now on, between these numbers."""
        most = min(most, self._vnodes)
        self._adaptive = AdaptiveUnits(min(least, most), most)
        self.status.adaptive = {"least": self._adaptive.least, "most": most, "reason": None}

    def on_epoch(self, report: EpochReport) -> None:
        """After each epoch: the status, the metrics, and answers to what took effect with it."""
        if self._lag_took_s < LAG_QUICK_S:
            self._measure_lag()
        with self._lock:
            self.meter.add(report, self._clock.monotonic_s(), self._clock.now_ms())
            self.metrics.add(report, self.status)
            self._write()
            self._answer_rescales(report)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with self._lock:
            failed = error is not None and not isinstance(error, KeyboardInterrupt | SystemExit)
            self.status.state = FAILED if failed else STOPPED
            self.status.error = cause(error) if failed and error is not None else None
            self.status.rows_per_s = self.status.busy = self.status.work = 0.0
            self._write()
            for request in (*self._waiting, *control.pending(self._place.local)):
                done = request.kind == "stop"
                outcome = {"done": done} if done else {"done": False, "error": "the driver has ended; run it again"}
                control.answer(self._place.local, request, {**outcome, "epoch": self.status.epoch})
            self._waiting.clear()
        self._stack.close()

    def _listen(self) -> None:
        """In a thread of its own: epochs may be far apart, and a request should not wait for one to be noticed."""
        measured_s = self._clock.monotonic_s()
        while not self._ended.wait(POLL_S):
            with self._lock:
                if self._ended.is_set():
                    return
                if self._steered is not None:
                    self._take(self._steered)
            now_s = self._clock.monotonic_s()
            if now_s - measured_s < STATUS_S:
                continue
            measured_s = now_s
            self._measure_lag()
            with self._lock:
                if self._ended.is_set():
                    return
                self.meter.tick(now_s, self._under_way())
                self._follow_load(now_s)
                self.metrics.tick(self.status)
                self._write()

    def _measure_lag(self) -> None:
        """Unknown while the broker does not answer: the driver has its own way of finding that out."""
        if self._lag is None:
            return
        began_s = self._clock.monotonic_s()
        behind: Mapping[str, int | None] | None
        try:
            behind = self._lag()
        except Exception:
            behind = None
        self._lag_took_s = self._clock.monotonic_s() - began_s
        self.status.lags = dict(behind) if behind is not None else {}
        self.status.lag_messages = None if behind is None else total_lag(behind.values())

    def _take(self, steered: Steered) -> None:
        known = {request.number for request in self._waiting}
        for request in control.pending(self._place.local):
            if request.number in known:
                continue
            problem = request.problem(self._vnodes)
            if problem is not None:
                control.answer(self._place.local, request, {"done": False, "error": problem})
            elif request.kind == "stop":
                self._waiting.append(request)
                steered.request_stop()
            elif request.kind == "adapt":
                self.adapt(request.least, max(request.units or self._cores, request.least))
                control.answer(self._place.local, request, {"done": True, **(self.status.adaptive or {})})
            elif request.kind == "apply":
                self._waiting.append(request)
                steered.apply(request.text, lambda outcome, request=request: self._applied(request, outcome))  # type: ignore[misc]
            elif request.units is not None:
                self._adaptive = self.status.adaptive = None
                self._rescale(steered, request, request.units)

    def _applied(self, request: Request, outcome: dict[str, Any]) -> None:
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                control.answer(self._place.local, request, outcome)

    def _rescale(self, steered: Steered, request: Request, units: int) -> None:
        """The last request counts."""
        for earlier in [each for each in self._waiting if each.kind == "rescale"]:
            self._waiting.remove(earlier)
            refusal = f"a later request asked for {units} units"
            control.answer(self._place.local, earlier, {"done": False, "error": refusal})
        steered.rescale(units)
        if units == self.status.units:
            here = {"epoch": self.status.epoch, "units": units}
            control.answer(self._place.local, request, {"done": True, **here, "vnodes_moved": 0, "pause_s": 0.0})
        else:
            self._waiting.append(request)

    def _follow_load(self, now_s: float) -> None:
        if self._adaptive is None or self._steered is None or self.status.epochs == 0:
            return
        decision = self._adaptive.look(self.status.load(), now_s)
        if decision is not None:
            assert self.status.adaptive is not None
            self.status.adaptive |= {"reason": f"{decision.units} units: {decision.reason}"}
            self._steered.follow(decision.units)

    def _answer_rescales(self, report: EpochReport) -> None:
        for request in [each for each in self._waiting if each.kind == "rescale"]:
            if request.units == report.units:
                outcome: dict[str, Any] = {"done": True, "epoch": report.epoch, "units": report.units}
                outcome |= {"vnodes_moved": report.vnodes_moved, "pause_s": report.pause_s}
                control.answer(self._place.local, request, outcome)
                self._waiting.remove(request)

    def _write(self) -> None:
        self.status.updated_ms = self._clock.now_ms()
        write_status(self._place.local, self.status)
