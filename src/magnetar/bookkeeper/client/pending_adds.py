"""The adds of one ledger that wait for acknowledgements: order, ack quorum and LAC. Pure.

Adds complete strictly in entry order. While the ensemble is being changed nothing completes, and the end of a change takes back the
acknowledgements of the replaced bookies in *all* adds before any of them may complete (BookKeeper issues 1591 and 3005).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from magnetar.bookkeeper.quorum import check_quorum


class PendingAdd:
    """One entry under way, or a run of consecutive ones: each bookie is sent those that are for it, and answers once for all of them.

    `acks` and `failures` are bit sets of ensemble indexes; `write_sets` too, one for each write set that its entries have. `ensemble` is
    the one it was sent to.
    """

    __slots__ = ("acks", "complete", "count", "ensemble", "entry_id", "failures", "write_sets")

    def __init__(
        self, entry_id: int, ensemble: tuple[str, ...], count: int = 1, write_sets: tuple[int, ...] = (-1,)
    ) -> None:
        self.entry_id = entry_id
        self.count = count
        self.ensemble = ensemble
        self.write_sets = write_sets
        self.acks = 0
        self.failures = 0
        self.complete = False


AddT = TypeVar("AddT", bound=PendingAdd)


class PendingAdds(Generic[AddT]):
    """A queue of adds with consecutive entry ids, the first being `lac + 1`."""

    __slots__ = ("_ack_quorum", "_failures_max", "_queue", "changing", "count", "lac")

    def __init__(self, write_quorum: int, ack_quorum: int, lac: int = -1) -> None:
        check_quorum(write_quorum, write_quorum, ack_quorum)
        self._ack_quorum = ack_quorum
        self._failures_max = write_quorum - ack_quorum
        self._queue: deque[AddT] = deque()
        self.count = 0
        """Entries under way."""
        self.lac = lac
        """Last add confirmed: everything up to it is on Qa bookies and has been completed."""
        self.changing = False
        """The ensemble is being replaced: acknowledgements are noted, completions wait."""

    @property
    def oldest(self) -> AddT | None:
        """The add that everything behind it waits for; None when nothing is under way."""
        return self._queue[0] if self._queue else None

    def push(self, add: AddT) -> None:
        """Append the add of the next entry or entries."""
        assert add.entry_id == self.lac + self.count + 1, "entry ids are consecutive"
        self._queue.append(add)
        self.count += add.count

    def acknowledge(self, add: AddT, index: int) -> bool:
        """The bookie at `index` stored it. True when `pop_completed` may have something now."""
        bit = 1 << index
        add.acks |= bit
        if add.failures:
            add.failures &= ~bit
        if not add.complete and self._is_stored(add):
            add.complete = True
        queue = self._queue
        return add.complete and not self.changing and bool(queue) and queue[0] is add

    def reject(self, add: AddT, index: int) -> bool:
        """The bookie at `index` failed it. True when its ack quorum is out of reach on this ensemble."""
        bit = 1 << index
        if not add.acks & bit:
            add.failures |= bit
        return not add.complete and self._is_out_of_reach(add)

    def pop_completed(self) -> AddT | None:
        """The oldest add, if it is complete and no change is under way. LAC moves to its last entry."""
        queue = self._queue
        if self.changing or not queue or not queue[0].complete:
            return None
        add = queue.popleft()
        self.count -= add.count
        self.lac = add.entry_id + add.count - 1
        return add

    def begin_change(self) -> None:
        """The ensemble is about to be replaced in part: hold completions until the metadata says so."""
        self.changing = True

    def end_change(self, ensemble: tuple[str, ...]) -> list[tuple[AddT, int]]:
        """The metadata names `ensemble` now: acknowledgements of bookies that are no longer where the add went are taken back.

        What is stale follows from what each add itself was sent to, not from a comparison of the last two ensembles: several
        changes may lie between (BookKeeper issues 4261, 4459). Answers (add, bit set of indexes to send it to) for every pending
        add, oldest first; after the sending `pop_completed` must be tried, also when nothing had to be sent.
        """
        stale_from: dict[int, int] = {}
        resend: list[tuple[AddT, int]] = []
        for add in self._queue:
            key = id(add.ensemble)
            stale = stale_from.get(key)
            if stale is None:
                stale = stale_from[key] = difference(add.ensemble, ensemble)
            add.acks &= ~stale
            add.failures &= ~stale
            add.complete = self._is_stored(add)
            resend.append((add, stale))
        for add in self._queue:
            add.ensemble = ensemble
        self.changing = False
        return resend

    def hopeless(self) -> list[AddT]:
        """The adds whose ack quorum is out of reach on this ensemble, oldest first."""
        return [add for add in self._queue if not add.complete and self._is_out_of_reach(add)]

    def drain(self) -> list[AddT]:
        """Give up on all pending adds, oldest first. LAC stays."""
        adds = list(self._queue)
        self._queue.clear()
        self.count = 0
        return adds

    def _is_stored(self, add: AddT) -> bool:
        """Each of its entries is on Qa bookies."""
        acks, quorum = add.acks, self._ack_quorum
        if acks.bit_count() < quorum:
            return False
        sets = add.write_sets
        return len(sets) == 1 or all((acks & write_set).bit_count() >= quorum for write_set in sets)

    def _is_out_of_reach(self, add: AddT) -> bool:
        """One of its entries has too few bookies left for Qa."""
        return any((add.failures & write_set).bit_count() > self._failures_max for write_set in add.write_sets)

    def validate(self) -> None:
        offset = 0
        for add in self._queue:
            assert not add.acks & add.failures, "a bookie acknowledges an entry or fails it"
            assert add.entry_id == self.lac + 1 + offset
            offset += add.count
            assert add.complete == self._is_stored(add)


def difference(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    """Bit set of the indexes at which two ensembles have different bookies."""
    bits = 0
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            bits |= 1 << index
    return bits
