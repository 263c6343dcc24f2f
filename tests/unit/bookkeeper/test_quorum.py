"""Write sets, coverage and votes on worked examples; the properties are in tests/property."""

from __future__ import annotations

import pytest

from magnetar.base.errors import InvalidArgumentError
from magnetar.bookkeeper.quorum import Coverage, EntryVote, Verdict, check_quorum, write_set, write_sets


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 2), (5, 3, 2), (3, 3, 1)])
def test_possible_quorums(sizes: tuple[int, int, int]) -> None:
    check_quorum(*sizes)


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 2, 1), (2, 1, 2), (3, 3, 0), (-1, -1, -1)])
def test_impossible_quorums(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        check_quorum(*sizes)


def test_write_sets_go_round_robin() -> None:
    assert write_set(0, 5, 3) == (0, 1, 2)
    assert write_set(4, 5, 3) == (4, 0, 1)
    assert write_sets(3, 2) == ((0, 1), (1, 2), (2, 0))


@pytest.mark.parametrize("entry_id", [2**31 - 1, 2**31, 2**40 + 3, 2**63 - 1])
def test_write_sets_of_large_entry_ids_stay_in_the_ensemble(entry_id: int) -> None:
    assert write_set(entry_id, 5, 3) == ((entry_id) % 5, (entry_id + 1) % 5, (entry_id + 2) % 5)


@pytest.mark.parametrize(
    ("sizes", "unknown", "covered"),
    [
        ((1, 1, 1), [], True),
        ((1, 1, 1), [0], False),
        ((3, 3, 2), [0], True),
        ((3, 3, 2), [0, 1], False),
        ((3, 3, 3), [0, 1], True),
        ((5, 3, 2), [1, 4], False),
        ((5, 3, 2), [0, 2], False),
        ((5, 3, 2), [2], True),
        ((6, 3, 2), [0, 3], True),
        ((6, 3, 2), [0, 2], False),
        ((6, 3, 2), [5, 0], False),
        ((5, 3, 3), [0, 1, 3], True),
        ((5, 3, 3), [4, 0, 1], False),
    ],
)
def test_coverage_sets(sizes: tuple[int, int, int], unknown: list[int], covered: bool) -> None:
    coverage = Coverage(*sizes)
    for index in range(sizes[0]):
        if index not in unknown:
            coverage.record(index, known=True)
    assert coverage.covered is covered
    assert coverage.exhausted is (not unknown)
    for index in unknown:
        coverage.record(index, known=False)
    assert coverage.exhausted
    assert coverage.covered is covered
    coverage.validate()


def test_one_copy_proves_presence_even_after_errors() -> None:
    vote = EntryVote(3, 2)
    assert vote.unknown(0) is Verdict.OPEN
    assert vote.absent(1) is Verdict.OPEN
    assert vote.present(2) is Verdict.PRESENT


def test_absence_takes_qw_minus_qa_plus_one_explicit_negatives() -> None:
    vote = EntryVote(3, 2)
    assert vote.absent(0) is Verdict.OPEN
    assert vote.absent(2) is Verdict.ABSENT
    single = EntryVote(1, 1)
    assert single.absent(0) is Verdict.ABSENT
    all_must_ack = EntryVote(3, 3)
    assert all_must_ack.absent(1) is Verdict.ABSENT


def test_errors_are_never_negatives() -> None:
    vote = EntryVote(3, 1)
    assert vote.absent(0) is Verdict.OPEN
    assert vote.absent(1) is Verdict.OPEN
    assert vote.unknown(2) is Verdict.UNDECIDABLE
    vote.validate()
