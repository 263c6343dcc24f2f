"""A ledger client on the bookies that the metadata lists."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack

from magnetar.base.clock import Clock
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.client.bookies import BookieDirectory
from magnetar.bookkeeper.client.channel.options import ChannelOptions
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.placement import PlacementPolicy, RackAwarePlacement, RegionAwarePlacement
from magnetar.bookkeeper.client.quarantine import QuarantineConfig
from magnetar.bookkeeper.client.racks import RackFollower
from magnetar.bookkeeper.client.remote_bookies import RemoteBookies
from magnetar.bookkeeper.client.settings import LedgerClientSettings
from magnetar.metadata.store import MetadataStore
from magnetar.processes.composition import enter_alone

FREE_SPACE_INTERVAL_S = 60.0
"""How often bookies are asked for their free space, when placement goes by it. BookKeeper: once a day."""


async def open_ledger_client(
    metadata: MetadataStore,
    clock: Clock,
    rng: random.Random,
    stack: AsyncExitStack,
    config: LedgerClientSettings | None = None,
    options: ChannelOptions | None = None,
) -> tuple[BookKeeperClient, BookieDirectory]:
    """Both for as long as `stack` lasts; the directory follows the lists and the racks. `options`: of the connections."""
    config = config or LedgerClientSettings()
    weighted = config.disk_weight_placement
    directory = BookieDirectory(placement(config), quarantine(config), clock, by_free_space=weighted)
    await enter_alone(stack, RackFollower(metadata, directory))
    bookies = RemoteBookies(
        metadata,
        directory,
        AsyncioNetwork(),
        clock,
        random.Random(rng.random()),
        options,
        info_interval_s=FREE_SPACE_INTERVAL_S if weighted else 0.0,
    )
    await enter_alone(stack, bookies)
    scope = await enter_alone(stack, TaskScope("ledger client"))
    settings = client_config(config)
    return BookKeeperClient(metadata, directory, clock, random.Random(rng.random()), scope, settings), directory


def placement(config: LedgerClientSettings) -> PlacementPolicy:
    """The policy that the configuration names; region-aware includes rack-aware."""
    if config.regionaware_policy_enabled:
        return RegionAwarePlacement(config.min_racks_per_write_quorum, enforced=config.enforce_min_racks)
    if config.rackaware_policy_enabled:
        return RackAwarePlacement(config.min_racks_per_write_quorum, enforced=config.enforce_min_racks)
    return PlacementPolicy()


def quarantine(config: LedgerClientSettings) -> QuarantineConfig:
    return QuarantineConfig(
        enabled=config.health_check_enabled,
        errors=config.health_check_error_threshold,
        interval_s=config.health_check_interval_s,
        quarantine_s=config.health_check_quarantine_s,
    )


def client_config(config: LedgerClientSettings) -> ClientConfig:
    changes_max = config.max_allowed_ensemble_changes
    return ClientConfig(
        password=config.managed_ledger_password.encode(),
        opportunistic_striping=config.bookkeeper_opportunistic_striping,
        delay_ensemble_change=config.delay_ensemble_change,
        ensemble_changes_max=None if changes_max < 0 else changes_max,
        add_quorum_timeout_s=config.add_entry_quorum_timeout_s,
        add_hedge_s=config.speculative_add_timeout_ms / 1000,
        explicit_lac_interval_s=config.explicit_lac_interval_ms / 1000,
        speculative_read_timeout_s=config.speculative_read_timeout_ms / 1000,
        reorder_reads=config.reorder_read_sequence,
    )
