"""Which broker serves a bundle: an ephemeral node per bundle, taken by compare-and-set (survey 2.3.2).

In one process every bundle is ours; the nodes are written all the same, so that tools which read `/namespace/...` find what
they expect, and so that the cluster version is this code with rivals.
"""

from __future__ import annotations

import json

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces.bundles import bundle_of
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import NamespaceName, TopicName
from magnetar.metadata import paths
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore


class Ownership:
    """The bundles this broker holds, for the life of its metadata session."""

    def __init__(self, metadata: MetadataStore, registry: NamespaceRegistry, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._registry = registry
        self._config = config
        self._owned: dict[str, None] = {}

    @property
    def owned_bundles(self) -> list[str]:
        """`tenant/namespace/0x..._0x...`, in the order in which they were taken."""
        return list(self._owned)

    async def register_broker(self) -> None:
        """This broker's own nodes below `/loadbalance`."""
        record = {
            "webServiceUrl": self._config.web_service_url,
            "pulsarServiceUrl": self._config.service_url,
            "loadReportType": "LocalBrokerData",
        }
        broker_id = self.broker_id
        await self._metadata.put(paths.broker_path(broker_id), json.dumps(record).encode(), ephemeral=True)
        leader = {"serviceUrl": self._config.web_service_url, "brokerId": broker_id}
        await self._metadata.put(paths.LEADER_PATH, json.dumps(leader).encode(), ephemeral=True)

    @property
    def broker_id(self) -> str:
        return f"{self._config.advertised_address}:{self._config.http_port}"

    async def release(self, name: NamespaceName, bundle: str) -> None:
        """Give a bundle up: whoever is asked for one of its topics next takes it, or the bundles it was split into."""
        if f"{name}/{bundle}" not in self._owned:
            return
        del self._owned[f"{name}/{bundle}"]
        try:
            await self._metadata.delete(paths.bundle_ownership_path(name.tenant, name.namespace, bundle))
        except NodeNotFoundError:
            return

    async def acquire(self, topic: TopicName) -> str:
        """Take the bundle of `topic` unless it is ours already; answers the bundle."""
        boundaries = await self._registry.boundaries(topic.namespace_name)
        bundle = bundle_of(topic, boundaries)
        name = f"{topic.namespace_name}/{bundle}"
        if name not in self._owned:
            record: dict[str, object] = {
                "nativeUrl": self._config.service_url,
                "nativeUrlTls": self._config.service_url_tls or None,
                "httpUrl": self._config.web_service_url,
                "httpUrlTls": self._config.web_service_url_tls or None,
                "disabled": False,
                "advertisedListeners": {},
            }
            path = paths.bundle_ownership_path(topic.tenant, topic.namespace, bundle)
            try:
                await self._metadata.put(path, json.dumps(record).encode(), MUST_NOT_EXIST, ephemeral=True)
            except BadVersionError:
                if name not in self._owned:  # two lookups raced: the other one has just taken it for us
                    raise
            self._owned[name] = None
        return bundle
