"""The timers of one open ledger, for those that are configured: explicit LAC, hedged adds, and the limit on waiting for an ack quorum."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from magnetar.base.errors import LedgerError
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.context import ClientContext
from magnetar.bookkeeper.errors import AddQuorumTimeoutError

_TICKS_PER_TIMEOUT: Final = 4


class TimedWriter(Protocol):
    """What the timers see of a writer."""

    ledger_id: int
    last_add_pushed: int

    @property
    def last_add_confirmed(self) -> int: ...

    def send_lac(self) -> None: ...

    def replace_silent(self) -> None: ...

    def fail(self, error: LedgerError) -> None: ...


class WriterTimers:
    """Armed by an entry that is sent, off again once there is nothing left to wait for: an idle ledger has no timer."""

    __slots__ = ("_age_tick_s", "_age_timer", "_context", "_lac_interval_s", "_lac_timer", "_marks", "_told", "_writer")

    def __init__(self, writer: TimedWriter, context: ClientContext) -> None:
        config = context.config
        self._writer = writer
        self._context = context
        self._told = -1
        self._marks: deque[tuple[float, int]] = deque()
        """(time in seconds, newest entry sent by then), oldest first: how long what is not confirmed has been waiting."""
        self._lac_interval_s = config.explicit_lac_interval_s
        ages_s = [age_s for age_s in (config.add_quorum_timeout_s, config.add_hedge_s) if age_s > 0]
        self._age_tick_s = min(ages_s, default=0.0) / _TICKS_PER_TIMEOUT
        self._lac_timer: asyncio.TimerHandle | None = None
        self._age_timer: asyncio.TimerHandle | None = None

    @staticmethod
    def wanted(config: ClientConfig, write_quorum: int) -> bool:
        """A single copy has nobody beside it who could show that its bookie alone is late: no hedging then."""
        return (
            config.explicit_lac_interval_s > 0
            or config.add_quorum_timeout_s > 0
            or (config.add_hedge_s > 0 and write_quorum > 1)
        )

    def sent(self, entry_id: int, lac: int) -> None:
        """An entry goes out, and carries this LAC."""
        if lac > self._told:
            self._told = lac
        if self._age_timer is None and self._age_tick_s:
            self._marks.append((self._context.clock.monotonic_s(), entry_id))
            self._age_timer = asyncio.get_running_loop().call_later(self._age_tick_s, self._check_age)
        if self._lac_timer is None and self._lac_interval_s > 0:
            self._lac_timer = asyncio.get_running_loop().call_later(self._lac_interval_s, self._tell_lac)

    def stop(self) -> None:
        for timer in (self._lac_timer, self._age_timer):
            if timer is not None:
                timer.cancel()
        self._lac_timer = self._age_timer = None

    def _tell_lac(self) -> None:
        writer, self._lac_timer = self._writer, None
        lac = writer.last_add_confirmed
        if lac > self._told:
            self._told = lac
            self._context.statistics.explicit_lacs += 1
            writer.send_lac()
        if lac < writer.last_add_pushed:
            self._lac_timer = asyncio.get_running_loop().call_later(self._lac_interval_s, self._tell_lac)

    def _check_age(self) -> None:
        """What was sent before a mark that is as old as a limit should be confirmed by now."""
        writer, self._age_timer = self._writer, None
        config, marks = self._context.config, self._marks
        now_s, lac = self._context.clock.monotonic_s(), writer.last_add_confirmed
        while marks and marks[0][1] <= lac:
            marks.popleft()
        waiting_s = now_s - marks[0][0] if marks else 0.0
        if 0 < config.add_quorum_timeout_s <= waiting_s:
            self._context.statistics.add_quorum_timeouts += 1
            limit = f"{config.add_quorum_timeout_s:g} s"
            writer.fail(
                AddQuorumTimeoutError(f"ledger {writer.ledger_id}: entry {lac + 1} had no ack quorum within {limit}")
            )
            return
        if 0 < config.add_hedge_s <= waiting_s:
            writer.replace_silent()
        if lac < writer.last_add_pushed:
            if not marks or marks[-1][1] < writer.last_add_pushed:
                marks.append((now_s, writer.last_add_pushed))
            self._age_timer = asyncio.get_running_loop().call_later(self._age_tick_s, self._check_age)
