"""The replicators of one topic: one for each other cluster that the policies name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar.base.clock import iso_time
from magnetar.broker.naming import TopicName
from magnetar.broker.rate_limits import RateLimit
from magnetar.broker.replicators import names
from magnetar.broker.replicators.service import ReplicationService
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.cursor.reader import ReadGate
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from magnetar.broker.replicators.replicator import Replicator

logger = logging.getLogger(__name__)


class ReplicatorSet:
    """Changed live by `apply`."""

    def __init__(self, topic: TopicName, ledger: ManagedLedger, service: ReplicationService | None) -> None:
        """`service` None: topics are not replicated here."""
        self._topic = topic
        self._ledger = ledger
        self._service = service if service is not None and service.concerns(topic) else None
        self._by_cluster: dict[str, Replicator] = {}
        self._lock = asyncio.Lock()
        self._closed = False
        self._gate: Callable[[], ReadGate] | None = None
        self.connection_changed: Callable[[str, bool], None] = lambda cluster, connected: None
        """Called when the link to a cluster is made or lost."""

    def read_through(self, gate: Callable[[], ReadGate]) -> None:
        """Give each cursor a gate of its own: the topic takes part in transactions from now on."""
        self._gate = gate
        for replicator in self._by_cluster.values():
            replicator.cursor.gate = gate()

    @property
    def cursors(self) -> list[ManagedCursor]:
        return [replicator.cursor for replicator in self._by_cluster.values()]

    @property
    def all(self) -> list[Replicator]:
        return list(self._by_cluster.values())

    @property
    def clusters(self) -> list[str]:
        """The other clusters, in the order in which they were added."""
        return list(self._by_cluster)

    def links(self) -> dict[str, bool]:
        """The other clusters, each with whether its replicator is connected."""
        return {name: replicator.connected for name, replicator in self._by_cluster.items()}

    def follow(self, followed: Callable[[str], None] | None) -> None:
        """Call `followed` with a cluster whenever it has stored more, while one of the entries is traced; None ends that."""
        for cluster, replicator in self._by_cluster.items():
            replicator.counters.followed = None if followed is None else partial(followed, cluster)

    def stored_in(self, position: Position) -> dict[str, bool]:
        """The other clusters, each with whether it is done with an entry."""
        return {cluster: each.cursor.is_acknowledged(position) for cluster, each in self._by_cluster.items()}

    def get(self, cluster: str) -> Replicator | None:
        return self._by_cluster.get(cluster)

    @property
    def backlog_entries(self) -> int:
        return sum(replicator.backlog_entries for replicator in self._by_cluster.values())

    async def apply(self, clusters: tuple[str, ...], rate: RateLimit) -> None:
        """Start what is new, stop what is gone and delete its cursor."""
        service = self._service
        if service is None:
            return
        around = service.clusters
        wanted = [name for name in clusters if name != around.local]
        async with self._lock:
            if self._closed:
                return
            for name in wanted:
                if name not in self._by_cluster and not self._has_nothing_for(service, name):
                    await self._add(service, name)
            for cursor in list(self._ledger.cursors):
                cluster = names.cluster_of_cursor(cursor)
                if cluster is not None and cluster not in wanted:
                    await self._remove(cluster)
            for replicator in self._by_cluster.values():
                replicator.set_rate(rate)

    def _has_nothing_for(self, service: ReplicationService, cluster: str) -> bool:
        """A terminated topic sends nothing more to a cluster that would begin at its end."""
        begins = names.cursor_name(cluster) not in self._ledger.cursors
        return self._ledger.terminated and begins and service.clusters.config.replication_start_at != "earliest"

    async def _add(self, service: ReplicationService, cluster: str) -> None:
        from magnetar.broker.replicators.replicator import Replicator  # with all of the client: few servers replicate

        kind: type[Replicator] = Replicator
        if self._topic.is_segment:
            from magnetar.broker.replicators.segment_replicator import SegmentReplicator

            kind = SegmentReplicator
        initial = EARLIEST if (service.clusters.config.replication_start_at == "earliest") else LATEST
        cursor = await self._ledger.open_cursor(names.cursor_name(cluster), initial=initial)
        cursor.gate = self._gate() if self._gate is not None else None
        replicator = kind(self._topic, cluster, self._ledger, cursor, service, self._connection_changed)
        self._by_cluster[cluster] = replicator
        self._ledger.add_append_listener(replicator.wake)
        replicator.start()
        logger.info("replicator added topic=%s cluster=%s", self._topic, cluster)

    async def _remove(self, cluster: str) -> None:
        replicator = self._by_cluster.pop(cluster, None)
        if replicator is not None:
            self._ledger.remove_append_listener(replicator.wake)
            await replicator.stop()
        await self._ledger.delete_cursor(names.cursor_name(cluster))
        logger.info("replicator removed topic=%s cluster=%s", self._topic, cluster)

    def _connection_changed(self, cluster: str, connected: bool) -> None:
        self.connection_changed(cluster, connected)

    async def close(self) -> None:
        """The cursors stay."""
        async with self._lock:
            self._closed = True
            for replicator in self._by_cluster.values():
                self._ledger.remove_append_listener(replicator.wake)
                await replicator.stop()
            self._by_cluster.clear()

    # ---- For the topic's statistics

    def sample_rates(self, now_s: float) -> None:
        for replicator in self._by_cluster.values():
            counters = replicator.counters
            replicator.rates.sample(counters.messages_out, counters.bytes_out, now_s)
            replicator.expired_rates.sample(replicator.expired_total, 0, now_s)

    def stats(self, incoming: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """Pulsar's ReplicatorStats by cluster. `incoming`: of those that send here."""
        service = self._service
        now_ms = service.clusters.clock.now_ms() if service is not None else 0
        outgoing = {name: _stats(replicator, now_ms) for name, replicator in self._by_cluster.items()}
        return {
            name: _NOTHING_IN | _NOTHING_OUT | incoming.get(name, {}) | outgoing.get(name, {})
            for name in sorted({*incoming, *outgoing})
        }


_NOTHING_IN = {
    "msgRateIn": 0.0,
    "msgThroughputIn": 0.0,
    "msgInCount": 0,
    "bytesInCount": 0,
    "inboundConnection": None,
    "inboundConnectedSince": None,
}
_NOTHING_OUT = {
    "msgRateOut": 0.0,
    "msgThroughputOut": 0.0,
    "msgOutCount": 0,
    "bytesOutCount": 0,
    "msgRateExpired": 0.0,
    "msgExpiredCount": 0,
    "replicationBacklog": 0,
    "connected": False,
    "replicationDelayInSeconds": 0,
    "outboundConnection": None,
    "outboundConnectedSince": None,
    "lastError": None,
}


def _stats(replicator: Replicator, now_ms: int) -> dict[str, Any]:
    return {
        "msgRateOut": replicator.rates.messages_per_s,
        "msgThroughputOut": replicator.rates.bytes_per_s,
        "msgOutCount": replicator.counters.messages_out,
        "bytesOutCount": replicator.counters.bytes_out,
        "msgRateExpired": replicator.expired_rates.messages_per_s,
        "msgExpiredCount": replicator.expired_total,
        "replicationBacklog": replicator.backlog_entries,
        "connected": replicator.connected,
        "replicationDelayInSeconds": int(replicator.delay_s(now_ms)),
        "outboundConnection": replicator.address if replicator.connected else None,
        "outboundConnectedSince": iso_time(replicator.connected_since_ms) if replicator.connected else None,
        "lastError": replicator.problem or None,
    }
