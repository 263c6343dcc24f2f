"""The pure cores of transactions against models that are too simple to be wrong."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from magnetar.broker.errors import (
    BrokerError,
    InvalidTxnStatusError,
    TooManyRequestsError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from magnetar.broker.transactions import coordinator_records, pending_records
from magnetar.broker.transactions.buffer_state import BufferState
from magnetar.broker.transactions.coordinator_state import CoordinatorState, Transaction, TxnStatus
from magnetar.broker.transactions.pending_state import WHOLE, Ack, PendingState
from magnetar.broker.transactions.types import TxnId
from magnetar.managed_ledger.position import EARLIEST, Position

LEDGER_ENTRIES = 7
numbers = st.integers(1, 6)


def place(index: int) -> Position:
    """The position of entry `index` of a log whose ledgers hold seven entries each."""
    return Position(10 + index // LEDGER_ENTRIES, index % LEDGER_ENTRIES)


class BufferMachine(RuleBasedStateMachine):
    """The log as a list of what was written; a restart reads it again from a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, int]] = []
        self.state = BufferState()
        self.ended: dict[int, bool] = {}
        self.snapshot: tuple[int, dict[str, int]] = (0, {})
        self.trimmed = 0

    @rule(number=numbers)
    def publish(self, number: int) -> None:
        if number in self.ended:
            return
        txn = TxnId(0, number)
        self.state.sending(txn)
        assert self.state.has(txn)
        self.state.sent(txn, place(len(self.log)))
        self.log.append(("txn", number))

    @rule(number=numbers)
    def publish_fails(self, number: int) -> None:
        before = self.state.has(TxnId(0, number))
        self.state.sending(TxnId(0, number))
        self.state.sent(TxnId(0, number), None)
        assert self.state.has(TxnId(0, number)) == before

    @rule()
    def publish_plain(self) -> None:
        self.log.append(("plain", 0))

    @rule(number=numbers, commit=st.booleans())
    def end(self, number: int, commit: bool) -> None:
        txn = TxnId(0, number)
        if number in self.ended or not self.state.has(txn):
            return
        found = self.state.ended(txn, commit, place(len(self.log)))
        assert found is not None
        if found.runs is not None:
            hidden = [Position(ledger, entry) for ledger, first, last in found.runs for entry in range(first, last + 1)]
            assert hidden == [place(at) for at, written in enumerate(self.log) if written == ("txn", number)]
        self.log.append(("commit" if commit else "abort", number))
        self.ended[number] = commit

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = (self.first_undecided(), self.state.snapshot())

    @rule()
    def restart(self) -> None:
        begin, aborted = self.snapshot
        state = BufferState()
        state.restore(aborted)
        for at in range(begin, len(self.log)):
            kind, number = self.log[at]
            if kind == "txn":
                state.stored(TxnId(0, number), place(at))
            elif kind != "plain":
                state.ended(TxnId(0, number), kind == "commit", place(at))
        self.state = state

    def first_undecided(self) -> int:
        undecided = [at for at, (kind, number) in enumerate(self.log) if kind == "txn" and number not in self.ended]
        return min(undecided, default=len(self.log))

    @invariant()
    def holds(self) -> None:
        self.state.validate()
        undecided = self.first_undecided()
        assert self.state.first_open == (place(undecided) if undecided < len(self.log) else None)
        for at, (kind, number) in enumerate(self.log):
            if kind == "txn":
                aborted = self.ended.get(number) is False
                assert self.state.is_aborted(TxnId(0, number)) == aborted
                assert not aborted or place(at) <= self.state.last_abort
        waiting = [
            place(at) for at, (kind, number) in enumerate(self.log) if kind == "txn" and number not in self.ended
        ]
        assert self.state.open_entries == len(waiting)
        for after in (EARLIEST, place(undecided), place(len(self.log))):
            assert self.state.held_back(after) == sum(each > after for each in waiting)


TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_comes_after_an_abort_is_hidden_as_well() -> None:
    """It cannot come from a client that is told the truth; should it, the topic must not stand still."""
    state = BufferState()
    txn = TxnId(3, 1)
    state.stored(txn, Position(1, 0))
    state.ended(txn, False, Position(1, 1))
    state.stored(txn, Position(1, 2))
    assert state.first_open is None
    assert state.last_abort == Position(1, 2)
    state.forget_before(2)
    assert not state.is_aborted(txn)


BATCH = 3
FULL = (1 << BATCH) - 1


@dataclass
class Message:
    """One message of the model: who has acknowledged it."""

    done: bool = False
    by: int = 0


@dataclass
class Model:
    """Six entries of three messages each."""

    entries: list[list[Message]] = field(default_factory=lambda: [[Message() for _ in range(BATCH)] for _ in range(6)])

    def mark_delete(self) -> int:
        return next((at for at, entry in enumerate(self.entries) if not all(each.done for each in entry)), 6) - 1


class PendingMachine(RuleBasedStateMachine):
    """Every message belongs to one transaction at most, whatever is asked for in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.cumulative: dict[int, int] = {}
        self.records: list[tuple[TxnId, bytes]] = []
        self.state = self.new_state()

    def new_state(self) -> PendingState:
        return PendingState(
            self.already, lambda: place(self.model.mark_delete()) if self.model.mark_delete() >= 0 else EARLIEST
        )

    def already(self, position: Position) -> int:
        entry = self.entry(position)
        bits = sum(1 << at for at, each in enumerate(entry) if each.done)
        return WHOLE if bits == FULL else bits

    def entry(self, position: Position) -> list[Message]:
        return self.model.entries[(position.ledger_id - 10) * LEDGER_ENTRIES + position.entry_id]

    def ask(self, txn: TxnId, acks: list[Ack], cumulative: bool) -> bool:
        try:
            if cumulative:
                self.state.acknowledge_upto(txn, acks[-1])
            else:
                self.state.acknowledge(txn, acks)
        except TransactionConflictError:
            return False
        self.records.append((txn, pending_records.encode(txn, acks[-1:] if cumulative else acks, cumulative)))
        return True

    @rule(number=numbers, at=st.integers(0, 5), bits=st.integers(1, FULL))
    def acknowledge_some(self, number: int, at: int, bits: int) -> None:
        wanted = [each for index, each in enumerate(self.model.entries[at]) if bits >> index & 1]
        allowed = all(each.by == number or (not each.done and not each.by) for each in wanted)
        allowed = allowed and not any(each.done for each in wanted)
        ack = pending_records.ack_of(place(at), [FULL & ~bits] if bits != FULL else [0], BATCH)
        fresh = any(each.by != number for each in wanted)
        assert self.ask(TxnId(0, number), [ack], False) == (allowed or not fresh)
        if allowed:
            for each in wanted:
                each.by = number

    @rule(number=numbers, at=st.integers(0, 5))
    def acknowledge_upto(self, number: int, at: int) -> None:
        inside = [each for entry in self.model.entries[: at + 1] for each in entry]
        holder = next(iter(self.cumulative), None)
        repeated = self.cumulative.get(number, -1) >= at
        allowed = (
            self.model.mark_delete() < at
            and holder in (None, number)
            and all(each.by in (0, number) for each in inside)
        )
        assert self.ask(TxnId(0, number), [Ack(place(at))], True) == (allowed or repeated)
        if allowed and not repeated:
            self.cumulative[number] = at
            for each in inside:
                each.by = each.by or (0 if each.done else number)

    @rule(number=numbers, commit=st.booleans())
    def end(self, number: int, commit: bool) -> None:
        self.state.forget(TxnId(0, number))
        self.records = [each for each in self.records if each[0].least != number]
        self.cumulative.pop(number, None)
        for entry in self.model.entries:
            for each in entry:
                if each.by == number:
                    each.by, each.done = 0, each.done or commit

    @rule()
    def restart(self) -> None:
        self.state = self.new_state()
        for at, (_, record) in enumerate(self.records):
            pending_records.replay(self.state, Position(99, at), record)

    @invariant()
    def holds(self) -> None:
        self.state.validate()
        for at, entry in enumerate(self.model.entries):
            taken = self.state.taken(place(at))
            for index, each in enumerate(entry):
                if not each.done:
                    assert bool(taken >> index & 1) == bool(each.by), (at, index)


TestPending = PendingMachine.TestCase
TestPending.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_pending_acknowledgements_are_bounded() -> None:
    state = PendingState(lambda position: 0, lambda: EARLIEST, acks_max=2)
    state.acknowledge(TxnId(0, 1), [Ack(place(0)), Ack(place(1))])
    with pytest.raises(BrokerError):
        state.acknowledge(TxnId(0, 2), [Ack(place(2))])
    state.forget(TxnId(0, 1))
    state.acknowledge(TxnId(0, 2), [Ack(place(2))])


class CoordinatorMachine(RuleBasedStateMachine):
    """What is in memory is what the log says, at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.state = CoordinatorState(4, active_max=3)
        self.log: list[tuple[TxnId, bytes]] = []
        self.statuses: dict[int, TxnStatus] = {}
        self.now_ms = 1_700_000_000_000

    def record(self, txn: TxnId, data: bytes) -> None:
        self.log.append((txn, data))

    @rule(timeout_ms=st.integers(1, 50))
    def open(self, timeout_ms: int) -> None:
        if len(self.statuses) == 3:
            with pytest.raises(TooManyRequestsError):
                self.state.open(self.now_ms, timeout_ms, "me")
            return
        transaction = self.state.open(self.now_ms, timeout_ms, "me")
        assert transaction.txn.least not in self.statuses
        self.statuses[transaction.txn.least] = TxnStatus.OPEN
        self.record(transaction.txn, coordinator_records.opened(transaction, self.state.highest))

    @rule(number=st.integers(1, 12), topics=st.lists(st.sampled_from("abc"), max_size=3))
    def add(self, number: int, topics: list[str]) -> None:
        txn = TxnId(4, number)
        if self.statuses.get(number) is not TxnStatus.OPEN:
            with pytest.raises((TransactionNotFoundError, InvalidTxnStatusError)):
                self.state.add_partitions(txn, topics)
            return
        self.state.add_partitions(txn, topics)
        self.record(txn, coordinator_records.partitions_added(txn, topics, self.now_ms, self.state.highest))
        named = [(topic, "s") for topic in topics]
        self.state.add_subscriptions(txn, named)
        self.record(txn, coordinator_records.subscriptions_added(txn, named, self.now_ms, self.state.highest))

    @rule(number=st.integers(1, 12), commit=st.booleans())
    def end(self, number: int, commit: bool) -> None:
        txn, status = TxnId(4, number), self.statuses.get(number)
        wanted = TxnStatus.COMMITTING if commit else TxnStatus.ABORTING
        if status is None:
            with pytest.raises(TransactionNotFoundError):
                self.state.end(txn, commit)
        elif status is TxnStatus.OPEN:
            assert self.state.end(txn, commit)
            self.statuses[number] = wanted
            self.record(txn, coordinator_records.ended(txn, wanted, self.now_ms, self.state.highest))
        elif status is wanted:
            assert not self.state.end(txn, commit)
        else:
            with pytest.raises(InvalidTxnStatusError):
                self.state.end(txn, commit)

    @rule()
    def carried_out(self) -> None:
        for number, status in list(self.statuses.items()):
            if status is not TxnStatus.OPEN:
                self.state.forget(TxnId(4, number))
                self.log = [each for each in self.log if each[0].least != number]
                del self.statuses[number]

    @rule(passed_ms=st.integers(1, 40))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        due = {
            each.txn.least for each in self.state if each.status is TxnStatus.OPEN and each.deadline_ms <= self.now_ms
        }
        assert {txn.least for txn in self.state.expired(self.now_ms)} == due
        for number in due:
            self.end(number, commit=False)

    @rule(back_ms=st.integers(1, 1_000_000))
    def restart_behind_a_clock_that_was_ahead(self, back_ms: int) -> None:
        self.now_ms -= back_ms
        self.restart()
        for each in self.state:
            assert each.deadline_ms <= self.now_ms + each.timeout_ms
        assert self.state.expired(self.now_ms) == []

    @rule()
    def restart(self) -> None:
        highest = self.state.highest
        state = CoordinatorState(4, active_max=3)
        found: dict[TxnId, Transaction] = {}
        for at, (_, data) in enumerate(self.log):
            assert coordinator_records.replay(state, found, Position(1, at), data)
        state.restored(self.now_ms)
        state.highest = highest  # the log keeps it apart: see RecordLog.reserve
        for before, after in zip(self.state, state, strict=True):
            assert (before.txn, before.status, before.timeout_ms, before.owner) == (
                after.txn,
                after.status,
                after.timeout_ms,
                after.owner,
            )
            assert before.partitions == after.partitions
            assert before.subscriptions == after.subscriptions
        self.state = state

    @invariant()
    def holds(self) -> None:
        self.state.validate()
        assert {each.txn.least: each.status for each in self.state} == self.statuses
        assert self.state.low_water_mark == min(self.statuses, default=self.state.highest + 1) - 1


TestCoordinator = CoordinatorMachine.TestCase
TestCoordinator.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.binary(max_size=60))
def test_damaged_records_are_refused_as_such(data: bytes) -> None:
    for replay in (
        lambda: coordinator_records.replay(CoordinatorState(0), {}, Position(1, 1), data),
        lambda: pending_records.replay(PendingState(lambda position: 0, lambda: EARLIEST), Position(1, 1), data),
    ):
        with suppress(BrokerError):  # nothing else comes out of it
            replay()
