"""The entries of a topic that belong to open and aborted transactions. Pure.

Everything before the first entry of an open transaction may be read; everything from there on waits, so that order is kept. Entries of
aborted transactions are passed over. Committed ones need no memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.position import EARLIEST, Position

RUNS_MAX = 1000
"""Stretches of entries remembered for one open transaction. The entries of one with more are passed over as they are read once it is
aborted, and count as backlog until then."""

_END = 2**63 - 1


class OpenTransaction:
    """`runs`: its entries as [ledger, first, last]; None when there were too many stretches."""

    __slots__ = ("entries", "first", "runs")

    def __init__(self, first: Position) -> None:
        self.first = first
        self.entries = 0
        self.runs: list[list[int]] | None = []

    def add(self, position: Position) -> None:
        self.entries += 1
        runs = self.runs
        if runs is None:
            return
        if runs and runs[-1][0] == position.ledger_id and runs[-1][2] == position.entry_id - 1:
            runs[-1][2] = position.entry_id
        elif len(runs) >= RUNS_MAX:
            self.runs = None
        else:
            runs.append([position.ledger_id, position.entry_id, position.entry_id])


class BufferState:
    """Fed with every entry of a transaction and every marker, in the order of the log."""

    def __init__(self) -> None:
        self._open: dict[TxnId, OpenTransaction] = {}
        """Open transactions in the order of their first entries."""
        self._aborted: dict[TxnId, int] = {}
        """Aborted transactions by the ledger of their marker."""
        self._pending: dict[TxnId, int] = {}
        """Entries on their way to the log."""
        self.last_abort = EARLIEST
        """No entry behind it belongs to an aborted transaction."""
        self.first_open: Position | None = None
        """The position at which reading stops; None when everything may be read."""
        self.open_entries = 0

    # ---- Entries on their way

    def sending(self, txn: TxnId) -> None:
        """An entry was handed to the log."""
        self._pending[txn] = self._pending.get(txn, 0) + 1

    def sent(self, txn: TxnId, position: Position | None) -> None:
        """The log's answer; None when it was not stored."""
        left = self._pending[txn] - 1
        if left:
            self._pending[txn] = left
        else:
            del self._pending[txn]
        if position is not None:
            self.stored(txn, position)

    # ---- The log

    def stored(self, txn: TxnId, position: Position) -> None:
        """An entry of the transaction lies at `position`. One that comes after the abort is aborted, too."""
        if txn in self._aborted:
            self._aborted[txn] = position.ledger_id
            self.last_abort = max(self.last_abort, position)
            return
        found = self._open.get(txn)
        if found is None:
            found = self._open[txn] = OpenTransaction(position)
            if self.first_open is None:
                self.first_open = position
        found.add(position)
        self.open_entries += 1

    def ended(self, txn: TxnId, commit: bool, position: Position) -> OpenTransaction | None:
        """Its marker lies at `position`; answers what was open of it."""
        found = self._open.pop(txn, None)
        if not commit and (found is not None or txn in self._aborted):
            self._aborted[txn] = position.ledger_id
            self.last_abort = max(self.last_abort, position)
        if found is not None:
            self.open_entries -= found.entries
            first = next(iter(self._open.values()), None)
            self.first_open = None if first is None else first.first
        return found

    # ---- Asking

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def oldest_open(self) -> TxnId | None:
        """The open transaction whose first entry lies at `first_open`."""
        return next(iter(self._open), None)

    @property
    def aborted_count(self) -> int:
        return len(self._aborted)

    def has(self, txn: TxnId) -> bool:
        """True if the transaction has entries here, or on their way here."""
        return txn in self._open or txn in self._pending

    @property
    def busy(self) -> bool:
        """True if a transaction is open here, or on its way here."""
        return bool(self._open or self._pending)

    def held_back(self, after: Position) -> int:
        """Entries of open transactions behind `after`."""
        if self.first_open is None or after < self.first_open:
            return self.open_entries
        return sum(
            max(0, last - max(first, after.entry_id + 1 if ledger_id == after.ledger_id else first) + 1)
            for each in self._open.values()
            for ledger_id, first, last in each.runs or ()
            if ledger_id >= after.ledger_id
        )

    def open_transaction(self, txn: TxnId) -> OpenTransaction | None:
        return self._open.get(txn)

    def is_aborted(self, txn: TxnId) -> bool:
        return txn in self._aborted

    def left_over(self, coordinator_id: int, low_water_mark: int) -> list[TxnId]:
        """Those whose coordinator has ended and forgotten them."""
        return [txn for txn in self._open if txn.most == coordinator_id and txn.least <= low_water_mark]

    # ---- Storing

    def forget_before(self, ledger_id: int) -> None:
        """The log begins with this ledger now: aborted transactions that ended before it have no entries left."""
        for txn in [txn for txn, ended_in in self._aborted.items() if ended_in < ledger_id]:
            del self._aborted[txn]

    def snapshot(self) -> dict[str, int]:
        """The aborted transactions; what is open is found again by reading from `first_open` on."""
        return {f"{txn.most}:{txn.least}": ledger_id for txn, ledger_id in self._aborted.items()}

    def restore(self, snapshot: Mapping[str, int]) -> None:
        """Raises ValueError for what `snapshot` did not write."""
        for name, ledger_id in snapshot.items():
            most, least = name.split(":")
            self._aborted[TxnId(int(most), int(least))] = ledger_id
            self.last_abort = max(self.last_abort, Position(ledger_id, _END))

    def validate(self) -> None:
        firsts = [each.first for each in self._open.values()]
        assert firsts == sorted(firsts)
        assert self.first_open == (firsts[0] if firsts else None)
        assert self.open_entries == sum(each.entries for each in self._open.values())
        assert not self._open.keys() & self._aborted.keys()
        for each in self._open.values():
            if each.runs is not None:
                assert sum(last - first + 1 for _, first, last in each.runs) == each.entries
        assert all(count > 0 for count in self._pending.values())
