"""The cluster as the metadata store tells it: load reports, owners, isolation policies, failure domains, anti-affinity groups."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from magnetar.broker.load_balance.isolation import Isolation, read_policies
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, read_quota, read_report
from magnetar.broker.load_balance.view import ClusterView, namespace_of
from magnetar.broker.namespaces.brokers import BrokerDirectory
from magnetar.broker.namespaces.errors import NamespaceNotFoundError
from magnetar.broker.namespaces.ownership import OwnerIndex
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.namespaces.registry import NamespaceRegistry
from magnetar.broker.naming import NamespaceName
from magnetar.metadata import paths
from magnetar.metadata.store import RESYNC, MetadataStore

logger = logging.getLogger(__name__)


class ClusterReader:
    """Keeps what it has read until the store's watch says that it has changed."""

    def __init__(
        self,
        metadata: MetadataStore,
        brokers: BrokerDirectory,
        owners: OwnerIndex,
        namespaces: NamespaceRegistry,
        cluster: str,
    ) -> None:
        self._metadata = metadata
        self._brokers = brokers
        self._owners = owners
        self._namespaces = namespaces
        self._cluster = cluster
        self._reports: dict[str, BrokerLoad] = {}
        self._groups: dict[str, str | None] = {}
        self._isolation: Isolation | None = None
        self._changes = 0
        self._last: dict[str, BundleLoad] = {}
        """Load by bundle as its owner last reported it, which is expected of it at its next owner."""
        self._unwatch = [
            metadata.watch(self._broker_changed, paths.BROKERS_PATH),
            metadata.watch(self._cluster_changed, paths.CLUSTERS_PATH),
            metadata.watch(self._policies_changed, paths.LOCAL_POLICIES_PATH),
        ]

    def close(self) -> None:
        for end in self._unwatch:
            end()

    async def view(self, placed: Mapping[str, str], *, asked: NamespaceName | None = None) -> ClusterView:
        """`placed`: bundles that were given to a broker and are not its own yet. `asked`: a namespace whose group counts, too."""
        reports = {broker: await self._report(broker) for broker in await self._brokers.live()}
        owners = {str(bundle): owner.broker_id for bundle, owner in (await self._owners.all()).items()}
        for report in reports.values():
            self._last |= report.bundles
        if len(self._last) > 2 * len(owners) + 1024:
            self._last = {bundle: load for bundle, load in self._last.items() if bundle in owners}
        owned: dict[str, dict[str, BundleLoad]] = {broker: {} for broker in reports}
        for bundle, broker in owners.items():
            if broker in reports and bundle in reports[broker].bundles:
                owned[broker][bundle] = reports[broker].bundles[bundle]
        # What a broker has but did not report yet is where it is, at the load it had at its last owner.
        unreported = {
            bundle: (broker, self.expected(bundle))
            for bundle, broker in {**placed, **owners}.items()
            if broker in reports and bundle not in owned[broker]
        }
        namespaces = {namespace_of(bundle) for bundle in (*owners, *placed)} | ({str(asked)} if asked else set())
        isolation = await self._read_isolation(sorted(namespaces))
        loads = {broker: _owning(report, owned[broker]) for broker, report in reports.items()}
        return ClusterView(loads, isolation, unreported)

    def expected(self, bundle: str) -> BundleLoad:
        """The load of a bundle that nobody reports; nothing of one that was never seen."""
        return self._last.get(bundle, BundleLoad())

    async def expect(self, bundle: BundleName) -> None:
        """The load expected of a bundle that was never reported: its resource quota, if it has one of its own."""
        if str(bundle) in self._last:
            return
        space = bundle.namespace
        node = await self._metadata.get(paths.resource_quota_path(space.tenant, space.namespace, bundle.range))
        if node is not None:
            self._last[str(bundle)] = read_quota(_document(node.value))

    async def bundle_counts(self, view: ClusterView) -> dict[str, int]:
        """Bundles by namespace, of those that somebody has."""
        found = {}
        for namespace in {namespace_of(bundle) for load in view.brokers.values() for bundle in load.bundles}:
            try:
                found[namespace] = len(await self._namespaces.boundaries(NamespaceName.parse(namespace))) - 1
            except NamespaceNotFoundError:
                continue  # deleted a moment ago
        return found

    # ---- What is read

    async def _report(self, broker: str) -> BrokerLoad:
        while True:
            known, changes = self._reports.get(broker), self._changes
            if known is not None:
                return known
            node = await self._metadata.get(paths.broker_path(broker))
            report = read_report(_document(node.value)) if node is not None else BrokerLoad()
            if changes == self._changes:
                self._reports[broker] = report
                return report

    async def _read_isolation(self, namespaces: list[str]) -> Isolation:
        groups = {}
        for namespace in namespaces:
            group = await self._group(namespace)
            if group is not None:
                groups[namespace] = group
        while True:
            known, changes = self._isolation, self._changes
            if known is None:
                node = await self._metadata.get(paths.isolation_policies_path(self._cluster))
                policies = read_policies(_document(node.value)) if node is not None else ()
                known = Isolation(policies, await self._domains())
                if changes != self._changes:
                    continue  # what was read may be of before the change
                self._isolation = known
            return Isolation(known.policies, known.domains, groups)

    async def _domains(self) -> dict[str, str]:
        """Broker to failure domain."""
        found: dict[str, str] = {}
        for name in await self._metadata.children(paths.failure_domains_path(self._cluster)):
            node = await self._metadata.get(paths.failure_domain_path(self._cluster, name))
            for broker in (_document(node.value).get("brokers") or ()) if node is not None else ():
                found[str(broker)] = name
        return found

    async def _group(self, namespace: str) -> str | None:
        while namespace not in self._groups:
            changes = self._changes
            try:
                document = await self._namespaces.local_policies(NamespaceName.parse(namespace))
            except NamespaceNotFoundError:
                return None
            if changes == self._changes:
                self._groups[namespace] = document.get("namespaceAntiAffinityGroup") or None
        return self._groups[namespace]

    # ---- What changes

    def _broker_changed(self, path: str) -> None:
        self._changes += 1
        if path == RESYNC:
            self._reports.clear()
        else:
            self._reports.pop(path.rpartition("/")[2], None)

    def _cluster_changed(self, path: str) -> None:
        self._changes += 1
        self._isolation = None

    def _policies_changed(self, path: str) -> None:
        self._changes += 1
        self._groups.clear()


def _owning(report: BrokerLoad, bundles: dict[str, BundleLoad]) -> BrokerLoad:
    return BrokerLoad(
        report.cpu,
        report.memory,
        report.bandwidth_in,
        report.bandwidth_out,
        bundles,
        report.draining,
        report.updated_ms,
        report.started_ms,
    )


def _document(value: bytes) -> dict[str, Any]:
    """A JSON object; {} for anything else."""
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        logger.warning("not JSON where the load manager reads: %r", value[:80])
        return {}
    return found if isinstance(found, dict) else {}
