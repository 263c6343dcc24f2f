"""Tenants, namespaces and partitioned topics in the metadata store: Pulsar's paths, Pulsar's JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from magnetar.base.errors import BadVersionError, NodeNotFoundError
from magnetar.base.limits import BUNDLES_MAX, PARTITIONS_MAX
from magnetar.broker.config import BrokerConfig
from magnetar.broker.namespaces import policies as policy_rules
from magnetar.broker.namespaces.errors import (
    AlreadyExistsError,
    FewerPartitionsError,
    NamespaceNotFoundError,
    PreconditionFailedError,
)
from magnetar.broker.namespaces.policies import Document, EffectivePolicies
from magnetar.broker.namespaces.topic_lists import TopicLists
from magnetar.broker.namespaces.topic_policies import TopicPolicyStore
from magnetar.broker.naming import SYSTEM_NAMESPACE, NamespaceName, TopicName
from magnetar.metadata import paths
from magnetar.metadata.lost_answers import delete_or_look, put_or_look
from magnetar.metadata.store import MUST_NOT_EXIST, RESYNC, MetadataStore

REGISTERED_AT_ONCE = 100
"""Plain topics that are being written, of all callers: one commit takes them together. The others wait here."""

PARTITIONS_PER_WRITE = 500
PARTITION_WRITES_AT_ONCE = 2
"""Writes of all callers at a time, so that other writes do not wait behind thousands of partitions."""

EFFECTIVE_POLICIES_KEPT_MAX = 50_000
"""Namespaces and topics whose policies are remembered; one more, and they are read anew, as after a change of any policy."""

_POLICIES_ROOTS = (paths.POLICIES_PATH + "/", paths.TOPIC_POLICIES_PATH + "/")


class NamespaceRegistry:
    """Reads through a cache that the store's watch keeps true."""

    def __init__(self, metadata: MetadataStore, config: BrokerConfig) -> None:
        self._metadata = metadata
        self._config = config
        self.topic_policies = TopicPolicyStore(metadata)
        self._lists = TopicLists(metadata)
        self._effective: dict[NamespaceName | TopicName, EffectivePolicies] = {}
        self._boundaries: dict[NamespaceName, list[str]] = {}
        self._changes = 0
        self._boundary_changes = 0
        self._registering = asyncio.Semaphore(REGISTERED_AT_ONCE)
        self._registering_partitions = asyncio.Semaphore(PARTITION_WRITES_AT_ONCE)
        self._unwatch = metadata.watch(self._changed, paths.ADMIN_PATH)

    def close(self) -> None:
        self._unwatch()

    def _changed(self, path: str) -> None:
        if path == RESYNC or path.startswith(_POLICIES_ROOTS):
            self.forget_effective()
        if path == RESYNC or path.startswith((paths.LOCAL_POLICIES_PATH + "/", paths.POLICIES_PATH + "/")):
            self._boundary_changes += 1
            self._boundaries.clear()

    def forget_boundaries(self, name: NamespaceName) -> None:
        """They turned out to be old before the watch said so."""
        self._boundary_changes += 1
        self._boundaries.pop(name, None)

    def forget_effective(self) -> None:
        """Something that policies are made of has changed."""
        self._changes += 1
        self._effective.clear()

    # ---- First start

    async def create_defaults(self) -> None:
        """Cluster, tenant `public` and namespace `public/default`, unless they are there."""
        cluster = {"serviceUrl": self._config.web_service_url, "brokerServiceUrl": self._config.service_url}
        if self._config.web_service_url_tls:
            cluster["serviceUrlTls"] = self._config.web_service_url_tls
        if self._config.service_url_tls:
            cluster["brokerServiceUrlTls"] = self._config.service_url_tls
        await self._metadata.put(paths.cluster_path(self._config.settings.cluster_name), _encode(cluster))
        for create in (
            self.create_tenant("public", {"adminRoles": [], "allowedClusters": [self._config.settings.cluster_name]}),
            self.create_namespace(NamespaceName("public", "default"), None),
        ):
            try:
                await create
            except AlreadyExistsError:
                continue

    async def ensure_partitioned(self, topic: TopicName, partitions: int) -> None:
        """A partitioned topic of the server's own, with tenant and namespace, unless it is there."""
        for create in (
            self.create_tenant(
                topic.tenant, {"adminRoles": [], "allowedClusters": [self._config.settings.cluster_name]}
            ),
            self.create_namespace(topic.namespace_name, None),
            self.create_partitioned(topic, partitions),
        ):
            try:
                await create
            except AlreadyExistsError:
                continue

    # ---- Tenants

    async def tenants(self) -> list[str]:
        return await self._metadata.children(paths.POLICIES_PATH)

    async def tenant(self, tenant: str) -> Document:
        node = await self._metadata.get(paths.tenant_path(tenant))
        if node is None:
            raise NamespaceNotFoundError("Tenant does not exist")
        return _decode(node.value)

    async def create_tenant(self, tenant: str, info: Document) -> None:
        await self._create(paths.tenant_path(tenant), info, f"Tenant {tenant} already exists")

    async def update_tenant(self, tenant: str, info: Document) -> None:
        await self.tenant(tenant)
        await self._metadata.put(paths.tenant_path(tenant), _encode(info))

    async def delete_tenant(self, tenant: str) -> None:
        await self.tenant(tenant)
        if await self.namespaces(tenant):
            raise AlreadyExistsError("The tenant still has active namespaces")
        await self._metadata.delete(paths.tenant_path(tenant))

    # ---- Namespaces

    async def namespaces(self, tenant: str) -> list[str]:
        """Complete names, sorted."""
        return [f"{tenant}/{name}" for name in await self._metadata.children(paths.tenant_path(tenant))]

    async def create_namespace(self, name: NamespaceName, document: Document | None, num_bundles: int = 0) -> None:
        """Raises AlreadyExistsError, or NamespaceNotFoundError when the tenant is missing."""
        await self.tenant(name.tenant)
        bundles = num_bundles or int(((document or {}).get("bundles") or {}).get("numBundles") or 0)
        complete = policy_rules.new_document(
            self._config.settings.cluster_name, bundles or self._config.settings.default_number_of_namespace_bundles
        )
        complete.update(
            {key: value for key, value in (document or {}).items() if value is not None and key != "bundles"}
        )
        path = paths.policies_path(name.tenant, name.namespace)
        await self._create(path, complete, "Namespace already exists")
        local = {"bundles": complete["bundles"], "bookieAffinityGroup": None, "namespaceAntiAffinityGroup": None}
        await self._metadata.put(paths.local_policies_path(name.tenant, name.namespace), _encode(local))

    async def delete_namespace(self, name: NamespaceName) -> None:
        """The namespace must be empty; the caller has deleted its topics."""
        await self.policies(name)
        await self.topic_policies.delete_all(name)
        await self._metadata.delete(paths.policies_path(name.tenant, name.namespace))
        try:
            await self._metadata.delete(paths.local_policies_path(name.tenant, name.namespace))
        except NodeNotFoundError:
            return

    async def policies(self, name: NamespaceName, *, for_topic: bool = False) -> Document:
        """The stored document. Raises NamespaceNotFoundError, in Pulsar's words for a request about a topic or about the namespace."""
        node = await self._metadata.get(paths.policies_path(name.tenant, name.namespace))
        if node is None:
            raise NamespaceNotFoundError("Namespace not found" if for_topic else "Namespace does not exist")
        return _decode(node.value)

    async def update_policies(self, name: NamespaceName, change: Callable[[Document], None]) -> None:
        """Apply `change` to the document by compare-and-set, as often as another writer comes in between."""
        path = paths.policies_path(name.tenant, name.namespace)
        while True:
            node = await self._metadata.get(path)
            if node is None:
                raise NamespaceNotFoundError("Namespace does not exist")
            document = _decode(node.value)
            change(document)
            try:
                await self._metadata.put(path, _encode(document), node.version)
            except BadVersionError:
                continue
            return

    def _remember(self, name: NamespaceName | TopicName, policies: EffectivePolicies) -> None:
        if len(self._effective) >= EFFECTIVE_POLICIES_KEPT_MAX:
            self._effective.clear()  # topics come and go: without a bound the names of all that ever were would stay
        self._effective[name] = policies

    async def effective(self, name: NamespaceName) -> EffectivePolicies:
        """The policies in effect for topics without policies of their own. Raises NamespaceNotFoundError."""
        while True:
            known, changes = self._effective.get(name), self._changes
            if known is None:
                known = await self._effective_policies(name, None)
                if changes != self._changes:
                    continue  # what was read may be of before the change
                self._remember(name, known)
            return known

    async def _effective_policies(self, name: NamespaceName, own: Document | None) -> EffectivePolicies:
        document = await self.policies(name, for_topic=True)
        found = policy_rules.effective(self._config, document, own)
        group = document.get(policy_rules.RESOURCE_GROUP)
        node = await self._metadata.get(paths.resource_group_path(str(group))) if group else None
        if node is None:
            return found
        return replace(found, resource_group=policy_rules.resource_group(str(group), _decode(node.value)))

    async def effective_of(self, topic: TopicName) -> EffectivePolicies:
        """The policies in effect for one topic; partitions share their topic's. Raises NamespaceNotFoundError."""
        name = topic.partitioned_name
        while True:
            known, changes = self._effective.get(name), self._changes
            if known is None:
                own = await self.topic_policies.merged(name)
                namespace = topic.namespace_name
                if own:
                    known = await self._effective_policies(namespace, own)
                else:
                    known = await self.effective(namespace)
                if changes != self._changes:
                    continue
                self._remember(name, known)
            return known

    async def replicates_from(self, topic: TopicName, cluster: str) -> bool:
        """True if another cluster may send messages of the topic: it is replicated with that one, or its tenant may be, which lets one-way
        replication end. Raises NamespaceNotFoundError."""
        if cluster == self._config.settings.cluster_name:
            return False
        if cluster in (await self.effective_of(topic)).replication_clusters:
            return True
        return cluster in ((await self.tenant(topic.tenant)).get("allowedClusters") or ())

    async def boundaries(self, name: NamespaceName) -> list[str]:
        """The live bundle list: the local copy, which splits update. Raises NamespaceNotFoundError."""
        while True:
            known, changes = self._boundaries.get(name), self._boundary_changes
            if known is None:
                known = await self.stored_boundaries(name)
                if changes != self._boundary_changes:
                    continue
                self._boundaries[name] = known
            return known

    async def stored_boundaries(self, name: NamespaceName) -> list[str]:
        """The boundaries according to the metadata store at this moment."""
        return list((await self.local_policies(name))["bundles"]["boundaries"])

    async def local_policies(self, name: NamespaceName) -> Document:
        """The policies of this cluster only: bundles, bookie affinity, anti-affinity. Raises NamespaceNotFoundError."""
        node = await self._metadata.get(paths.local_policies_path(name.tenant, name.namespace))
        return _decode(node.value) if node else {"bundles": (await self.policies(name))["bundles"]}

    async def update_local_policies(self, name: NamespaceName, change: Callable[[Document], None]) -> None:
        """Apply `change` by compare-and-set. Raises NamespaceNotFoundError, and what `change` raises."""
        path = paths.local_policies_path(name.tenant, name.namespace)
        while True:
            node = await self._metadata.get(path)
            document = await self.local_policies(name)
            change(document)
            try:
                await self._metadata.put(path, _encode(document), node.version if node else MUST_NOT_EXIST)
            except BadVersionError:
                continue
            return

    async def split_bundle(self, name: NamespaceName, bundle: str, middle: str) -> None:
        """One more boundary inside `bundle`. Raises PreconditionFailedError, NamespaceNotFoundError."""

        def change(document: Document) -> None:
            boundaries = list(document["bundles"]["boundaries"])
            place = bundle_place(bundle, boundaries, str(name))
            if len(boundaries) > BUNDLES_MAX:
                raise PreconditionFailedError(f"a namespace has at most {BUNDLES_MAX} bundles")
            boundaries.insert(place, middle)
            document["bundles"] = {"boundaries": boundaries, "numBundles": len(boundaries) - 1}

        await self.update_local_policies(name, change)

    # ---- Partitioned topics

    async def partitions(self, topic: TopicName) -> int:
        """Number of partitions, 0 when the topic is not a partitioned one."""
        node = await self._metadata.get(_partitioned_path(topic))
        return int(_decode(node.value).get("partitions", 0)) if node else 0

    async def partitioned_topics(self, name: NamespaceName, domain: str) -> list[str]:
        """Complete names of the partitioned topics of a namespace, sorted."""
        parent = paths.partitioned_topics_path(name.tenant, name.namespace, domain)
        return [f"{domain}://{name}/{paths.decode(child)}" for child in await self._metadata.children(parent)]

    async def partitioned_properties(self, topic: TopicName) -> dict[str, str]:
        node = await self._metadata.get(_partitioned_path(topic))
        if node is None:
            raise NamespaceNotFoundError(f"Partitioned Topic not found: {topic} has zero partitions")
        return dict(_decode(node.value).get("properties") or {})

    async def change_partitioned_properties(
        self, topic: TopicName, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Apply `change` to the properties by compare-and-set. Raises NamespaceNotFoundError for a topic that is not partitioned."""
        path = _partitioned_path(topic)
        while True:
            node = await self._metadata.get(path)
            if node is None:
                raise NamespaceNotFoundError(f"Partitioned Topic not found: {topic} has zero partitions")
            document = _decode(node.value)
            document["properties"] = change(dict(document.get("properties") or {}))
            try:
                await self._metadata.put(path, _encode(document), node.version)
            except BadVersionError:
                continue
            return

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Raises AlreadyExistsError or PreconditionFailedError."""
        self._check_partitions(topic, partitions)
        document = {"partitions": partitions, "deleted": False, "properties": properties or {}}
        await self._create(_partitioned_path(topic), document, "This topic already exists")

    async def grow_partitioned(self, topic: TopicName, partitions: int) -> None:
        """More partitions for a topic, or as many as it has. Raises FewerPartitionsError."""
        self._check_partitions(topic, partitions)
        path = _partitioned_path(topic)
        node = await self._metadata.get(path)
        if node is None:
            raise NamespaceNotFoundError(f"Partitioned Topic not found: {topic} has zero partitions")
        document = _decode(node.value)
        if partitions == int(document["partitions"]):
            return
        if partitions < int(document["partitions"]):
            raise FewerPartitionsError(
                f"Desired partitions {partitions} can't be less than the current partitions {document['partitions']}."
            )
        document["partitions"] = partitions
        await self._metadata.put(path, _encode(document), node.version)

    def _check_partitions(self, topic: TopicName, partitions: int) -> None:
        check_partitions(partitions)
        limit = self._config.settings.max_partitions_per_partitioned_topic
        if 0 < limit < partitions and str(topic.namespace_name) != SYSTEM_NAMESPACE:
            raise PreconditionFailedError(f"Number of partitions should be less than or equal to {limit}")

    async def register_partitions(self, topic: TopicName) -> None:
        """Store those that are not stored yet, without loading them. Many at a time: a commit then takes them together."""
        if not topic.persistent:
            return
        count = await self.partitions(topic)
        for first in range(0, count, PARTITIONS_PER_WRITE):
            indices = range(first, min(first + PARTITIONS_PER_WRITE, count))
            async with self._registering_partitions:
                await self._metadata.create_missing([_ledger_path(topic.partition_name(index)) for index in indices])

    async def register(self, topic: TopicName) -> bool:
        """Let a persistent topic exist: its first client loads it. False: it is there already."""
        async with self._registering:
            try:
                await put_or_look(self._metadata, _ledger_path(topic), b"", MUST_NOT_EXIST)
            except BadVersionError:
                return False
        return True

    async def delete_partitioned(self, topic: TopicName) -> None:
        try:
            await delete_or_look(self._metadata, _partitioned_path(topic))
        except NodeNotFoundError:
            raise NamespaceNotFoundError(f"Partitioned Topic not found: {topic} has zero partitions") from None

    # ---- Topics

    async def persistent_topics(self, name: NamespaceName) -> tuple[str, ...]:
        """Complete names of the stored topics of a namespace (partitions separately), sorted. Raises TooManyTopicsError."""
        return await self._lists.names(name)

    async def _create(self, path: str, document: Document, problem: str) -> None:
        try:
            await put_or_look(self._metadata, path, _encode(document), MUST_NOT_EXIST)
        except BadVersionError:
            raise AlreadyExistsError(problem) from None


def bundle_place(bundle: str, boundaries: list[str], namespace: str) -> int:
    """Index of a bundle's upper boundary. Raises PreconditionFailedError."""
    for place, (low, high) in enumerate(pairwise(boundaries), 1):
        if bundle == f"{low}_{high}":
            return place
    raise PreconditionFailedError(f"{bundle[:80]} is not a bundle of {namespace}")


def check_partitions(partitions: int) -> None:
    """Raises PreconditionFailedError unless 1 <= partitions <= PARTITIONS_MAX."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise PreconditionFailedError(
            f"Number of partitions should be between 1 and {PARTITIONS_MAX}, not {partitions}"
        )


def _partitioned_path(topic: TopicName) -> str:
    return paths.partitioned_topic_path(topic.tenant, topic.namespace, topic.domain, topic.local_name)


def _ledger_path(topic: TopicName) -> str:
    return paths.managed_ledger_path(topic.tenant, topic.namespace, topic.domain, topic.local_name)


def _encode(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _decode(value: bytes) -> dict[str, Any]:
    document = json.loads(value or b"{}")  # a parent made on the way has an empty value
    return document if isinstance(document, dict) else {}
