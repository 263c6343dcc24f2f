"""One process: metadata, bookie, broker and admin, started in order and stopped in reverse (`magnetar standalone`).

A composition and nothing else: every part is the one that a cluster runs as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType

from magnetar.admin.server import AdminServer
from magnetar.base.clock import SystemClock
from magnetar.base.config import StandaloneConfig
from magnetar.base.errors import StartupError, StorageError
from magnetar.base.executor import ThreadExecutor
from magnetar.base.network import AsyncioNetwork, SocketListener
from magnetar.base.security_settings import names_of
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.directory_lock import DirectoryLock
from magnetar.bookkeeper.bookie.disk import Disk
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.broker.config import BrokerConfig, SecurityConfig, TlsConfig
from magnetar.broker.service import Broker
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.metadata.sqlite import SqliteMetadataStore

logger = logging.getLogger(__name__)

BOOKIE_ID = "standalone:3181"
"""The one bookie's name in ledger metadata: independent of ports and addresses, which may change from start to start."""

_MIB = 1024 * 1024
_MINUTE_MS = 60_000


class Standalone:
    """`async with Standalone(config) as server:` serves until it is left. `failure` is set when a part had to stop itself."""

    def __init__(self, config: StandaloneConfig, disk: Disk | None = None) -> None:
        """`disk`: the bookie's, the operating system's files by default."""
        self.config = config
        self._disk = disk
        self._bookies = BookieDirectory()
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Standalone:
        await self._stack.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        clock, rng = SystemClock(), random.Random(os.urandom(16))
        listeners = Listeners(config)
        stack.push_async_callback(listeners.close)
        prepare_directory(config)
        stack.enter_context(DirectoryLock(str(config.data_dir)))
        executor = ThreadExecutor("metadata")
        stack.callback(executor.close)
        metadata = await SqliteMetadataStore.open(config.data_dir / "metadata.sqlite", executor)
        stack.push_async_callback(metadata.close)
        manager = LedgerManager(metadata)
        bookies = self._bookies
        self.bookie = await stack.enter_async_context(
            Bookie(
                bookie_config(config),
                clock=clock,
                disk=self._disk,
                rng=random.Random(rng.random()),
                list_ledgers=manager.list_ids,
                ledger_exists=manager.exists,
                on_fatal=self._bookie_failed,
                on_read_only_change=lambda read_only: self._register(bookies, not read_only),
            )
        )
        self._register(bookies, True)
        client = BookKeeperClient(metadata, bookies, clock, random.Random(rng.random()))
        self.broker = await stack.enter_async_context(
            Broker(
                config=broker_config(config, listeners),
                metadata=metadata,
                bookkeeper=client,
                clock=clock,
                rng=random.Random(rng.random()),
            )
        )
        admin = await stack.enter_async_context(AdminServer(self.broker, self.bookie.statistics, config))
        await self._serve(listeners, admin)

    async def _serve(self, listeners: Listeners, admin: AdminServer) -> None:
        tls = self.broker.security.tls
        if tls is not None and listeners.http_tls is not None:
            await admin.serve(listeners.http_tls.socket, tls.context)
        await admin.serve(listeners.http.socket)
        if tls is not None and listeners.binary_tls is not None:
            await self.broker.serve(listeners.binary_tls, tls.context)
        await self.broker.serve(listeners.binary)
        for url in (self.broker.config.service_url_tls, self.broker.config.web_service_url_tls):
            if url:
                logger.info("serving TLS url=%s", url)

    def _register(self, bookies: BookieDirectory, writable: bool) -> None:
        bookies.register(BOOKIE_ID, self.bookie, writable=writable)

    def _bookie_failed(self, error: StorageError) -> None:
        """Without a bookie to write to, what is under way fails now instead of going from ledger to ledger."""
        self._register(self._bookies, False)
        self.failure = error
        self.failed.set()

    @property
    def service_url(self) -> str:
        return self.broker.config.service_url

    @property
    def web_service_url(self) -> str:
        return self.broker.config.web_service_url

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


class Listeners:
    """The bound addresses; the TLS ones are None unless configured. Raises StartupError, leaving nothing bound."""

    def __init__(self, config: StandaloneConfig) -> None:
        self._network = AsyncioNetwork()
        self._address = config.bind_address
        self._bound: list[SocketListener] = []
        try:
            self.binary = self._bind(config.port)
            self.http = self._bind(config.http_port)
            self.binary_tls = self._bind(config.port_tls) if config.port_tls >= 0 else None
            self.http_tls = self._bind(config.http_port_tls) if config.http_port_tls >= 0 else None
        except StartupError:
            for listener in self._bound:
                listener.socket.close()
            raise

    def _bind(self, port: int) -> SocketListener:
        listener = self._network.bind(self._address, port)
        self._bound.append(listener)
        return listener

    async def close(self) -> None:
        for listener in self._bound:
            await listener.close()


def prepare_directory(config: StandaloneConfig) -> None:
    """Create the data directory. Raises StartupError when it cannot be used."""
    path = config.data_dir
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"cannot create the data directory {path}: {error.strerror}; choose another --data-dir"
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StartupError(
            f"the data directory {path} is not writable; change its permissions or choose another --data-dir"
        )


def bookie_config(config: StandaloneConfig) -> BookieConfig:
    return BookieConfig(
        data_dir=config.data_dir / "bookie",
        bookie_id=BOOKIE_ID,
        unsafe_no_fsync=not config.journal_sync_data,
        journal_file_bytes=config.journal_max_size_mb * _MIB,
        write_cache_bytes=config.write_cache_max_size_mb * _MIB,
        flush_interval_s=config.flush_interval_ms / 1000,
        entry_log_bytes=config.entry_log_size_limit,
        gc_interval_s=config.gc_wait_time_ms / 1000,
    )


PROVIDERS = {
    "org.apache.pulsar.broker.authentication.AuthenticationProviderToken": "token",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic": "basic",
    "org.apache.pulsar.broker.authentication.AuthenticationProviderTls": "tls",
}
"""Pulsar's class names."""


def tls_config(config: StandaloneConfig) -> TlsConfig | None:
    """None without a TLS port."""
    if max(config.port_tls, config.http_port_tls) < 0:
        return None
    return TlsConfig(
        certificate_file=config.tls_certificate_file_path,
        key_file=config.tls_key_file_path,
        trust_certs_file="" if config.tls_allow_insecure_connection else config.tls_trust_certs_file_path,
        require_client_cert=config.tls_require_trusted_client_cert_on_connect,
        refresh_check_s=config.tls_cert_refresh_check_s,
    )


def security_config(config: StandaloneConfig) -> SecurityConfig:
    return SecurityConfig(
        authentication=config.authentication_enabled,
        providers=tuple(PROVIDERS.get(name, name.lower()) for name in names_of(config.authentication_providers)),
        authorization=config.authorization_enabled,
        super_user_roles=names_of(config.super_user_roles),
        proxy_roles=names_of(config.proxy_roles),
        anonymous_role=config.anonymous_user_role,
        metrics_need_superuser=config.authenticate_metrics_endpoint,
        token_secret_key=config.token_secret_key,
        token_public_key=config.token_public_key,
        token_public_alg=config.token_public_alg,
        token_jwks_file=config.token_jwks_file,
        token_auth_claim=config.token_auth_claim,
        token_audience_claim=config.token_audience_claim,
        token_audience=config.token_audience,
        token_clock_skew_s=config.token_allowed_clock_skew_s,
        basic_auth_conf=config.basic_auth_conf,
    )


def broker_config(config: StandaloneConfig, listeners: Listeners) -> BrokerConfig:
    """The broker's view of the configuration, with the ports that are really bound."""
    broker = BrokerConfig(
        cluster=config.cluster_name,
        advertised_address=config.advertised_host,
        bind_address=config.bind_address,
        port=listeners.binary.port,
        http_port=listeners.http.port,
        port_tls=listeners.binary_tls.port if listeners.binary_tls is not None else 0,
        http_port_tls=listeners.http_tls.port if listeners.http_tls is not None else 0,
        tls=tls_config(config),
        security=security_config(config),
        max_message_size_bytes=config.max_message_size,
        keep_alive_interval_s=config.keep_alive_interval_s,
        max_pending_publishes_per_connection=config.max_pending_publish_requests_per_connection,
        publish_buffer_bytes=config.max_message_publish_buffer_size_mb * _MIB,
        allow_auto_topic_creation=config.allow_auto_topic_creation,
        auto_topic_creation_partitioned=config.allow_auto_topic_creation_type == "partitioned",
        default_num_partitions=config.default_num_partitions,
        allow_auto_subscription_creation=config.allow_auto_subscription_creation,
        deduplication_enabled=config.broker_deduplication_enabled,
        deduplication_snapshot_entries=config.broker_deduplication_entries_interval,
        deduplication_producers_max=config.broker_deduplication_max_number_of_producers,
        max_unacked_messages_per_consumer=config.max_unacked_messages_per_consumer,
        max_unacked_messages_per_subscription=config.max_unacked_messages_per_subscription,
        max_producers_per_topic=config.max_producers_per_topic,
        max_consumers_per_topic=config.max_consumers_per_topic,
        max_consumers_per_subscription=config.max_consumers_per_subscription,
        key_shared_consistent_hashing=config.subscription_key_shared_use_consistent_hashing,
        key_shared_points=config.subscription_key_shared_consistent_hashing_replica_points,
        delayed_delivery_enabled=config.delayed_delivery_enabled,
        delayed_delivery_tick_ms=config.delayed_delivery_tick_ms,
        batch_index_acknowledgment_enabled=config.acknowledgment_at_batch_index_level_enabled,
        active_consumer_failover_delay_ms=config.active_consumer_failover_delay_ms,
        message_ttl_s=config.ttl_default_s,
        message_expiry_check_interval_s=config.message_expiry_check_interval_minutes * 60,
        retention_time_minutes=config.default_retention_minutes,
        retention_size_mb=config.default_retention_size_mb,
        retention_check_interval_s=config.retention_check_interval_s,
        backlog_quota_check_enabled=config.backlog_quota_check_enabled,
        backlog_quota_limit_bytes=config.backlog_quota_default_limit_bytes,
        backlog_quota_limit_time_s=config.backlog_quota_default_limit_s,
        backlog_quota_policy=config.backlog_quota_default_policy,
        backlog_quota_check_interval_s=config.backlog_quota_check_interval_s,
        schema_compatibility_strategy=config.schema_compatibility_strategy,
        schema_validation_enforced=config.is_schema_validation_enforced,
        allow_auto_update_schema=config.is_allow_auto_update_schema_enabled,
        compaction_threshold_bytes=config.compaction_threshold_bytes,
        compaction_monitor_interval_s=config.compaction_monitor_interval_s,
        compaction_retain_null_key=config.compaction_retain_null_key,
        entry_cache_bytes=config.managed_ledger_cache_size_mb * _MIB,
        managed_ledger=ManagedLedgerConfig(
            ensemble_size=config.managed_ledger_ensemble_size,
            write_quorum=config.managed_ledger_write_quorum,
            ack_quorum=config.managed_ledger_ack_quorum,
            max_entries_per_ledger=config.managed_ledger_max_entries_per_ledger,
            max_size_per_ledger_bytes=config.managed_ledger_max_size_per_ledger_mb * _MIB,
            min_rollover_age_ms=config.managed_ledger_min_rollover_minutes * _MINUTE_MS,
            max_rollover_age_ms=config.managed_ledger_max_rollover_minutes * _MINUTE_MS,
            cursor_ledger_max_entries=config.managed_ledger_cursor_max_entries_per_ledger,
            cursor_ledger_max_age_ms=config.managed_ledger_cursor_rollover_s * 1000,
        ),
    )
    return with_policy_defaults(broker, config)


def with_policy_defaults(broker: BrokerConfig, config: StandaloneConfig) -> BrokerConfig:
    """What holds for namespaces and topics that say nothing themselves, beyond the plain limits."""
    return replace(
        broker,
        deduplication_snapshot_interval_s=config.broker_deduplication_snapshot_interval_s,
        deduplication_snapshot_check_s=config.broker_deduplication_snapshot_frequency_s,
        max_subscriptions_per_topic=config.max_subscriptions_per_topic,
        max_topics_per_namespace=config.max_topics_per_namespace,
        publish_rate_per_topic_messages=config.max_publish_rate_per_topic_messages,
        publish_rate_per_topic_bytes=config.max_publish_rate_per_topic_bytes,
        dispatch_rate_per_topic_messages=config.dispatch_throttling_rate_per_topic_messages,
        dispatch_rate_per_topic_bytes=config.dispatch_throttling_rate_per_topic_bytes,
        dispatch_rate_per_subscription_messages=config.dispatch_throttling_rate_per_subscription_messages,
        dispatch_rate_per_subscription_bytes=config.dispatch_throttling_rate_per_subscription_bytes,
        subscribe_rate_per_consumer=config.subscribe_throttling_rate_per_consumer,
        subscribe_rate_period_s=config.subscribe_rate_period_per_consumer_s,
        delete_inactive_topics=config.broker_delete_inactive_topics_enabled,
        inactive_topic_mode=config.broker_delete_inactive_topics_mode,
        inactive_topic_max_s=config.broker_delete_inactive_topics_max_inactive_duration_s,
        inactive_topic_check_s=config.broker_delete_inactive_topics_frequency_s,
        subscription_expiration_minutes=config.subscription_expiration_minutes,
        subscription_expiry_check_interval_s=config.subscription_expiry_check_interval_minutes * 60,
    )


async def run(config: StandaloneConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code; the ready line is the only output on stdout."""
    for warning in config.warnings():
        logger.warning(warning)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Standalone(config) as server:
        print(f"magnetar ready {server.service_url} {server.web_service_url}", flush=True)
        await _first(stop, server.failed)
        logger.info("stopping")
        failure = server.failure
    if failure is not None:
        print(f"magnetar: {failure}", file=sys.stderr)
        return 1
    return 0


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
