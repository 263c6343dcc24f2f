"""`magnetar standalone --brokers N`: one command, and behind it metadata, a bookie and N brokers as processes of their own.

One Python process uses one core: several brokers behind one lookup use a machine whole. It is a cluster on one machine
(`magnetar.processes.cluster`) that lives as long as this command does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from magnetar.base.errors import ConfigError, StartupError
from magnetar.base.listen_settings import is_loopback
from magnetar.base.settings import table_of
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.storage.directory_lock import DirectoryLock
from magnetar.processes.cluster.cluster import Cluster
from magnetar.processes.cluster.command_lines import OWN_FIELDS
from magnetar.processes.cluster.errors import ClusterError
from magnetar.processes.cluster.growth import Wish
from magnetar.processes.cluster.plan import BOOKIE, BROKER
from magnetar.processes.composition import Composition, enter_alone
from magnetar.processes.configurations import BookieProcessConfig, BrokerProcessConfig, StandaloneConfig
from magnetar.processes.directories import prepare_directory
from magnetar.processes.serving import serve_until_told

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Between looks whether all processes are there."""

ONE_PROCESS_FILE: Final = "metadata.sqlite"
"""What a server of one process keeps in its directory."""


class ProcessEndedError(StartupError):
    """A process of the server has ended by itself."""

    slug = "process-ended"


class StandaloneBrokers(Composition):
    """Ends when one of its processes does."""

    def __init__(self, config: StandaloneConfig, brokers: int) -> None:
        """Raises ConfigError for what several processes on one machine cannot have."""
        super().__init__()
        self.config = config
        self._settings = settings_for_processes(config)
        self._brokers = brokers
        self._cluster = Cluster(Path(config.data_dir) / "cluster", logger.info)

    @property
    def urls(self) -> Sequence[str]:
        """One service URL and one admin URL; the service URL names all brokers."""
        brokers = self._cluster.plan.of_role(BROKER)
        hosts = [each.addresses[0].removeprefix("pulsar://") for each in brokers]
        return "pulsar://" + ",".join(hosts), brokers[0].addresses[1]

    async def _start(self) -> None:
        directory = self.config.data_dir
        prepare_directory(directory)
        self._stack.enter_context(DirectoryLock(str(directory)))
        if (directory / ONE_PROCESS_FILE).exists():
            raise StartupError(
                f"{directory} holds the data of a server in one process, which several cannot share; choose another --data-dir"
            )
        wish = Wish(
            bookies=1,
            brokers=self._brokers,
            zookeeper=0,
            settings=self._settings,
            broker_port=self.config.port,
            broker_http_port=self.config.http_port,
        )
        self._stack.push_async_callback(asyncio.to_thread, self._down)
        await asyncio.to_thread(self._cluster.up, wish)
        scope = await enter_alone(self._stack, TaskScope("processes"))
        scope.supervise(self._watch, "watch")

    def _down(self) -> None:
        try:
            self._cluster.down()
        except ClusterError as error:
            logger.info("nothing to stop: %s", error)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for each in await asyncio.to_thread(self._cluster.status):
                if each.state in ("dead", "stopped"):
                    log = self._cluster.log_path(each.name)
                    self.fail(
                        ProcessEndedError(f"{each.name} has ended; the reason is in {log}. Start the server again")
                    )
                    return


def settings_for_processes(config: StandaloneConfig) -> list[str]:
    """What was set, as words for those that know it. Raises ConfigError."""
    if not is_loopback(config.bind_address):
        raise ConfigError(
            f"bindAddress {config.bind_address} and --brokers do not go together: the processes talk to each other on "
            "loopback. Start `magnetar metadata-server`, `bookie` and `broker` one by one for a cluster that others reach"
        )
    if max(config.port_tls, config.http_port_tls) >= 0:
        raise ConfigError("TLS ports and --brokers do not go together: start `magnetar broker` one by one")
    if config.cluster_name != "standalone":
        raise ConfigError("clusterName and --brokers do not go together: start `magnetar broker` one by one")
    words: list[str] = []
    tables = {role: table_of(kind) for role, kind in ((BOOKIE, BookieProcessConfig), (BROKER, BrokerProcessConfig))}
    for name, row in table_of(StandaloneConfig).items():
        value = getattr(config, name)
        if name in OWN_FIELDS or value == row.default:
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if row.secret and not text.startswith("file:"):
            raise ConfigError(
                f"{row.key} and --brokers do not go together: others could read it in the list of processes; say file:///PATH"
            )
        words += [f"{role}.{row.key}={text}" for role, table in tables.items() if name in table]
    return words


async def run(config: StandaloneConfig, brokers: int) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(StandaloneBrokers(config, brokers), config.warnings())
