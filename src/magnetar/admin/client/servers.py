"""Clusters, brokers, tenants, lookup, resource quotas: what is about servers and who uses them."""

from __future__ import annotations

from typing import Any

from magnetar.admin.client.noun import Noun, Texts, as_kind, namespace_names, topic_names
from magnetar.admin.documents.cluster import (
    AllocatorStats,
    BookieInfo,
    BookiesClusterInfo,
    BrokerLoadRow,
    ClusterData,
    ClusterOverview,
    FailureDomain,
    InternalConfiguration,
    IsolatedBroker,
    IsolationPolicy,
    LeaderBroker,
    LedgerEntries,
    LoadPlan,
    LoadReport,
    MetadataNode,
    Metrics,
    NamespaceOwnership,
    ResourceGroup,
    ResourceQuota,
    TenantInfo,
)
from magnetar.admin.documents.topics import LookupResult, TopicStats

_Brokers = list[IsolatedBroker]
_Loads = list[BrokerLoadRow]
_Metrics = list[Metrics]
_Beans = list[Any]
_Racks = dict[str, dict[str, BookieInfo]]

_CLUSTER = "/clusters/{cluster}"
_DOMAIN = _CLUSTER + "/failureDomains/{domainName}"
_GROUP = "/resourcegroups/{resourcegroup}"
_RACK = "/bookies/racks-info/{bookie}"
_POLICIES = _CLUSTER + "/namespaceIsolationPolicies"
_POLICY = _POLICIES + "/{policyName}"


class Clusters(Noun):
    """Addresses of clusters, and what holds among their brokers."""

    def list(self) -> Texts:
        return list(self._get("/clusters", Texts))

    def get(self, cluster: str) -> ClusterData:
        found: ClusterData = self._get(_CLUSTER, ClusterData, cluster=cluster)
        return found

    def create(self, cluster: str, data: ClusterData) -> None:
        self._put(_CLUSTER, data, cluster=cluster)

    def update(self, cluster: str, data: ClusterData) -> None:
        self._post(_CLUSTER, data, cluster=cluster)

    def delete(self, cluster: str) -> None:
        self._delete(_CLUSTER, cluster=cluster)

    def peers(self, cluster: str) -> Texts:
        return list(self._get(_CLUSTER + "/peers", Texts, cluster=cluster))

    def set_peers(self, cluster: str, peers: Texts) -> None:
        self._post(_CLUSTER + "/peers", peers, cluster=cluster)

    def failure_domains(self, cluster: str) -> dict[str, FailureDomain]:
        return dict(self._get(_CLUSTER + "/failureDomains", dict[str, FailureDomain], cluster=cluster))

    def failure_domain(self, cluster: str, domain: str) -> FailureDomain:
        found: FailureDomain = self._get(_DOMAIN, FailureDomain, cluster=cluster, domainName=domain)
        return found

    def set_failure_domain(self, cluster: str, domain: str, brokers: Texts) -> None:
        self._post(_DOMAIN, FailureDomain(brokers=brokers), cluster=cluster, domainName=domain)

    def delete_failure_domain(self, cluster: str, domain: str) -> None:
        self._delete(_DOMAIN, cluster=cluster, domainName=domain)

    def isolation_policies(self, cluster: str) -> dict[str, IsolationPolicy]:
        return dict(self._get(_POLICIES, dict[str, IsolationPolicy], cluster=cluster))

    def isolation_policy(self, cluster: str, policy: str) -> IsolationPolicy:
        found: IsolationPolicy = self._get(_POLICY, IsolationPolicy, cluster=cluster, policyName=policy)
        return found

    def set_isolation_policy(self, cluster: str, policy: str, data: IsolationPolicy) -> None:
        self._post(_POLICY, data, cluster=cluster, policyName=policy)

    def delete_isolation_policy(self, cluster: str, policy: str) -> None:
        self._delete(_POLICY, cluster=cluster, policyName=policy)

    def isolated_brokers(self, cluster: str) -> _Brokers:
        return list(self._get(_POLICIES + "/brokers", _Brokers, cluster=cluster))

    def isolated_broker(self, cluster: str, broker: str) -> IsolatedBroker:
        found: IsolatedBroker = self._get(
            _POLICIES + "/brokers/{broker}", IsolatedBroker, cluster=cluster, broker=broker
        )
        return found


class ResourceGroups(Noun):
    """Rates that namespaces share at each broker."""

    def list(self) -> Texts:
        return [*self._get("/resourcegroups", Texts)]

    def get(self, group: str) -> ResourceGroup:
        found: ResourceGroup = self._get(_GROUP, ResourceGroup, resourcegroup=group)
        return found

    def set(self, group: str, rates: ResourceGroup) -> None:
        """Create it, or change the rates that are given."""
        self._put(_GROUP, rates, resourcegroup=group)

    def delete(self, group: str) -> None:
        self._delete(_GROUP, resourcegroup=group)


class Bookies(Noun):
    """Which bookies there are, and where they stand."""

    def list(self) -> Texts:
        return [each.bookie_id for each in self._get("/bookies/all", BookiesClusterInfo).bookies]

    def racks(self) -> _Racks:
        return dict(self._get("/bookies/racks-info", _Racks))

    def rack(self, bookie: str) -> BookieInfo:
        found: BookieInfo = self._get(_RACK, BookieInfo, bookie=bookie)
        return found

    def set_rack(self, bookie: str, group: str, rack: str, hostname: str | None = None) -> None:
        self._post(_RACK, BookieInfo(rack=rack, hostname=hostname), query={"group": group}, bookie=bookie)

    def delete_rack(self, bookie: str) -> None:
        self._delete(_RACK, bookie=bookie)


class StoredMetadata(Noun):
    """The metadata tree below everything, looked at."""

    def node(self, path: str) -> MetadataNode:
        found: MetadataNode = self._get("/metadata/node", MetadataNode, {"path": path})
        return found

    def children(self, path: str) -> Texts:
        return list(self._get("/metadata/children", Texts, {"path": path}))


class Ledgers(Noun):
    """Ledgers below the topics, looked at."""

    def entries(self, ledger_id: int, first: int = 0) -> LedgerEntries:
        """From `first` on, as many as fit into one answer."""
        path = "/ledgers/{ledgerId}/entries"
        found: LedgerEntries = self._get(path, LedgerEntries, {"first": first}, ledgerId=ledger_id)
        return found


class Tenants(Noun):
    """Tenants and their administrators."""

    def list(self) -> Texts:
        return list(self._get("/tenants", Texts))

    def get(self, tenant: str) -> TenantInfo:
        found: TenantInfo = self._get("/tenants/{tenant}", TenantInfo, tenant=tenant)
        return found

    def create(self, tenant: str, *, admin_roles: Texts | None = None, allowed_clusters: Texts) -> None:
        """Clusters must exist, and there must be one at least."""
        self._put("/tenants/{tenant}", _tenant(admin_roles, allowed_clusters), tenant=tenant)

    def update(self, tenant: str, *, admin_roles: Texts | None = None, allowed_clusters: Texts) -> None:
        """Replaces both."""
        self._post("/tenants/{tenant}", _tenant(admin_roles, allowed_clusters), tenant=tenant)

    def delete(self, tenant: str, *, force: bool = False) -> None:
        """`force` deletes its namespaces and their topics."""
        self._delete("/tenants/{tenant}", {"force": force}, tenant=tenant)


def _tenant(admin_roles: Texts | None, allowed_clusters: Texts) -> TenantInfo:
    return TenantInfo(admin_roles=admin_roles or [], allowed_clusters=allowed_clusters)


class Brokers(Noun):
    """The servers that serve topics, and their settings."""

    def list(self, cluster: str | None = None) -> Texts:
        if cluster is None:
            return list(self._get("/brokers", Texts))
        return list(self._get("/brokers/{cluster}", Texts, cluster=cluster))

    def health(self) -> str:
        """`ok`. Raises ServerFailedError."""
        return self._text("GET", "/brokers/health")

    def ready(self) -> str:
        return self._text("GET", "/brokers/ready")

    def leader(self) -> LeaderBroker:
        found: LeaderBroker = self._get("/brokers/leaderBroker", LeaderBroker)
        return found

    def version(self) -> str:
        return self._text("GET", "/brokers/version")

    def owned_namespaces(self, cluster: str, broker: str) -> dict[str, NamespaceOwnership]:
        template, kind = "/brokers/{cluster}/{broker}/ownedNamespaces", dict[str, NamespaceOwnership]
        return dict(self._get(template, kind, cluster=cluster, broker=broker))

    def dynamic_names(self) -> Texts:
        """Settings that can be changed while the broker runs."""
        return list(self._get("/brokers/configuration", Texts))

    def dynamic_values(self) -> dict[str, str]:
        """Those that were."""
        return dict(self._get("/brokers/configuration/values", dict[str, str]))

    def runtime_configuration(self) -> dict[str, str]:
        return dict(self._get("/brokers/configuration/runtime", dict[str, str]))

    def internal_configuration(self) -> InternalConfiguration:
        found: InternalConfiguration = self._get("/brokers/internal-configuration", InternalConfiguration)
        return found

    def set_dynamic(self, key: str, value: str) -> None:
        self._post("/brokers/configuration/{key}/{value}", key=key, value=value)

    def unset_dynamic(self, key: str) -> None:
        self._delete("/brokers/configuration/{key}", key=key)

    def check_backlog_quotas(self) -> None:
        """Measure now."""
        self._get("/brokers/backlog-quota-check", None)

    def shut_down(self) -> None:
        self._post("/brokers/shutdown")


class BrokerStats(Noun):
    """Statistics that monitoring tools poll."""

    def topics(self) -> dict[str, dict[str, dict[str, dict[str, TopicStats]]]]:
        """By namespace, bundle, domain and name."""
        kind = dict[str, dict[str, dict[str, dict[str, TopicStats]]]]
        return dict(self._get("/broker-stats/topics", kind))

    def overview(self, *, here: bool | None = None) -> ClusterOverview:
        """All brokers with sums over their topics, and the bookies; `here`: only the broker that is asked."""
        found: ClusterOverview = self._get("/broker-stats/overview", ClusterOverview, {"here": here})
        return found

    def metrics(self) -> _Metrics:
        return list(self._get("/broker-stats/metrics", _Metrics))

    def mbeans(self) -> _Beans:
        return list(self._get("/broker-stats/mbeans", _Beans))

    def load_report(self) -> LoadReport:
        found: LoadReport = self._get("/broker-stats/load-report", LoadReport)
        return found

    def allocator(self, allocator: str) -> AllocatorStats:
        template = "/broker-stats/allocator-stats/{allocator}"
        found: AllocatorStats = self._get(template, AllocatorStats, allocator=allocator)
        return found

    def resource_availability(self, namespace: str) -> dict[str, Any]:
        template = "/broker-stats/broker-resource-availability/{tenant}/{namespace}"
        return dict(self._get(template, dict[str, Any], **namespace_names(namespace)))


class LoadBalance(Noun):
    """The load manager: what it sees and what it would do."""

    def brokers(self) -> _Loads:
        return list(self._get("/load-balance/brokers", _Loads))

    def plan(self) -> LoadPlan:
        """Asks the leader; nothing is done."""
        found: LoadPlan = self._get("/load-balance/plan", LoadPlan)
        return found


class ResourceQuotas(Noun):
    """Expected resource use of bundles; without a bundle the default."""

    _ONE = "/resource-quotas/{tenant}/{namespace}/{bundle}"

    def get_default(self) -> ResourceQuota:
        found: ResourceQuota = self._get("/resource-quotas", ResourceQuota)
        return found

    def set_default(self, quota: ResourceQuota) -> None:
        self._post("/resource-quotas", quota)

    def get(self, namespace: str, bundle: str) -> ResourceQuota:
        found: ResourceQuota = self._get(self._ONE, ResourceQuota, bundle=bundle, **namespace_names(namespace))
        return found

    def set(self, namespace: str, bundle: str, quota: ResourceQuota) -> None:
        self._post(self._ONE, quota, bundle=bundle, **namespace_names(namespace))

    def reset(self, namespace: str, bundle: str) -> None:
        self._delete(self._ONE, bundle=bundle, **namespace_names(namespace))


class Lookups(Noun):
    """Where topics are served."""

    _TOPIC = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

    def topic(self, topic: str) -> LookupResult:
        answer = self._call("GET", self._TOPIC, topic_names(topic))
        found: LookupResult = as_kind(answer.json(), LookupResult)
        return found

    def bundle(self, topic: str) -> str:
        """Its range of hashes."""
        return self._call("GET", self._TOPIC + "/bundle", topic_names(topic)).body.decode()
