"""`magnetar autorecovery`: auditor and replication worker in a process of their own. A bookie may run them as well."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

from magnetar.admin.http.guard import HttpGuard
from magnetar.admin.http.server import HttpServer
from magnetar.base.admission import Admission
from magnetar.base.clock import Clock, SystemClock
from magnetar.base.limits import HTTP_CONNECTIONS_MAX
from magnetar.base.network import AsyncioNetwork
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.autorecovery.settings import AutorecoverySettings
from magnetar.bookkeeper.cluster import instance_id
from magnetar.metadata.store import MetadataStore
from magnetar.processes.autorecovery_http import autorecovery_app
from magnetar.processes.bookie_wire import client_options
from magnetar.processes.composition import Composition
from magnetar.processes.configurations import AutorecoveryConfig, BookieProcessConfig
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.processes.metadata_access import SessionState, hold_to_cluster, metadata_credentials, open_metadata
from magnetar.processes.serving import serve_until_told


def autorecovery_config(config: AutorecoverySettings) -> AutoRecoveryConfig:
    """From the configuration file's settings. Raises ConfigError."""
    return AutoRecoveryConfig(
        lost_bookie_recovery_delay_s=config.lost_bookie_recovery_delay_s,
        auditor_periodic_bookie_check_interval_s=config.auditor_periodic_bookie_check_interval_s,
        auditor_periodic_check_interval_s=config.auditor_periodic_check_interval_s,
        auditor_replicas_check_interval_s=config.auditor_periodic_replicas_check_interval_s,
        auditor_placement_check_interval_s=config.auditor_periodic_placement_policy_check_interval_s,
        auditor_ledger_verification_percentage=config.auditor_ledger_verification_percentage,
        auditor_verification_rate_by_bytes=config.auditor_verification_rate_by_bytes,
        open_ledger_rereplication_grace_period_s=config.open_ledger_rereplication_grace_period_ms / 1000,
        rereplication_entry_batch_size=config.rereplication_entry_batch_size,
        replication_rate_by_bytes=config.replication_rate_by_bytes,
    )


async def open_autorecovery(
    config: AutorecoveryConfig | BookieProcessConfig,
    name: str,
    metadata: MetadataStore,
    clock: Clock,
    rng: random.Random,
    stack: AsyncExitStack,
) -> AutoRecovery:
    """Runs for as long as `stack` lasts. `name`: unique in the cluster."""
    client, directory = await open_ledger_client(metadata, clock, rng, stack, options=client_options(config))
    own_rng = random.Random(rng.random())
    recovery = AutoRecovery(metadata, client, directory, clock, own_rng, autorecovery_config(config), name)
    return await stack.enter_async_context(recovery)


class AutorecoveryProcess(Composition):
    """Votes and locks are ephemeral: when its session ends, another one takes over, and this one begins anew."""

    def __init__(self, config: AutorecoveryConfig) -> None:
        super().__init__()
        self.config = config
        self._urls: list[str] = []

    @property
    def urls(self) -> Sequence[str]:
        return self._urls

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        clock, rng = SystemClock(), random.Random(os.urandom(16))
        share = Admission(http_max=HTTP_CONNECTIONS_MAX).http
        listener = None
        if config.http_port >= 0:
            listener = AsyncioNetwork().bind(config.bind_address, config.http_port, share)
        if listener is not None:
            stack.push_async_callback(listener.close)
        metadata = await open_metadata(
            config.metadata_service_uri, config.zk_timeout_ms / 1000, clock, stack, metadata_credentials(config)
        )
        hold_to_cluster(metadata, await instance_id(metadata), self.fail)
        name = f"autorecovery-{rng.getrandbits(64):016x}"
        self.recovery = await open_autorecovery(config, name, metadata, clock, rng, stack)
        if listener is not None:
            app, guard = (
                autorecovery_app(self.recovery.statistics, SessionState(metadata).is_connected),
                HttpGuard(config.http_names),
            )
            http = await stack.enter_async_context(HttpServer(app, guard))
            await http.serve(listener)
            self._urls = [f"http://{config.advertised_host}:{listener.port}"]


async def run(config: AutorecoveryConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(AutorecoveryProcess(config), config.warnings())
