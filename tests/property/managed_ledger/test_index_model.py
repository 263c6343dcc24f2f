"""Position arithmetic against a flat list of positions."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary
from magnetar.managed_ledger.position import Position

LEDGERS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=6)
SOMEWHERE = st.builds(Position, st.integers(-1, 20), st.integers(-1, 6))


def built(ledgers: list[tuple[int, int]]) -> tuple[LedgerIndex, list[Position]]:
    index = LedgerIndex()
    flat: list[Position] = []
    ledger_id = 0
    for gap, entries in ledgers:
        ledger_id += gap
        index.add(LedgerSummary(ledger_id, entries))
        flat += [Position(ledger_id, entry_id) for entry_id in range(entries)]
    return index, flat


@settings(max_examples=300, deadline=None)
@given(ledgers=LEDGERS, one=SOMEWHERE, two=SOMEWHERE)
def test_arithmetic(ledgers: list[tuple[int, int]], one: Position, two: Position) -> None:
    index, flat = built(ledgers)
    assert index.total_entries == len(flat)
    assert index.entries_between(one, two) == len([p for p in flat if one < p <= two])
    assert index.rank(one) == len([p for p in flat if p <= one])
    assert [index.at_rank(rank) for rank in range(len(flat))] == flat
    assert index.end() == (flat[-1] if flat else Position(index.ledger_ids[-1], -1))
    following = next((p for p in flat if p > one), None)
    if following is not None:
        assert index.next(one) == following
    else:
        assert index.next(one) > index.end()
        assert index.entries_between(one, index.next(one)) == 0
    before = [p for p in flat if p < one]
    if before:
        assert index.previous(one) == before[-1]
    else:
        assert index.entries_between(index.previous(one), one) == len([p for p in flat if p <= one])
    assert index.copy().ledger_ids == index.ledger_ids
