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
from types import TracebackType

from magnetar.admin.server import AdminServer
from magnetar.base.clock import SystemClock
from magnetar.base.config import StandaloneConfig
from magnetar.base.errors import StartupError, StorageError
from magnetar.base.executor import ThreadExecutor
from magnetar.base.network import AsyncioNetwork, SocketListener
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.directory_lock import DirectoryLock
from magnetar.bookkeeper.bookie.disk import Disk
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.broker.config import BrokerConfig
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
        binary, http = _bind(config)
        stack.push_async_callback(binary.close)
        stack.push_async_callback(http.close)
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
                config=broker_config(config, binary.port, http.port),
                metadata=metadata,
                bookkeeper=client,
                clock=clock,
                rng=random.Random(rng.random()),
            )
        )
        admin = await stack.enter_async_context(AdminServer(self.broker, self.bookie.statistics, config))
        await admin.serve(http.socket)
        await self.broker.serve(binary)

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


def _bind(config: StandaloneConfig) -> tuple[SocketListener, SocketListener]:
    network = AsyncioNetwork()
    binary = network.bind(config.bind_address, config.port)
    try:
        return binary, network.bind(config.bind_address, config.http_port)
    except StartupError:
        binary.socket.close()
        raise


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


def broker_config(config: StandaloneConfig, port: int, http_port: int) -> BrokerConfig:
    """The broker's view of the configuration, with the ports that are really bound."""
    return BrokerConfig(
        cluster=config.cluster_name,
        advertised_address=config.advertised_host,
        bind_address=config.bind_address,
        port=port,
        http_port=http_port,
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
