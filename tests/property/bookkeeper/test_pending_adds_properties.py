"""`PendingAdds` against a naive model that recomputes everything from the set of acknowledgements."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.bookkeeper.client.pending_adds import PendingAdd, PendingAdds
from magnetar.bookkeeper.quorum import write_set


class PendingAddsMachine(RuleBasedStateMachine):
    """One writer's queue under acks, failures, ensemble changes and draining, in any order."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.ensemble_size = data.draw(st.integers(1, 5), label="E")
        self.write_quorum = data.draw(st.integers(1, self.ensemble_size), label="Qw")
        self.ack_quorum = data.draw(st.integers(1, self.write_quorum), label="Qa")
        self.bearable = self.write_quorum - self.ack_quorum
        lac = data.draw(st.integers(-1, 3), label="lac")
        self.core: PendingAdds[PendingAdd] = PendingAdds(self.write_quorum, self.ack_quorum, lac)
        self.adds: dict[int, PendingAdd] = {}
        self.next_entry_id = lac + 1
        self.names = 0
        self.ensemble = tuple(self.new_name() for _ in range(self.ensemble_size))
        self.acked: dict[int, set[int]] = {}
        self.failed: dict[int, set[int]] = {}
        self.completed_upto = lac
        self.drained = False

    def new_name(self) -> str:
        self.names += 1
        return f"b{self.names}"

    def release(self) -> None:
        while (add := self.core.pop_completed()) is not None:
            assert add.entry_id == self.completed_upto + 1, "completions follow entry order"
            assert self.stored(add.entry_id), "no completion below the ack quorum"
            assert not self.core.changing, "no completion during a change"
            self.completed_upto = add.entry_id + add.count - 1
            assert self.core.lac == self.completed_upto

    @precondition(lambda self: not self.drained)
    @rule(count=st.integers(1, 5))
    def push(self, count: int) -> None:
        """An entry or a run. Each bookie answers once for all that it got of it."""
        bits = [
            sum(1 << index for index in write_set(entry_id, self.ensemble_size, self.write_quorum))
            for entry_id in range(self.next_entry_id, self.next_entry_id + count)
        ]
        add = PendingAdd(self.next_entry_id, self.ensemble, count, tuple(dict.fromkeys(bits)))
        self.core.push(add)
        self.adds[add.entry_id] = add
        self.acked[add.entry_id] = set()
        self.failed[add.entry_id] = set()
        self.next_entry_id += count

    def write_sets(self, entry_id: int) -> list[set[int]]:
        """Of each entry of the add that begins with this one."""
        last = entry_id + self.adds[entry_id].count
        return [set(write_set(each, self.ensemble_size, self.write_quorum)) for each in range(entry_id, last)]

    def stored(self, entry_id: int) -> bool:
        return all(len(self.acked[entry_id] & each) >= self.ack_quorum for each in self.write_sets(entry_id))

    def out_of_reach(self, entry_id: int) -> bool:
        return any(len(self.failed[entry_id] & each) > self.bearable for each in self.write_sets(entry_id))

    def pending(self) -> list[int]:
        """First entry ids of what is under way."""
        return [] if self.drained else [entry_id for entry_id in self.adds if entry_id > self.completed_upto]

    @precondition(lambda self: self.adds)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        entry_id = data.draw(st.sampled_from(sorted(self.adds)))
        index = data.draw(st.sampled_from(sorted(set().union(*self.write_sets(entry_id)))))
        self.acked[entry_id].add(index)
        self.failed[entry_id].discard(index)
        if self.core.acknowledge(self.adds[entry_id], index):
            self.release()

    @precondition(lambda self: self.adds)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        entry_id = data.draw(st.sampled_from(sorted(self.adds)))
        index = data.draw(st.sampled_from(sorted(set().union(*self.write_sets(entry_id)))))
        if index not in self.acked[entry_id]:
            self.failed[entry_id].add(index)
        hopeless = self.core.reject(self.adds[entry_id], index)
        assert hopeless is (not self.stored(entry_id) and self.out_of_reach(entry_id))

    @precondition(lambda self: not self.core.changing)
    @rule()
    def begin_change(self) -> None:
        self.core.begin_change()

    @precondition(lambda self: self.core.changing)
    @rule(data=st.data())
    def end_change(self, data: st.DataObject) -> None:
        rounds = data.draw(st.lists(st.sets(st.integers(0, self.ensemble_size - 1)), min_size=1, max_size=3))
        ensemble = list(self.ensemble)
        for replaced in rounds:
            for index in replaced:
                ensemble[index] = self.new_name()
        replaced = set().union(*rounds)
        self.ensemble = tuple(ensemble)
        resend = self.core.end_change(self.ensemble)
        expected = self.pending()
        assert [add.entry_id for add, _ in resend] == expected
        for add, stale in resend:
            assert stale == sum(1 << index for index in replaced), "what is sent again is what went elsewhere"
            self.acked[add.entry_id] -= replaced
            self.failed[add.entry_id] -= replaced
        hopeless = [each for each in expected if not self.stored(each) and self.out_of_reach(each)]
        assert [add.entry_id for add in self.core.hopeless()] == hopeless
        self.release()

    @rule()
    def drain(self) -> None:
        drained = self.core.drain()
        expected = self.pending()
        assert [add.entry_id for add in drained] == expected
        self.drained = True

    @invariant()
    def everything_that_can_complete_has_completed(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.validate()
        if self.drained:
            assert self.core.count == 0
            return
        assert self.core.count == self.next_entry_id - self.completed_upto - 1
        if not self.core.changing and self.core.count:
            assert not self.stored(self.completed_upto + 1)


TestPendingAdds = PendingAddsMachine.TestCase
TestPendingAdds.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
