"""The composition root of one broker: what it is made of, started and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from functools import partial
from types import TracebackType

from magnetar.base.admission import Admission
from magnetar.base.clock import Clock
from magnetar.base.errors import ConfigError, MagnetarError
from magnetar.base.network import AsyncioNetwork, Listener, Network
from magnetar.base.process_watch import LinuxProcessWatch, ProcessWatch
from magnetar.base.steady_clock import SteadyClock
from magnetar.base.tasks import FATAL, REPORTED, TaskScope
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.broker.auth.authorize import Security
from magnetar.broker.bundle_moves import BundleMoves
from magnetar.broker.cluster_participants import ClusterParticipants
from magnetar.broker.compaction.topic_compaction import CompactionService
from magnetar.broker.config import MIB, BrokerConfig
from magnetar.broker.connection.context import BrokerContext, Destinations, ProducerNames
from magnetar.broker.connection.listener import ConnectionListener
from magnetar.broker.connection.publishing import PublishBudget
from magnetar.broker.connection.requests import RequestTurns
from magnetar.broker.dispatch.turns import DispatchTurns
from magnetar.broker.dynamic_configuration import DynamicConfiguration
from magnetar.broker.load_manager.manager import LoadManager
from magnetar.broker.load_manager.reporter import HostMeter
from magnetar.broker.membership import ClusterServices, Membership
from magnetar.broker.namespaces.lookup import Lookup
from magnetar.broker.namespaces.policies import Document, EffectivePolicies
from magnetar.broker.namespaces.policy_layers import LAYERS
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.namespaces.topic_policies import topic_of_path
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.broker.peers import NonPersistentTopics, RemoteTopics
from magnetar.broker.pipelines.registry import PipelineRegistry
from magnetar.broker.refused_clients import RecentRefusals
from magnetar.broker.replication.ports import ReplicationContext, SnapshotCounters
from magnetar.broker.replicators.remote_clusters import RemoteClusters
from magnetar.broker.replicators.service import ReplicationService
from magnetar.broker.scalable.autoscale import broker_policy
from magnetar.broker.scalable.controller import ControllerContext
from magnetar.broker.scalable.migration import retire_classic
from magnetar.broker.scalable.other_clusters import OtherClusters, ReplicationRules
from magnetar.broker.scalable.records import ScalableRecords
from magnetar.broker.scalable.segments import OwnSegments, Segments, ancestors_sent
from magnetar.broker.scalable.service import ScalableTopics
from magnetar.broker.scalable.subscriptions import ScalableSubscriptions
from magnetar.broker.schemas.admission import SchemaAdmission
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.storage import Quorum, SchemaStorage
from magnetar.broker.subscriptions.bucket_store import LedgerBucketStore
from magnetar.broker.subscriptions.config import SubscriptionConfig
from magnetar.broker.subscriptions.delayed_buckets import DelayedStorage
from magnetar.broker.topics.participants import TopicParticipants
from magnetar.broker.topics.registry import TopicRegistry
from magnetar.broker.topics.subscription_set import TopicContext
from magnetar.broker.tracing.traces import Traces
from magnetar.broker.transactions.coordinators import Coordinators
from magnetar.broker.transactions.log import TransactionStorage
from magnetar.broker.upkeep import Upkeep
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)


class Broker:
    """`async with Broker(...) as broker: await broker.serve(listener)`. Its parts are public for the admin side."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        metadata: MetadataStore,
        bookkeeper: BookKeeperClient,
        clock: Clock,
        rng: random.Random,
        network: Network | None = None,
        processes: ProcessWatch | None = None,
        admission: Admission | None = None,
        host: HostMeter | None = None,
    ) -> None:
        """`network`: the way to other brokers and clusters, `processes`: how the end of others is seen, `host`: what this process takes of
        its machine; all the operating system's by default. `config` names the ports that are really bound; `admission` is what they ask
        for every connection."""
        self.config = config
        self.admission = admission or Admission()
        self.metadata = metadata
        self.clock = SteadyClock(clock)
        self._wall_clock = clock
        """The clock of credentials, which expire by the wall clock, including its jumps."""
        self.started_ms = clock.now_ms()
        self.snapshot_counters = SnapshotCounters()
        self.refused = RecentRefusals()
        self.pipelines = PipelineRegistry(metadata, self.clock)
        self.traces = Traces(
            self.clock, lambda: f"{rng.getrandbits(128):032x}", lambda: self.config.settings.trace_messages_per_s
        )
        self.ledger_client = bookkeeper.statistics
        """Statistics of the ledger client."""
        self.bookkeeper = bookkeeper
        """The ledger client."""
        self._rng = rng
        self._network = network or AsyncioNetwork()
        self._host = host
        self._scope = TaskScope("broker")
        self.dynamic = DynamicConfiguration(metadata, config)
        self.namespaces = NamespaceRegistry(metadata, config)
        self.security = Security(config, self.namespaces, clock.now_ms, clock.monotonic_s)
        processes = processes or LinuxProcessWatch()
        self.cluster = ClusterServices(
            metadata, self.namespaces, config, self.clock, rng, self._network, processes, self._scope
        )
        self.ownership = self.cluster.ownership
        self.peers = self.cluster.peers
        self.non_persistent = NonPersistentTopics(self.cluster.others, self.peers)
        self.lookup = Lookup(
            metadata,
            self.namespaces,
            self.ownership,
            self.cluster.finder,
            self.cluster.gate,
            RemoteTopics(self.peers).partitions,
        )

    async def __aenter__(self) -> Broker:
        await self._scope.__aenter__()
        await self.dynamic.load()
        self.entry_cache = EntryCache(self.config.settings.managed_ledger_cache_size_mb * MIB)
        self.factory = ManagedLedgerFactory(
            self.metadata,
            self.bookkeeper,
            self.clock,
            self._scope,
            self._rng,
            self.entry_cache,
        )
        self.schemas = SchemaAdmission(self._schema_registry(), self.namespaces)
        self.remote_clusters = self._remote_clusters()
        self.topics = TopicRegistry(
            schemas=self.schemas.registry,
            factory=self.factory,
            namespaces=self.namespaces,
            lookup=self.lookup,
            config=self.config,
            context=TopicContext(
                clock=self.clock,
                scheduler=asyncio.get_running_loop(),
                dispatch_turns=DispatchTurns(
                    asyncio.get_running_loop(), self.clock, lambda: self.metadata.proven_until_s
                ),
                rng=self._rng,
                config=self._subscription_config,
                compaction=CompactionService(
                    client=self.bookkeeper,
                    spawn=partial(self._scope.spawn, on_failure=REPORTED),
                    clock=self.clock,
                    retain_null_key=self.config.settings.compaction_retain_null_key,
                ),
                replicated_subscriptions=self._replicated_subscriptions(),
                delayed_storage=self._delayed_storage(),
                transactions=TransactionStorage(
                    factory=self.factory,
                    ledgers=self.config.managed_ledger,
                    snapshot_transactions=self.config.settings.transaction_buffer_snapshot_max_transaction_count,
                    snapshot_interval_ms=self.config.settings.transaction_buffer_snapshot_min_time_ms,
                ),
                replication=self._replication(),
                drained=lambda topic, subscription: self.scalable.drained(topic, subscription),
            ),
            scope=self._scope,
        )
        self.dynamic.applied = self.defaults_changed
        self.participants = ClusterParticipants(TopicParticipants(self.topics), self.lookup, self.peers)
        self.transactions = self._coordinators()
        self.moves = self._bundle_moves()
        await self.namespaces.create_defaults()
        await self.cluster.leadership.__aenter__()
        self._unwatch = self.metadata.watch(self._metadata_changed, paths.ADMIN_PATH)
        self.scalable = self._scalable_topics()
        self.context = await self._new_context()
        self.connections = ConnectionListener(self.context)
        self._export_spans()
        await self._join()
        await self._start_transactions()
        if self.config.settings.scalable_topics_enabled:
            self.scalable.start(lambda: self.config.settings.scalable_auto_scale_interval_s)
        Upkeep(self.topics, self.config, self.clock).start(self._scope)
        return self

    async def _new_context(self) -> BrokerContext:
        """State and services that the handlers share."""
        return BrokerContext(
            config=self.config,
            clock=self._wall_clock,
            scope=self._scope,
            namespaces=self.namespaces,
            lookup=self.lookup,
            topics=self.topics,
            schemas=self.schemas,
            producer_names=ProducerNames(self.config.settings.cluster_name, await self._start_number()),
            budget=PublishBudget(self.config.settings.max_message_publish_buffer_size_mb * MIB, self.clock.monotonic_s),
            security=self.security,
            transactions=self.transactions,
            participants=self.participants,
            destinations=self._destinations,
            non_persistent=self.non_persistent,
            turns=RequestTurns(self._scope, self.clock),
            refused=self.refused,
            scalable=self.scalable,
            traces=self.traces,
        )

    def _export_spans(self) -> None:
        endpoint = self.config.settings.otel_exporter_otlp_endpoint
        if not endpoint:
            return
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otelExporterOtlpEndpoint {endpoint!r} is not a valid URL; write it as http://HOST:4318/v1/traces"
            )
        try:
            from magnetar.broker.tracing.otel import SpanExport
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"otelExporterOtlpEndpoint needs {error.name}; install it with: pip install 'magnetar[otel]', or leave the setting empty"
            ) from error
        self.traces.export_to(SpanExport(endpoint, "magnetar-broker", self.config.web_service_url))

    async def _join(self) -> None:
        """Join the cluster, so that bundles come here, and report their load."""
        self.membership = Membership(
            self.metadata, self.cluster, self.moves, self.connections, self.config, self._scope
        )
        await self.membership.join()
        await self.membership.look_around()
        self.load_manager = self._load_manager()
        await self.load_manager.start()

    async def _start_transactions(self) -> None:
        await self.transactions.start()
        if self.config.settings.transaction_coordinator_enabled:
            await self.moves.look_for_coordinators()

    async def serve(self, listener: Listener, tls: ssl.SSLContext | None = None) -> None:
        """Accept clients on a bound address, behind TLS if given."""
        await self.connections.serve(listener, tls)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.load_manager.close()
            await self.scalable.close()
            await self.membership.leave()
            await self.connections.close()
            self._unwatch()
            await self.topics.close()
            await self.traces.close()
            await self.remote_clusters.close()
            await self.factory.close()
            self.lookup.close()
            self.namespaces.close()
            self.cluster.close()
            await self.cluster.leadership.__aexit__(None, None, None)
        finally:
            await self._scope.__aexit__(kind, error, trace)

    async def _start_number(self) -> int:
        """The number of brokers started on this metadata store before, which makes generated producer names unique."""
        path, _ = await self.metadata.put(paths.PRODUCER_NAME_PREFIX + "start-", b"", sequential=True)
        return paths.sequence_of(path)

    async def defaults_changed(self) -> None:
        """What topics fall back on has changed: a setting, a resource group."""
        self.namespaces.forget_effective()
        self.entry_cache.max_bytes = self.config.settings.managed_ledger_cache_size_mb * MIB
        self.entry_cache.evict()
        if self.context is not None:
            self.context.budget.limit_bytes = self.config.settings.max_message_publish_buffer_size_mb * MIB
        await self.topics.defaults_changed()

    async def _load_dynamic(self) -> None:
        try:
            await self.dynamic.load()
        except MagnetarError as error:
            logger.warning("dynamic configuration not read, next time at its next change error=%s", error)

    def _metadata_changed(self, path: str) -> None:
        """Policies of a namespace or a topic take effect on loaded topics at once, whichever broker they were set at."""
        if path in (RESYNC, paths.DYNAMIC_CONFIGURATION_PATH):
            self._scope.spawn(self._load_dynamic(), "dynamic configuration changed", REPORTED)
        if path.startswith(paths.RESOURCE_GROUPS_PATH):
            self._scope.spawn(self.defaults_changed(), "resource groups changed", REPORTED)
        if path == RESYNC:
            for namespace in dict.fromkeys(topic.name.namespace_name for topic in self.topics.loaded):
                self._scope.spawn(self.topics.policies_changed(namespace), "policies may have changed", REPORTED)
        parts = path.removeprefix(paths.POLICIES_PATH + "/").split("/")
        if path.startswith(paths.POLICIES_PATH + "/") and len(parts) == 2:
            self._scope.spawn(
                self.topics.policies_changed(NamespaceName(parts[0], parts[1])), "policies changed", REPORTED
            )
        topic = topic_of_path(path)
        if topic is not None:
            self._scope.spawn(
                self.topics.policies_changed(topic.namespace_name, topic), "topic policies changed", REPORTED
            )

    def _delayed_storage(self) -> DelayedStorage:
        return DelayedStorage(LedgerBucketStore(self.bookkeeper), partial(self._scope.spawn, on_failure=FATAL))

    def _replicated_subscriptions(self) -> ReplicationContext:
        return ReplicationContext(
            self.config.settings.cluster_name,
            self.clock,
            self._rng,
            partial(self._scope.spawn, on_failure=REPORTED),
            self.snapshot_counters,
        )

    def _coordinators(self) -> Coordinators:
        config = self.config
        return Coordinators(
            settings=config.settings,
            names=self.namespaces,
            owner=self.ownership,
            factory=self.factory,
            ledgers=config.managed_ledger,
            participants=self.participants,
            others=self.participants,
            clock=self.clock,
            scope=self._scope,
        )

    def _remote_clusters(self) -> RemoteClusters:
        return RemoteClusters(
            local=self.config.settings.cluster_name,
            live=self.config,
            metadata=self.metadata,
            network=self._network,
            clock=self.clock,
            rng=self._rng,
            scheduler=asyncio.get_running_loop(),
            scope=self._scope,
        )

    def _bundle_moves(self) -> BundleMoves:
        self._destinations = Destinations()
        return BundleMoves(
            ownership=self.ownership,
            brokers=self.cluster.brokers,
            placement=self.cluster.placement,
            topics=self.topics,
            coordinators=self.transactions,
            destinations=self._destinations,
            scope=self._scope,
        )

    def _load_manager(self) -> LoadManager:
        view = self.cluster
        return LoadManager(
            metadata=self.metadata,
            placement=view.load_placement,
            registration=view.registration,
            leadership=view.leadership,
            ownership=self.ownership,
            topics=self.topics,
            moves=self.moves,
            config=self.config,
            clock=self.clock,
            rng=self._rng,
            scope=self._scope,
            host=self._host,
        )

    def _replication(self) -> ReplicationService:
        return ReplicationService(
            self.remote_clusters,
            self.schemas.registry,
            self.namespaces.partitions,
            lambda segment, cluster: ancestors_sent(self.scalable.records, self.scalable.segments, segment, cluster),
        )

    def _scalable_topics(self) -> ScalableTopics:
        records = ScalableRecords(self.metadata)
        segments = Segments(OwnSegments(self.topics, self.lookup), self.lookup, self.peers)
        return ScalableTopics(
            context=ControllerContext(
                records=records,
                segments=segments,
                subscriptions=ScalableSubscriptions(records, segments, self.namespaces.effective_of),
                clock=self.clock,
                scheduler=asyncio.get_running_loop(),
                scope=self._scope,
                grace_s=lambda: self.config.settings.scalable_consumer_grace_s,
                policy=lambda: broker_policy(self.config.settings),
                namespace_policy=self._scale_policy,
                retention_s=self._retention_s,
                look_soon=lambda topic: self.scalable.look_soon(topic),
                retire_classic=lambda topic: retire_classic(self.namespaces, topic),
                clusters=OtherClusters(self.config.settings.cluster_name, self._replication_rules, self._call_cluster),
                snapshot_counters=self.snapshot_counters,
            ),
            namespaces=self.namespaces,
            lookup=self.lookup,
            ownership=self.ownership,
            brokers=self.cluster.brokers,
            schemas=self.schemas.registry,
            scope=self._scope,
        )

    async def _scale_policy(self, topic: TopicName) -> Document | None:
        document = await self.namespaces.policies(topic.namespace_name)
        found: Document | None = document.get(LAYERS["scalable_auto_scale"].namespace)
        return found

    async def _replication_rules(self, topic: TopicName) -> ReplicationRules:
        policies = await self.namespaces.effective_of(topic)
        local = self.config.settings.cluster_name
        clusters = tuple(each for each in policies.replication_clusters if each != local)
        return ReplicationRules(clusters, policies.replicated_subscriptions)

    async def _call_cluster(self, cluster: str, method: str, path: str, body: object) -> object:
        return await (await self.remote_clusters.admin(cluster)).call(method, path, body)

    async def _retention_s(self, topic: TopicName) -> float:
        minutes = (await self.namespaces.effective_of(topic)).retention_time_minutes
        return minutes * 60.0

    def _schema_registry(self) -> SchemaRegistry:
        ledgers = self.config.managed_ledger
        quorum = Quorum(ledgers.ensemble_size, ledgers.write_quorum, ledgers.ack_quorum)
        storage = SchemaStorage(self.metadata, self.bookkeeper, self.clock, quorum)
        json_schemas = self.config.settings.schema_json_allow_legacy_jackson_format
        return SchemaRegistry(storage, self.metadata, json_schemas=json_schemas)

    def _subscription_config(self, policies: EffectivePolicies) -> SubscriptionConfig:
        config = self.config
        return SubscriptionConfig(
            max_unacked_per_consumer=policies.max_unacked_messages_per_consumer,
            max_unacked_per_subscription=policies.max_unacked_messages_per_subscription,
            max_consumers=policies.max_consumers_per_subscription,
            delayed_delivery_enabled=policies.delayed_delivery,
            delayed_delivery_tick_ms=policies.delayed_delivery_tick_ms,
            batch_index_ack_enabled=config.settings.acknowledgment_at_batch_index_level_enabled,
            key_shared_consistent_hashing=config.settings.subscription_key_shared_use_consistent_hashing,
            key_shared_points=config.settings.subscription_key_shared_consistent_hashing_replica_points,
            failover_delay_ms=config.settings.active_consumer_failover_delay_ms,
            failover_by_ring=config.settings.active_consumer_failover_consistent_hashing,
        )
