"""Appends of one managed ledger: straight to the current ledger, or into a queue while one ledger follows the other.

A full ledger, an old one and a failed one end the same way: the handle is drained or given up, `handover` closes its ledger and
puts the next one on the list, and what was not stored goes there, in order, before anything newer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import FATAL
from magnetar.managed_ledger.appender import Appender, PendingAppend
from magnetar.managed_ledger.config import ManagedLedgerConfig, is_full, next_age_check_ms
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
    WriteFailedError,
)
from magnetar.managed_ledger.handover import replace_ledger
from magnetar.managed_ledger.ledger_index import LedgerSummary
from magnetar.managed_ledger.ports import RunDone, WritableLedger

log = logging.getLogger(__name__)

WRITE_FAILED_HOLD_S = 1.0
"""After entries were refused, appends are refused for this long (or until `resume_writes`): entries that were sent behind the
refused ones must not be stored before their producers have sent those again."""

WRITE_FAILED_PAUSE_MIN_S = 0.1
WRITE_FAILED_PAUSE_MAX_S = 2.0
"""Nor is another ledger tried within this pause, which `resume_writes` does not lift: none after the first failure, then doubling from the
least to the greatest until an entry is stored. Clients reconnect several times a second, and each time would cost two ledgers."""

BARREN_LEDGERS_MAX = 2
"""Ledgers in a row that failed without storing one entry; then appends are refused for a while instead of going to a third, because
bookies that refuse everything would otherwise be answered with thousands of ledgers."""

ADD_TIMEOUT_S = 120.0
"""Without any completion for this long although appends are pending, the ledger is given up as if one of them had failed."""

CHECK_INTERVAL_S = 30.0
"""How often a current ledger is looked at for its age and for appends that get no answer."""

ROLLOVER_JITTER = 0.05
"""By how much the age limits of a ledger are stretched at most, so that ledgers created together do not all roll together."""


class State(Enum):
    OPEN = auto()
    SWITCHING = auto()
    """Between two ledgers: appends are queued."""
    WRITE_FAILED = auto()
    """No ledger to write; see `WRITE_FAILED_HOLD_S`."""
    FENCED = auto()
    TERMINATED = auto()
    CLOSED = auto()


def _nobody() -> None:
    pass


class AppendPipeline:
    """`pending_add_bytes`: data of appends that are not completed. `caching`: whether completed entries go into the cache.

    `on_burst` runs once after each burst of completions, `on_switched` after each change of ledgers.
    """

    __slots__ = (
        "_age_timer",
        "_barren",
        "_context",
        "_failures",
        "_hold_until_s",
        "_max_bytes",
        "_max_entries",
        "_on_burst",
        "_on_switched",
        "_paused_until_s",
        "_switch_task",
        "_unfinished",
        "_waiting",
        "appender",
        "caching",
        "pending_add_bytes",
        "state",
        "wake_scheduled",
    )

    def __init__(self, context: LedgerContext, on_burst: Callable[[], None], on_switched: Callable[[], None]) -> None:
        self.state = State.SWITCHING
        self.appender: Appender | None = None
        self.pending_add_bytes = 0
        self.caching = False
        self.wake_scheduled = False
        self._context = context
        self._on_burst = on_burst
        self._on_switched = on_switched
        self._unfinished: Appender | None = None
        self._waiting: deque[PendingAppend] | None = None
        """Appends that wait for a ledger; made for the first one, since an empty one takes 760 bytes and most topics never need it."""
        self._switch_task: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None
        self._hold_until_s = 0.0
        self._paused_until_s = 0.0
        self._failures = 0
        """Times in a row that there was no ledger to write, without an entry stored in between."""
        self._barren = 0
        self.set_limits(context.config)

    def set_limits(self, config: ManagedLedgerConfig) -> None:
        """Take over changed settings; they hold from the next append on."""
        self._max_entries = config.max_entries_per_ledger
        self._max_bytes = config.max_size_per_ledger_bytes
        if self.appender is not None:
            self._arm_age_timer(self.appender)

    def append(self, run: list[bytes], done: RunDone) -> None:
        """Store entries. `done` is told of them in pieces where the ledger changes in the middle of them."""
        size_bytes = len(run[0]) if len(run) == 1 else sum(map(len, run))
        appender = self.appender
        if appender is None:
            self._append_later(run, size_bytes, done)
            return
        self.pending_add_bytes += size_bytes
        if appender.pushed + len(run) < self._max_entries and appender.pushed_bytes + size_bytes < self._max_bytes:
            appender.append(run, size_bytes, done)
            return
        left = self._push(appender, run, size_bytes, done)
        if left:
            self.pending_add_bytes -= (left_bytes := sum(map(len, left)))
            self._append_later(left, left_bytes, done)

    def _push(self, appender: Appender, run: list[bytes], size_bytes: int, done: RunDone) -> list[bytes]:
        """Hand a run to the ledger; answers the entries for which it has no room, because it has become full meanwhile."""
        full_before = appender.pushed >= self._max_entries or appender.pushed_bytes >= self._max_bytes
        count = len(run)
        if appender.pushed + count < self._max_entries and appender.pushed_bytes + size_bytes < self._max_bytes:
            appender.append(run, size_bytes, done)
        elif (
            count == 1 or full_before
        ):  # a ledger that is too young to be followed by another takes more than it should
            appender.append(run, size_bytes, done)
            self._roll_if_full()
        else:
            for number, data in enumerate(run, 1):
                appender.append([data], len(data), done)
                if appender.pushed >= self._max_entries or appender.pushed_bytes >= self._max_bytes:
                    self._roll_if_full()
                if self.appender is not appender:
                    return run[number:]
        return []

    def resume_writes(self) -> None:
        self._hold_until_s = self._paused_until_s

    async def rollover(self) -> None:
        """Change the ledger unless it is empty. Raises WriteFailedError when that fails."""
        await self.switched()
        if self.appender is not None and self.appender.pushed:
            self._begin_switch(self.appender)
            await self.switched()
            if self.state is State.WRITE_FAILED:
                raise WriteFailedError(f"{self._context.name}: the next ledger could not be created")

    async def end(self, state: State) -> Appender | None:
        """Accept no more appends; answers the appender that has still to be ended, with its pending entries."""
        await self.switched()
        if self.state is State.FENCED:
            self.state = state
            return None
        appender, self.appender = self.appender or self._unfinished, None
        self._unfinished = None
        self.state = state
        self._cancel_age_timer()
        self._fail(self._waiting, self.refusal())
        return appender

    def forget_owner(self) -> None:
        """It is closed: bursts and changes of ledgers concern nobody any more."""
        self._on_burst = self._on_switched = _nobody

    def undo_end(self, appender: Appender | None) -> None:
        """Ending could not be stored: appends may be tried again, in a new ledger."""
        self.state = State.WRITE_FAILED
        self._unfinished = appender

    def retire(self, appender: Appender) -> None:
        """Fail what is pending and ignore the handle's answers."""
        appender.retire()
        self._fail(appender.pending, self.refusal())

    def fence(self, error: ManagedLedgerFencedError) -> None:
        """Another owner was seen: everything pending fails, nothing is accepted."""
        appender, self.appender = self.appender or self._unfinished, None
        self._unfinished = None
        self.state = State.FENCED
        self._cancel_age_timer()
        if appender is not None:
            self.retire(appender)
        self._fail(self._waiting, error)

    def refusal(self) -> MagnetarError:
        """Why appends are not accepted in this state."""
        name = self._context.name
        if self.state is State.FENCED:
            return self._context.fenced_by or ManagedLedgerFencedError(f"{name} has another owner")
        if self.state is State.TERMINATED:
            return ManagedLedgerTerminatedError(f"{name} is terminated")
        if self.state is State.CLOSED:
            return ManagedLedgerClosedError(f"{name} is closed here")
        return WriteFailedError(f"{name}: an earlier entry could not be stored")

    # ---- What the appender calls

    def schedule_wake(self) -> None:
        self.wake_scheduled = True
        asyncio.get_running_loop().call_soon(self._wake)

    def append_failed(self, appender: Appender, error: MagnetarError) -> None:
        """The ledger takes no more. Whatever is pending goes to the next one, in order."""
        log.warning(
            "append failed, changing the ledger  managed_ledger=%s ledger=%d: %s",
            self._context.name,
            appender.handle.ledger_id,
            error,
        )
        if self.appender is not appender:
            return
        if appender.summary.entries:
            self._failures = 0
        self._barren = 0 if appender.summary.entries else self._barren + 1
        if self._barren < BARREN_LEDGERS_MAX:
            self._begin_switch(appender)
            return
        self._barren = 0
        self.appender = None
        self._unfinished = appender
        self.state = State.SWITCHING
        self._cancel_age_timer()
        self._writes_failed(appender, error)

    # ---- Changing ledgers

    def begin_without_ledger(self, error: MagnetarError) -> None:
        """Opened while no ledger can be written: entries can be read, and appends try for a ledger again."""
        self._writes_failed(None, error)

    def activate(self, handle: WritableLedger, summary: LedgerSummary) -> None:
        context = self._context
        cache = context.caches[handle.ledger_id] = context.cache.attach(handle.ledger_id)
        patience = 1.0 + ROLLOVER_JITTER * context.rng.random()
        appender = Appender(self, handle, summary, cache, context.clock.monotonic_s(), patience)
        context.reader.set_live(handle)
        self.state = State.OPEN
        self.appender = appender
        self._unfinished = None
        self._arm_age_timer(appender)
        waiting = self._waiting or deque()
        while waiting and self.appender is not None:
            run, size_bytes, done = waiting.popleft()
            left = self._push(appender, run, size_bytes, done)
            if not left:
                continue
            left_bytes = sum(map(len, left))
            if self.state is State.SWITCHING:
                waiting.appendleft((left, left_bytes, done))
            else:  # the ledger failed and no other was opened: what follows is refused, or it would overtake its repetition
                self.pending_add_bytes -= left_bytes
                done(self.refusal(), -1, -1, len(left))

    def _line(self) -> deque[PendingAppend]:
        if self._waiting is None:
            self._waiting = deque()
        return self._waiting

    def _roll_if_full(self) -> None:
        appender = self.appender
        if appender is None:
            return
        if is_full(appender.pushed, appender.pushed_bytes, self._age_ms(appender), self._context.config):
            self._failures = 0
            self._begin_switch(appender)

    def _begin_switch(self, old: Appender | None) -> None:
        self.appender = None
        self._unfinished = old
        self.state = State.SWITCHING
        self._cancel_age_timer()
        self._switch_task = self._context.scope.spawn(
            self._switch(old), f"switch ledger of {self._context.name}", FATAL
        )

    async def _switch(self, old: Appender | None) -> None:
        context = self._context
        try:
            async with context.store.lock:
                handle, summary = await replace_ledger(context, old)
        except ManagedLedgerFencedError as error:
            context.fence(error)
        except MagnetarError as error:
            self._writes_failed(old, error)
        except asyncio.CancelledError:
            self._stopped(old)
            raise
        else:
            if self.state is not State.SWITCHING:  # a cursor has seen another owner meanwhile
                return
            if old is not None:
                self._line().extendleft(reversed(old.pending))
                old.pending.clear()
            self.activate(handle, summary)
            self._on_switched()

    async def switched(self) -> None:
        """Wait until no switch is under way."""
        while self._switch_task is not None and not self._switch_task.done():
            await asyncio.wait({self._switch_task})

    def _writes_failed(self, old: Appender | None, error: MagnetarError) -> None:
        if self.state is not State.SWITCHING:  # fenced meanwhile: everything has been answered
            return
        log.error("no ledger to write  managed_ledger=%s: %s", self._context.name, error)
        self.state = State.WRITE_FAILED
        now_s = self._context.clock.monotonic_s()
        doubled_s = WRITE_FAILED_PAUSE_MIN_S * 2 ** min(self._failures, 10) if self._failures else 0.0
        self._failures += 1
        self._paused_until_s = now_s + min(doubled_s, WRITE_FAILED_PAUSE_MAX_S)
        self._hold_until_s = max(now_s + WRITE_FAILED_HOLD_S, self._paused_until_s)
        failure = WriteFailedError(f"{self._context.name}: the entry could not be stored: {error}")
        failure.__cause__ = error
        if old is not None:
            self._fail(old.pending, failure)
        self._fail(self._waiting, failure)

    def _stopped(self, old: Appender | None) -> None:
        """The process ends in the middle of a change of ledgers: nobody waits for an answer that cannot come."""
        self.state = State.CLOSED
        if old is not None:
            self.retire(old)
        self._fail(self._waiting, self.refusal())

    def _append_later(self, run: list[bytes], size_bytes: int, done: RunDone) -> None:
        if self.state is State.WRITE_FAILED and self._context.clock.monotonic_s() >= self._hold_until_s:
            self._begin_switch(self._unfinished)
        if self.state is State.SWITCHING:
            self.pending_add_bytes += size_bytes
            self._line().append((run, size_bytes, done))
        else:
            done(self.refusal(), -1, -1, len(run))

    def _fail(self, appends: deque[PendingAppend] | None, error: MagnetarError) -> None:
        """Answer all with the error, in order. What they append in turn is refused, or comes behind them."""
        if not appends:
            return
        failed = list(appends)
        appends.clear()
        for run, size_bytes, done in failed:
            self.pending_add_bytes -= size_bytes
            done(error, -1, -1, len(run))

    # ---- Time

    def _age_ms(self, appender: Appender) -> float:
        return (self._context.clock.monotonic_s() - appender.created_s) * 1000 / appender.patience

    def _arm_age_timer(self, appender: Appender) -> None:
        self._cancel_age_timer()
        wait_ms = next_age_check_ms(
            appender.pushed, appender.pushed_bytes, self._age_ms(appender), self._context.config
        )
        wait_s = min(wait_ms * appender.patience / 1000, CHECK_INTERVAL_S)
        self._age_timer = asyncio.get_running_loop().call_later(wait_s, self._on_age)

    def _on_age(self) -> None:
        self._age_timer = None
        self._roll_if_full()
        appender = self.appender
        if appender is None:
            return
        now_s = self._context.clock.monotonic_s()
        if not appender.pending or appender.summary.entries != appender.seen_entries:
            appender.seen_entries, appender.seen_s = appender.summary.entries, now_s
        elif now_s - appender.seen_s >= ADD_TIMEOUT_S:
            appender.completed(
                WriteFailedError(f"ledger {appender.handle.ledger_id}: no answer for {ADD_TIMEOUT_S:.0f} s"), 0
            )
            return
        self._arm_age_timer(appender)

    def _cancel_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
            self._age_timer = None

    def _wake(self) -> None:
        self.wake_scheduled = False
        self._on_burst()
