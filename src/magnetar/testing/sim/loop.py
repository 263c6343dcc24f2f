"""The event loop of a simulation: virtual time, one ready queue per process, and a seed that picks whose turn it is.

Unmodified asyncio code runs on it. Which process a callback belongs to travels in a context variable, so whatever a process starts
is its own: it stops when the process is paused and is gone when it is killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, TypeVar

from magnetar.testing.sim.trace import Trace

T = TypeVar("T")

CALLBACK_S: Final = 2e-6
"""Virtual time that one callback takes. Code that only yields to itself gets somewhere in the end."""

_FINALLY_MAX: Final = 50

START_MS: Final = 1_700_000_000_000
"""Wall time at virtual time 0."""


class SimulationError(Exception):
    """The simulation itself cannot go on; not a finding about the product."""


class Process:
    """One operating system process: `running`, `paused` (SIGSTOP), or dead for good."""

    __slots__ = ("alive", "context", "graveyard", "name", "number", "paused", "queued", "ready", "tasks")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.ready: deque[events.Handle] = deque()
        self.alive = True
        self.paused = False
        self.queued = False
        """It is among the loop's runnable processes."""
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.graveyard: list[object] = []
        """Objects of killed processes, kept because freeing them would run their `finally` blocks."""
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")


class SimTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on its address: `TaskGroup` and `asyncio.wait` keep tasks in sets."""

    def __init__(self, number: int, work: Generator[Any, None, T] | Coroutine[Any, Any, T], **more: Any) -> None:
        self._number = (
            number  # first: asyncio puts the task into a set of all tasks, where it would meet all others at one hash
        )
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self._number


class SimLoop(asyncio.BaseEventLoop):
    """`run(coroutine)` drives everything until that coroutine is done."""

    def __init__(self, rng: random.Random, trace: Trace) -> None:
        super().__init__()
        self._rng = rng
        self.trace = trace
        self.now_s = 0.0
        self.time_limit_s = float("inf")
        self.callbacks_total = 0
        self.crashes: list[str] = []
        """Exceptions that nobody handled, by process: findings."""
        self._stopping = False
        self._buried = False
        self._timers: list[tuple[float, int, events.TimerHandle, Process]] = []
        self._timer_count = 0
        self._runnable: list[Process] = []
        self._tasks_total = 0
        self._burst = 0
        self.processes: list[Process] = []
        self.outside = self.process("world")
        self.set_task_factory(self._make_task)
        self.set_exception_handler(_note_crash)

    # ---- Processes

    def process(self, name: str) -> Process:
        """A new process."""
        process = Process(name, len(self.processes))
        self.processes.append(process)
        return process

    def spawn(self, process: Process, work: Coroutine[Any, Any, T], name: str = "main") -> asyncio.Task[T]:
        """Run a coroutine as part of a process."""
        return process.context.copy().run(lambda: self.create_task(work, name=f"{process.name}/{name}"))

    def call_as(self, process: Process, delay_s: float, callback: Callable[..., object], *args: object) -> None:
        """`call_later`, on behalf of another process."""
        self.call_at(self.now_s + delay_s, callback, *args, context=process.context)

    def pause(self, process: Process) -> None:
        """SIGSTOP: nothing of it runs, its timers and messages pile up."""
        process.paused = True
        self._unqueue(process)

    def resume(self, process: Process) -> None:
        """SIGCONT."""
        if process.alive and process.paused:
            process.paused = False
            if process.ready:
                self._queue(process)

    def kill(self, process: Process) -> None:
        """SIGKILL: no `finally`, no callback, nothing."""
        process.alive = False
        self._unqueue(process)
        process.graveyard += [*process.ready, *process.tasks.values()]
        process.ready = deque()

    def bury(self) -> None:
        """Free what all processes held; nothing runs any more, and `finally` blocks begin nothing new."""
        self._buried = True
        self._timers.clear()
        self._runnable.clear()
        for process in self.processes:
            process.alive = False
        for process in self.processes:
            for held in [*process.tasks.values(), *process.graveyard]:
                if isinstance(held, asyncio.Task):
                    held._log_destroy_pending = False  # type: ignore[attr-defined]
                    _end(held)
            process.tasks.clear()
            process.ready.clear()
            process.graveyard.clear()

    # ---- What asyncio asks of a loop

    def time(self) -> float:
        return self.now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = events.Handle(callback, args, self, context)
        self._enqueue(context.get(PROCESS, self.outside), handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.now_s + max(delay, 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> events.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        timer = events.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer, context.get(PROCESS, self.outside)))
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """The timer stays in the heap until its time."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Any:  # type: ignore[override]
        raise SimulationError("a thread cannot be simulated: run blocking work through a base.executor.Executor")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive the world until `work`, which runs outside of every simulated process, is done."""
        return self.outside.context.copy().run(self.run_until_complete, work)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Generator[Any, None, T] | Coroutine[Any, Any, T], **more: Any
    ) -> SimTask[T]:
        if self._buried:
            work.close()
            raise RuntimeError("the simulation is over: no new task")
        self._tasks_total += 1
        number = self._tasks_total
        task = SimTask(number, work, loop=loop, **more)
        context: contextvars.Context | None = more.get("context")
        process = PROCESS.get(self.outside) if context is None else context.get(PROCESS, self.outside)
        if not process.alive:
            process.graveyard.append(task)
            return task
        tasks = process.tasks
        tasks[number] = task
        task.add_done_callback(lambda _: tasks.pop(number, None))
        return task

    def _enqueue(self, process: Process, handle: events.Handle) -> None:
        if not process.alive:
            process.graveyard.append(handle)
            return
        process.ready.append(handle)
        if not process.queued and not process.paused:
            self._queue(process)

    def _queue(self, process: Process) -> None:
        if not process.queued:
            process.queued = True
            self._runnable.append(process)

    def _unqueue(self, process: Process) -> None:
        if process.queued:
            process.queued = False
            if self._runnable[0] is process:
                self._burst = 0
            self._runnable.remove(process)

    def _run_once(self) -> None:
        """Everything, until the loop is stopped. One frame for all callbacks: there are tens of thousands in a second of the machine."""
        timers, runnable, trace, rng = self._timers, self._runnable, self.trace, self._rng
        while not self._stopping:
            if not runnable:
                while timers and timers[0][2].cancelled():
                    heapq.heappop(timers)
                if not timers:
                    raise SimulationError("nothing is left to happen and the run is not done: somebody waits for ever")
                self.now_s = max(self.now_s, timers[0][0])
            if self.now_s > self.time_limit_s:
                raise SimulationError(f"the run is not done after {self.time_limit_s:g} virtual seconds")
            while timers and timers[0][0] <= self.now_s:
                _, _, timer, owner = heapq.heappop(timers)
                if not timer.cancelled():
                    self._enqueue(owner, timer)
            if not runnable:
                continue
            # one callback of the process whose turn it is; turns last for a few callbacks
            if self._burst <= 0:
                index = rng.randrange(len(runnable)) if len(runnable) > 1 else 0
                runnable[0], runnable[index] = runnable[index], runnable[0]
                self._burst = 1 + rng.getrandbits(3)
            self._burst -= 1
            process = runnable[0]
            handle = process.ready.popleft()
            self.now_s += CALLBACK_S
            self.callbacks_total += 1
            trace.mix = (trace.mix * 1_000_003 + process.number + 1) & 0xFFFFFFFFFFFF
            if not handle.cancelled():
                handle._run()
            if not process.ready:
                self._unqueue(process)


def _end(task: asyncio.Task[Any]) -> None:
    """Let a coroutine that will never be woken run through its `finally` blocks now, awaits and all."""
    work = task.get_coro()
    for _ in range(_FINALLY_MAX):
        try:
            work.close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue
        return


def _note_crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    if PROCESS.get(loop.outside).alive:
        source = context.get("task") or context.get("future") or context.get("handle")
        name = source.get_name() if isinstance(source, asyncio.Task) else PROCESS.get(loop.outside).name
        loop.crashes.append(f"{name}: {context.get('message')}: {context.get('exception')!r}")


class SimClock:
    """The clocks of one machine: the monotonic one follows the loop, the wall clock may be wrong and may jump."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset_ms = 0

    def now_ms(self) -> int:
        return START_MS + int(self._loop.now_s * 1000) + self.offset_ms

    def monotonic_s(self) -> float:
        return self._loop.now_s
