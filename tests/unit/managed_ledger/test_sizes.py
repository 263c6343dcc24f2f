"""Bytes behind a position."""

from __future__ import annotations

import pytest

from magnetar.managed_ledger.ledger_index import LedgerIndex, LedgerSummary, position_after_bytes, size_after
from magnetar.managed_ledger.position import Position


def index() -> LedgerIndex:
    made = LedgerIndex()
    made.add(LedgerSummary(2, 10, 1000))
    made.add(LedgerSummary(5, 10, 500))
    made.add(LedgerSummary(7))
    return made


@pytest.mark.parametrize(
    ("position", "size_bytes"),
    [
        ((2, -1), 1500),
        ((2, 4), 1000),
        ((2, 9), 500),
        ((3, 3), 500),
        ((5, 8), 50),
        ((5, 9), 0),
        ((7, -1), 0),
        ((1, 0), 1500),
    ],
)
def test_size_after(position: tuple[int, int], size_bytes: int) -> None:
    assert size_after(index(), Position(*position)) == size_bytes


@pytest.mark.parametrize(
    ("passed", "reached"),
    [(0, (2, -1)), (1, (2, 0)), (100, (2, 0)), (101, (2, 1)), (1000, (2, 9)), (1001, (5, 0)), (10_000, (5, 9))],
)
def test_position_after_bytes(passed: int, reached: tuple[int, int]) -> None:
    assert position_after_bytes(index(), Position(2, -1), passed) == Position(*reached)
