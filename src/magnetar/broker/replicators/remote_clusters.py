"""The other clusters as this broker knows them: their records in the metadata store, and one client for each."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar import __version__
from magnetar.base.clock import Clock
from magnetar.base.errors import BadVersionError, ClientError
from magnetar.base.network import Network
from magnetar.base.tasks import REPORTED, TaskScope
from magnetar.broker.config import BrokerConfig
from magnetar.broker.dispatch.ports import Scheduler
from magnetar.broker.settings.replication import ReplicationSettings
from magnetar.client.credentials import Credentials, TlsTrust
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, RESYNC, MetadataStore

logger = logging.getLogger(__name__)


class ClusterUnknownError(ClientError):
    """The cluster is not registered here, or its record lacks what is needed to reach it."""

    slug = "cluster-unknown"


class TopicMismatchError(ClientError):
    """The topic is partitioned here and not there, or the other way round."""

    slug = "topic-mismatch"


class EntryTooLargeError(ClientError):
    """The other cluster takes no message of that size."""

    slug = "entry-too-large"


if (
    TYPE_CHECKING
):  # the client is imported by what uses it: few servers replicate, and every one would start later for it
    from magnetar.client.admin_http import AdminCaller, AdminEndpoint
    from magnetar.client.client import Endpoint, RemoteClient


CLIENT_VERSION = f"magnetar-replicator {__version__}"


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The record of another cluster, as an admin call registered it."""

    name: str
    document: Mapping[str, Any]

    def endpoint(self, defaults: ReplicationSettings) -> Endpoint:
        """Raises ClusterUnknownError, ConfigError."""
        from magnetar.client.client import Endpoint

        key = "brokerServiceUrlTls" if self._tls(defaults) else "brokerServiceUrl"
        url = self.document.get(key)
        if not url:
            raise ClusterUnknownError(f"the record of cluster {self.name} has no {key}; set it with `clusters update`")
        return Endpoint(url, self.credentials(defaults), self.trust(defaults))

    def admin_endpoint(self, defaults: ReplicationSettings) -> AdminEndpoint:
        """Raises ClusterUnknownError, ConfigError."""
        from magnetar.client.admin_http import AdminEndpoint

        key = "serviceUrlTls" if self._tls(defaults) else "serviceUrl"
        url = self.document.get(key)
        if not url:
            raise ClusterUnknownError(f"the record of cluster {self.name} has no {key}; set it with `clusters update`")
        return AdminEndpoint(url, self.credentials(defaults), self.trust(defaults))

    def _tls(self, defaults: ReplicationSettings) -> bool:
        own = self.document.get("brokerClientTlsEnabled")
        return defaults.broker_client_tls_enabled if own is None else bool(own)

    def credentials(self, defaults: ReplicationSettings) -> Credentials:
        plugin = self.document.get("authenticationPlugin")
        if plugin:
            return Credentials.parse(plugin, self.document.get("authenticationParameters") or "")
        return Credentials.parse(
            defaults.broker_client_authentication_plugin, defaults.broker_client_authentication_parameters
        )

    def trust(self, defaults: ReplicationSettings) -> TlsTrust:
        return TlsTrust(
            self.document.get("brokerClientTrustCertsFilePath") or defaults.broker_client_trust_certs_file_path,
            bool(self.document.get("tlsAllowInsecureConnection", False)),
            verify_hostname=defaults.tls_hostname_verification_enabled,
        )


class RemoteClusters:
    """Shared by all replicators of a broker. A changed record ends the connections that were made by the former one."""

    def __init__(
        self,
        *,
        local: str,
        live: BrokerConfig,
        metadata: MetadataStore,
        network: Network,
        clock: Clock,
        rng: random.Random,
        scheduler: Scheduler,
        scope: TaskScope,
    ) -> None:
        self.local = local
        self._live = live
        self.clock = clock
        self.rng = rng
        self.scheduler = scheduler
        self.scope = scope
        self._metadata = metadata
        self._network = network
        self._clients: dict[str, RemoteClient] = {}
        self._instance = ""
        self._changes = 0
        self._changed = asyncio.Event()
        self._unwatch = metadata.watch(self._metadata_changed, paths.ADMIN_PATH)

    @property
    def config(self) -> ReplicationSettings:
        """As they are now: some may change while the broker runs."""
        return self._live.settings

    async def instance(self) -> str:
        """The id of this cluster's metadata; another id means that its logs begin anew. It is created when it is missing."""
        if not self._instance:
            node = await self._metadata.get(paths.INSTANCE_ID_PATH)
            if node is None:
                fresh = str(uuid.UUID(int=self.rng.getrandbits(128), version=4)).encode()
                try:
                    await self._metadata.put(paths.INSTANCE_ID_PATH, fresh, MUST_NOT_EXIST)
                except BadVersionError:
                    pass  # another broker was faster
                node = await self._metadata.get(paths.INSTANCE_ID_PATH)
                assert node is not None, "it was just made"
            self._instance = node.value.decode()
        return self._instance

    async def record(self, cluster: str) -> ClusterRecord:
        """Raises ClusterUnknownError, MetadataError."""
        node = await self._metadata.get(paths.cluster_path(cluster))
        if node is None:
            raise ClusterUnknownError(f"cluster {cluster} is not registered here; `clusters create` does it")
        document = json.loads(node.value or b"{}")
        return ClusterRecord(cluster, document if isinstance(document, dict) else {})

    async def client(self, cluster: str) -> RemoteClient:
        """Raises ClusterUnknownError, ConfigError, MetadataError."""
        from magnetar.client.client import RemoteClient

        while True:
            known, changes = self._clients.get(cluster), self._changes
            if known is not None:
                return known
            record = await self.record(cluster)
            if changes == self._changes and cluster not in self._clients:
                endpoint = record.endpoint(self.config)
                self._clients[cluster] = RemoteClient(endpoint, self._network, CLIENT_VERSION)

    async def admin(self, cluster: str) -> AdminCaller:
        """A client of the cluster's admin API, for what only an admin call can do.

        Raises ClusterUnknownError, ConfigError, MetadataError.
        """
        from magnetar.client.admin_http import AdminCaller

        record = await self.record(cluster)
        return AdminCaller(record.admin_endpoint(self.config), self._network)

    def _metadata_changed(self, path: str) -> None:
        prefix = paths.CLUSTERS_PATH + "/"
        if path != RESYNC and not path.startswith(prefix):
            return
        names = list(self._clients) if path == RESYNC else [path.removeprefix(prefix).split("/")[0]]
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
        if path == RESYNC:
            return  # records change seldom: a connection that works is not cut on suspicion
        for name in names:
            client = self._clients.pop(name, None)
            if client is not None:
                logger.info("cluster's record changed, connecting anew cluster=%s", name)
                self.scope.spawn(client.close(), f"close client of {name}", REPORTED)

    async def pause(self, delay_s: float) -> None:
        """Wait so long, less when a cluster's record changes."""
        try:
            async with asyncio.timeout(delay_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        self._unwatch()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
