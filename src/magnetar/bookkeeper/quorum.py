"""Who stores which entry and when enough bookies have spoken: BookKeeper's quorum arithmetic. Pure.

An ensemble of E bookies stores each entry on Qw of them (entry e on the indexes e, e+1, ... modulo E); Qa acknowledgements make it
confirmed. Sources: RoundRobinDistributionSchedule, LedgerRecoveryOp; `LastAddConfirmed` coverage as fixed in BookKeeper PR 2333.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from magnetar.base.errors import InvalidArgumentError


def check_quorum(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise InvalidArgumentError unless E >= Qw >= Qa >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidArgumentError(
            f"ensemble {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum}: "
            "the ensemble must be at least the write quorum, that at least the ack quorum, and that at least 1"
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Indexes into the ensemble of the bookies that store the entry, in the order in which readers try them."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum))


@lru_cache(maxsize=256)
def write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """All write sets: that of entry e is at `e % ensemble_size`."""
    return tuple(write_set(first, ensemble_size, write_quorum) for first in range(ensemble_size))


@lru_cache(maxsize=256)
def turns_of(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], list[list[list[bool]]]]:
    """For all ledgers of these sizes, not to be changed: each write set as a bit set of indexes; and by index and first turn, whether the
    bookie there stores an entry, for the entries that follow in a row."""
    sets = write_sets(ensemble_size, write_quorum)
    bits = tuple(sum(1 << index for index in write_set) for write_set in sets)
    turns = [[index in write_set for write_set in sets] for index in range(ensemble_size)]
    return bits, [[turn[first:] + turn[:first] for first in range(len(sets))] for turn in turns]


class Coverage:
    """Tells whether every possible ack quorum has been heard from.

    A bookie is known once it said what it holds (an entry, or an explicit negative). Covered means: in every write set fewer than
    Qa bookies are unknown, so no entry can have been confirmed by unknown bookies alone.
    """

    __slots__ = ("_ack_quorum", "_answered", "_known", "_write_sets", "ensemble_size")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        check_quorum(ensemble_size, write_quorum, ack_quorum)
        self.ensemble_size = ensemble_size
        self._ack_quorum = ack_quorum
        self._write_sets = write_sets(ensemble_size, write_quorum)
        self._known: set[int] = set()
        self._answered: set[int] = set()

    def record(self, index: int, known: bool) -> None:
        """The bookie at `index` answered; `known` False for every error that is not an explicit negative."""
        assert 0 <= index < self.ensemble_size
        self._answered.add(index)
        if known:
            self._known.add(index)

    @property
    def covered(self) -> bool:
        known = self._known
        return all(sum(index not in known for index in indexes) < self._ack_quorum for indexes in self._write_sets)

    @property
    def exhausted(self) -> bool:
        """Everybody answered: what is not covered now never will be."""
        return len(self._answered) == self.ensemble_size

    def validate(self) -> None:
        assert self._known <= self._answered
        assert self._answered <= set(range(self.ensemble_size))


class Verdict(Enum):
    """What the answers to a recovery read prove."""

    OPEN = "open"
    PRESENT = "present"
    ABSENT = "absent"
    UNDECIDABLE = "undecidable"


class EntryVote:
    """Does an entry exist? One valid copy says yes; Qw-Qa+1 explicit negatives say that it was never confirmed.

    Errors prove nothing: when all have answered and neither holds, the verdict is UNDECIDABLE and the caller must give up.
    """

    __slots__ = ("_absent", "_answered", "_negatives_needed", "_present", "_write_quorum")

    def __init__(self, write_quorum: int, ack_quorum: int) -> None:
        check_quorum(write_quorum, write_quorum, ack_quorum)
        self._write_quorum = write_quorum
        self._negatives_needed = write_quorum - ack_quorum + 1
        self._present = False
        self._absent: set[int] = set()
        self._answered: set[int] = set()

    def present(self, index: int) -> Verdict:
        """A copy with a valid digest."""
        self._present = True
        return self._count(index)

    def absent(self, index: int) -> Verdict:
        """An explicit negative: no such entry, no such ledger."""
        self._absent.add(index)
        return self._count(index)

    def unknown(self, index: int) -> Verdict:
        """Anything else: an error, a timeout, a damaged copy."""
        return self._count(index)

    @property
    def verdict(self) -> Verdict:
        if self._present:
            return Verdict.PRESENT
        if len(self._absent) >= self._negatives_needed:
            return Verdict.ABSENT
        return Verdict.UNDECIDABLE if len(self._answered) == self._write_quorum else Verdict.OPEN

    def validate(self) -> None:
        assert self._absent <= self._answered
        assert len(self._answered) <= self._write_quorum
        assert 1 <= self._negatives_needed <= self._write_quorum

    def _count(self, index: int) -> Verdict:
        assert index not in self._answered, "a bookie has one vote"
        self._answered.add(index)
        return self.verdict
