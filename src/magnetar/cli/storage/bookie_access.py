"""The bookies of a cluster as commands use them: channels to all that are registered, or the standalone server's own one."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from magnetar.base.clock import Clock, SystemClock
from magnetar.base.settings import load_settings, parse, table_of
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.autorecovery.config import AutoRecoveryConfig
from magnetar.bookkeeper.autorecovery.service import AutoRecovery
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.ledger_manager import LedgerManager
from magnetar.bookkeeper.wire_settings import BookieRequestSettings, BookieTlsSettings
from magnetar.cli.storage.store_access import StoreSource, opened_store
from magnetar.metadata.store import MetadataStore
from magnetar.processes.bookie_config import bookie_config
from magnetar.processes.bookie_wire import command_options
from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.command_lines import settings_of
from magnetar.processes.cluster.plan import AUTORECOVERY, ProcessPlan
from magnetar.processes.composition import enter_alone
from magnetar.processes.configurations import CONFIGURATIONS, StandaloneConfig
from magnetar.processes.data_backup import BOOKIE_ID
from magnetar.processes.ledger_client import open_ledger_client
from magnetar.processes.pulsar_keys import PULSAR_KEYS


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Metadata and bookies. `available`: ids of the bookies that can be asked."""

    store: MetadataStore
    bookies: BookieDirectory
    client: BookKeeperClient
    manager: LedgerManager
    clock: Clock
    available: Collection[str]

    def recovery(self, password: bytes = b"", retired: Collection[str] = ()) -> AutoRecovery:
        """The parts of auto-recovery, for single steps: nothing runs by itself unless it is entered."""
        config = replace(AutoRecoveryConfig(), password=password)
        holder = f"cli-{os.getpid()}-{self.store.session_id:x}"
        rng = random.Random(os.urandom(16))
        return AutoRecovery(self.store, self.client, self.bookies, self.clock, rng, config, holder, retired=retired)


@asynccontextmanager
async def opened_cluster(source: StoreSource) -> AsyncIterator[ClusterAccess]:
    """Raises what `opened_store` raises."""
    clock, rng = SystemClock(), random.Random(os.urandom(16))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(source))
        if source.data_dir is not None:
            bookies = BookieDirectory()
            await stack.enter_async_context(own_bookie(source.data_dir, bookies))
            scope = await enter_alone(stack, TaskScope("ledger client"))
            client = BookKeeperClient(store, bookies, clock, rng, scope)
        else:
            client, bookies = await open_ledger_client(store, clock, rng, stack, options=access_options(source))
        yield ClusterAccess(store, bookies, client, LedgerManager(store), clock, bookies.registered())


def access_options(source: StoreSource) -> ChannelOptions:
    """What bookies ask their clients for: MAGNETAR_bookieSharedSecret, MAGNETAR_tlsTrustStore ... of the environment, or what was said
    for the auto-recovery of a `magnetar cluster`. Raises ConfigError."""
    planned = {}
    if source.cluster_dir is not None:
        planned = settings_of(
            source.cluster_dir.absolute(), Cluster(source.cluster_dir).plan, ProcessPlan("", AUTORECOVERY, {})
        )
    requests = load_settings(
        BookieRequestSettings, None, os.environ, _known(BookieRequestSettings, planned), CONFIGURATIONS, PULSAR_KEYS
    )
    tls = load_settings(
        BookieTlsSettings, None, os.environ, _known(BookieTlsSettings, planned), CONFIGURATIONS, PULSAR_KEYS
    )
    return command_options(requests, tls)


def _known(kind: type, settings: dict[str, str]) -> dict[str, object]:
    rows = {row.key: row for row in table_of(kind).values()}
    return {rows[key].name: parse(rows[key], text, "--dir") for key, text in settings.items() if key in rows}


@asynccontextmanager
async def own_bookie(data_dir: Path, bookies: BookieDirectory) -> AsyncIterator[None]:
    """The bookie of a standalone server that is not running. Nothing is collected: it is only read."""
    config = bookie_config(StandaloneConfig(data_dir=data_dir), data_dir / "bookie", BOOKIE_ID)
    async with Bookie(config) as bookie:
        bookies.register(BOOKIE_ID, bookie)
        yield
