"""Replicated subscriptions of scalable topics: over modelled clusters with splits, merges and failovers no message is skipped."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.scalable import snapshots
from magnetar.broker.scalable.layout import HASH_MAX, LayoutError, SegmentLayout
from magnetar.broker.scalable.snapshots import (
    Position,
    SnapshotRounds,
    Vector,
    passed,
    projected,
    translated,
    vector_of,
)

SPREAD = 0x2493
"""Between the hashes of messages that follow each other."""


@dataclass
class Message:
    number: int
    hash: int
    origin: str


@dataclass
class Cluster:
    """A log for each segment; `marks`: the entries at its beginning that the subscription is done with; `sent`: entries read by the
    replicator to each other cluster."""

    name: str
    layout: SegmentLayout
    logs: dict[int, list[Message]] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    sent: dict[tuple[str, int], int] = field(default_factory=dict)
    snapshots: list[snapshots.Snapshot] = field(default_factory=list)

    def log(self, segment_id: int) -> list[Message]:
        return self.logs.setdefault(segment_id, [])

    def store(self, message: Message) -> None:
        self.log(self.layout.at(message.hash).id).append(message)

    def drained(self) -> set[int]:
        return {each.id for each in self.layout.sealed if self.marks.get(each.id, 0) >= len(self.log(each.id))}

    def ends(self) -> Vector:
        return vector_of(self.layout, {each.id: (0, len(self.log(each.id))) for each in self.layout.active})

    def acknowledged(self) -> dict[int, Position]:
        return {segment_id: (0, mark) for segment_id, mark in self.marks.items()}


class World:
    """`number`s drive it: each operation takes its choices from them, so that Hypothesis shrinks what it finds."""

    def __init__(self, count: int) -> None:
        self.clusters = [Cluster(f"c{number}", SegmentLayout.create(number % 3 + 1, 0)) for number in range(count)]
        self.named = {each.name: each for each in self.clusters}
        self.rounds: dict[str, tuple[SnapshotRounds, dict[str, Vector]]] = {}
        self.done: set[int] = set()
        self.written = 0
        self.copied = 0

    def run(self, operation: int, choice: int) -> None:
        operations: list[Callable[[Cluster, int], None]] = [
            self.produce,
            self.replicate,
            self.acknowledge,
            self.snapshot,
            self.tell,
            self.reshape,
            self.prune,
        ]
        cluster, rest = self.clusters[choice % len(self.clusters)], choice // len(self.clusters)
        operations[operation](cluster, rest)
        self.check()

    def produce(self, cluster: Cluster, choice: int) -> None:
        message = Message(self.written, (self.written + choice) * SPREAD & HASH_MAX, cluster.name)
        self.written += 1
        cluster.store(message)

    def replicate(self, cluster: Cluster, choice: int) -> None:
        """Children after parents: a segment is read once all of its ancestors are."""
        to = self.clusters[choice % len(self.clusters)]
        for segment_id in sorted(cluster.layout.segments):
            ancestors = cluster.layout.ancestors(segment_id)
            ready = all(cluster.sent.get((to.name, each), 0) >= len(cluster.log(each)) for each in ancestors)
            at = cluster.sent.get((to.name, segment_id), 0)
            if to is cluster or not ready or at >= len(cluster.log(segment_id)):
                continue
            steps = 1 + choice // len(self.clusters) % 4
            for message in cluster.log(segment_id)[at : at + steps]:
                if message.origin == cluster.name:
                    to.store(message)
            cluster.sent[to.name, segment_id] = min(at + steps, len(cluster.log(segment_id)))
            if choice % 2:
                return

    def acknowledge(self, cluster: Cluster, choice: int) -> None:
        """A queue: in any segment, also in a child before its parent is drained."""
        segments = sorted(cluster.layout.segments)
        segment_id = segments[choice % len(segments)]
        mark = cluster.marks.get(segment_id, 0)
        taken = cluster.log(segment_id)[mark : mark + 1 + choice // len(segments) % 5]
        self.done.update(message.number for message in taken)
        cluster.marks[segment_id] = mark + len(taken)

    def snapshot(self, cluster: Cluster, choice: int) -> None:
        """Ask one more cluster (requests arrive when they do), and let those answers arrive that are behind everything before them."""
        others = frozenset(set(self.named) - {cluster.name})
        rounds, asked = self.rounds.setdefault(cluster.name, (SnapshotRounds(others), {}))
        chosen = sorted(others)[choice % len(others)]
        asked.setdefault(chosen, self.named[chosen].ends())
        for name, vector in sorted(asked.items()):
            if self.arrived(self.named[name], cluster, vector):
                before = rounds.round
                rounds.answered(name, before, vector)
                if rounds.round != before:
                    asked.clear()
                    break
        if rounds.complete:
            cluster.snapshots = [*cluster.snapshots[-3:], rounds.taken(cluster.ends())]
            del self.rounds[cluster.name]

    def arrived(self, sender: Cluster, receiver: Cluster, vector: Vector) -> bool:
        for place in vector:
            known = sender.layout.ancestors(place.segment_id) if place.segment_id in sender.layout.segments else set()
            if any(sender.sent.get((receiver.name, each), 0) < len(sender.log(each)) for each in known):
                return False
            if sender.sent.get((receiver.name, place.segment_id), 0) < place.position[1]:
                return False
        return True

    def tell(self, cluster: Cluster, choice: int) -> None:
        """What the subscription has done here moves it in another cluster."""
        to = self.clusters[choice % len(self.clusters)]
        if to is cluster:
            return
        drained = cluster.drained()
        steps = [
            (each, passed(each.here, cluster.layout, cluster.acknowledged(), drained)) for each in cluster.snapshots
        ]
        for segment_id, position in projected(translated(steps, to.name), to.layout).items():
            before = to.marks.get(segment_id, 0)
            after = len(to.log(segment_id)) if position is None else position[1]
            to.marks[segment_id] = max(before, after)
            self.copied += max(0, after - before)

    def reshape(self, cluster: Cluster, choice: int) -> None:
        active = cluster.layout.active
        at = choice // 2 % len(active)
        try:
            if choice % 2 and len(active) < 6:
                cluster.layout = cluster.layout.split(active[at].id, 0)
            elif at + 1 < len(active):
                cluster.layout = cluster.layout.merge(active[at].id, active[at + 1].id, 0)
        except LayoutError:
            return

    def prune(self, cluster: Cluster, choice: int) -> None:
        """A sealed segment goes once it is drained and every replicator has read it."""
        for segment in cluster.layout.sealed:
            size = len(cluster.log(segment.id))
            sent = all(
                cluster.sent.get((each.name, segment.id), 0) >= size for each in self.clusters if each is not cluster
            )
            if segment.id in cluster.drained() and sent and not segment.parents:
                cluster.layout = cluster.layout.without([segment.id])
                return

    def check(self) -> None:
        for cluster in self.clusters:
            for segment_id, mark in cluster.marks.items():
                skipped = {message.number for message in cluster.log(segment_id)[:mark]} - self.done
                assert not skipped, f"{cluster.name} skips {skipped} in segment {segment_id}"


@given(
    count=st.integers(2, 6),
    steps=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 999)), min_size=1, max_size=150),
)
def test_nothing_that_was_not_acknowledged_somewhere_is_skipped(count: int, steps: list[tuple[int, int]]) -> None:
    world = World(count)
    for operation, choice in steps:
        world.run(operation, choice)


WEIGHTS = (8, 40, 12, 20, 10, 2, 1)
STEPS = 800
SEEDS = 60
FAILOVERS = 6


def played(seed: int) -> World:
    """800 weighted steps over 2 to 6 clusters; the subscription's consumers are in one of them at a time, and fail over six times."""
    rng = random.Random(seed)
    world = World(2 + seed % 5)
    count = len(world.clusters)
    for step, operation in enumerate(rng.choices(range(7), WEIGHTS, k=STEPS)):
        if step % (STEPS // FAILOVERS) == 0:
            home = rng.randrange(count)
        at_home = operation in (2, 3, 4)
        world.run(operation, rng.randrange(1000) * count + (home if at_home else rng.randrange(count)))
    return world


def test_random_failovers_skip_nothing_and_move_the_subscription() -> None:
    worlds = [played(seed) for seed in range(SEEDS)]
    assert sum(world.copied for world in worlds) > 100, "positions are really translated, so that the check can fail"
    assert any(len(cluster.layout.segments) > 3 for world in worlds for cluster in world.clusters)


def caught(seeds: int) -> bool:
    for seed in range(seeds):
        try:
            played(seed)
        except AssertionError:
            return True
    return False


def test_it_is_noticed_if_ancestors_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentLayout, "ancestors", lambda self, segment_id: frozenset())
    assert caught(SEEDS)


def test_it_is_noticed_if_one_round_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ROUNDS", 1)
    assert caught(SEEDS)


def test_it_is_noticed_if_the_hash_that_is_furthest_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "min", max, raising=False)
    assert caught(SEEDS)


def test_once_everything_is_acknowledged_the_other_cluster_has_nothing_left() -> None:
    """Layouts differ, and both change while the snapshot is taken."""
    world = World(2)
    here, there = world.clusters
    for number in range(40):
        world.produce(world.clusters[number % 2], number)
    here.layout = here.layout.split(0, 0)
    there.layout = there.layout.merge(0, 1, 0)
    for number in range(20):
        world.produce(world.clusters[number % 2], number)
    while any(
        each.sent.get((to.name, segment), 0) < len(each.log(segment))
        for each, to in ((here, there), (there, here))
        for segment in each.layout.segments
    ):
        world.replicate(here, 1)
        world.replicate(there, 0)
    while not here.snapshots:
        world.snapshot(here, 0)
    for segment_id in here.layout.segments:
        while here.marks.get(segment_id, 0) < len(here.log(segment_id)):
            world.acknowledge(here, sorted(here.layout.segments).index(segment_id))
    world.tell(here, 1)
    world.check()
    assert {segment: there.marks.get(segment, 0) for segment in there.layout.segments} == {
        segment: len(there.log(segment)) for segment in there.layout.segments
    }
