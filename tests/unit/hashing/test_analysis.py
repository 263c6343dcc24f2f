"""Analysis: the arithmetic of migration, the four virtues, the reference schemes, numbered keys."""

from __future__ import annotations

import numpy as np
import pytest

from magnetar.hashing.analysis.explain import explain
from magnetar.hashing.analysis.keys import key_chunks
from magnetar.hashing.analysis.metrics import balance, count_owners, spread_and_load
from magnetar.hashing.analysis.migration import exact_rate, expected_rate, measure
from magnetar.hashing.analysis.schemes import ALGORITHMS, build, jump_owners
from magnetar.hashing.errors import EmptyRingError, HashingError, InvalidWeightError

FOUR = dict.fromkeys("ABCD", 1)
FIVE = dict.fromkeys("ABCDE", 1)
TOTAL = 100_000


def test_numbered_keys_are_what_format_gives() -> None:
    for key_format in ("10.10.10.10_{}", "{}", "a{}z", "{{{}}}", "k{:05d}", "é{0}"):
        keys = [key for chunk in key_chunks(key_format, 1234, rows=100) for key in chunk]
        decoded = [key.decode() if isinstance(key, bytes) else key for key in keys]
        assert decoded == [key_format.format(number) for number in range(1234)]


@pytest.mark.parametrize("bad", ["x", "{}{}", "{a}", "{", "{1}"])
def test_key_formats_need_one_place(bad: str) -> None:
    with pytest.raises(HashingError, match="key format"):
        list(key_chunks(bad, 10))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_measured_rates_tend_to_the_exact_ones(algorithm: str) -> None:
    old = build(algorithm, FOUR)
    new = old.changed(FIVE)
    migration = measure(old, new, key_chunks("k{}", TOTAL), TOTAL)
    assert migration.total == TOTAL
    exact = exact_rate(old, new)
    expected = expected_rate(algorithm, FOUR, FIVE)
    assert expected == (0.8 if algorithm == "modulo" else 0.2)
    if exact is not None:
        assert migration.rate == pytest.approx(exact, abs=0.01)
    elif algorithm != "bounded":
        assert migration.rate == pytest.approx(expected, abs=0.01)
    assert sum(count for _, _, count in migration.moves()) == migration.moved
    assert list(migration.counts_before()) == list("ABCD")
    assert sum(migration.counts_after().values()) == TOTAL
    monotone = algorithm not in ("modulo", "sticky")
    assert (migration.needless == 0) == monotone


def test_growing_and_shrinking_again_leads_back() -> None:
    for algorithm in ALGORITHMS:
        old = build(algorithm, FOUR)
        back = old.changed(FIVE).changed(FOUR)
        # The vnodes that come back are dealt anew among equals; all others have to be where they were.
        if algorithm not in ("vnodes", "sticky"):
            assert measure(old, back, key_chunks("k{}", 10_000), 10_000).moved == 0


def test_expected_rates() -> None:
    assert expected_rate("ketama", dict.fromkeys("ABCDE", 1), dict.fromkeys("AB", 1)) == 0.6
    assert expected_rate("vnodes", {"A": 1, "B": 1}, {"A": 3, "B": 1}) == 0.25
    assert expected_rate("modulo", dict.fromkeys("AB", 1), dict.fromkeys("ABCD", 1)) == 0.5


def test_memberships_of_different_algorithms_do_not_compare() -> None:
    with pytest.raises(HashingError, match="one algorithm"):
        measure(build("jump", FOUR), build("modulo", FOUR), [], 1)


def test_balance_is_relative_to_weights() -> None:
    figures = balance({"A": 100, "B": 200}, {"A": 1, "B": 2})
    assert (figures.max_over_mean, figures.min_over_mean, figures.stddev) == (1, 1, 0)
    assert balance({"A": 100, "B": 200}).max_over_mean == pytest.approx(4 / 3)
    assert balance({"A": 0, "B": 400}).stddev == 1
    with pytest.raises(EmptyRingError):
        balance({})


def test_bounded_loads_are_bounded() -> None:
    scheme = build("bounded", dict.fromkeys("ABC", 1))
    crowded = ["same"] * 900 + [f"k{n}" for n in range(100)]
    counts = count_owners(scheme, [crowded[:500], crowded[500:]], len(crowded))
    assert sum(counts.values()) == 1000
    assert max(counts.values()) == 417


def test_spread_and_load_of_one_view_are_perfect_and_grow_with_views() -> None:
    keys = [f"k{n}" for n in range(20_000)]
    one = spread_and_load([build("rendezvous", FIVE)], keys)
    assert (one.max_spread, one.mean_spread) == (1, 1)
    assert one.max_load == pytest.approx(1, abs=0.05)
    views = [build("ketama", FIVE), build("ketama", FOUR), build("ketama", dict.fromkeys("ABCE", 1))]
    several = spread_and_load(views, keys)
    naive = spread_and_load([build("modulo", view.weights) for view in views], keys)
    assert 1 < several.mean_spread < naive.mean_spread
    assert several.max_spread <= 3
    assert several.max_load > one.max_load


def test_jump_owners_are_those_of_the_kept_library() -> None:
    jump = pytest.importorskip("jump", reason="jump-consistent-hash is not installed: pip install jump-consistent-hash")
    hashes = np.random.default_rng(7).integers(0, 1 << 64, 3000, np.uint64)
    for count in (1, 2, 5, 100, 1023):
        assert jump_owners(hashes, count).tolist() == [jump.hash(value, count) for value in hashes.tolist()]


def test_jump_has_the_papers_reference_values() -> None:
    # From the test suites of the ports of the paper's code: hash(key, buckets).
    known = {(1, 1): 0, (42, 57): 43, (0xDEAD10CC, 1): 0, (0xDEAD10CC, 666): 361, (256, 1024): 520}
    for (key, count), expected in known.items():
        assert jump_owners(np.array([key], np.uint64), count).tolist() == [expected]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_explanations_name_the_owner_and_the_heir(algorithm: str) -> None:
    scheme = build(algorithm, dict.fromkeys("ABC", 1))
    found = explain(scheme, "k1")
    rest = {member: 1.0 for member in "ABC" if member != found["owner"]}
    without = scheme.changed(rest)
    without.begin(1)
    assert found["successor"] == without.members[int(without.owners(without.hash(["k1"]))[0])]
    assert explain(build(algorithm, {"A": 1}), "k1")["successor"] is None


def test_schemes_refuse_bad_members() -> None:
    with pytest.raises(EmptyRingError):
        build("ketama", {})
    with pytest.raises(InvalidWeightError, match="knows no weights"):
        build("jump", {"A": 2})
    with pytest.raises(HashingError, match="unknown algorithm"):
        build("maglev", FOUR)
    with pytest.raises(HashingError, match="ketama or crc32"):
        explain(build("jump", FOUR), "k", 2)
