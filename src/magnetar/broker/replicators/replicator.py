"""One topic's replicator to one other cluster: its cursor, and a link to the cluster that is made anew whenever it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from magnetar.base.backoff import Backoff
from magnetar.base.errors import MagnetarError
from magnetar.base.tasks import REPORTED
from magnetar.broker.naming import TopicName
from magnetar.broker.rate_limits import RateLimit, RateMeter, Rates, meter_for
from magnetar.broker.reasons import Rule
from magnetar.broker.replicators import names
from magnetar.broker.replicators.link import Common, Link, Outlet
from magnetar.broker.replicators.service import ReplicationService
from magnetar.broker.subscriptions import maintenance
from magnetar.client.client import RemoteClient
from magnetar.client.errors import RequestRefusedError
from magnetar.managed_ledger.cursor.cursor import ManagedCursor
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.client_commands import SchemaDefinition
from magnetar.wire.pulsar.PulsarApi_pb2 import ServerError

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.1
RETRY_LONGEST_S = 60.0
"""Pause between attempts to reach the other cluster; a changed record of the cluster cuts it short."""


class Replicator:
    """`start` spawns its one task; `stop` ends it and leaves the cursor."""

    def __init__(
        self,
        topic: TopicName,
        remote: str,
        ledger: ManagedLedger,
        cursor: ManagedCursor,
        service: ReplicationService,
        connection_changed: Callable[[str, bool], None],
    ) -> None:
        self.topic = topic
        self.remote = remote
        self.cursor = cursor
        self.connected = False
        self.connected_since_ms = 0
        self.address = ""
        self.problem = ""
        """The reason why it is not connected, for people."""
        self.rates = Rates()
        self.expired_total = 0
        self.expired_rates = Rates()
        self.counters = Common()
        self.meter: RateMeter | None = None
        self._ledger = ledger
        self._service = service
        self._clusters = clusters = service.clusters
        self._connection_changed = connection_changed
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_LONGEST_S, clusters.rng)
        self._attention = asyncio.Event()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self.waiting_since_ms: int | None = None
        """Wall time at which the oldest waiting message was published, as far as it is known; only while it is not connected."""

    # ---- Life

    def start(self) -> None:
        self._task = self._clusters.scope.spawn(self._run(), f"replicate {self.topic} to {self.remote}", REPORTED)

    async def stop(self) -> None:
        """Close the link. Entries in flight may still arrive; the other side recognises them when they are sent again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Entries were appended."""
        if self._link is not None:
            self._link.wake()
        elif self.waiting_since_ms is None:
            self.waiting_since_ms = self._clusters.clock.now_ms()

    def set_rate(self, rate: RateLimit) -> None:
        """Set the rate limit. It takes effect at once; an unchanged one changes nothing."""
        meter = meter_for(rate, self.meter, self._clusters.clock.monotonic_s())
        if meter is not self.meter:
            self.meter = meter
            if self._link is not None:
                self._link.rate_changed()

    @property
    def backlog_entries(self) -> int:
        return self.cursor.backlog_entries

    async def skip_messages(self, count: int) -> int:
        """The first `count` entries that wait are not sent; returns how many there were."""
        target, skipped = maintenance.nth_unacknowledged(self._ledger, self.cursor, count)
        if target is not None:
            await maintenance.acknowledge_upto(self.cursor, target)
        return skipped

    async def clear_backlog(self) -> None:
        """Nothing that waits now is sent."""
        await maintenance.acknowledge_upto(self.cursor, maintenance.readable_end(self._ledger, self.cursor))

    async def expire(self, upto: Position, rule: Rule = Rule.REQUEST) -> int:
        """Skip what waits up to `upto`, inclusive; returns the number of entries skipped."""
        upto = min(upto, maintenance.readable_end(self._ledger, self.cursor))
        if upto <= self.cursor.mark_delete_position:
            return 0
        before = self.cursor.backlog_entries
        await maintenance.acknowledge_upto(self.cursor, upto)
        expired = max(0, before - self.cursor.backlog_entries)
        self.expired_total += expired
        return expired

    def delay_s(self, now_ms: int) -> float:
        """Age of the oldest waiting message, as far as it is known; 0 without a backlog."""
        if not self.cursor.backlog_entries:
            return 0.0
        since_ms = self._link.oldest_publish_ms if self._link is not None else self.waiting_since_ms
        return max(0.0, (now_ms - since_ms) / 1000) if since_ms is not None else 0.0

    async def _run(self) -> None:
        while not self.cursor.closed:
            try:
                await self._connect_and_replicate()
            except MagnetarError as error:
                self._failed(str(error), expected=True)
            except Exception as error:  # our bug, on the way to one cluster: everything else has not deserved it
                logger.exception("replicator failed topic=%s cluster=%s", self.topic, self.remote)
                self._failed(f"{type(error).__name__}: {error}", expected=False)
            await self._clusters.pause(self._backoff.next_s())

    def _failed(self, reason: str, *, expected: bool) -> None:
        if expected and reason != self.problem:
            logger.warning(
                "replicator not connected, trying again topic=%s cluster=%s: %s", self.topic, self.remote, reason
            )
        self.problem = reason

    async def _connect_and_replicate(self) -> None:
        clusters, cursor = self._clusters, self.cursor
        client = await clusters.client(self.remote)
        await self._prepare(client)
        self._attention.clear()
        link = Link(
            cursor=cursor,
            local=clusters.local,
            remote=self.remote,
            queue_max=clusters.config.replication_producer_queue_size,
            common=self.counters,
            clock=clusters.clock,
            scheduler=clusters.scheduler,
            meter=lambda: self.meter,
            attention=self._attention.set,
        )
        producer = await self._open_producer(client, link)
        if cursor.closed:
            raise CursorClosedError(f"cursor {cursor.name} is closed")
        self._set_connected(link, producer)
        try:
            link.start(producer)
            await self._attend(link, client)
        finally:
            link.stop()
            self._set_disconnected(link)
            await _close(producer)

    async def _prepare(self, client: RemoteClient) -> None:
        await self._service.prepare(client, self.remote, self.topic)

    async def _about(self) -> dict[str, str]:
        """Properties of a producer."""
        end = self._ledger.last_confirmed
        return {
            names.INSTANCE_METADATA: await self._clusters.instance(),
            names.LOG_END_METADATA: f"{end.ledger_id}:{end.entry_id}",
        }

    async def _open_producer(self, client: RemoteClient, link: Link) -> Outlet:
        clusters = self._clusters
        name = names.producer_name(clusters.local, self.remote)
        about = await self._about()
        try:
            return await client.open_producer(str(self.topic), name, about, link.receipt, link.failed)
        except RequestRefusedError as error:
            if (
                error.code != ServerError.TopicNotFound
                or not clusters.config.create_topic_to_remote_cluster_for_replication
            ):
                raise
        await self._service.create(self.remote, self.topic)
        return await client.open_producer(str(self.topic), name, about, link.receipt, link.failed)

    async def _attend(self, link: Link, client: RemoteClient) -> None:
        """Run until the link fails. Raises its failure."""
        while True:
            await self._attention.wait()
            self._attention.clear()
            if link.failure is not None:
                raise link.failure
            version = link.unknown_schema
            if version is not None:
                link.schema_known(version, await self._version_there(client, version))

    async def _version_there(self, client: RemoteClient, version: bytes) -> bytes:
        """A schema that was deleted here cannot be told there: its messages go without one."""
        schema = await self._service.schema_of(self.topic, version)
        return b"" if schema is None else await self._schema_there(client, schema)

    async def _schema_there(self, client: RemoteClient, schema: SchemaDefinition) -> bytes:
        return await client.schema_version(str(self.topic), schema)

    def _set_connected(self, link: Link, producer: Outlet) -> None:
        self._link = link
        self.connected = True
        self.connected_since_ms = self._clusters.clock.now_ms()
        self.address = producer.connection.address
        self.problem = ""
        self._backoff.reset()
        logger.info("replicator connected topic=%s cluster=%s", self.topic, self.remote)
        self._connection_changed(self.remote, True)

    def _set_disconnected(self, link: Link) -> None:
        self.waiting_since_ms = link.oldest_publish_ms
        self._link = None
        self.connected = False
        self._connection_changed(self.remote, False)


async def _close(producer: Outlet) -> None:
    try:
        await producer.close()
    except MagnetarError:
        return  # the connection is gone, and the producer with it
