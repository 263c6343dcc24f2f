"""Deliberate bugs in transactions, patched into the running code; for the workload of `transaction_scenario`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final

from magnetar.broker.topics.transactions import SubscriptionGate
from magnetar.broker.transactions.buffer import TransactionBuffer
from magnetar.broker.transactions.buffer_state import BufferState
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.coordinator_state import CoordinatorState, TxnStatus
from magnetar.broker.transactions.pending_acks import PendingAcks
from magnetar.broker.transactions.pending_state import WHOLE, PendingState
from magnetar.managed_ledger.position import Position
from magnetar.testing.sim.messaging.mutations import Mutation, Patch
from magnetar.testing.sim.messaging.scenario import MessagingScenario
from magnetar.testing.sim.mutations import patch_attribute

TRANSACTION_MUTATIONS: dict[str, Mutation] = {}
"""By name."""

CRASHES: Final[Mapping[str, Any]] = {
    "topics": 3,
    "workers": 3,
    "brokers": 2,
    "faults": ("client kill",),
    "fault_gap_s": 0.4,
    "outage_s": 0.2,
    "only_brokers": True,
    "gap_s": 0.02,
    "messages_max": 200,
    "duration_s": 8.0,
    "linger": 0.1,
    "aborts": 0.4,
    "ttl_s": 3.0,
}
"""A broker is killed more than twice a second."""

CALM: Final[Mapping[str, Any]] = {"workers": 3, "linger": 0.1, "aborts": 0.4, "faults": (), "aims": ()}


@contextmanager
def transaction_mutated(name: str) -> Iterator[None]:
    """The bug is in the code while this lasts."""
    with ExitStack() as stack:
        TRANSACTION_MUTATIONS[name].patch(stack)
        yield


def transaction_focused(scenario: MessagingScenario, name: str) -> MessagingScenario:
    """The scenario, changed so that the rule which the mutation undoes matters."""
    focus = dict(TRANSACTION_MUTATIONS[name].focus)
    broker = {**scenario.broker, **focus.pop("broker", {})}
    return replace(scenario, broker=broker, **focus)


def _mutation(name: str, focus: Mapping[str, Any]) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        TRANSACTION_MUTATIONS[name] = Mutation(patch, focus)
        return patch

    return register


# ---- Coordinators


@_mutation("a commit is answered before it is logged", CRASHES)
def _answered_too_soon(stack: ExitStack) -> None:
    """Once it is sent to the bookies, a broker's crash alone takes nothing back: recovery finds it. So it waits for a batch of others."""
    original = TransactionCoordinator.end

    async def end(self: Any, txn: Any, commit: bool, who: Any) -> None:
        if commit:
            self.state.get_open(txn)
            asyncio.get_running_loop().call_later(0.1, lambda: txn in self.state and self._end(txn, commit))
        else:
            await original(self, txn, commit, who)

    patch_attribute(stack, TransactionCoordinator, "end", end)


@_mutation("the outcome is carried out without being logged", {**CRASHES, "fsync_s": 0.005})
def _not_logged(stack: ExitStack) -> None:
    original = TransactionCoordinator._carry_out

    def carry_out(self: Any, transaction: Any, logged: bool) -> asyncio.Future[None]:
        return original(self, transaction, True)

    patch_attribute(stack, TransactionCoordinator, "_carry_out", carry_out)


@_mutation("what was decided before a crash is not carried out", {**CRASHES, "fsync_s": 0.005})
def _not_carried_on(stack: ExitStack) -> None:
    original = TransactionCoordinator._carry_out

    def carry_out(self: Any, transaction: Any, logged: bool) -> asyncio.Future[None]:
        if not logged:
            return original(self, transaction, logged)
        transaction.status = TxnStatus.OPEN
        return asyncio.get_running_loop().create_future()

    patch_attribute(stack, TransactionCoordinator, "_carry_out", carry_out)


@_mutation("the low-water mark is one too far", CALM)
def _low_water_too_far(stack: ExitStack) -> None:
    original: Any = CoordinatorState.__dict__["low_water_mark"]

    def low_water_mark(self: Any) -> int:
        found: int = original.fget(self)
        return found + 1

    patch_attribute(stack, CoordinatorState, "low_water_mark", property(low_water_mark))


# ---- Buffers


@_mutation("an abort is not remembered", {**CRASHES, "work_s": 0.02})
def _abort_forgotten(stack: ExitStack) -> None:
    original = BufferState.ended

    def ended(self: Any, txn: Any, commit: bool, position: Position) -> Any:
        return original(self, txn, True, position)

    patch_attribute(stack, BufferState, "ended", ended)


@_mutation("the marker of an abort is left out", CRASHES)
def _no_abort_marker(stack: ExitStack) -> None:
    original = TransactionBuffer._mark

    async def mark(self: Any, txn: Any, commit: bool) -> None:
        if commit:
            await original(self, txn, commit)
        else:
            self._end_at(txn, commit, self._ledger.last_confirmed)
            self.state._aborted.pop(txn, None)

    patch_attribute(stack, TransactionBuffer, "_mark", mark)


@_mutation(
    "a snapshot reaches behind open transactions",
    {**CRASHES, "broker": {"transaction_buffer_snapshot_max_transaction_count": 1}},
)
def _snapshot_too_far(stack: ExitStack) -> None:
    def snapshot(self: Any) -> None:
        self._ended_since = 0
        self.snapshot_ms = self._clock.now_ms()
        self._cursor.acknowledge_cumulative(self._ledger.last_confirmed, self.state.snapshot())

    patch_attribute(stack, TransactionBuffer, "snapshot", snapshot)


@_mutation(
    "a snapshot leaves out what was aborted",
    {**CRASHES, "broker": {"transaction_buffer_snapshot_max_transaction_count": 1}, "work_s": 0.02},
)
def _snapshot_without_aborted(stack: ExitStack) -> None:
    def snapshot(self: Any) -> dict[str, int]:
        return {}

    patch_attribute(stack, BufferState, "snapshot", snapshot)


@_mutation("reading does not stop before an open transaction", CALM)
def _reads_on(stack: ExitStack) -> None:
    patch_attribute(stack, SubscriptionGate, "stop", property(lambda self: None))


# ---- Pending acknowledgements


@_mutation("acknowledgements of a commit are let go before they are durable", {**CRASHES, "fsync_s": 0.02})
def _let_go_too_soon(stack: ExitStack) -> None:
    async def apply(self: Any, pending: Any) -> None:
        cursor = self._cursor
        whole = [ack.position for ack in pending.individual.values() if ack.acked == WHOLE]
        if whole:
            cursor.acknowledge(whole)
        waits: list[asyncio.Future[None]] = []
        for ack in pending.individual.values():
            if ack.acked != WHOLE:
                self._apply_batch(ack, waits)

    patch_attribute(stack, PendingAcks, "_apply", apply)


@_mutation("pending acknowledgements are not restored", CRASHES)
def _pending_forgotten(stack: ExitStack) -> None:
    async def recover(self: Any) -> None:
        async for _ in self.log.records():
            pass

    patch_attribute(stack, PendingAcks, "recover", recover)


@_mutation("a message may be taken by two transactions", CALM)
def _taken_twice(stack: ExitStack) -> None:
    def admit(self: Any, entries: Any) -> Any:
        return entries

    def taken(self: Any, position: Position, besides: Any = None) -> int:
        return 0

    patch_attribute(stack, PendingAcks, "admit", admit)
    patch_attribute(stack, PendingState, "taken", taken)


@_mutation("an abort does not give the messages back", {**CALM, "leave": 0.0})
def _kept_after_abort(stack: ExitStack) -> None:
    original = PendingAcks.end

    async def end(self: Any, txn: Any, commit: bool, low_water_mark: int) -> Any:
        await original(self, txn, commit, low_water_mark)
        return []

    patch_attribute(stack, PendingAcks, "end", end)
