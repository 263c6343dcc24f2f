"""Acknowledgements against a set of entries, the list of ledgers growing and shrinking meanwhile."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.managed_ledger.ack_bits import LedgerBits
from magnetar.managed_ledger.ack_ranges import AckRanges, int_to_words, words_to_int
from magnetar.managed_ledger.cursor.codec import decode_entries, encode_entries, parse_entry, restore
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position

ENTRY = st.integers(-2, 260)


class AckRangesAgainstSet(RuleBasedStateMachine):
    """`self.acked` is the model: every (ledger, entry) that counts as consumed."""

    @initialize(first=st.integers(0, 3), entries=st.integers(0, 200))
    def start(self, first: int, entries: int) -> None:
        self.index = LedgerIndex()
        self.index.add(LedgerSummary(first, entries))
        self.written = {(first, entry_id) for entry_id in range(entries)}
        self.gone: set[tuple[int, int]] = set()
        self.acked: set[tuple[int, int]] = set()
        self.batches: dict[tuple[int, int], int] = {}
        self.acks = AckRanges(self.index, Position(first, -1))

    # ---- The list of ledgers

    @rule(count=st.integers(1, 130))
    def append(self, count: int) -> None:
        last = self.index.last
        assert last is not None
        self.written.update((last.ledger_id, entry_id) for entry_id in range(last.entries, last.entries + count))
        last.entries += count

    @precondition(lambda self: len(self.index) < 5)
    @rule(gap=st.integers(1, 3), entries=st.integers(0, 130))
    def roll(self, gap: int, entries: int) -> None:
        last = self.index.last
        assert last is not None
        self.index.add(LedgerSummary(last.ledger_id + gap, entries))
        self.written.update((last.ledger_id + gap, entry_id) for entry_id in range(entries))

    @rule()
    def trim(self) -> None:
        for ledger_id in self.index.ledger_ids[:-1]:
            if ledger_id < self.acks.mark_ledger:
                self.index.remove(ledger_id)
                self.gone |= {key for key in self.written if key[0] == ledger_id}
        self.written -= self.gone
        self.acks.settle()

    # ---- Acknowledging

    @rule(data=st.data(), entry_id=ENTRY)
    def acknowledge(self, data: st.DataObject, entry_id: int) -> None:
        key = (self._some_ledger(data), entry_id)
        changed = self.acks.add(*key)
        assert changed == (key in self.written - self.acked)
        self._consume({key})

    @rule(data=st.data(), first=ENTRY, length=st.integers(1, 150), step=st.integers(1, 3))
    def acknowledge_many(self, data: st.DataObject, first: int, length: int, step: int) -> None:
        ledger_id = self._some_ledger(data)
        keys = [(ledger_id, entry_id) for entry_id in range(first, first + length, step)]
        assert self.acks.add_all(keys) == bool(set(keys) & (self.written - self.acked))
        self._consume(set(keys))

    @rule(data=st.data(), first=ENTRY, length=st.integers(1, 150))
    def acknowledge_range(self, data: st.DataObject, first: int, length: int) -> None:
        ledger_id = self._some_ledger(data)
        self.acks.add_range(ledger_id, first, first + length - 1)
        self._consume({(ledger_id, entry_id) for entry_id in range(first, first + length)})

    @rule(data=st.data(), entry_id=st.integers(-1, 260))
    def acknowledge_cumulative(self, data: st.DataObject, entry_id: int) -> None:
        position = min(Position(self._some_ledger(data), entry_id), self.index.end())
        before = self.acks.mark_delete
        assert self.acks.mark_deleted_upto(position) == (position > before)
        self._consume({key for key in self.written if key <= position})

    @rule(data=st.data(), entry_id=ENTRY, clear=st.integers(0, 2**70 - 1))
    def acknowledge_batch(self, data: st.DataObject, entry_id: int, clear: int) -> None:
        key = (self._some_ledger(data), entry_id)
        full = (1 << 70) - 1
        _, whole = self.acks.add_batch(*key, int_to_words(full & ~clear), 70)
        if key in self.written - self.acked:
            left = self.batches.get(key, full) & ~clear
            assert whole == (left == 0)
            if left:
                if left != full:
                    self.batches[key] = left
            else:
                self._consume({key})
        else:
            assert not whole

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        keys = sorted(self.written)
        if not keys:
            return
        position = Position(*data.draw(st.sampled_from(keys)))
        self.acks.reset(self.index.previous(position))
        self.acked = {key for key in self.written if key < position}
        self.batches.clear()

    @rule(max_bytes=st.sampled_from([400, 1000, 1 << 22]))
    def restart(self, max_bytes: int) -> None:
        parts = [parse_entry(entry) for entry in encode_entries(self.acks, {"n": 1}, max_bytes)]
        self.acks = restore(decode_entries(parts), self.index, self.index.ledger_ids)

    # ---- What holds at any time

    @invariant()
    def consistent(self) -> None:
        self.acks.validate()
        self.index.validate()

    @invariant()
    def same_entries(self) -> None:
        for key in self.written:
            assert self.acks.contains(*key) == (key in self.acked), key

    @invariant()
    def mark_delete_is_before_the_first_unacknowledged(self) -> None:
        mark_delete = self.acks.mark_delete
        open_entries = sorted(self.written - self.acked)
        if open_entries:
            assert mark_delete < open_entries[0]
            between = [key for key in self.written if mark_delete < key < open_entries[0]]
            assert between == [], "it could be further"

    @invariant()
    def counts(self) -> None:
        backlog = self.index.entries_between(self.acks.mark_delete, self.index.end()) - self.acks.acked_count
        assert backlog == len(self.written - self.acked)
        ranges = list(self.acks.ranges())
        assert len(ranges) == self.acks.range_count()
        covered = {(low.ledger_id, e) for low, high in ranges for e in range(low.entry_id + 1, high.entry_id + 1)}
        assert covered == {key for key in self.acked if key > self.acks.mark_delete}

    @invariant()
    def batches_are_what_remains(self) -> None:
        assert {tuple(p): words_to_int(words) for p, words in self.acks.partial_batches()} == self.batches

    # ---- Words

    def _some_ledger(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*self.index.ledger_ids, 99]))

    def _consume(self, keys: set[tuple[int, int]]) -> None:
        self.acked |= keys & self.written
        for key in keys:
            self.batches.pop(key, None)


TestAckRanges = AckRangesAgainstSet.TestCase
TestAckRanges.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=150, deadline=None)
@given(
    members=st.sets(st.integers(0, 700)), near=st.integers(0, 300), ranges=st.lists(st.tuples(ENTRY, ENTRY), max_size=5)
)
def test_bits_against_a_set(members: set[int], near: int, ranges: list[tuple[int, int]]) -> None:
    bits = LedgerBits(near)
    model = {member for member in members if member >= near}
    for member in sorted(members):
        if member >= near:
            assert bits.add(member)
    for first, last in ranges:
        wanted = set(range(max(first, near), last + 1))
        bits.add_range(max(first, near), last)
        model |= wanted
    assert bits.count == len(model)
    for number in range(near, 720, 7):
        assert (number in bits) == (number in model)
        assert bits.next_clear(number) == next(e for e in range(number, 2000) if e not in model)
        assert bits.count_between(near, number) == len([e for e in model if e <= number])
    runs = list(bits.runs(near))
    assert {e for first, last in runs for e in range(first, last + 1)} == model
    assert all(one[1] + 1 < two[0] for one, two in pairwise(runs))
    assert bits.run_count(near) == len(runs)
    start, words = bits.words(near)
    assert words_to_int(words) << (start * 64) == sum(1 << e for e in model)
    copy = LedgerBits(0)
    copy.merge_words([0] * start + list(words), near, 800)
    assert list(copy.runs(0)) == runs
