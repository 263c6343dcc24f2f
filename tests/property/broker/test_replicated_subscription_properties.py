"""Replicated subscriptions among two to six clusters: nothing is skipped, whatever happens in whatever order; and who would notice."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.replication.replicated_subscription import (
    CreateSubscription,
    CursorDecision,
    MoveCursor,
    SnapshotCache,
)
from magnetar.broker.replication.snapshot_builder import SnapshotBuilder
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import MessageId, Snapshot, SubscriptionUpdate
from tests.property.broker.geo_model import OPS, Model, Region, Violation, play

SMALL = st.integers(0, 7)
STEPS = st.lists(st.tuples(st.sampled_from(OPS), SMALL, SMALL, SMALL), max_size=150)


class OneRound(SnapshotBuilder):
    """A mutation: what the remote clusters exchanged among themselves is not waited for."""

    def _rounds(self, asked: frozenset[str]) -> int:
        return 1


class OneId(SnapshotBuilder):
    """A mutation: both rounds go under one id, so that an answer that comes again counts for the second."""

    def _round_id(self, snapshot_id: str, number: int) -> str:
        return snapshot_id


def forwards_or_backwards(update: SubscriptionUpdate, cluster: str, mark_delete: MessageId | None) -> CursorDecision:
    """A mutation: every update is applied."""
    told = update.clusters.get(cluster)
    if told is None:
        return None
    decision = CreateSubscription if mark_delete is None else MoveCursor
    return decision(update.subscription, Position(*told))


def newest(cache: SnapshotCache, mark_delete: MessageId) -> Snapshot | None:
    """A mutation: the newest snapshot, consumed or not."""
    return cache.newest


def consume(model: Model, region: Region) -> None:
    model.read(region, 1000)
    model.ack(region, 1000)


def take_snapshot(model: Model, region: Region) -> None:
    model.tick(region, 7)
    model.settle()
    consume(model, region)
    model.settle()


# ---- Nothing is skipped


@given(st.integers(2, 6), STEPS)
@settings(max_examples=200, deadline=None)
def test_a_cursor_moves_over_what_was_consumed_only(count: int, steps: list[tuple[str, int, int, int]]) -> None:
    model = Model(count)
    for op, i, j, k in steps:
        model.step(op, i, j, k)


@given(st.integers(2, 6), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_nor_does_it_in_the_long_run(count: int, seed: int) -> None:
    play(Model(count), seed, 600)


def test_the_schedules_reach_what_they_are_about() -> None:
    """Snapshots complete and cursors move in them; otherwise the properties above would hold of nothing."""
    for count in range(2, 7):
        played = [play(Model(count), seed, 600) for seed in range(6)]
        assert sum(model.moves for model in played) >= 3, count
        assert sum(model.snapshots for model in played) >= 15, count


@given(st.integers(2, 5), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_a_failover_repeats_what_came_after_the_last_snapshot(count: int, seed: int) -> None:
    """After all is delivered every other region stands at or behind its id in the last snapshot that the consumer has passed."""
    model = Model(count, snapshots_max=1000)
    home = model.regions[0]
    ops = [op for op in OPS if op not in ("cut", "flip", "restart", "subscribe", "read", "ack")]
    rng = Random(seed)
    for _ in range(250):
        model.step(rng.choice(ops), rng.randrange(8), rng.randrange(8), rng.randrange(7))  # 7: a write would fail
        if rng.random() < 0.3:
            model.read(home, rng.randrange(8))
            model.ack(home, rng.randrange(8))
    model.settle()
    model.read(home, 10_000)
    model.settle()
    assert home.subscription is not None
    here = home.position(home.subscription.mark_delete)
    passed = [entry.body for entry in home.log if isinstance(entry.body, Snapshot)]
    passed = [snapshot for snapshot in passed if snapshot.local_message_id <= here]
    for region in model.regions[1:] if passed else ():
        assert region.subscription is not None
        assert region.position(region.subscription.mark_delete) >= passed[-1].clusters[region.name]


def test_two_failovers_repeat_what_was_published_since_the_last_snapshot_each() -> None:
    model = Model(3)
    home, second, third = model.regions
    for here, following in ((home, second), (second, third)):
        for region in model.regions:
            model.publish(region)
        model.settle()
        consume(model, here)
        take_snapshot(model, here)
        since = {model.publish(region) for region in model.regions}
        model.settle()
        consume(model, here)
        assert since <= model.acknowledged
        assert following.subscription is not None
        left = following.log[following.subscription.mark_delete + 1 :]
        assert {entry.body for entry in left if isinstance(entry.body, int)} == since


# ---- The PIP's own example: a message of b, seen by c and not by a


@pytest.mark.parametrize("a_knows", [True, False], ids=["b is disconnected", "b's answers do not come"])
def test_without_b_no_snapshot_is_taken(a_knows: bool) -> None:
    model = Model(3)
    missing = message_of_b(model, a_knows)
    a, b, c = model.regions
    for _ in range(5):
        take_snapshot(model, a)
    assert model.snapshots == 0
    assert a.builder.waits_for == ("b",)
    assert c.subscription is None
    model.start_link(b, a)
    model.start_link(a, b)
    model.settle()
    consume(model, a)
    for _ in range(60):  # beyond the time-out of the snapshot that b did not answer
        take_snapshot(model, a)
    assert missing in model.acknowledged
    assert c.subscription is not None
    assert missing in c.messages(c.subscription.mark_delete)


def test_a_partial_snapshot_would_skip_it() -> None:
    model = Model(3, partial_after_ms=0)
    message_of_b(model, a_knows=True)
    with pytest.raises(Violation, match="a lets c skip"):
        take_snapshot(model, model.regions[0])


def message_of_b(model: Model, a_knows: bool) -> int:
    a, b, c = model.regions
    model.publish(a)
    model.settle()
    consume(model, a)
    model.stop_link(b, a)
    if a_knows:
        model.stop_link(a, b)
    missing = model.publish(b)
    model.settle()
    assert missing in c.messages(len(c.log))
    assert missing not in a.messages(len(a.log))
    return missing


# ---- Deliberate mistakes are caught


def c_answers_before_it_publishes(model: Model, answers: int) -> int:
    """b's answer counts a message of c that a has not got, in spite of c's `answers`."""
    a, b, c = model.regions
    model.tick(a, 1)
    model.write(a, 0)
    for _ in range(answers):
        model.link(a, c, 9)
        model.write(c, 0)
        model.cut(a, c, 9)
    message = model.publish(c)
    model.link(c, b, 9)
    for _ in range(2):
        model.link(a, b, 9)
        model.write(b, 0)
        model.link(b, a, 9)
        if answers:
            model.link(c, a, 1)
            answers -= 1
        model.write(a, 0)
    consume(model, a)
    return message


@pytest.mark.parametrize(
    ("builder", "answers"), [(OneRound, 1), (OneId, 2)], ids=["one round", "an answer that counts for both rounds"]
)
def test_the_second_round_needs_an_answer_of_its_own(builder: type[SnapshotBuilder], answers: int) -> None:
    model = Model(3)
    message = c_answers_before_it_publishes(model, answers)
    assert model.snapshots == 0
    model.settle()
    consume(model, model.regions[0])
    model.settle()
    assert model.snapshots == 1
    assert message in model.acknowledged
    with pytest.raises(Violation, match="a lets b skip"):
        c_answers_before_it_publishes(Model(3, builder), answers)


def search(make: Callable[[], Model], seeds: int, steps: int) -> None:
    for seed in range(seeds):
        play(make(), seed, steps)


def test_random_schedules_find_a_missing_round() -> None:
    with pytest.raises(Violation, match="skip"):
        search(lambda: Model(3, OneRound), seeds=60, steps=800)


def test_random_schedules_find_a_snapshot_that_is_not_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SnapshotCache, "at_or_before", newest)
    with pytest.raises(Violation, match="skip"):
        search(lambda: Model(2), seeds=20, steps=400)


def test_random_schedules_find_an_update_that_goes_back() -> None:
    with pytest.raises(Violation, match="goes back"):
        search(lambda: Model(3, decide_update=forwards_or_backwards), seeds=20, steps=800)


def test_random_schedules_find_partial_snapshots() -> None:
    with pytest.raises(Violation, match="skip"):
        search(lambda: Model(3, partial_after_ms=0), seeds=60, steps=800)
