"""Deduplication watermarks against a model that simply remembers everything that was stored."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from magnetar.broker.topics.deduplication import Deduplicator, DuplicateStatus

NAMES = st.sampled_from(["a", "b", "c"])


class DeduplicatorMachine(RuleBasedStateMachine):
    """Sends go to a log that answers in order; a failure fails everything behind it, as the managed ledger does."""

    @initialize()
    def start(self) -> None:
        self.dedup = Deduplicator(producers_max=10)
        self.stored: dict[str, int] = {}
        self.under_way: list[tuple[str, int]] = []
        self.snapshot: dict[str, int] = {}
        self.since_snapshot: list[tuple[str, int]] = []

    def pushed(self, name: str) -> int:
        waiting = [sequence_id for its, sequence_id in self.under_way if its == name]
        return max([self.stored.get(name, -1), *waiting])

    @rule(name=NAMES, sequence_id=st.integers(0, 12))
    def send(self, name: str, sequence_id: int) -> None:
        verdict = self.dedup.check(name, sequence_id)
        if sequence_id <= self.stored.get(name, -1):
            assert verdict is DuplicateStatus.DUPLICATE
        elif sequence_id <= self.pushed(name):
            assert verdict is DuplicateStatus.PENDING
        else:
            assert verdict is DuplicateStatus.NEW
            self.dedup.push(name, sequence_id)
            self.under_way.append((name, sequence_id))

    @rule(count=st.integers(1, 3))
    def log_answers(self, count: int) -> None:
        for name, sequence_id in self.under_way[:count]:
            self.dedup.persist(name, sequence_id)
            self.stored[name] = sequence_id
            self.since_snapshot.append((name, sequence_id))
        del self.under_way[:count]

    @rule()
    def log_fails(self) -> None:
        """What failed was not stored: it may be sent again, and must then be NEW."""
        failed, self.under_way = self.under_way, []
        for name, _ in failed:
            self.dedup.failed(name)
        for name, sequence_id in failed:
            assert self.dedup.check(name, sequence_id) is DuplicateStatus.NEW

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = self.dedup.snapshot()
        self.since_snapshot = []

    @rule()
    def crash(self) -> None:
        """Snapshot and replay of what came after it give back exactly what was stored."""
        self.under_way = []
        self.dedup = Deduplicator(producers_max=10)
        self.dedup.restore(self.snapshot)
        for name, sequence_id in self.since_snapshot:
            self.dedup.persist(name, sequence_id)

    @invariant()
    def watermarks_are_what_is_stored(self) -> None:
        self.dedup.validate()
        for name in ("a", "b", "c"):
            assert self.dedup.last_sequence_id(name) == self.stored.get(name, -1)


TestDeduplicator = DeduplicatorMachine.TestCase
TestDeduplicator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_snapshot_forgets_those_heard_of_longest_ago() -> None:
    dedup = Deduplicator(producers_max=2)
    for name in ("a", "b", "c"):
        dedup.persist(name, 1)
    dedup.persist("a", 2)
    assert dedup.snapshot() == {"c": 1, "a": 2}
    assert dedup.last_sequence_id("b") == -1
    assert dedup.check("b", 1) is DuplicateStatus.NEW
