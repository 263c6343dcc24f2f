"""Hidden entries: against the plainest way to count them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.hidden_entries import HiddenEntries
from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position

ENTRIES = 6
POSITIONS = st.tuples(st.integers(1, 3), st.integers(0, ENTRIES - 1)).map(lambda pair: Position(*pair))


@given(st.lists(POSITIONS), st.lists(POSITIONS), POSITIONS, POSITIONS)
def test_counts(added: list[Position], acked: list[Position], mark_delete: Position, upto: Position) -> None:
    index = LedgerIndex()
    for ledger_id in range(1, 4):
        index.add(LedgerSummary(ledger_id, ENTRIES, 0, 0, b""))
    hidden = HiddenEntries()
    for position in added:
        hidden.add(*position)
    acks = AckRanges(index, mark_delete)
    acks.add_all(acked)
    hidden.validate()
    expected = {position for position in added if not acks.contains(*position)}
    assert hidden.unacknowledged(acks) == len(expected)
    assert hidden.between(mark_delete, upto) == len({each for each in added if mark_delete < each <= upto})
    assert len(hidden) == len(set(added))
    assert all(position in hidden for position in added)


@given(st.lists(POSITIONS), st.integers(0, 4))
def test_forgets_ledgers_that_are_gone(added: list[Position], first: int) -> None:
    hidden = HiddenEntries()
    for position in added:
        hidden.add(*position)
    hidden.forget_before(first)
    assert len(hidden) == len({position for position in added if position.ledger_id >= first})
