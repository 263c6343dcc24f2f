"""The replicated subscriptions of one topic (PIP-33): nothing at all, until one exists or another cluster's marker comes.

The ticks, the markers that are written and those that arrive meet here; what to do about them the pure parts decide. Markers that
arrive are looked at once they are stored, in the order of the log. The cursor `pulsar.replicated.subscriptions` says how far they
were dealt with, so that a crash repeats the last ones.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.broker.config import ReplicatedSubscriptionsConfig
from magnetar.broker.errors import ServiceNotReadyError
from magnetar.broker.namespaces.errors import AlreadyExistsError, PreconditionFailedError
from magnetar.broker.replication.incoming import Incoming
from magnetar.broker.replication.marker_log import CURSOR_NAME, MarkerLog, sender_of
from magnetar.broker.replication.ports import Links, ReplicationContext, Subscriptions
from magnetar.broker.replication.snapshot_builder import (
    Aborted,
    Decision,
    RegionExcluded,
    RegionIncluded,
    SnapshotBuilder,
    answer,
)
from magnetar.broker.replication.subscription_side import OutgoingAcks, SubscriptionSide
from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.managed_ledger.ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.wire.pulsar.markers import (
    Marker,
    Snapshot,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionUpdate,
    decode,
    encode,
)

logger = logging.getLogger(__name__)

UNSENT_MAX: Final = 1000
"""Updates that could not be stored and wait for the next tick, one a subscription; those of further subscriptions are dropped, and
the next snapshot that they pass tells the same and more."""


class ReplicatedSubscriptions:
    """`published()`: messages, not markers, that came into the topic since it was loaded. `readable_end()`: the last position that
    everybody may read (transactions that are open hold back what follows)."""

    def __init__(
        self,
        topic_name: str,
        ledger: ManagedLedger,
        subscriptions: Subscriptions,
        context: ReplicationContext,
        published: Callable[[], int],
        readable_end: Callable[[], Position],
    ) -> None:
        self._topic_name = topic_name
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._context = context
        self._published = published
        self._readable_end = readable_end
        self.links: Links = dict
        self._config = ReplicatedSubscriptionsConfig()
        self.builder: SnapshotBuilder | None = None
        self.sides: dict[str, SubscriptionSide] = {}
        self.last_snapshot: tuple[Position, int] | None = None
        """Position and time of the last complete snapshot."""
        self.forced = False
        self._markers = MarkerLog(ledger, self._pass_caught_up)
        self._incoming = Incoming(topic_name, ledger, subscriptions, context, self.sides)
        self._unsent: dict[str, SubscriptionUpdate] = {}
        self._told_to: frozenset[str] = frozenset()
        self._ticking = False
        self._closed = False
        self._of_segment = topic_name.startswith("segment://")
        """The controller of the whole topic takes the snapshots, and markers mean nothing here."""

    @property
    def cluster(self) -> str:
        return self._context.cluster

    @property
    def config(self) -> ReplicatedSubscriptionsConfig:
        return self._config

    # ---- Coming and going

    async def load(self) -> None:
        """After the subscriptions. What a crash left undone is done now."""
        if CURSOR_NAME in self._ledger.cursors:
            asked: dict[str, SnapshotRequest] = {}
            for marker, sender in await self._markers.recover(self._subscriptions.all):
                if isinstance(marker, SubscriptionUpdate) and sender and self._config.enabled:
                    self._incoming.apply(marker, sender)
                elif isinstance(marker, SnapshotRequest) and marker.source_cluster == sender and self._config.enabled:
                    asked[sender] = marker
            for request in asked.values():
                self._answer(request)
        await self.check()

    def apply_config(self, config: ReplicatedSubscriptionsConfig) -> None:
        """The settings that hold for the topic now; `check` follows."""
        changed, self._config = config != self._config, config
        if changed and self.builder is not None:
            self._drop_builder()

    async def check(self) -> None:
        """Subscriptions, clusters or settings have changed."""
        replicated = [each for each in self._subscriptions.all if each.durable and each.replicated]
        active = self._config.enabled and not self._closed and not self._of_segment
        wanted = {each.name: each for each in replicated} if active else {}
        for name in [name for name, side in self.sides.items() if wanted.get(name) is not side.subscription]:
            self.sides.pop(name).detach()
        for name, subscription in wanted.items():
            if name not in self.sides:
                self.sides[name] = self._side_of(subscription)
        if not self.sides:
            self._drop_builder()
        if self.sides and self.links():
            await self._start_quietly()

    def _side_of(self, subscription: Subscription) -> SubscriptionSide:
        acks = OutgoingAcks(subscription, self._ledger, self._context.cluster)
        return SubscriptionSide(subscription, self._config.snapshots_max, self._tell, acks)

    async def _start(self) -> None:
        await self._markers.open()
        if not self._ticking and not self._closed:
            self._ticking = True
            self._context.spawn(self._run(), f"replicated subscriptions {self._topic_name}")

    def close(self) -> None:
        """Before the subscriptions are closed: their cursors are theirs alone from now on."""
        self._closed = True
        self._markers.close()
        self._incoming.close()
        self._drop_builder()
        for side in self.sides.values():
            side.detach()
        self.sides.clear()

    def _drop_builder(self) -> None:
        if self.builder is not None and self.builder.pending_id is not None:
            self._context.counters.pending -= 1
        self.builder = None

    # ---- The clock

    async def _run(self) -> None:
        try:
            while not self._closed:
                if self._needed():
                    await asyncio.sleep(self._config.interval_ms / 1000)
                    if not self._closed:
                        await self._tick()
                    continue
                await self._markers.drop()
                if not self._needed():
                    break
                await self._markers.open()  # a subscription came while the cursor was being deleted
        except MagnetarError as error:
            logger.warning("replicated subscriptions ended topic=%s error=%s", self._topic_name, error)
        except Exception:  # our bug, in one topic: the other topics and their clients have not deserved it
            logger.exception("replicated subscriptions stopped topic=%s", self._topic_name)
        finally:
            self._ticking = False

    def _needed(self) -> bool:
        return bool(self.sides) or not self._incoming.idle

    async def _tick(self) -> None:
        unsent, self._unsent = self._unsent, {}
        for update in unsent.values():
            self._write(update)
        links = self.links()
        if self.sides and links:
            self._snapshot(links.items())
        try:
            await self._tell_acks()
            dealt_with = self._ledger.last_confirmed if self._incoming.idle else None
            self._incoming.work()
            await self._incoming.flush()
            if dealt_with is not None:
                self._markers.dealt_with(dealt_with)
        except MagnetarError as error:
            logger.warning("updates not stored yet topic=%s error=%s", self._topic_name, error)

    async def _tell_acks(self) -> None:
        for side in list(self.sides.values()):
            try:
                update = await side.acks.update()
            except MagnetarError as error:
                name = side.subscription.name
                logger.warning("acks not told topic=%s subscription=%s error=%s", self._topic_name, name, error)
                continue
            if update is not None:
                self._tell(update)

    def _snapshot(self, links: Iterable[tuple[str, bool]]) -> None:
        now_ms = round(self._context.clock.monotonic_s() * 1000)
        clusters = dict(links)
        builder = self.builder
        if builder is None:
            config = self._config
            builder = self.builder = SnapshotBuilder(
                self._context.cluster, clusters, config.timeout_ms, config.partial_after_ms
            )
        if clusters.keys() != self._told_to:
            self._told_to = frozenset(clusters)
            for side in self.sides.values():
                side.acks.again()
        self._act(builder.remotes_changed(clusters))
        for cluster, connected in clusters.items():
            if connected:
                self._act(builder.connected(cluster))
            else:
                builder.disconnected(cluster, now_ms)
        if self._ledger.index.total_entries or self.forced:
            new_id = str(uuid.UUID(int=self._context.rng.getrandbits(128), version=4))
            self._act(builder.tick(now_ms, self._published(), new_id, self.forced))
            self.forced = self.forced and builder.pending_id is None

    def force(self) -> None:
        """Take a snapshot now, whether or not anything was published. Raises PreconditionFailedError when that cannot be."""
        links = self.links()
        if not self.sides:
            raise PreconditionFailedError(f"{self._topic_name} has no replicated subscription")
        if not links:
            raise PreconditionFailedError(f"{self._topic_name} is in no other cluster")
        excluded = self.builder.excluded if self.builder is not None else ()
        away = sorted(name for name, connected in links.items() if not connected and name not in excluded)
        if away:
            raise PreconditionFailedError(
                f"no snapshot without {', '.join(away)}, which is not connected: exclude it if it is lost for good"
            )
        self.forced = True
        self._snapshot(links.items())

    def exclude(self, cluster: str) -> bool:
        """Exclude a disconnected cluster, as an operator orders; False when it is connected, or the topic is not replicated to it."""
        if self.builder is None:
            return False
        self._act(self.builder.exclude(cluster, round(self._context.clock.monotonic_s() * 1000)))
        return cluster in self.builder.excluded

    # ---- What is decided

    def _act(self, decisions: Iterable[Decision]) -> None:
        counters = self._context.counters
        for decision in decisions:
            match decision:
                case SnapshotRequest():
                    counters.pending += not decision.snapshot_id.endswith("/2")
                    self._write(decision)
                case Snapshot():
                    self._write(decision, only_to=self._context.cluster)
                case Aborted(snapshot_id, reason, missing):
                    counters.pending -= 1
                    counters.timed_out += 1
                    logger.info(
                        "snapshot dropped topic=%s snapshot=%s missing=%s: %s",
                        self._topic_name,
                        snapshot_id,
                        ",".join(missing),
                        reason,
                    )
                case RegionExcluded(cluster, gone_ms):
                    logger.warning(
                        "snapshots are partial from now on topic=%s without=%s gone_ms=%d",
                        self._topic_name,
                        cluster,
                        gone_ms,
                    )
                case RegionIncluded(cluster):
                    logger.info("snapshots are complete again topic=%s with=%s", self._topic_name, cluster)

    def _tell(self, update: SubscriptionUpdate) -> None:
        self._context.counters.updates_told += 1
        self._write(update)

    def _write(self, marker: Marker, only_to: str | None = None) -> None:
        data = encode(marker, self._context.clock.now_ms(), only_to)
        self._ledger.append(data, partial(self._written, marker))

    def _written(self, marker: Marker, error: MagnetarError | None, ledger_id: int, entry_id: int) -> None:
        if error is not None:
            self._not_written(marker)
            return
        position = Position(ledger_id, entry_id)
        self._markers.stored(position)
        if isinstance(marker, Snapshot):
            self._completed(marker, position)
            for side in list(self.sides.values()):
                side.snapshot_stored(marker)

    def _not_written(self, marker: Marker) -> None:
        if isinstance(marker, SubscriptionUpdate):
            if len(self._unsent) < UNSENT_MAX:
                self._unsent.setdefault(marker.subscription, marker)
        elif isinstance(marker, Snapshot | SnapshotRequest) and self.builder is not None:
            self._act(self.builder.store_failed(marker.snapshot_id.removesuffix("/2")))

    def _completed(self, snapshot: Snapshot, position: Position) -> None:
        counters, builder = self._context.counters, self.builder
        if builder is None or builder.pending_id != snapshot.snapshot_id:
            return
        builder.snapshot_stored(snapshot.snapshot_id)
        counters.pending -= 1
        counters.completed += 1
        counters.duration_ms += round(self._context.clock.monotonic_s() * 1000) - builder.completed_ms
        self.last_snapshot = position, self._context.clock.now_ms()

    def _pass_caught_up(self, position: Position) -> None:
        """Subscriptions that have consumed everything before the marker consume it, too."""
        before = self._ledger.index.previous(position)
        for subscription in self._subscriptions.all:
            if subscription.cursor.mark_delete_position >= before:
                subscription.cursor.acknowledge([position])

    # ---- What arrives

    def marker_arrived(self, data: bytes, position: Position) -> None:
        """A replicator has brought a marker, and it is stored."""
        self._markers.stored(position)
        try:
            marker = decode(data)
        except ValueError as error:
            logger.warning("marker not understood topic=%s position=%d:%d: %s", self._topic_name, *position, error)
            return
        if self._closed or not self._config.enabled or self._of_segment:
            return
        sender = sender_of(data)
        match marker:
            case SnapshotRequest(source_cluster=cluster) | SnapshotResponse(cluster=cluster) if cluster != sender:
                logger.warning(
                    "marker of %s ignored, which says that it is of %s topic=%s", sender, cluster, self._topic_name
                )
            case SnapshotRequest():
                self._answer(marker)
            case SnapshotResponse():
                if self.builder is not None:
                    self._act(self.builder.response_received(marker, position))
            case SubscriptionUpdate():
                self._incoming.apply(marker, sender)
                if not self._ticking:
                    self._context.spawn(self._start_quietly(), f"replicated subscriptions {self._topic_name}")
            case _:
                return

    async def follow(self, subscription: str, upto: Position, sender: str) -> None:
        """Another cluster's subscription of a scalable topic has consumed everything up to there of this segment; durable on return.

        Raises LedgerError, NotAllowedError.
        """
        if self._closed:
            raise ServiceNotReadyError(f"{self._topic_name} is being closed: look it up again")
        if self._subscriptions.find(subscription) is None:
            try:
                await self._subscriptions.create(subscription, upto, {})
                return
            except AlreadyExistsError:
                pass  # a consumer came first
        await self._incoming.applied(SubscriptionUpdate(subscription, {self._context.cluster: upto}), sender)

    def _answer(self, request: SnapshotRequest) -> None:
        """Answer a request. An answer too many does no harm: the cluster that asked counts the first one."""
        response = answer(request, self._context.cluster, self._readable_end())
        if response is not None:
            self._write(response, only_to=request.source_cluster)

    async def _start_quietly(self) -> None:
        try:
            await self._start()
        except MagnetarError as error:
            logger.warning("replicated subscriptions not started topic=%s error=%s", self._topic_name, error)
