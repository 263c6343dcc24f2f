"""The timers of one open ledger, for those that are configured: explicit LAC, and the limit on waiting for an ack quorum."""

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

    def fail(self, error: LedgerError) -> None: ...


class WriterTimers:
    """Armed by an entry that is sent, off again once there is nothing left to wait for: an idle ledger has no timer."""

    __slots__ = ("_context", "_lac_timer", "_marks", "_quorum_timer", "_told", "_writer")

    def __init__(self, writer: TimedWriter, context: ClientContext) -> None:
        self._writer = writer
        self._context = context
        self._told = -1
        self._marks: deque[tuple[float, int]] = deque()
        self._lac_timer: asyncio.TimerHandle | None = None
        self._quorum_timer: asyncio.TimerHandle | None = None

    @staticmethod
    def wanted(config: ClientConfig) -> bool:
        return config.explicit_lac_interval_s > 0 or config.add_quorum_timeout_s > 0

    def sent(self, entry_id: int, lac: int) -> None:
        """An entry goes out, and carries this LAC."""
        self._told = max(self._told, lac)
        config, loop = self._context.config, asyncio.get_running_loop()
        if config.explicit_lac_interval_s > 0 and self._lac_timer is None:
            self._lac_timer = loop.call_later(config.explicit_lac_interval_s, self._tell_lac)
        if config.add_quorum_timeout_s > 0 and self._quorum_timer is None:
            self._marks.append((self._context.clock.monotonic_s(), entry_id))
            self._quorum_timer = loop.call_later(config.add_quorum_timeout_s / _TICKS_PER_TIMEOUT, self._check_quorums)

    def stop(self) -> None:
        for timer in (self._lac_timer, self._quorum_timer):
            if timer is not None:
                timer.cancel()
        self._lac_timer = self._quorum_timer = None

    def _tell_lac(self) -> None:
        writer, self._lac_timer = self._writer, None
        lac = writer.last_add_confirmed
        if lac > self._told:
            self._told = lac
            self._context.statistics.explicit_lacs += 1
            writer.send_lac()
        if lac < writer.last_add_pushed:
            interval_s = self._context.config.explicit_lac_interval_s
            self._lac_timer = asyncio.get_running_loop().call_later(interval_s, self._tell_lac)

    def _check_quorums(self) -> None:
        """What was sent before a mark that is as old as the timeout must be confirmed by now."""
        writer, self._quorum_timer = self._writer, None
        timeout_s = self._context.config.add_quorum_timeout_s
        now_s, lac, marks = self._context.clock.monotonic_s(), writer.last_add_confirmed, self._marks
        while marks and marks[0][1] <= lac:
            marks.popleft()
        if marks and now_s - marks[0][0] >= timeout_s:
            self._context.statistics.add_quorum_timeouts += 1
            text = f"ledger {writer.ledger_id}: entry {lac + 1} had no ack quorum within {timeout_s:g} s"
            writer.fail(AddQuorumTimeoutError(text))
        elif lac < writer.last_add_pushed:
            if not marks or marks[-1][1] < writer.last_add_pushed:
                marks.append((now_s, writer.last_add_pushed))
            loop = asyncio.get_running_loop()
            self._quorum_timer = loop.call_later(timeout_s / _TICKS_PER_TIMEOUT, self._check_quorums)
