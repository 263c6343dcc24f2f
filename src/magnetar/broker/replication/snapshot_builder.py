"""When a topic takes a snapshot across clusters, and what it consists of (PIP-33, "Constructing a cursor snapshot"). Pure.

Events go in, decisions come out; the caller writes markers, reads the clock and draws ids. A round asks every remote cluster how
far its topic is. The answers of the first round are the snapshot's remote ids. With more than one remote cluster a second round
follows: an answer to it lies behind everything that its cluster had published when the first round ended, so that what the remote
clusters had exchanged among themselves by then has come here, too. The local id is that of the last answer.

What this builds on: a link between two clusters keeps the order of its source, markers among messages. It may stop, and
it may send again what it has sent. That is why each round has an id of its own (Pulsar: one for both): an answer of the first
round that comes twice, or that a repeated request provoked, proves nothing for the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from magnetar.wire.pulsar.markers import MessageId, Snapshot, SnapshotRequest, SnapshotResponse

PENDING_MAX: Final = 1
"""Snapshots under way for a topic. While there is one, no other begins: over slow links snapshots become rarer, not more."""

SECOND_ROUND: Final = "/2"
"""Suffix of the snapshot's id in a second round. Answers repeat the id as it is."""


class Aborted(NamedTuple):
    """A snapshot that will not be: `missing` did not answer, or `reason` says what else came between."""

    snapshot_id: str
    reason: str
    missing: tuple[str, ...]


class RegionExcluded(NamedTuple):
    """Instruction: snapshots are taken without this cluster. Messages that only it and others have seen may be skipped after a failover."""

    cluster: str
    gone_ms: int


class RegionIncluded(NamedTuple):
    """The cluster is back: snapshots wait for it again."""

    cluster: str


Decision: TypeAlias = SnapshotRequest | Snapshot | Aborted | RegionExcluded | RegionIncluded
"""A request or a snapshot is a marker to write: the request goes everywhere, the snapshot stays here."""


class _Pending:
    __slots__ = ("asked", "ids", "missing", "published", "round", "snapshot_id", "started_ms", "storing")

    def __init__(self, snapshot_id: str, asked: frozenset[str], now_ms: int, published: int) -> None:
        self.snapshot_id = snapshot_id
        self.asked = asked
        self.started_ms = now_ms
        self.published = published
        self.round = 1
        self.missing = set(asked)
        self.ids: dict[str, MessageId] = {}
        """Start of the first round."""
        self.storing = False


class SnapshotBuilder:
    """The snapshots of one topic in `cluster`, among `remotes`.

    `partial_after_ms`: a cluster that has been disconnected for so long is left out (RegionExcluded) until it is back; None: never,
    and no snapshot is taken while any cluster is away.
    """

    def __init__(
        self, cluster: str, remotes: Iterable[str], timeout_ms: int, partial_after_ms: int | None = None
    ) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._partial_after_ms = partial_after_ms
        self._remotes = frozenset(remotes) - {cluster}
        self._gone: dict[str, int] = {}
        """Remote clusters without a connection, and since when."""
        self._excluded: set[str] = set()
        self._pending: _Pending | None = None
        self._covered = -1
        """Messages published when the last completed snapshot began."""
        self.completed_id: str | None = None
        self.completed_ms = 0
        """When the last completed snapshot began."""

    # ---- Asking

    @property
    def pending_id(self) -> str | None:
        return None if self._pending is None else self._pending.snapshot_id

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The clusters that keep the next snapshot from completing."""
        missing = set(self._pending.missing) if self._pending is not None else set()
        return tuple(sorted(missing | (self._gone.keys() - self._excluded)))

    @property
    def excluded(self) -> tuple[str, ...]:
        return tuple(sorted(self._excluded))

    # ---- Events

    def tick(self, now_ms: int, published: int, new_id: str, forced: bool = False) -> list[Decision]:
        """Time has passed. `published`: messages, not markers, that came into the topic so far, from wherever; a snapshot begins
        only when there are more than at the last one, or when `forced`. `new_id` must be new among all clusters and restarts."""
        decisions = self._expire(now_ms)
        asked = self._remotes - self._excluded
        if self._pending is not None or not asked or self._gone.keys() & asked:
            return decisions
        if published <= self._covered and not forced:
            return decisions
        self._pending = _Pending(new_id, asked, now_ms, published)
        decisions.append(SnapshotRequest(self._round_id(new_id, 1), self._cluster))
        return decisions

    def response_received(self, response: SnapshotResponse, position: MessageId) -> list[Decision]:
        """An answer lies in the topic at `position`. Answers nobody waits for (late, repeated, of a former self) say nothing."""
        pending = self._pending
        if pending is None or response.snapshot_id != self._round_id(pending.snapshot_id, pending.round):
            return []
        if response.cluster not in pending.missing:
            return []
        if pending.round == 1:
            pending.ids[response.cluster] = response.message_id
        pending.missing.discard(response.cluster)
        if pending.missing:
            return []
        if pending.round < self._rounds(pending.asked):
            pending.round += 1
            pending.missing = set(pending.asked)
            return [SnapshotRequest(self._round_id(pending.snapshot_id, pending.round), self._cluster)]
        pending.storing = True
        return [Snapshot(pending.snapshot_id, position, dict(pending.ids))]

    def snapshot_stored(self, snapshot_id: str) -> None:
        """The snapshot's marker is in the topic."""
        pending = self._pending
        if pending is not None and pending.storing and pending.snapshot_id == snapshot_id:
            self._covered = pending.published
            self.completed_id = snapshot_id
            self.completed_ms = pending.started_ms
            self._pending = None

    def store_failed(self, snapshot_id: str) -> list[Decision]:
        """A marker of this snapshot could not be stored, or nobody knows: the next tick begins another one."""
        if self._pending is None or self._pending.snapshot_id != snapshot_id:
            return []
        return self._abort("its marker could not be stored")

    def connected(self, cluster: str) -> list[Decision]:
        """The replicator to `cluster` works."""
        self._gone.pop(cluster, None)
        return self._include(cluster)

    def disconnected(self, cluster: str, now_ms: int) -> None:
        """The replicator to `cluster` has no connection. A snapshot under way may still complete: nothing is lost by waiting."""
        if cluster in self._remotes:
            self._gone.setdefault(cluster, now_ms)

    def exclude(self, cluster: str, now_ms: int) -> list[Decision]:
        """An operator gives a disconnected cluster up before its time. A connected one is not excluded: nothing happens."""
        since_ms = self._gone.get(cluster)
        return [] if since_ms is None or cluster in self._excluded else self._exclude(cluster, now_ms - since_ms)

    def remotes_changed(self, remotes: Iterable[str]) -> list[Decision]:
        """The topic replicates among other clusters now. A snapshot among the former ones may miss messages of a new one."""
        changed = frozenset(remotes) - {self._cluster}
        if changed == self._remotes:
            return []
        self._remotes = changed
        self._gone = {name: since_ms for name, since_ms in self._gone.items() if name in changed}
        self._excluded &= changed
        self._covered = -1
        return self._abort("the topic's clusters have changed")

    # ---- Rules

    def _rounds(self, asked: frozenset[str]) -> int:
        return 2 if len(asked) > 1 else 1

    def _round_id(self, snapshot_id: str, number: int) -> str:
        return snapshot_id if number == 1 else snapshot_id + SECOND_ROUND

    def _expire(self, now_ms: int) -> list[Decision]:
        decisions: list[Decision] = []
        pending = self._pending
        if pending is not None and now_ms - pending.started_ms >= self._timeout_ms:
            decisions += self._abort("it took too long")
        if self._partial_after_ms is not None:
            for cluster in sorted(self._gone.keys() - self._excluded):
                gone_ms = now_ms - self._gone[cluster]
                if gone_ms >= self._partial_after_ms:
                    decisions += self._exclude(cluster, gone_ms)
        return decisions

    def _exclude(self, cluster: str, gone_ms: int) -> list[Decision]:
        self._excluded.add(cluster)
        self._covered = -1
        return [RegionExcluded(cluster, gone_ms), *self._abort(f"{cluster} is left out from now on")]

    def _include(self, cluster: str) -> list[Decision]:
        if cluster not in self._excluded:
            return []
        self._excluded.discard(cluster)
        self._covered = -1
        return [RegionIncluded(cluster), *self._abort(f"{cluster} is back")]

    def _abort(self, reason: str) -> list[Decision]:
        pending, self._pending = self._pending, None
        return [] if pending is None else [Aborted(pending.snapshot_id, reason, tuple(sorted(pending.missing)))]

    def validate(self) -> None:
        assert self._cluster not in self._remotes
        assert self._gone.keys() <= self._remotes
        assert self._excluded <= self._gone.keys()
        pending = self._pending
        if pending is not None:
            assert pending.asked
            assert pending.asked <= self._remotes - self._excluded
            assert pending.missing <= pending.asked
            assert pending.storing == (not pending.missing)
            assert 1 <= pending.round <= self._rounds(pending.asked)
            known = pending.asked - pending.missing if pending.round == 1 else pending.asked
            assert pending.ids.keys() == known


def answer(request: SnapshotRequest, cluster: str, last: MessageId) -> SnapshotResponse | None:
    """What `cluster` answers; `last`: the last entry of its topic that is stored by now. None for its own request.

    The answer must be written behind `last`, and go to the cluster that asked only.
    """
    return None if request.source_cluster == cluster else SnapshotResponse(request.snapshot_id, cluster, last)
