"""The replicated subscriptions of one scalable topic, at its controller: takes snapshots across clusters, and tells the others how far
they may follow.

Nothing of it is stored: a controller that takes over begins with the next snapshot, and what the one before it has not told is consumed
again after a failover. docs/explanation/scalable-geo-replication.md has the argument why nothing is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.base.clock import Clock
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.errors import ServiceNotReadyError, TopicNotFoundError
from magnetar.broker.naming import TopicName
from magnetar.broker.replication.ports import SnapshotCounters
from magnetar.broker.replication.status import ClusterStatus
from magnetar.broker.scalable.layout import SegmentLayout
from magnetar.broker.scalable.other_clusters import OtherClusters, ReplicationRules
from magnetar.broker.scalable.segments import SegmentPlaces, Segments, segment_name
from magnetar.broker.scalable.snapshots import (
    PLACES_MAX,
    ROUNDS,
    Snapshot,
    SnapshotRounds,
    SnapshotsTaken,
    Vector,
    passed,
    projected,
    translated,
    vector_of,
)
from magnetar.managed_ledger.position import Position

logger = logging.getLogger(__name__)

ASK_FIRST_S: Final = 0.02
ASK_LONGEST_S: Final = 0.5
"""Pauses between questions whether what another cluster had written has arrived here."""


class SubscriptionStatus(NamedTuple):
    """`told`: what other clusters follow to. `would_repeat`: entries that were acknowledged here and would be given again elsewhere, None
    where that is not known. `reason`: why the others lag behind; empty when they do not. `elsewhere`: the places that other clusters
    were told, in segments of their own."""

    name: str
    acknowledged: str
    told: str | None
    would_repeat: int | None
    reason: str
    elsewhere: Mapping[str, str]


class TopicStatus(NamedTuple):
    """Times in ms since 1970."""

    cluster: str
    enabled: bool
    interval_ms: int
    clusters: list[ClusterStatus]
    pending: str | None
    snapshot_at: str | None
    snapshot_ms: int
    age_ms: int | None
    subscriptions: list[SubscriptionStatus]


class Progress(NamedTuple):
    """How far the subscriptions are in each segment of a layout; one that is not in `segments` counts as not acknowledged."""

    layout: SegmentLayout
    segments: Mapping[int, SegmentPlaces]

    def ends(self) -> dict[int, Position] | None:
        """Where the active segments end; None unless all of them are known."""
        known = {each.id: self.segments[each.id].end for each in self.layout.active if each.id in self.segments}
        return known if len(known) == len(self.layout.active) else None

    def acknowledged(self, subscription: str) -> dict[int, Position]:
        """Everything before these places."""
        of = {segment_id: each.subscriptions.get(subscription) for segment_id, each in self.segments.items()}
        return {segment_id: place for segment_id, place in of.items() if place is not None}

    def drained(self, subscription: str) -> set[int]:
        """The sealed segments in which it has acknowledged everything."""
        places = self.acknowledged(subscription)
        return {
            segment_id
            for segment_id, place in places.items()
            if not self.layout.segments[segment_id].active and place >= self.segments[segment_id].end
        }

    def passed(self, snapshot: Snapshot, subscription: str) -> Vector:
        return passed(snapshot.here, self.layout, self.acknowledged(subscription), self.drained(subscription))


class ReplicatedSubscriptions:
    """`names()`: types of the replicated subscriptions by name, as they are stored; call `changed` when they may be others. `layout()`:
    as it is stored at this moment, and only while this broker controls the topic. Runs until `close`."""

    def __init__(
        self,
        topic: TopicName,
        *,
        clusters: OtherClusters,
        segments: Segments,
        names: Callable[[], Awaitable[Mapping[str, str]]],
        layout: Callable[[], Awaitable[SegmentLayout]],
        clock: Clock,
        scope: TaskScope,
        counters: SnapshotCounters,
    ) -> None:
        self._topic = topic
        self._clusters = clusters
        self._segments = segments
        self._read_names = names
        self._layout = layout
        self._clock = clock
        self._scope = scope
        self._counters = counters
        self._names: Mapping[str, str] = {}
        self._stale = True
        self._news = asyncio.Event()
        self._closed = False
        self._taken = SnapshotsTaken()
        self._of_clusters: frozenset[str] = frozenset()
        self._taking: asyncio.Task[None] | None = None
        self._newest_is_whole = False
        """Whether the others had everything when the newest snapshot was begun; else another one follows, though nothing new comes."""
        self._told: dict[tuple[str, str], Vector] = {}
        """By subscription and cluster."""
        self.problems: dict[str, str] = {}
        """Why a cluster does not take part, for people."""
        self.unknown: dict[int, str] = {}
        """Why the places in a segment could not be had when they were last asked for."""
        self.waits_for: set[str] = set()
        """The clusters whose answers the snapshot under way lacks."""
        self.snapshot_ms = 0
        """When the newest one was taken, ms since 1970."""

    # ---- Life

    def changed(self) -> None:
        self._stale = True
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._taking is not None:
            self._taking.cancel()

    async def run(self) -> None:
        while not self._closed:
            self._news.clear()
            pause_s: float | None = None
            try:
                pause_s = await self._tick()
            except MagnetarError as error:
                logger.info("replicated subscriptions not looked at topic=%s error=%s", self._topic, error)
                pause_s = 1.0
            if pause_s is None:
                await self._news.wait()
            else:
                await asyncio.sleep(pause_s)

    async def _tick(self) -> float | None:
        """The pause until the next one; None: until something is replicated."""
        if self._stale:
            self._stale = False
            try:
                self._names = await self._read_names()
            except BaseException:
                self._stale = True
                raise
        if not self._names:
            self._forget()
            return None
        rules = await self._clusters.rules(self._topic)
        if not rules.clusters or not rules.config.enabled:
            self._forget()
            return rules.config.interval_ms / 1000
        if frozenset(rules.clusters) != self._of_clusters:
            self._forget()
            self._of_clusters = frozenset(rules.clusters)
        progress = await self._progress()
        await self._tell(progress)
        if self._taking is None and self._is_due(progress):
            whole = self._all_sent(progress)
            self._taking = self._scope.spawn(self._take(rules, whole), f"snapshot of {self._topic}", REPORTED)
        return rules.config.interval_ms / 1000

    def _forget(self) -> None:
        self._taken.clear()
        self._told.clear()
        self.problems.clear()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    async def _progress(self) -> Progress:
        """As far as it can be had: while the broker of one segment does not answer, the places in others are told all the same."""
        layout = await self._layout()
        found, unknown = {}, {}
        for segment in layout.segments.values():
            try:
                found[segment.id] = await self._segments.places(segment_name(self._topic, segment))
            except TopicNotFoundError:
                continue  # deleted since
            except MagnetarError as error:
                unknown[segment.id] = str(error)
        self.unknown = unknown
        return Progress(layout, found)

    # ---- Snapshots

    def _is_due(self, progress: Progress) -> bool:
        """Unless nothing has come since the newest one was taken."""
        newest, ends = self._taken.newest, progress.ends()
        if ends is None:
            return False
        return newest is None or not self._newest_is_whole or newest.here != vector_of(progress.layout, ends)

    def _all_sent(self, progress: Progress) -> bool:
        """True if the answers of other clusters, asked from now on, are behind everything that is here: no later ones are further."""
        places = progress.segments.values()
        return all(each.sent.get(cluster, each.end) >= each.end for each in places for cluster in self._of_clusters)

    async def _take(self, rules: ReplicationRules, whole: bool) -> None:
        counters = self._counters
        begun_s = self._clock.monotonic_s()
        counters.pending += 1
        try:
            async with asyncio.timeout(rules.config.timeout_ms / 1000):
                snapshot = await self._all_rounds(frozenset(rules.clusters))
            self._taken.add(snapshot, rules.config.snapshots_max)
            self._newest_is_whole = whole
            self.snapshot_ms = self._clock.now_ms()
            counters.completed += 1
            counters.duration_ms += (self._clock.monotonic_s() - begun_s) * 1000
        except (MagnetarError, TimeoutError) as error:
            counters.timed_out += 1
            waited_for = ",".join(sorted(self.waits_for))
            logger.info("snapshot dropped topic=%s missing=%s: %s", self._topic, waited_for, error or "timed out")
        finally:
            counters.pending -= 1
            if self._taking is asyncio.current_task():
                self._taking = None
                self.waits_for = set()

    async def _all_rounds(self, clusters: frozenset[str]) -> Snapshot:
        rounds = SnapshotRounds(clusters)
        for number in range(1, ROUNDS + 1):
            self.waits_for = set(clusters)
            names = sorted(clusters)
            answers = await asyncio.gather(*(self._answer_of(each) for each in names), return_exceptions=True)
            for cluster, answer in zip(names, answers, strict=True):
                if isinstance(answer, BaseException):
                    raise answer
                rounds.answered(cluster, number, answer)
        progress = await self._progress()
        ends = progress.ends()
        if ends is None:
            raise ServiceNotReadyError(f"the end of a segment is not known here: {self._unknown_text()}")
        return rounds.taken(vector_of(progress.layout, ends))

    async def _answer_of(self, cluster: str) -> Vector:
        """It counts once everything that it speaks of has arrived here."""
        pause_s = ASK_FIRST_S
        try:
            vector, arrived = await self._clusters.places(cluster, self._topic, None)
            while not arrived:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, ASK_LONGEST_S)
                _, arrived = await self._clusters.places(cluster, self._topic, vector)
        except MagnetarError as error:
            self.problems[cluster] = str(error)
            raise
        self.problems.pop(cluster, None)
        self.waits_for.discard(cluster)
        return vector

    # ---- For operators

    async def status(self) -> TopicStatus:
        """As of a classic topic; positions are those of segments, `segment@ledger:entry`."""
        rules = await self._clusters.rules(self._topic)
        progress = await self._progress()
        newest = self._taken.newest
        clusters = [
            ClusterStatus(each, each not in self.problems, False, each in self.waits_for)
            for each in sorted(rules.clusters)
        ]
        names = await self._read_names() if rules.config.enabled else {}
        return TopicStatus(
            cluster=self._clusters.local,
            enabled=rules.config.enabled,
            interval_ms=rules.config.interval_ms,
            clusters=clusters,
            pending=str(self._topic) if self._taking is not None else None,
            snapshot_at=_text({each.segment_id: each.position for each in newest.here}) if newest is not None else None,
            snapshot_ms=self.snapshot_ms,
            age_ms=self._clock.now_ms() - self.snapshot_ms if newest is not None else None,
            subscriptions=[self._subscription_status(each, progress, clusters) for each in sorted(names)],
        )

    def _subscription_status(
        self, name: str, progress: Progress, clusters: Sequence[ClusterStatus]
    ) -> SubscriptionStatus:
        here = self._clusters.local
        steps = [(Snapshot(each.here, {here: each.here}), progress.passed(each, name)) for each in self._taken.all]
        told = projected(translated(steps, here), progress.layout)
        places = progress.acknowledged(name)
        would_repeat: int | None = 0 if told else None
        for segment_id, place in places.items():
            behind = _between(told[segment_id], place) if segment_id in told else None
            would_repeat = None if would_repeat is None or behind is None else would_repeat + behind
        reason = self._reason(bool(told), would_repeat, clusters)
        elsewhere = {
            cluster: ", ".join(f"{each.segment_id}@{each.position[0]}:{each.position[1]}" for each in vector)
            for (subscription, cluster), vector in sorted(self._told.items())
            if subscription == name
        }
        return SubscriptionStatus(name, _text(places) or "", _text(told), would_repeat, reason, elsewhere)

    def _reason(self, told: bool, would_repeat: int | None, clusters: Sequence[ClusterStatus]) -> str:
        if not clusters:
            return "the topic is in no other cluster"
        if self.problems:
            return "; ".join(
                f"cluster {cluster} is not asked or told: {why}" for cluster, why in sorted(self.problems.items())
            )
        if self.unknown:
            return f"no snapshot is taken while the brokers of segments do not answer: {self._unknown_text()}"
        if would_repeat == 0:
            return ""
        if self.waits_for:
            return f"a snapshot is under way and waits for {', '.join(sorted(self.waits_for))}"
        if not told:
            return "no snapshot was passed since this broker controls the topic"
        return "the next snapshot is due, or not everything before the newest one is acknowledged"

    def _unknown_text(self) -> str:
        return "; ".join(f"segment {number}: {why}" for number, why in sorted(self.unknown.items()))

    # ---- What the others are told

    async def _tell(self, progress: Progress) -> None:
        taken = self._taken.all
        if not taken:
            return
        steps = {name: [(snapshot, progress.passed(snapshot, name)) for snapshot in taken] for name in self._names}
        await asyncio.gather(*(self._tell_cluster(cluster, steps) for cluster in sorted(self._of_clusters)))
        self._forget_passed(steps.values())

    async def _tell_cluster(self, cluster: str, steps: Mapping[str, list[tuple[Snapshot, Vector]]]) -> None:
        for name, kind in self._names.items():
            safe = translated(steps.get(name, ()), cluster)[:PLACES_MAX]
            if not safe or self._told.get((name, cluster)) == safe:
                continue
            try:
                await self._clusters.tell(cluster, self._topic, name, kind, safe)
            except MagnetarError as error:
                self.problems[cluster] = str(error)
                return
            self._told[name, cluster] = safe
            self._counters.updates_told += 1

    def _forget_passed(self, of_all: Iterable[list[tuple[Snapshot, Vector]]]) -> None:
        """What every subscription has passed as a whole says more than what was taken before it."""
        passed_by_all: set[int] | None = None
        newest: dict[int, Snapshot] = {}
        for steps in of_all:
            own = {number for number, (snapshot, done) in enumerate(steps) if len(done) == len(snapshot.here)}
            newest.update(enumerate(snapshot for snapshot, _ in steps))
            passed_by_all = own if passed_by_all is None else passed_by_all & own
        if passed_by_all:
            self._taken.forget_before(newest[max(passed_by_all)])


def _text(places: Mapping[int, tuple[int, int] | None]) -> str | None:
    """Each `segment@ledger:entry`, or `segment@end`; None without any."""
    texts = [f"{each}@end" if at is None else f"{each}@{at[0]}:{at[1]}" for each, at in sorted(places.items())]
    return ", ".join(texts) or None


def _between(told: tuple[int, int] | None, place: Position) -> int | None:
    """Entries from what was told to a place in the same segment; None where they lie in several ledgers."""
    if told is None or place <= told:
        return 0
    return place[1] - told[1] if told[0] == place[0] else None
