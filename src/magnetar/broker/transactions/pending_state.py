"""Acknowledgements of open transactions in one subscription, and which others they exclude. Pure.

A message is acknowledged by one transaction at most: whoever comes second is refused, so that of two transactions that consumed the
same message one cannot commit. Of a batch, each message counts for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from magnetar.base.limits import TRANSACTION_PENDING_ACKS_MAX
from magnetar.broker.errors import NotAllowedError, TransactionConflictError
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.position import Position

WHOLE = -1
"""The value of `acked` for every message of the entry, however many there are."""


class Ack(NamedTuple):
    """`acked`: a bit for each message of the entry that is acknowledged. `batch_size`: 0 when the whole entry is."""

    position: Position
    acked: int = WHOLE
    batch_size: int = 0


class PendingTransaction:
    """`individual`: by position. `cumulative`: everything before its position, and its bits there. `places`: records in the log."""

    __slots__ = ("cumulative", "individual", "places")

    def __init__(self) -> None:
        self.individual: dict[Position, Ack] = {}
        self.cumulative: Ack | None = None
        self.places: list[Position] = []


class PendingState:
    """`already(position)`: the bits that are acknowledged for good, WHOLE for an entry that is gone. `consumed()`: the last position
    up to which everything is."""

    def __init__(
        self,
        already: Callable[[Position], int],
        consumed: Callable[[], Position],
        acks_max: int = TRANSACTION_PENDING_ACKS_MAX,
    ) -> None:
        self._already = already
        self._consumed = consumed
        self._acks_max = acks_max
        self._by_txn: dict[TxnId, PendingTransaction] = {}
        self._holders: dict[Position, list[TxnId]] = {}
        """The transactions that hold something of an entry, one by one."""
        self._cumulative: TxnId | None = None
        self.count = 0
        """Entries held one by one, a batch once for each transaction."""

    def __bool__(self) -> bool:
        return bool(self._by_txn)

    @property
    def transactions(self) -> list[TxnId]:
        return list(self._by_txn)

    def get(self, txn: TxnId) -> PendingTransaction | None:
        return self._by_txn.get(txn)

    # ---- Acknowledging

    def acknowledge(self, txn: TxnId, acks: Sequence[Ack]) -> None:
        """All of them or none. Repeating is not a conflict. Raises TransactionConflictError, NotAllowedError above the limit."""
        own = self._by_txn.get(txn)
        new: list[Ack] = []
        for ack in acks:
            held = own.individual.get(ack.position) if own is not None else None
            fresh = ack.acked & ~(held.acked if held is not None else 0)
            if not fresh:
                continue
            already = self._already(ack.position)
            if already == WHOLE or (ack.acked != WHOLE and fresh & already):
                raise TransactionConflictError(f"{_text(ack)} is acknowledged already; {txn} cannot acknowledge it")
            if fresh & self.taken(ack.position, besides=txn):
                raise TransactionConflictError(f"{_text(ack)} is acknowledged by another open transaction than {txn}")
            new.append(ack)
        if self.count + len(new) > self._acks_max:
            raise NotAllowedError(
                f"open transactions hold {self._acks_max} acknowledgements of this subscription; end some first"
            )
        self._hold(txn, new)

    def acknowledge_upto(self, txn: TxnId, ack: Ack) -> None:
        """Cumulatively. Raises TransactionConflictError."""
        own = self._by_txn.get(txn)
        held = own.cumulative if own is not None else None
        if held is not None and (
            ack.position < held.position or (ack.position == held.position and not ack.acked & ~held.acked)
        ):
            return
        if ack.position <= self._consumed() or not ack.acked & ~self._already_partly(ack.position):
            raise TransactionConflictError(f"everything up to {_text(ack)} is acknowledged already")
        if self._cumulative not in (None, txn):
            raise TransactionConflictError(f"{self._cumulative} acknowledges cumulatively already; end it first")
        for position, holders in self._holders.items():
            if position <= ack.position and holders != [txn]:
                acked = WHOLE if position < ack.position else ack.acked
                if acked & self.taken(position, besides=txn):
                    raise TransactionConflictError(
                        f"{_text(Ack(position))} is acknowledged by another open transaction than {txn}"
                    )
        self._move_upto(txn, ack)

    def _already_partly(self, position: Position) -> int:
        """An entry in the middle may be acknowledged by itself; what lies before it is not."""
        already = self._already(position)
        return 0 if already == WHOLE else already

    def restore(self, txn: TxnId, acks: Iterable[Ack], cumulative: bool, place: Position) -> None:
        """A record of the log: it was admitted then."""
        if cumulative:
            self._move_upto(txn, list(acks)[-1])
        else:
            self._hold(txn, acks)
        self._of(txn).places.append(place)

    def _move_upto(self, txn: TxnId, ack: Ack) -> None:
        """Never back: a repetition may name an earlier place."""
        self._cumulative = txn
        own = self._of(txn)
        held = own.cumulative
        if held is None or ack.position > held.position:
            own.cumulative = ack
        elif ack.position == held.position:
            own.cumulative = Ack(ack.position, held.acked | ack.acked, max(held.batch_size, ack.batch_size))

    def _of(self, txn: TxnId) -> PendingTransaction:
        found = self._by_txn.get(txn)
        if found is None:
            found = self._by_txn[txn] = PendingTransaction()
        return found

    def _hold(self, txn: TxnId, acks: Iterable[Ack]) -> None:
        own = self._of(txn)
        for ack in acks:
            held = own.individual.get(ack.position)
            if held is None:
                own.individual[ack.position] = ack
                self._holders.setdefault(ack.position, []).append(txn)
                self.count += 1
            else:
                own.individual[ack.position] = Ack(
                    ack.position, held.acked | ack.acked, max(held.batch_size, ack.batch_size)
                )

    # ---- Ending

    def forget(self, txn: TxnId) -> PendingTransaction | None:
        """It was committed and applied, or aborted; what it held, for whoever has to deliver it again."""
        own = self._by_txn.pop(txn, None)
        if own is None:
            return None
        for position in own.individual:
            holders = self._holders[position]
            holders.remove(txn)
            if not holders:
                del self._holders[position]
        self.count -= len(own.individual)
        if self._cumulative == txn:
            self._cumulative = None
        return own

    def left_over(self, coordinator_id: int, low_water_mark: int) -> list[TxnId]:
        """Those whose coordinator has ended and forgotten them."""
        return [txn for txn in self._by_txn if txn.most == coordinator_id and txn.least <= low_water_mark]

    # ---- Asking

    def transactions_of(self, position: Position) -> list[TxnId]:
        """The open transactions that have acknowledged something of an entry, or everything up to it."""
        own = self._by_txn.get(self._cumulative) if self._cumulative is not None else None
        upto = own.cumulative if own is not None else None
        found = list(self._holders.get(position, ()))
        if self._cumulative is not None and upto is not None and position <= upto.position:
            found.append(self._cumulative)
        return found

    def taken(self, position: Position, besides: TxnId | None = None) -> int:
        """The bits of an entry that open transactions (but one) have acknowledged."""
        acked = 0
        for txn in self._holders.get(position, ()):
            if txn != besides:
                acked |= self._by_txn[txn].individual[position].acked
        holder = self._cumulative
        if holder is not None and holder != besides:
            upto = self._by_txn[holder].cumulative
            assert upto is not None
            if position < upto.position:
                acked = WHOLE
            elif position == upto.position:
                acked |= upto.acked
        return acked

    def validate(self) -> None:
        assert self.count == sum(len(own.individual) for own in self._by_txn.values())
        for position, holders in self._holders.items():
            seen = 0
            for txn in holders:
                acked = self._by_txn[txn].individual[position].acked
                assert not seen & acked, "two transactions hold one message"
                seen |= acked
            assert holders
            assert len(set(holders)) == len(holders)
        with_upto = [txn for txn, own in self._by_txn.items() if own.cumulative is not None]
        assert with_upto == ([] if self._cumulative is None else [self._cumulative])


def _text(ack: Ack) -> str:
    return f"{ack.position.ledger_id}:{ack.position.entry_id}"
