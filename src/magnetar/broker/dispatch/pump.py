"""The one loop of a subscription: reads for its dispatcher while somebody can take entries.

Plain calls only. Each turn: what must be delivered again first (redelivered, delayed and due, waiting), then new entries from
the cursor. After ENTRIES_PER_TURN_MAX entries the others get their turn and the rest follows by `call_soon`. At most one
read is under way, so entries of two reads never overtake each other; a wake during a read costs two comparisons. While a dispatch
rate is set, a turn takes what the rate grants, and a timer wakes the pump when it grants more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError, client_text
from magnetar.base.limits import BYTES_PER_READ_MAX, ENTRIES_PER_TURN_MAX
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.ports import EntrySource, Scheduler, Timer
from magnetar.broker.dispatch.position_key import position_of
from magnetar.broker.dispatch.throttle import DispatchThrottle
from magnetar.broker.reasons import Code, Reason, because
from magnetar.managed_ledger.entry import Entry

log = logging.getLogger(__name__)

READ_RETRY_FIRST_S = 0.1
"""Pause after a failed read; it doubles with each further failure."""

READ_RETRY_MAX_S = 15.0
"""Longest pause between two tries to read."""

TIMER_STEP_MIN_MS = 10
"""Delayed messages that fall due within this time are delivered by one wake-up; so is what a dispatch rate grants within it."""

TIMER_STEP_MAX_MS = 60_000
"""Delayed messages are looked at again after this long: the time of day may have been set."""


class Pump:
    """Drives one dispatcher from one source. `stop` ends it; a stopped pump ignores wakes until `start`."""

    __slots__ = (
        "_clock",
        "_discard",
        "_dispatcher",
        "_due_at_ms",
        "_failed_ms",
        "_failure",
        "_idle_waiters",
        "_label",
        "_reading",
        "_replaying",
        "_retry",
        "_retry_delay_s",
        "_running",
        "_scheduled",
        "_scheduler",
        "_source",
        "_stopped",
        "_throttle",
        "_throttled",
        "_timer",
        "_turn_left",
        "_turn_max",
        "followed",
        "read_errors",
    )

    def __init__(
        self,
        *,
        source: EntrySource,
        dispatcher: Dispatcher,
        scheduler: Scheduler,
        clock: Clock,
        label: str,
        turn_max: int = ENTRIES_PER_TURN_MAX,
    ) -> None:
        """`label` names the subscription in logs; `turn_max`: entries before others get their turn."""
        self._source = source
        self._dispatcher = dispatcher
        self._scheduler = scheduler
        self._clock = clock
        self._label = label
        self._scheduled = False
        self._running = False
        self._reading = False
        self._replaying: list[int] = []
        self._discard = False
        self._stopped = False
        self._turn_left = 0
        self._turn_max = turn_max
        self._timer: Timer | None = None
        self._due_at_ms = 0
        self._retry: Timer | None = None
        self._retry_delay_s = READ_RETRY_FIRST_S
        self._throttle: DispatchThrottle | None = None
        self._throttled: Timer | None = None
        """The timer that runs while the rate grants nothing."""
        self._idle_waiters: list[Callable[[], None]] = []
        self.followed: Callable[[], None] | None = None
        """Called after entries may have been handed out, while somebody follows one of them."""
        self.read_errors = 0
        self._failure = ""
        """The last failure in words that a client may read, and when the row of failures that it belongs to began."""
        self._failed_ms = 0

    def wake(self) -> None:
        """Something changed that may allow progress: new entries, permits, settled messages, a writable channel."""
        if self._scheduled or self._reading or self._stopped:
            return
        self._scheduled = True
        self._scheduler.call_soon(self._run)

    def use(self, dispatcher: Dispatcher, source: EntrySource) -> None:
        """Another subscription type took over: entries of a read under way are not for it."""
        self._dispatcher = dispatcher
        self._source = source
        if self._reading:
            self._discard = True

    def limit(self, throttle: DispatchThrottle | None) -> None:
        """Other dispatch rates from now on, None for none."""
        self._throttle = throttle
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
        self.wake()

    def rewind(self) -> None:
        """Go back to the first unacknowledged entry. A read under way is thrown away first."""
        self._dispatcher.rewound()
        if self._reading:
            self._discard = True
        else:
            self._source.rewind()
        self.wake()

    def stop(self) -> None:
        """No more reads; timers are cancelled. A read under way ends without delivering."""
        self._stopped = True
        if self._reading:
            self._discard = True
        for timer in (self._timer, self._retry, self._throttled):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = self._throttled = None

    def start(self) -> None:
        """Undo `stop`."""
        self._stopped = False
        self.wake()

    @property
    def reading(self) -> bool:
        """True if a read is under way."""
        return self._reading

    def standing(self) -> list[Reason]:
        """What is in the way of reading itself."""
        if self._stopped:
            return [because(Code.NOT_READING)]
        if self._retry is not None:
            return [because(Code.READ_FAILED, self._failed_ms, error=self._failure, failures=self.read_errors)]
        throttle = self._throttle
        if throttle is None or self._throttled is None:
            return []
        return [throttle.standing(self._clock.monotonic_s())]

    def when_idle(self, then: Callable[[], None]) -> None:
        """Call `then` once no read is under way: at once, or when the current one has ended."""
        if self._reading:
            self._idle_waiters.append(then)
        else:
            then()

    def _run(self) -> None:
        self._scheduled = False
        if self._reading or self._stopped or self._running or self._retry is not None:
            return
        self._running = True
        self._turn_left = self._turn_max
        try:
            while self._turn_left > 0:
                if not self._step():
                    break
            else:
                self.wake()
        finally:
            self._running = False
        if self.followed is not None:
            self.followed()
        if not self._reading:
            if self._dispatcher.more and self._throttled is None:
                self.wake()
            self._arm_timer()

    def _step(self) -> bool:
        """One replay, of half the turn so that new entries have theirs, and one read. False when nothing is to do now."""
        progressed = False
        now_ms = self._clock.now_ms()
        limit, size_bytes = self._turn_left, BYTES_PER_READ_MAX
        if self._throttle is not None:
            limit, size_bytes = self._throttle.grant(limit, size_bytes, self._clock.monotonic_s())
            if limit == 0:
                self._wait_for_grant(self._throttle)
                return False
        keys = self._dispatcher.take_replay((limit + 1) // 2, now_ms)
        if keys:
            self._replaying = keys
            self._reading = True
            self._source.replay([position_of(key) for key in keys], self._replayed, self._dispatcher.kept)
            if self._reading or self._retry is not None:
                return False
            progressed = True
            limit = min(limit - len(keys), self._turn_left)
        wanted = self._dispatcher.wanted(limit, now_ms) if limit > 0 else 0
        if wanted <= 0 or not self._source.has_more:
            return progressed
        before = self._turn_left
        self._reading = True
        self._source.read(wanted, size_bytes, self._read)
        if self._reading or self._retry is not None:
            return False
        return progressed or self._turn_left < before

    def _replayed(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        self._in_turn(partial(self._dispatch_replayed, error, entries))

    def _read(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        self._in_turn(partial(self._dispatch, error, entries))

    def _in_turn(self, dispatch: Callable[[], None]) -> None:
        """Entries that were in memory belong to the turn that read them. What a thread or a bookie brings waits for a turn, or the reads of
        many subscriptions that end together would take many turns at once."""
        if self._running:
            dispatch()
        else:
            self._scheduler.call_soon(dispatch)

    def _dispatch_replayed(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        keys = self._replaying
        self._replaying = []
        self._reading = False
        if self._discard:
            # A discarded replay is put back: only a rewind or a seek forgets it, and those forget everything.
            self._dispatcher.take_back(keys)
            self._discarded()
        elif error is not None:
            self._dispatcher.take_back(keys)
            self._failed(error)
        else:
            self._retry_delay_s = READ_RETRY_FIRST_S
            self._turn_left -= len(keys)
            self._dispatcher.dispatch_replayed(entries, keys, self._clock.now_ms())
        self._after_read()

    def _dispatch(self, error: MagnetarError | None, entries: list[Entry]) -> None:
        self._reading = False
        if self._discard:
            self._discarded()
        elif error is not None:
            self._failed(error)
        else:
            self._retry_delay_s = READ_RETRY_FIRST_S
            if entries:
                self._turn_left -= len(entries)
                self._dispatcher.dispatch(entries, self._clock.now_ms())
        self._after_read()

    def _discarded(self) -> None:
        self._discard = False
        if not self._stopped:
            self._dispatcher.rewound()
            self._source.rewind()

    def _after_read(self) -> None:
        if self._throttle is not None:
            self._throttle.settle(self._clock.monotonic_s())
        if self._idle_waiters:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                waiter()
        if not self._running:
            if self.followed is not None:
                self.followed()
            self.wake()

    def _failed(self, error: MagnetarError) -> None:
        if self._retry_delay_s == READ_RETRY_FIRST_S:
            self._failed_ms = self._clock.now_ms()
        self._failure = client_text(error)
        self.read_errors += 1
        log.warning(
            "cannot read entries subscription=%s retry_s=%.1f error=%s", self._label, self._retry_delay_s, error
        )
        if not self._stopped:
            self._retry = self._scheduler.call_later(self._retry_delay_s, self._retry_now)
        self._retry_delay_s = min(self._retry_delay_s * 2, READ_RETRY_MAX_S)

    def _retry_now(self) -> None:
        self._retry = None
        self.wake()

    def _wait_for_grant(self, throttle: DispatchThrottle) -> None:
        if self._throttled is None:
            delay_s = max(throttle.delay_s(self._clock.monotonic_s()), TIMER_STEP_MIN_MS / 1000)
            self._throttled = self._scheduler.call_later(delay_s, self._granted)

    def _granted(self) -> None:
        self._throttled = None
        self.wake()

    def _arm_timer(self) -> None:
        due_ms = self._dispatcher.next_due_ms()
        if due_ms is None or self._stopped:
            return
        if self._timer is not None:
            if self._due_at_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_at_ms = due_ms
        delay_ms = min(max(due_ms - self._clock.now_ms(), TIMER_STEP_MIN_MS), TIMER_STEP_MAX_MS)
        self._timer = self._scheduler.call_later(delay_ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()
