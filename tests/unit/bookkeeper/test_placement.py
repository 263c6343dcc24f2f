"""Where ledgers are put: racks, regions, quarantine, free space, and what holds for every policy."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.placement import (
    DEFAULT_RACK,
    Candidate,
    PlacementPolicy,
    RackAwarePlacement,
    RegionAwarePlacement,
    region_of,
)
from magnetar.bookkeeper.client.quarantine import Quarantine, QuarantineConfig
from magnetar.bookkeeper.client.racks import RackFollower
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.bookkeeper.quorum import write_sets
from magnetar.bookkeeper.rack_mapping import set_rack
from magnetar.metadata import paths
from magnetar.metadata.memory import MemoryMetadataStore
from tests.unit.bookkeeper.bookie_helpers import eventually
from tests.unit.bookkeeper.fake_bookies import Cluster, FakeBookie
from tests.unit.bookkeeper.ledger_helpers import append_all

POLICIES = [PlacementPolicy(), RackAwarePlacement(2), RackAwarePlacement(3), RegionAwarePlacement(2)]


def bookies(*racks: str) -> list[Candidate]:
    return [Candidate(f"b{number}", rack) for number, rack in enumerate(racks)]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    racks = st.sampled_from(["/a", "/b", "/c", "/r1/a", "/r1/b", "/r2/a", DEFAULT_RACK])
    return [Candidate(f"b{number}", draw(racks), draw(st.booleans())) for number in range(draw(st.integers(0, 8)))]


@settings(max_examples=200, deadline=None)
@given(candidates(), st.sampled_from(POLICIES), st.integers(1, 6), st.data())
def test_every_policy_answers_distinct_bookies_or_none_at_all(
    pool: list[Candidate], policy: PlacementPolicy, size: int, data: st.DataObject
) -> None:
    write_quorum = data.draw(st.integers(1, size))
    names = {candidate.bookie_id for candidate in pool}
    locations = {candidate.bookie_id: candidate.location for candidate in pool}
    if len(pool) < size:
        with pytest.raises(NotEnoughBookiesError):
            policy.ensemble(size, write_quorum, pool)
        return
    ensemble = policy.ensemble(size, write_quorum, pool)
    assert len(set(ensemble)) == size
    assert set(ensemble) <= names
    well = [candidate for candidate in pool if not candidate.quarantined]
    if len(well) >= size:
        assert set(ensemble) <= {candidate.bookie_id for candidate in well}
    index = data.draw(st.integers(0, size - 1))
    avoided = frozenset(data.draw(st.sets(st.sampled_from(sorted(names)))))
    new = policy.replacement(
        ensemble, index, write_quorum, pool, locations, excluded=frozenset(ensemble), avoided=avoided
    )
    left = names - set(ensemble)
    assert (new in left) if left else new is None
    if new is not None:
        liked = {candidate.bookie_id for candidate in well} & left - avoided
        assert new in liked or not liked


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([(3, 2), (3, 3), (4, 2), (5, 3), (6, 3)]), st.integers(2, 3))
def test_with_as_many_bookies_in_each_of_enough_racks_every_write_set_spans_them(
    rng: random.Random, sizes: tuple[int, int], racks_min: int
) -> None:
    size, write_quorum = sizes
    pool = bookies(*(rack for rack in ("/a", "/b", "/c", "/d", "/e", "/f") for _ in range(3)))
    rng.shuffle(pool)
    locations = {candidate.bookie_id: candidate.location for candidate in pool}
    policy = RackAwarePlacement(racks_min, enforced=True)
    ensemble = list(policy.ensemble(size, write_quorum, pool))
    for indexes in write_sets(size, write_quorum):
        assert len({locations[ensemble[index]] for index in indexes}) >= min(racks_min, write_quorum)
    for index in range(size):
        new = policy.replacement(tuple(ensemble), index, write_quorum, pool, locations, excluded=frozenset(ensemble))
        assert new is not None
        ensemble[index] = new
        assert policy.adheres([locations[member] for member in ensemble], write_quorum)


def test_racks_are_a_wish_unless_enforced() -> None:
    pool = bookies("/a", "/a", "/a", "/a")
    assert len(RackAwarePlacement(2).ensemble(3, 2, pool)) == 3
    with pytest.raises(NotEnoughBookiesError, match="2 racks"):
        RackAwarePlacement(2, enforced=True).ensemble(3, 2, pool)
    assert RackAwarePlacement(2, enforced=True).ensemble(3, 1, pool), "one copy needs one rack"
    locations = {candidate.bookie_id: candidate.location for candidate in pool}
    for enforced in (False, True):
        policy = RackAwarePlacement(2, enforced=enforced)
        new = policy.replacement(("b0", "b1"), 0, 2, pool, locations, excluded=frozenset({"b0", "b1"}))
        assert (new is None) == enforced


def test_a_quarantined_bookie_is_taken_for_want_of_others_before_a_rule_is_broken() -> None:
    pool = [Candidate("b0", "/a"), Candidate("b1", "/a"), Candidate("b2", "/b", quarantined=True)]
    assert set(RackAwarePlacement(2).ensemble(2, 2, pool)) == {"b0", "b1"}, "a wish does not bring it back"
    assert "b2" in RackAwarePlacement(2, enforced=True).ensemble(2, 2, pool)
    assert set(PlacementPolicy().ensemble(3, 2, pool)) == {"b0", "b1", "b2"}


def test_regions_come_before_racks_and_are_used_evenly() -> None:
    pool = bookies(*[f"/east/{rack}" for rack in "abcdef"], "/west/a", "/west/b", "/north/a")
    where = {candidate.bookie_id: candidate.region for candidate in pool}
    rng = random.Random(1)
    for _ in range(20):
        rng.shuffle(pool)
        ensemble = RegionAwarePlacement(2).ensemble(3, 3, pool)
        assert {where[name] for name in ensemble} == {"east", "west", "north"}
        five = Counter(where[name] for name in RegionAwarePlacement(2).ensemble(5, 2, pool))
        assert five == {"east": 2, "west": 2, "north": 1}
    assert (region_of("/r/a"), region_of("/a"), region_of(DEFAULT_RACK)) == ("r", "UnknownRegion", "UnknownRegion")


def test_room_decides_how_often_a_bookie_is_chosen() -> None:
    directory = BookieDirectory(by_free_space=True)
    for number, free in enumerate((1, 1, 8)):
        directory.register(f"b{number}", FakeBookie())
        directory.set_free_bytes(f"b{number}", free << 30)
    rng = random.Random(3)
    chosen = Counter(directory.choose_ensemble(1, 1, rng)[0] for _ in range(2000))
    assert 0.75 < chosen["b2"] / 2000 < 0.85


def test_quarantine_by_failures_in_an_interval() -> None:
    quarantine = Quarantine(QuarantineConfig(errors=3, interval_s=10, quarantine_s=100))
    assert [quarantine.failed("b", now_s) for now_s in (0, 4, 9)] == [False] * 3
    assert [quarantine.failed("b", now_s) for now_s in (10, 11, 12)] == [False] * 3, "another interval"
    assert quarantine.failed("b", 13)
    assert not quarantine.failed("b", 14), "it is in already"
    assert quarantine.holds("b", 112.9)
    assert not quarantine.holds("a", 50)
    assert not quarantine.holds("b", 113)
    assert quarantine.count == 1
    off = Quarantine(QuarantineConfig(enabled=False, errors=0))
    assert not off.failed("b", 0)


async def test_a_writer_puts_a_failing_bookie_into_quarantine_until_it_registers_anew() -> None:
    cluster = Cluster(4)
    cluster.directory.quarantine = Quarantine(QuarantineConfig(errors=5))
    writer = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    bad = writer.metadata.last_segment.ensemble[0]
    cluster.bookie(bad).add_code = -8
    await append_all(writer, [b"%d" % n for n in range(20)])
    assert cluster.directory.quarantined() == [bad]
    cluster.bookie(bad).add_code = None
    for _ in range(10):
        other = await cluster.client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        assert bad not in other.metadata.last_segment.ensemble
    whole = await cluster.client.create_ledger(ensemble_size=4, write_quorum=2, ack_quorum=2)
    assert bad in whole.metadata.last_segment.ensemble, "rather it than none"
    cluster.directory.register(bad, cluster.bookie(bad), writable=False)
    cluster.directory.register(bad, cluster.bookie(bad))
    assert cluster.directory.quarantined() == []


async def test_racks_are_followed_in_the_metadata() -> None:
    store, directory = MemoryMetadataStore(), BookieDirectory(RackAwarePlacement(2, enforced=True))
    for name in ("b0:3181", "b1:3181", "b2:3181"):
        directory.register(name, FakeBookie())
    await set_rack(store, "b0:3181", "/left")
    async with RackFollower(store, directory):
        assert directory.location("b0:3181") == "/left"
        assert directory.location("b1:3181") == DEFAULT_RACK
        await set_rack(store, "b1:3181", "/east/right")
        await eventually(lambda: directory.location("b1:3181") == "/east/right", "the change is seen")
        await set_rack(store, "b2:3181", "/left")
        await eventually(lambda: directory.location("b2:3181") == "/left", "the change is seen")
        for seed in range(10):
            assert "b1:3181" in directory.choose_ensemble(2, 2, random.Random(seed))
        await store.put(paths.BOOKIE_RACKS_PATH, b"no JSON")
        await set_rack_again(store)
        await eventually(lambda: directory.location("b0:3181") == "/right", "a damaged node does not end it")


async def set_rack_again(store: MemoryMetadataStore) -> None:
    await store.put(paths.BOOKIE_RACKS_PATH, b'{"default": {"b0:3181": {"rack": "/right", "hostname": "b0"}}}')
