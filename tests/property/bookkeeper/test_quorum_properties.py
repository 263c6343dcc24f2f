"""Quorum arithmetic against its definitions, over all small ensembles."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.quorum import Coverage, EntryVote, Verdict, write_set


@st.composite
def quorums(draw: st.DrawFn) -> tuple[int, int, int]:
    ensemble_size = draw(st.integers(1, 6))
    write_quorum = draw(st.integers(1, ensemble_size))
    return ensemble_size, write_quorum, draw(st.integers(1, write_quorum))


@given(quorums(), st.integers(0, 2**63 - 1))
def test_a_write_set_is_qw_distinct_members(sizes: tuple[int, int, int], entry_id: int) -> None:
    ensemble_size, write_quorum, _ = sizes
    indexes = write_set(entry_id, ensemble_size, write_quorum)
    assert len(set(indexes)) == write_quorum
    assert set(indexes) <= set(range(ensemble_size))
    assert write_set(entry_id + ensemble_size, ensemble_size, write_quorum) == indexes


@given(quorums(), st.data())
def test_coverage_means_no_ack_quorum_hides_among_the_unknown(sizes: tuple[int, int, int], data: st.DataObject) -> None:
    ensemble_size, write_quorum, ack_quorum = sizes
    coverage = Coverage(*sizes)
    known = data.draw(st.sets(st.integers(0, ensemble_size - 1)))
    for index in data.draw(st.permutations(range(ensemble_size))):
        coverage.record(index, known=index in known)
        coverage.validate()
    unknown = set(range(ensemble_size)) - known
    hidden = any(
        set(quorum) <= unknown
        for entry_id in range(ensemble_size)
        for quorum in combinations(write_set(entry_id, ensemble_size, write_quorum), ack_quorum)
    )
    assert coverage.covered is not hidden


@given(quorums(), st.data())
def test_a_confirmed_entry_is_never_voted_absent(sizes: tuple[int, int, int], data: st.DataObject) -> None:
    """At least Qa bookies hold it; those that do may fail but cannot say no."""
    _, write_quorum, ack_quorum = sizes
    holders = data.draw(st.sets(st.integers(0, write_quorum - 1), min_size=ack_quorum))
    vote = EntryVote(write_quorum, ack_quorum)
    for index in data.draw(st.permutations(range(write_quorum))):
        answers = ["present", "unknown"] if index in holders else ["absent", "unknown"]
        verdict = getattr(vote, data.draw(st.sampled_from(answers)))(index)
        vote.validate()
        assert verdict is not Verdict.ABSENT


@given(quorums(), st.data())
def test_a_vote_without_errors_always_decides(sizes: tuple[int, int, int], data: st.DataObject) -> None:
    _, write_quorum, ack_quorum = sizes
    vote = EntryVote(write_quorum, ack_quorum)
    for index in range(write_quorum):
        verdict = vote.present(index) if data.draw(st.booleans()) else vote.absent(index)
    assert verdict in (Verdict.PRESENT, Verdict.ABSENT)
