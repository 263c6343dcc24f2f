"""The transactions that have named a topic, with their owners, at the broker that serves the topic. Pure.

A SEND or ACK within a transaction arrives at the topic's broker, while the transaction's coordinator may be served by another one.
The coordinator tells the topic's broker before its client learns that the topic is named, so the message path needs no question. A
topic that has moved here since knows nothing: it asks each coordinator once, and is told of everything from then on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from magnetar.broker.transactions.types import TxnId

LEFT_OVER_MAX = 1_000
"""Transactions remembered beyond twice those that the coordinators told of. Above it all is forgotten and asked for again: what a
coordinator named and then refused to its client has no end that would remove it."""

MAY_DO_ALL = None
"""In place of a role, for who may use the transactions of every owner."""

TOPIC_ITSELF = ""
"""In place of a subscription's name: the transaction publishes to the topic."""


class Naming(NamedTuple):
    """A transaction's number at its coordinator, what it uses (a subscription, or TOPIC_ITSELF), and its owner ("": everybody)."""

    least: int
    subscription: str
    owner: str


class Grants:
    """What the coordinators of the cluster have told about one topic since it was loaded."""

    __slots__ = ("_count", "_open", "_room", "_told")

    def __init__(self) -> None:
        self._open: defaultdict[int, dict[int, dict[str, str]]] = defaultdict(dict)
        """By coordinator and number, in the order of their naming: owners by what the transaction uses."""
        self._count = 0
        self._told: dict[int, None] = {}
        """Coordinators that have told everything: a transaction of theirs that is not known has not named this topic, or has ended."""
        self._room = LEFT_OVER_MAX

    def __len__(self) -> int:
        return self._count

    def add(self, txn: TxnId, subscription: str, owner: str) -> None:
        """The coordinator names the topic, or a subscription of it, in a message of its own."""
        if self._count >= self._room:
            self._open.clear()
            self._told.clear()
            self._count = 0
        self._add(txn, subscription, owner)

    def _add(self, txn: TxnId, subscription: str, owner: str) -> None:
        transactions = self._open[txn.most]
        self._count += txn.least not in transactions
        transactions.setdefault(txn.least, {})[subscription] = owner

    def told(self, coordinator: int, named: Iterable[Naming]) -> None:
        """The coordinator's answer: all of its transactions that have named this topic."""
        for least, subscription, owner in named:
            self._add(TxnId(coordinator, least), subscription, owner)
        self._told[coordinator] = None
        self._room = 2 * self._count + LEFT_OVER_MAX

    def knows(self, coordinator: int) -> bool:
        """True if the coordinator has told everything."""
        return coordinator in self._told

    def ended(self, txn: TxnId, low_water_mark: int) -> None:
        """The transaction has ended, like all of its coordinator up to `low_water_mark`."""
        transactions = self._open[txn.most]
        before = len(transactions)
        transactions.pop(txn.least, None)
        while transactions and (first := next(iter(transactions))) <= low_water_mark:
            del transactions[first]
        self._count -= before - len(transactions)

    def allows(self, txn: TxnId, subscription: str, who: str | None) -> bool | None:
        """True if `who` may use the transaction there; None while its coordinator has to be asked. `who` is as for `belongs_to`."""
        owner = self._open.get(txn.most, {}).get(txn.least, {}).get(subscription)
        if owner is None:
            return False if txn.most in self._told else None
        return belongs_to(owner, who)


def belongs_to(owner: str, who: str | None) -> bool:
    """True if the role `who` may use a transaction of `owner`. Without authentication it has no owner, and everybody may use it."""
    return who is MAY_DO_ALL or not owner or who == owner
