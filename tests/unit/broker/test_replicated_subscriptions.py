"""The cores of replicated subscriptions, one rule at a time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.replication.replicated_subscription import (
    CreateSubscription,
    MoveCursor,
    ReplicatedSubscription,
    SnapshotCache,
    decide,
)
from magnetar.broker.replication.snapshot_builder import (
    Aborted,
    RegionExcluded,
    RegionIncluded,
    SnapshotBuilder,
    answer,
)
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import MessageId, Snapshot, SnapshotRequest, SnapshotResponse, SubscriptionUpdate

TIMEOUT_MS = 30_000


def response(cluster: str, entry_id: int, snapshot_id: str = "id") -> SnapshotResponse:
    return SnapshotResponse(snapshot_id, cluster, (9, entry_id))


def snapshot(entry_id: int) -> Snapshot:
    return Snapshot(f"id-{entry_id}", (1, entry_id), {"b": (2, entry_id)})


# ---- The builder


def test_two_clusters_need_one_round() -> None:
    builder = SnapshotBuilder("a", ["a", "b"], TIMEOUT_MS)
    assert builder.tick(0, 1, "id") == [SnapshotRequest("id", "a")]
    assert builder.response_received(response("b", 5), (1, 7)) == [Snapshot("id", (1, 7), {"b": (9, 5)})]
    builder.validate()
    builder.snapshot_stored("id")
    assert builder.completed_id == "id"


def test_more_take_the_ids_of_the_first_round_and_the_place_of_the_last_answer() -> None:
    builder = SnapshotBuilder("a", ["b", "c"], TIMEOUT_MS)
    builder.tick(0, 1, "id")
    assert builder.response_received(response("c", 5), (1, 1)) == []
    assert builder.response_received(response("c", 6), (1, 2)) == []
    assert builder.response_received(response("b", 7), (1, 3)) == [SnapshotRequest("id/2", "a")]
    assert builder.waits_for == ("b", "c")
    assert builder.response_received(response("c", 6), (1, 4)) == []
    assert builder.response_received(response("b", 8, "id/2"), (1, 5)) == []
    assert builder.waits_for == ("c",)
    builder.validate()
    done = builder.response_received(response("c", 8, "id/2"), (1, 6))
    assert done == [Snapshot("id", (1, 6), {"b": (9, 7), "c": (9, 5)})]
    assert builder.response_received(response("c", 9, "id/2"), (1, 7)) == []
    builder.validate()


def test_one_at_a_time_and_an_end_to_waiting() -> None:
    builder = SnapshotBuilder("a", ["b", "c"], TIMEOUT_MS)
    builder.tick(0, 1, "one")
    builder.response_received(response("b", 1, "one"), (1, 1))
    assert builder.tick(TIMEOUT_MS - 1, 2, "two") == []
    assert builder.tick(TIMEOUT_MS, 2, "two") == [
        Aborted("one", "it took too long", ("c",)),
        SnapshotRequest("two", "a"),
    ]
    assert builder.response_received(response("c", 1, "one"), (1, 2)) == []
    assert builder.pending_id == "two"


def test_nothing_published_no_snapshot() -> None:
    builder = SnapshotBuilder("a", ["b"], TIMEOUT_MS)
    builder.tick(0, 3, "one")
    builder.response_received(response("b", 1, "one"), (1, 1))
    builder.snapshot_stored("one")
    assert builder.tick(1000, 3, "two") == []
    assert builder.tick(1000, 3, "two", forced=True) == [SnapshotRequest("two", "a")]
    builder.response_received(response("b", 1, "two"), (1, 1))
    assert builder.store_failed("two") == [Aborted("two", "its marker could not be stored", ())]
    assert builder.tick(2000, 4, "three") == [SnapshotRequest("three", "a")]
    assert builder.store_failed("two") == []


def test_what_came_during_a_snapshot_is_left_to_the_next() -> None:
    builder = SnapshotBuilder("a", ["b"], TIMEOUT_MS)
    builder.tick(0, 3, "one")
    builder.response_received(response("b", 1, "one"), (1, 1))
    builder.tick(500, 4, "none")
    builder.snapshot_stored("one")
    assert builder.tick(1000, 4, "two") == [SnapshotRequest("two", "a")]


def test_no_remote_cluster_no_snapshot() -> None:
    assert SnapshotBuilder("a", ["a"], TIMEOUT_MS).tick(0, 1, "id") == []


def test_a_cluster_that_is_away_stops_the_snapshots() -> None:
    builder = SnapshotBuilder("a", ["b", "c"], TIMEOUT_MS)
    builder.disconnected("b", 0)
    assert builder.tick(10**12, 1, "id", forced=True) == []
    assert builder.waits_for == ("b",)
    assert builder.connected("b") == []
    assert builder.tick(10**12, 1, "id") == [SnapshotRequest("id", "a")]


def test_partial_snapshots_begin_with_an_event_and_end_with_one() -> None:
    builder = SnapshotBuilder("a", ["b", "c"], TIMEOUT_MS, partial_after_ms=3_600_000)
    builder.disconnected("b", 1000)
    assert builder.tick(3_600_999, 1, "id") == []
    assert builder.tick(3_601_000, 1, "id") == [RegionExcluded("b", 3_600_000), SnapshotRequest("id", "a")]
    assert builder.excluded == ("b",)
    assert builder.response_received(response("c", 5), (1, 7)) == [Snapshot("id", (1, 7), {"c": (9, 5)})]
    builder.validate()
    assert builder.connected("b") == [RegionIncluded("b"), Aborted("id", "b is back", ())]
    assert builder.tick(3_602_000, 1, "next") == [SnapshotRequest("next", "a")]
    assert builder.waits_for == ("b", "c")


def test_an_operator_excludes_what_is_away_only() -> None:
    builder = SnapshotBuilder("a", ["b", "c"], TIMEOUT_MS)
    assert builder.exclude("b", 5) == []
    builder.tick(5, 1, "id")
    builder.disconnected("b", 10)
    assert builder.exclude("b", 30) == [RegionExcluded("b", 20), Aborted("id", "b is left out from now on", ("b", "c"))]
    assert builder.exclude("b", 40) == []
    builder.validate()


def test_other_clusters_another_snapshot() -> None:
    builder = SnapshotBuilder("a", ["b"], TIMEOUT_MS)
    builder.tick(0, 1, "id")
    assert builder.remotes_changed(["a", "b"]) == []
    assert builder.remotes_changed(["b", "c"]) == [Aborted("id", "the topic's clusters have changed", ("b",))]
    assert builder.tick(1, 1, "next") == [SnapshotRequest("next", "a")]
    builder.validate()


def test_nobody_answers_himself() -> None:
    assert answer(SnapshotRequest("id", "a"), "a", (1, 2)) is None
    assert answer(SnapshotRequest("id", "a"), "b", (1, 2)) == SnapshotResponse("id", "b", (1, 2))


# ---- The cache


def test_the_newest_at_or_before_the_mark_delete_position() -> None:
    cache = SnapshotCache(10)
    for entry_id in (5, 10, 15):
        cache.add(snapshot(entry_id))
    assert cache.at_or_before((1, 4)) is None
    assert cache.at_or_before((1, 10)) == snapshot(10)
    assert cache.at_or_before((1, 14)) == snapshot(10)
    assert cache.at_or_before((2, -1)) == snapshot(15)
    cache.forget((1, 12))
    assert (cache.oldest, len(cache)) == (snapshot(15), 1)


def test_a_cache_without_a_middle_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        SnapshotCache(2)


@given(st.integers(3, 12), st.integers(0, 400))
def test_a_full_cache_covers_all_that_the_consumer_lags_behind(snapshots_max: int, count: int) -> None:
    """However far it lags: the first snapshot stays, the newest too, and no gap exceeds twice the even share."""
    cache = SnapshotCache(snapshots_max)
    for entry_id in range(count):
        cache.add(snapshot(entry_id))
        cache.validate()
    kept = [entry_id for entry_id in range(count) if cache.at_or_before((1, entry_id)) == snapshot(entry_id)]
    assert len(kept) == min(count, snapshots_max)
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
    share = 2 * count / (snapshots_max - 1)
    assert all(after - before <= max(1, share) for before, after in pairwise(kept))


def test_a_consumer_far_behind_still_tells_others() -> None:
    """Pulsar #24300: 1,000 messages are read ahead, with a snapshot after each; acknowledgements come one at a time."""
    subscription = ReplicatedSubscription("s", 10)
    for entry_id in range(1000):
        assert subscription.snapshot_read(snapshot(entry_id)) is None
    updates = [subscription.mark_deleted((1, entry_id)) for entry_id in range(1000)]
    told = [entry_id for entry_id, update in enumerate(updates) if update is not None]
    assert len(told) == 10
    assert max(after - before for before, after in pairwise(told)) <= 250


# ---- The subscription


def test_a_snapshot_that_is_passed_is_told_once() -> None:
    subscription = ReplicatedSubscription("s", 10)
    subscription.snapshot_read(snapshot(5))
    subscription.snapshot_read(snapshot(9))
    assert subscription.mark_deleted((1, 4)) is None
    assert subscription.mark_deleted((1, 7)) == SubscriptionUpdate("s", {"b": (2, 5)})
    assert subscription.mark_deleted((1, 8)) is None
    assert subscription.next_snapshot == snapshot(9)
    assert subscription.mark_deleted((1, 20)) == SubscriptionUpdate("s", {"b": (2, 9)})
    assert subscription.snapshot_read(snapshot(9)) is None
    assert subscription.snapshot_read(snapshot(15)) == SubscriptionUpdate("s", {"b": (2, 15)})
    subscription.validate()


def test_what_another_cluster_told_is_not_told_again() -> None:
    subscription = ReplicatedSubscription("s", 10)
    for entry_id in (5, 9, 12):
        subscription.snapshot_read(snapshot(entry_id))
    subscription.moved_by_update((1, 10))
    assert subscription.told == (1, 9)
    assert subscription.mark_deleted((1, 11)) is None
    assert subscription.mark_deleted((1, 12)) == SubscriptionUpdate("s", {"b": (2, 12)})


def test_a_seek_back_tells_nothing_until_it_is_made_up() -> None:
    subscription = ReplicatedSubscription("s", 10)
    subscription.snapshot_read(snapshot(5))
    subscription.snapshot_read(snapshot(9))
    subscription.mark_deleted((1, 6))
    subscription.reset((1, 1))
    assert subscription.snapshot_read(snapshot(5)) is None
    assert subscription.mark_deleted((1, 6)) is None
    assert subscription.snapshot_read(snapshot(9)) is None
    assert subscription.mark_deleted((1, 9)) == SubscriptionUpdate("s", {"b": (2, 9)})


@pytest.mark.parametrize(
    ("mark_delete", "decision"),
    [
        (None, CreateSubscription("s", Position(2, 5))),
        ((2, 4), MoveCursor("s", Position(2, 5))),
        ((1, 99), MoveCursor("s", Position(2, 5))),
        ((2, 5), None),
        ((3, -1), None),
    ],
)
def test_an_update_moves_on_or_creates(mark_delete: MessageId | None, decision: object) -> None:
    update = SubscriptionUpdate("s", {"b": (2, 5), "c": (7, 7)})
    assert decide(update, "b", mark_delete) == decision
    assert decide(update, "a", mark_delete) is None
