"""The transactions of one coordinator and what may happen to each. Pure.

A transaction is open until it is ended; from then on its outcome is decided and only has to be carried out. It is forgotten when all
topics and subscriptions have done so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush

from magnetar.base.limits import TRANSACTION_PARTICIPANTS_MAX
from magnetar.broker.errors import (
    InvalidTxnStatusError,
    NotAllowedError,
    TooManyRequestsError,
    TransactionNotFoundError,
)
from magnetar.broker.naming import TopicName
from magnetar.broker.transactions.grants import TOPIC_ITSELF, Naming
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.position import Position

TIMEOUT_MAX_MS = 86_400_000
"""Unless a setting says another."""

DEADLINES_SPARE = 1000
"""Deadlines of ended transactions that are tolerated besides as many as there are transactions."""


def complete(topic: str) -> str:
    """Raises InvalidTopicNameError."""
    return str(TopicName.parse(topic))


class TxnStatus(IntEnum):
    """Numbers as in the log."""

    OPEN = 0
    COMMITTING = 1
    COMMITTED = 2
    ABORTING = 3
    ABORTED = 4


class Transaction:
    """`partitions` and `subscriptions` hold names as the client sent them, with the complete ones behind. `places`: its log records."""

    __slots__ = ("owner", "partitions", "places", "started_ms", "status", "subscriptions", "timeout_ms", "txn")

    def __init__(self, txn: TxnId, started_ms: int, timeout_ms: int, owner: str) -> None:
        self.txn = txn
        self.started_ms = started_ms
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.status = TxnStatus.OPEN
        self.partitions: dict[str, str] = {}
        self.subscriptions: dict[tuple[str, str], tuple[str, str]] = {}
        self.places: list[Position] = []

    @property
    def deadline_ms(self) -> int:
        """Wall time at which it is aborted while it is still open."""
        return self.started_ms + self.timeout_ms


class CoordinatorState:
    """`active_max`: more transactions are refused, 0 = no limit; `per_role_max`: the same for one owner. `timeout_max_ms`: longer ones are
    refused, and those of the log that were let in before end by then. `participants_max`: topics and subscriptions named by all."""

    def __init__(
        self,
        coordinator_id: int,
        active_max: int = 0,
        per_role_max: int = 0,
        timeout_max_ms: int = TIMEOUT_MAX_MS,
        participants_max: int = TRANSACTION_PARTICIPANTS_MAX,
    ) -> None:
        self.coordinator_id = coordinator_id
        self._active_max = active_max
        self._per_role_max = per_role_max
        self._timeout_max_ms = timeout_max_ms
        self._of_role: Counter[str] = Counter()
        self._participants_max = participants_max
        self._participants = 0
        self._by_least: dict[int, Transaction] = {}
        """Open transactions in the order in which they were opened, that is by number."""
        self._deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, number), with leftovers of transactions that have ended."""
        self.highest = 0
        """The highest number given out."""

    def __len__(self) -> int:
        return len(self._by_least)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(list(self._by_least.values()))

    def __contains__(self, txn: TxnId) -> bool:
        return txn.most == self.coordinator_id and txn.least in self._by_least

    @property
    def low_water_mark(self) -> int:
        """All transactions up to this number have ended."""
        return next(iter(self._by_least)) - 1 if self._by_least else self.highest

    def get(self, txn: TxnId) -> Transaction:
        """Raises TransactionNotFoundError."""
        found = self._by_least.get(txn.least) if txn.most == self.coordinator_id else None
        if found is None:
            raise TransactionNotFoundError(f"The transaction {txn} does not exist, or has ended")
        return found

    def get_open(self, txn: TxnId) -> Transaction:
        """Raises TransactionNotFoundError, InvalidTxnStatusError."""
        found = self.get(txn)
        if found.status is not TxnStatus.OPEN:
            raise InvalidTxnStatusError(
                f"Expect Txn {txn} to be in OPEN status but it is in {found.status.name} status"
            )
        return found

    def check_open(self, timeout_ms: int, owner: str) -> None:
        """Raises NotAllowedError, TooManyRequestsError: a transaction with this timeout cannot be opened now."""
        if not 0 < timeout_ms <= self._timeout_max_ms:
            raise NotAllowedError(
                f"a transaction's timeout is from 1 to {self._timeout_max_ms} ms, not {timeout_ms};"
                " maxTransactionTimeoutInSeconds raises it"
            )
        if 0 < self._active_max <= len(self._by_least):
            raise TooManyRequestsError(
                f"coordinator {self.coordinator_id} has {self._active_max} transactions open;"
                " end some, or raise maxActiveTransactionsPerCoordinator"
            )
        if owner and 0 < self._per_role_max <= self._of_role[owner]:
            raise TooManyRequestsError(
                f"role {owner} has {self._per_role_max} transactions open at coordinator {self.coordinator_id};"
                " end some, or raise maxActiveTransactionsPerRole"
            )

    def open(self, started_ms: int, timeout_ms: int, owner: str) -> Transaction:
        """Raises what `check_open` raises."""
        self.check_open(timeout_ms, owner)
        self.highest += 1
        transaction = Transaction(TxnId(self.coordinator_id, self.highest), started_ms, timeout_ms, owner)
        self._by_least[self.highest] = transaction
        self._of_role[owner] += 1
        self._expect(transaction)
        return transaction

    def add_partitions(self, txn: TxnId, topics: Iterable[str]) -> Transaction:
        """Raises what `get_open` raises, and NotAllowedError above the limit of names."""
        transaction = self.get_open(txn)
        new = [topic for topic in dict.fromkeys(topics) if topic not in transaction.partitions]
        self._count(len(new))
        transaction.partitions.update({topic: complete(topic) for topic in new})
        return transaction

    def add_subscriptions(self, txn: TxnId, subscriptions: Iterable[tuple[str, str]]) -> Transaction:
        """Raises what `add_partitions` raises."""
        transaction = self.get_open(txn)
        new = [each for each in dict.fromkeys(subscriptions) if each not in transaction.subscriptions]
        self._count(len(new))
        transaction.subscriptions.update({(topic, name): (complete(topic), name) for topic, name in new})
        return transaction

    def named(self, topic: str) -> list[Naming]:
        """The open transactions that have named a topic, given by its complete name, or subscriptions of it."""
        return [
            Naming(each.txn.least, subscription, each.owner)
            for each in self._by_least.values()
            if each.status is TxnStatus.OPEN
            for name, subscription in [
                *((name, TOPIC_ITSELF) for name in each.partitions.values()),
                *each.subscriptions.values(),
            ]
            if name == topic
        ]

    def _count(self, added: int) -> None:
        if self._participants + added > self._participants_max:
            raise NotAllowedError(
                f"the transactions of coordinator {self.coordinator_id} name {self._participants_max} topics and"
                " subscriptions; end some first"
            )
        self._participants += added

    def end(self, txn: TxnId, commit: bool) -> bool:
        """Decide the outcome. False when it was decided so before. Raises TransactionNotFoundError, InvalidTxnStatusError."""
        wanted = TxnStatus.COMMITTING if commit else TxnStatus.ABORTING
        transaction = self.get(txn)
        if transaction.status is wanted:
            return False
        self.get_open(txn).status = wanted
        return True

    def forget(self, txn: TxnId) -> None:
        """Everything is carried out, or it could not be opened."""
        transaction = self._by_least.pop(txn.least, None)
        if transaction is not None:
            self._participants -= len(transaction.partitions) + len(transaction.subscriptions)
            self._of_role[transaction.owner] -= 1
            if not self._of_role[transaction.owner]:
                del self._of_role[transaction.owner]

    def expired(self, now_ms: int) -> list[TxnId]:
        """Open ones whose time is up, those first whose time was up first; each is answered once."""
        expired: list[TxnId] = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            expired.append(TxnId(self.coordinator_id, heappop(self._deadlines)[1]))
        return expired

    def next_deadline_ms(self) -> int | None:
        """Deadline of the open transaction that times out first."""
        deadlines = self._deadlines
        while deadlines:
            transaction = self._by_least.get(deadlines[0][1])
            if transaction is not None and transaction.status is TxnStatus.OPEN:
                return deadlines[0][0]
            heappop(deadlines)
        return None

    def _expect(self, transaction: Transaction) -> None:
        """Its time will be up. Those that ended before theirs are cleared away now and then."""
        deadlines = self._deadlines
        if len(deadlines) > 2 * len(self._by_least) + DEADLINES_SPARE:
            deadlines = self._deadlines = [each for each in deadlines if each[1] in self._by_least]
            heapify(deadlines)
        heappush(deadlines, (transaction.deadline_ms, transaction.txn.least))

    # ---- From the log

    def restore(self, transaction: Transaction) -> None:
        """A transaction of the log, in the order of the log."""
        transaction.timeout_ms = min(transaction.timeout_ms, self._timeout_max_ms)
        self._by_least[transaction.txn.least] = transaction
        self._expect(transaction)
        self.highest = max(self.highest, transaction.txn.least)

    def restored(self, now_ms: int) -> None:
        """All of the log has been seen.

        A transaction that began later than now was opened while the wall clock was ahead: its time-out is counted from now on, else it
        would stay open, and hold back all readers of its topics, until that time has come.
        """
        for transaction in self._by_least.values():
            if transaction.started_ms > now_ms:
                transaction.started_ms = now_ms
                self._expect(transaction)
        self._by_least = dict(sorted(self._by_least.items()))
        self._of_role = Counter(each.owner for each in self._by_least.values())
        self._participants = sum(len(each.partitions) + len(each.subscriptions) for each in self._by_least.values())

    def validate(self) -> None:
        assert list(self._by_least) == sorted(self._by_least)
        assert not self._by_least or max(self._by_least) <= self.highest
        names = sum(len(each.partitions) + len(each.subscriptions) for each in self._by_least.values())
        assert names == self._participants
        assert self._of_role == Counter(each.owner for each in self._by_least.values())
        assert all(each.status not in (TxnStatus.COMMITTED, TxnStatus.ABORTED) for each in self._by_least.values())
