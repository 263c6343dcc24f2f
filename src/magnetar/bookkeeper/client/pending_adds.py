"""The adds of one ledger that wait for acknowledgements: order, ack quorum and LAC. Pure.

Adds complete strictly in entry order. While the ensemble is being changed nothing completes, and the end of a change takes back the
acknowledgements of the replaced bookies in *all* adds before any of them may complete (BookKeeper issues 1591 and 3005).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from magnetar.bookkeeper.quorum import check_quorum


class PendingAdd:
    """One entry under way. `acks` and `failures` are bit sets of ensemble indexes."""

    __slots__ = ("acks", "complete", "entry_id", "failures")

    def __init__(self, entry_id: int) -> None:
        self.entry_id = entry_id
        self.acks = 0
        self.failures = 0
        self.complete = False


AddT = TypeVar("AddT", bound=PendingAdd)


class PendingAdds(Generic[AddT]):
    """A queue of adds with consecutive entry ids, the first being `lac + 1`."""

    __slots__ = ("_ack_quorum", "_failures_max", "_queue", "changing", "lac")

    def __init__(self, write_quorum: int, ack_quorum: int, lac: int = -1) -> None:
        check_quorum(write_quorum, write_quorum, ack_quorum)
        self._ack_quorum = ack_quorum
        self._failures_max = write_quorum - ack_quorum
        self._queue: deque[AddT] = deque()
        self.lac = lac
        """Last add confirmed: everything up to it is on Qa bookies and has been completed."""
        self.changing = False
        """The ensemble is being replaced: acknowledgements are noted, completions wait."""

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, add: AddT) -> None:
        """Append the next entry's add."""
        assert add.entry_id == self.lac + len(self._queue) + 1, "entry ids are consecutive"
        self._queue.append(add)

    def acknowledge(self, add: AddT, index: int) -> bool:
        """The bookie at `index` stored the entry. True when `pop_completed` may have something now."""
        add.acks |= 1 << index
        if not add.complete and add.acks.bit_count() >= self._ack_quorum:
            add.complete = True
        queue = self._queue
        return add.complete and not self.changing and bool(queue) and queue[0] is add

    def reject(self, add: AddT, index: int) -> bool:
        """The bookie at `index` failed the entry. True when its ack quorum is out of reach on this ensemble."""
        add.failures |= 1 << index
        return not add.complete and add.failures.bit_count() > self._failures_max

    def pop_completed(self) -> AddT | None:
        """The oldest add, if it is complete and no change is under way. LAC moves to it."""
        queue = self._queue
        if self.changing or not queue or not queue[0].complete:
            return None
        add = queue.popleft()
        self.lac = add.entry_id
        return add

    def begin_change(self) -> None:
        """The ensemble is about to be replaced in part: hold completions until the metadata says so."""
        self.changing = True

    def end_change(self, replaced: int) -> list[AddT]:
        """The metadata names new bookies at the indexes in the bit set `replaced`.

        Answers every pending add, oldest first, for the caller to send to those new bookies that are in its write set. Then
        `pop_completed` must be tried.
        """
        for add in self._queue:
            add.acks &= ~replaced
            add.failures &= ~replaced
            add.complete = add.acks.bit_count() >= self._ack_quorum
        self.changing = False
        return list(self._queue)

    def drain(self) -> list[AddT]:
        """Give up on all pending adds, oldest first. LAC stays."""
        adds = list(self._queue)
        self._queue.clear()
        return adds

    def validate(self) -> None:
        for offset, add in enumerate(self._queue):
            assert add.entry_id == self.lac + 1 + offset
            assert add.complete == (add.acks.bit_count() >= self._ack_quorum)
