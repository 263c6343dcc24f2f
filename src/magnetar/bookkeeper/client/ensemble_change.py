"""Which bookies of a ledger's last ensemble are to be replaced, and what a metadata conflict means. Pure.

The order is the safety (BookKeeper LedgerHandle, EnsembleUtils): failures are collected, replacements chosen, the metadata written
by compare-and-set, and only then is anything sent to the new bookies or confirmed again. Failures that arrive meanwhile join the
change that is running. A ledger changes its ensemble at LAC + 1: what is confirmed stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from magnetar.bookkeeper.codes import ReturnCode
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

FATAL_CODES = frozenset({int(ReturnCode.FENCED), int(ReturnCode.UNAUTHORIZED)})
"""Answers after which no other bookie's opinion matters: this writer is done."""

REST_S = 1.0
"""A bookie that failed a ledger is not taken as a replacement in it for so long: no circles around a cluster that is down."""

ChooseReplacement = Callable[[tuple[str, ...], int, frozenset[str]], str | None]
"""`choose(ensemble, index, excluded)` -> a bookie for that place, or None when there is none."""


class Conflict(Enum):
    """What somebody else's metadata says about a change that lost its compare-and-set."""

    RETRY = "retry"
    """Failed bookies are still there: write the change again on top."""
    DONE = "done"
    """They are gone already (an earlier attempt of ours was stored and its answer lost): adopt what is there."""
    CLOSED = "closed"
    IN_RECOVERY = "in recovery"


class Change(NamedTuple):
    """One attempt: entries from `first_entry_id` on go to bookies of `replacements` (index -> (old, new))."""

    first_entry_id: int
    replacements: Mapping[int, tuple[str, str]]

    def apply(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """The metadata with the change. Places that hold another bookie by now are left alone."""
        ensemble = list(metadata.last_segment.ensemble)
        for index, (old, new) in self.replacements.items():
            if ensemble[index] == old:
                ensemble[index] = new
        return metadata.with_ensemble(self.first_entry_id, tuple(ensemble))

    def conflict(self, metadata: LedgerMetadata) -> Conflict:
        """Judge the metadata that was there instead of the expected one."""
        if metadata.state is LedgerState.CLOSED:
            return Conflict.CLOSED
        if metadata.state is LedgerState.IN_RECOVERY:
            return Conflict.IN_RECOVERY
        ensemble = metadata.last_segment.ensemble
        if any(ensemble[index] == old for index, (old, _) in self.replacements.items()):
            return Conflict.RETRY
        return Conflict.DONE


class EnsembleChanges:
    """The failures of one writer's bookies: those that need a change now, and those that can wait for a reason."""

    __slots__ = ("_failed", "_failed_at_s", "_waiting", "changes", "changes_max", "ensemble", "running")

    def __init__(self, ensemble: tuple[str, ...], changes_max: int | None = None) -> None:
        self.ensemble = ensemble
        """Where entries go at present; changes with `landed`."""
        self.running = False
        self.changes = 0
        self.changes_max = changes_max
        self._failed: dict[int, str] = {}
        self._waiting: dict[int, str] = {}
        self._failed_at_s: dict[str, float] = {}

    def failed(self, index: int, bookie_id: str, now_s: float) -> None:
        """The bookie is to be replaced, and those that waited along with it. Nothing when it has left the ensemble already."""
        if self.ensemble[index] == bookie_id:
            self._failed[index] = bookie_id
            self._failed_at_s[bookie_id] = now_s

    def failed_later(self, index: int, bookie_id: str, now_s: float) -> None:
        """The bookie failed and nobody has to wait for that: it is replaced by the next change."""
        if self.ensemble[index] == bookie_id:
            self._waiting[index] = bookie_id
            self._failed_at_s[bookie_id] = now_s

    @property
    def waiting(self) -> bool:
        """Some failed bookies wait for a reason to be replaced."""
        return bool(self._waiting)

    @property
    def exhausted(self) -> bool:
        """`maxAllowedEnsembleChanges` have been made."""
        return self.changes_max is not None and self.changes >= self.changes_max

    @property
    def past_failures(self) -> frozenset[str]:
        """Bookies that have failed this ledger before: the last choice for a replacement."""
        return frozenset(self._failed_at_s)

    def plan(self, lac: int, now_s: float, choose: ChooseReplacement) -> Change | None:
        """A change for the failures noted so far, which are thereby taken. None when no place can be filled anew.

        A place without a replacement keeps its bookie, for its next failure to bring it up again.
        """
        failed = self._waiting | self._failed
        self._failed, self._waiting = {}, {}
        if self.exhausted:
            return None
        failed = {index: bookie_id for index, bookie_id in failed.items() if self.ensemble[index] == bookie_id}
        excluded = set(self.ensemble) | set(failed.values())
        excluded.update(bookie for bookie, then_s in self._failed_at_s.items() if now_s - then_s < REST_S)
        target = list(self.ensemble)
        replacements: dict[int, tuple[str, str]] = {}
        for index in sorted(failed):
            new = choose(tuple(target), index, frozenset(excluded))
            if new is None:
                continue
            assert new not in excluded, "a replacement is a bookie that is not in the ensemble and has not failed"
            replacements[index] = (failed[index], new)
            target[index] = new
            excluded.add(new)
        return Change(lac + 1, replacements) if replacements else None

    def begin(self) -> None:
        assert not self.running, "failures join the change that runs"
        self.running = True

    def landed(self, ensemble: tuple[str, ...]) -> bool:
        """The metadata names this ensemble. True when more failures have come in and need another round."""
        assert self.running
        self.changes += 1
        self.ensemble = ensemble
        self._failed = {index: bookie for index, bookie in self._failed.items() if ensemble[index] == bookie}
        self._waiting = {index: bookie for index, bookie in self._waiting.items() if ensemble[index] == bookie}
        return bool(self._failed)

    def end(self) -> None:
        self.running = False

    def validate(self) -> None:
        for index, bookie_id in (*self._failed.items(), *self._waiting.items()):
            assert self.ensemble[index] == bookie_id, "a failure of a bookie that has left counts no more"
            assert bookie_id in self._failed_at_s
        assert self.changes_max is None or self.changes <= self.changes_max
