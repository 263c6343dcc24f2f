"""`magnetar broker`: a broker with its admin API, on bookies and a metadata store that lie elsewhere."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from magnetar.admin.server import AdminServer
from magnetar.base.clock import Clock, SystemClock
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.damage_reports import DamageReports
from magnetar.bookkeeper.autorecovery.underreplication import UnderreplicationManager
from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.bookkeeper.cluster import instance_id
from magnetar.broker.service import Broker
from magnetar.metadata.store import MetadataStore
from magnetar.processes.bookie_wire import broker_options
from magnetar.processes.broker_config import broker_config
from magnetar.processes.broker_serving import serve_broker
from magnetar.processes.composition import Composition, enter_alone
from magnetar.processes.configurations import BrokerProcessConfig
from magnetar.processes.former_registrations import forget_former_broker
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.processes.listeners import Listeners
from magnetar.processes.metadata_access import hold_to_cluster, metadata_credentials, open_metadata
from magnetar.processes.serving import serve_until_told


class BrokerProcess(Composition):
    """Ends when its session with the metadata store does: what it owned may be served by another broker then."""

    def __init__(self, config: BrokerProcessConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def urls(self) -> Sequence[str]:
        return self.broker.config.service_url, self.broker.config.web_service_url

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        clock, rng = SystemClock(), random.Random(os.urandom(16))
        options = broker_options(config)
        listeners = Listeners(config)
        stack.push_async_callback(listeners.close)
        timeout_s = config.metadata_store_session_timeout_ms / 1000
        metadata = await open_metadata(config.metadata_store_url, timeout_s, clock, stack, metadata_credentials(config))
        hold_to_cluster(metadata, await instance_id(metadata), self.fail)
        client, directory = await open_ledger_client(metadata, clock, rng, stack, config, options)
        await self._report_damage(metadata, directory, clock, client.statistics)
        settings = broker_config(config, listeners)
        await forget_former_broker(metadata, settings)
        self.broker = Broker(
            config=settings,
            metadata=metadata,
            bookkeeper=client,
            clock=clock,
            rng=random.Random(rng.random()),
            admission=listeners.admission,
        )
        await stack.enter_async_context(self.broker)
        storage = RemoteStorage(directory, needed_bookies(config))
        # `failed` without a failure: the server was told over HTTP to stop
        admin = await stack.enter_async_context(AdminServer(self.broker, storage, self.failed.set))
        await serve_broker(self.broker, admin, listeners)

    async def _report_damage(
        self, metadata: MetadataStore, directory: BookieDirectory, clock: Clock, statistics: ClientStatistics
    ) -> None:
        """Reads that meet a damaged copy have it repaired."""
        reports = DamageReports(UnderreplicationManager(metadata, clock, "broker"), clock, statistics)
        scope = await enter_alone(self._stack, TaskScope("damage reports"))
        scope.supervise(reports.run, "damage-reports")
        directory.on_damage = reports.note


def needed_bookies(config: BrokerProcessConfig) -> int:
    """To make a ledger of the broker's default."""
    if config.bookkeeper_opportunistic_striping:
        return config.managed_ledger_write_quorum
    return config.managed_ledger_ensemble_size


class RemoteStorage:
    """What the admin side says about the bookies."""

    def __init__(self, directory: BookieDirectory, needed: int) -> None:
        self._directory = directory
        self._needed = needed

    def problem(self) -> str | None:
        """Topics that write to a ledger already may go on; new ledgers cannot be made."""
        writable = len(self._directory.writable())
        if writable >= self._needed:
            return None
        return f"a ledger needs {self._needed} writable bookies and there are {writable}; start more of them"

    def bookie_statistics(self) -> BookieStatistics | None:
        return None


async def run(config: BrokerProcessConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(BrokerProcess(config), config.warnings())
