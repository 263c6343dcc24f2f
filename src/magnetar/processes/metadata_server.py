"""`magnetar metadata-server`: a cluster's metadata behind ZooKeeper's protocol, in one process without Java."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

from magnetar.base.admission import Admission
from magnetar.base.clock import SystemClock
from magnetar.base.executor import ThreadExecutor
from magnetar.base.limits import METADATA_SERVER_CONNECTIONS_MAX, STRANGERS_MAX
from magnetar.base.network import AsyncioNetwork
from magnetar.base.tasks import TaskScope
from magnetar.bookkeeper.bookie.storage.directory_lock import DirectoryLock
from magnetar.metadata.server.server import MetadataServer
from magnetar.metadata.sqlite_file import FILE_NAME
from magnetar.processes.composition import Composition, enter_alone
from magnetar.processes.configurations import MetadataServerConfig
from magnetar.processes.directories import SpaceReserve, prepare_directory
from magnetar.processes.metadata_access import metadata_credentials
from magnetar.processes.serving import serve_until_told


class MetadataServerProcess(Composition):
    """Every write is on disk before it is answered."""

    def __init__(self, config: MetadataServerConfig) -> None:
        super().__init__()
        self.config = config
        self._port = 0

    @property
    def urls(self) -> Sequence[str]:
        return (f"zk:{self.config.advertised_host}:{self._port}",)

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        known = metadata_credentials(config)
        admission = Admission(protocol_max=METADATA_SERVER_CONNECTIONS_MAX, strangers_max=STRANGERS_MAX)
        listener = AsyncioNetwork().bind(config.bind_address, config.port, admission.protocol)
        stack.push_async_callback(listener.close)
        prepare_directory(config.data_dir)
        stack.enter_context(DirectoryLock(str(config.data_dir)))
        executor = ThreadExecutor("metadata")
        stack.callback(executor.close)
        reserve = SpaceReserve(config.data_dir, executor)
        reserve.release()
        server = MetadataServer(
            config.data_dir / FILE_NAME,
            executor=executor,
            clock=SystemClock(),
            rng=random.Random(os.urandom(16)),
            session_timeout_min_s=config.min_session_timeout_ms / 1000,
            session_timeout_max_s=config.max_session_timeout_ms / 1000,
            credentials=known,
        )
        await stack.enter_async_context(server)
        scope = await enter_alone(stack, TaskScope("metadata server"))
        scope.supervise(reserve.run, "reserve")
        await server.serve(listener)
        self._port = listener.port


async def run(config: MetadataServerConfig) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit code."""
    return await serve_until_told(MetadataServerProcess(config), config.warnings())
