"""How far a ledger is confirmed, as far as this bookie has heard, and those who wait for that to move (BookKeeper's long poll)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from magnetar.bookkeeper.bookie.ledger_state import LedgerState
from magnetar.bookkeeper.bookie.read_path import ReadPath
from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.entry_format import peek_ids
from magnetar.bookkeeper.ports import LastConfirmedDone, LongPollDone

_logger = logging.getLogger(__name__)

LONG_POLLS_MAX: Final = 10_000
"""Requests that wait for a LAC to move: further ones are refused with TOO_MANY_REQUESTS."""

LONG_POLL_TIMEOUT_S_MAX: Final = 3600.0
"""A longer wait is answered after this, as if its time were up."""

_OK: Final = int(ReturnCode.OK)
_NO_LEDGER: Final = int(ReturnCode.NO_LEDGER)
_NO_ENTRY: Final = int(ReturnCode.NO_ENTRY)


class LacWatch:
    """Lives on the event loop. `changed(state)` when a ledger with watchers moved, was fenced, or was deleted."""

    __slots__ = ("_count", "_ledgers", "_reads")

    def __init__(self, ledgers: dict[int, LedgerState], reads: ReadPath) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._count = 0

    @property
    def waiting_count(self) -> int:
        return self._count

    def last_confirmed(self, ledger_id: int, done: LastConfirmedDone) -> None:
        """See `BookieService.last_confirmed`. What was stored before this process started is looked up once."""
        state = self._ledgers.get(ledger_id)
        if state is None or state.deleted_ms is not None:
            done(_NO_LEDGER, -1)
            return
        if state.lac_known:
            done(_OK, state.lac)
            return
        found = state

        def read(code: int, body: bytes | None, last: bytes | None) -> None:
            if code == _OK and last is not None:
                found.lac = max(found.lac, peek_ids(last)[2])
            elif code not in (_OK, _NO_ENTRY):
                done(code, -1)
                return
            found.lac_known = True
            done(_OK, found.lac)

        self._reads.read_lac(ledger_id, read)

    def wait(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> Callable[[], None]:
        """See `BookieService.wait_lac`."""
        poll = _LongPoll(ledger_id, previous_lac, min(timeout_s, LONG_POLL_TIMEOUT_S_MAX), done)
        self.last_confirmed(ledger_id, partial(self._begin, poll))
        return partial(self._forget, poll)

    def changed(self, state: LedgerState) -> None:
        """Answer everybody who waits for this ledger."""
        watchers, state.watchers = state.watchers, None
        for watcher in watchers or ():
            try:
                watcher()
            except Exception:  # the add that moved the LAC belongs to somebody else
                _logger.exception("the callback of a long poll failed")

    def _begin(self, poll: _LongPoll, code: int, lac: int) -> None:
        if poll.ended:
            return
        state = self._ledgers.get(poll.ledger_id)
        if code != _OK or state is None:
            self._end(poll, code or _NO_LEDGER)
        elif lac > poll.previous_lac or not state.writable or poll.timeout_s <= 0:
            self._answer(poll)
        elif self._count >= LONG_POLLS_MAX:
            self._end(poll, int(ReturnCode.TOO_MANY_REQUESTS))
        else:
            self._count += 1
            poll.state = state
            poll.wake = partial(self._answer, poll)
            if state.watchers is None:
                state.watchers = []
            state.watchers.append(poll.wake)
            poll.timer = asyncio.get_running_loop().call_later(poll.timeout_s, self._answer, poll)

    def _answer(self, poll: _LongPoll) -> None:
        """What is known now; with the entry after the previous LAC, if that is confirmed."""
        self._unhook(poll)
        state = self._ledgers.get(poll.ledger_id)
        lac = state.lac if state is not None else -1
        if lac <= poll.previous_lac:
            self._end(poll, _OK, lac)
            return
        self._reads.read_entry(
            poll.ledger_id, poll.previous_lac + 1, 0, b"", lambda code, entry: self._end(poll, _OK, lac, entry)
        )

    def _end(self, poll: _LongPoll, code: int, lac: int = -1, entry: bytes | None = None) -> None:
        if not poll.ended:
            poll.ended = True
            poll.done(code, lac, entry)

    def _forget(self, poll: _LongPoll) -> None:
        poll.ended = True
        self._unhook(poll)

    def _unhook(self, poll: _LongPoll) -> None:
        if poll.timer is None:
            return
        poll.timer.cancel()
        poll.timer = None
        self._count -= 1
        watchers = poll.state.watchers if poll.state is not None else None
        if watchers is not None and poll.wake in watchers:
            watchers.remove(poll.wake)


class _LongPoll:
    """One request; `timer` while it waits."""

    __slots__ = ("done", "ended", "ledger_id", "previous_lac", "state", "timeout_s", "timer", "wake")

    def __init__(self, ledger_id: int, previous_lac: int, timeout_s: float, done: LongPollDone) -> None:
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.timeout_s = timeout_s
        self.done = done
        self.ended = False
        self.state: LedgerState | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.wake: Callable[[], None] = _nothing


def _nothing() -> None:
    return None
