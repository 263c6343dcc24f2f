"""Documents about clusters, their brokers, bookies and tenants, as types; and `Document`, on which those of the other files are built."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class Document(Struct, rename="camel", kw_only=True):
    """A JSON object; fields that are not named here are ignored."""


# ---- Clusters


class ClusterData(Document):
    """Where a cluster is reached, and as whom: what is not said here is as in the broker's configuration."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    peer_cluster_names: list[str] | None = None
    authentication_plugin: str | None = None
    authentication_parameters: str | None = None
    broker_client_tls_enabled: bool | None = None
    broker_client_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool | None = None


class FailureDomain(Document):
    """Brokers that may fail together."""

    brokers: list[str] = []


class BookieInfo(Document):
    """Network location of a bookie: `RACK`, `/RACK` or `/REGION/RACK`."""

    rack: str
    hostname: str | None = None


class RawBookieInfo(Document):
    """One bookie of the cluster."""

    bookie_id: str


class BookiesClusterInfo(Document):
    """All bookies the cluster knows."""

    bookies: list[RawBookieInfo] = []


class AutoFailoverPolicy(Struct, kw_only=True):
    """When the secondary brokers take over: fewer than `min_limit` primaries below `usage_threshold` percent of load."""

    policy_type: str = "min_available"
    parameters: dict[str, str] = {}


class IsolationPolicy(Struct, kw_only=True):
    """Which brokers (regular expressions of their names) serve which namespaces."""

    namespaces: list[str]
    primary: list[str]
    secondary: list[str] = []
    auto_failover_policy: AutoFailoverPolicy


class IsolatedBroker(Document):
    """One broker and the namespaces that policies give it."""

    broker_name: str
    policy_name: str | None = None
    is_primary: bool = False
    namespace_regex: list[str] = []


# ---- Tenants


class TenantInfo(Document):
    """Who administers a tenant, and which clusters it may use."""

    admin_roles: list[str] = []
    allowed_clusters: list[str] = []


class ResourceGroup(Document):
    """Rates that the namespaces of a group share, at each broker; null or -1: no limit."""

    publish_rate_in_msgs: int | None = None
    publish_rate_in_bytes: int | None = None
    dispatch_rate_in_msgs: int | None = None
    dispatch_rate_in_bytes: int | None = None


class TopicHashPositions(Document):
    """Where topics stand in their namespace's hash range."""

    namespace: str
    bundle: str
    topic_hash_positions: dict[str, int]


class TopicGrant(Struct, kw_only=True):
    """What a role may do on a topic; without actions: what it may do no more."""

    topic: str
    role: str
    actions: list[Literal["produce", "consume", "functions", "sources", "sinks", "packages"]] = []


# ---- Brokers


class MetadataNode(Document):
    """A node of the metadata tree; `value` in Base64, times in ms since 1970, the rest under ZooKeeper's names."""

    path: str
    value: str
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int


class LedgerEntry(Document):
    """`payload` in Base64."""

    entry_id: int
    payload: str


class LedgerEntries(Document):
    """Some entries of a ledger that follow each other, and the last one that is confirmed; -1: none is."""

    ledger_id: int
    last_confirmed: int
    entries: list[LedgerEntry]


class LeaderBroker(Document):
    """The broker that decides about load."""

    broker_id: str
    service_url: str


class InternalConfiguration(Document):
    """Where the cluster keeps its metadata."""

    metadata_store_url: str
    configuration_metadata_store_url: str
    ledgers_root_path: str
    bookkeeper_metadata_service_uri: str
    state_storage_service_url: str | None


class NamespaceOwnership(Struct, kw_only=True):
    """How a broker acquired a bundle."""

    broker_assignment: str
    is_controlled: bool
    is_active: bool


class Usage(Document):
    """So much of so much."""

    usage: float
    limit: float


class BundleStats(Document):
    """Traffic of a bundle's topics per second."""

    msg_rate_in: float
    msg_throughput_in: float
    msg_rate_out: float
    msg_throughput_out: float
    consumer_count: int
    producer_count: int
    topics: int
    cache_size: int


class LoadReport(Document):
    """What a broker tells about its load. `cpu` in percent of one core, memory in MiB, bandwidth in kbit/s."""

    web_service_url: str
    web_service_url_tls: str | None
    pulsar_service_url: str
    pulsar_service_url_tls: str | None
    broker_version_string: str
    last_update: int
    start_timestamp: int
    cpu: Usage
    memory: Usage
    direct_memory: Usage
    bandwidth_in: Usage
    bandwidth_out: Usage
    max_resource_usage: float
    last_stats: dict[str, BundleStats]
    last_bundle_gains: list[str]
    last_bundle_losses: list[str]
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    num_topics: int
    num_bundles: int
    num_consumers: int
    num_producers: int
    bundles: list[str]


class BrokerLoadRow(Document):
    """One broker as the load manager sees it. `usage` in percent, the scarcest resource by its weight."""

    broker: str
    leader: bool
    usage: float
    cpu: float
    memory: float
    bandwidth_in: float
    bandwidth_out: float
    msg_rate: float
    throughput: float
    bundles: int
    topics: int
    reported_seconds_ago: float


class PlannedMove(Document):
    """`usage`: percent of the source's that goes with it, by its share of the traffic."""

    bundle: str
    source: str
    destination: str
    msg_rate: float
    throughput: float
    usage: float
    reason: str


class PlannedSplit(Document):
    """The owner finds the boundary."""

    bundle: str
    broker: str
    algorithm: str
    reason: str


class HeldBack(Document):
    """A broker or bundle that should have been relieved, and why it was not."""

    what: str
    reason: str


class LoadPlan(Document):
    """What would be done now. `peak`: the most loaded broker over the mean; `spread`: standard deviation over mean."""

    leader: str
    moves: list[PlannedMove]
    splits: list[PlannedSplit]
    held: list[HeldBack]
    peak_before: float
    peak_after: float
    spread_before: float
    spread_after: float


class Metrics(Document):
    """Values of one thing; `dimensions` say which."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


class AllocatorStats(Document):
    """Arenas of a buffer allocator: there is none in Python, so they are empty."""

    num_direct_arenas: int
    num_heap_arenas: int
    num_thread_local_caches: int
    normal_cache_size: int
    small_cache_size: int
    direct_arenas: list[Any]
    heap_arenas: list[Any]


class ResourceQuota(Document):
    """What a bundle is expected to use."""

    msg_rate_in: float = 40.0
    msg_rate_out: float = 120.0
    bandwidth_in: float = 100_000.0
    bandwidth_out: float = 300_000.0
    memory: float = 80.0
    dynamic: bool = True


# ---- Namespaces


class BookieAffinity(Document):
    """Groups of bookies that a namespace's ledgers go to."""

    bookkeeper_affinity_group_primary: str | None = None
    bookkeeper_affinity_group_secondary: str | None = None


class BrokerOverview(Document):
    """One broker with the sums over its loaded topics. Rates a second, sizes in bytes, usage in percent."""

    broker: str
    web: str = ""
    version: str = ""
    leader: bool = False
    problem: str | None = None
    """Why it cannot be asked, or cannot store anything."""
    cpu: float = 0.0
    memory: float = 0.0
    connections: int = 0
    topics: int = 0
    producers: int = 0
    subscriptions: int = 0
    consumers: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    throughput_in: float = 0.0
    throughput_out: float = 0.0
    msg_backlog: int = 0
    storage_size: int = 0
    blocked_subscriptions: int = 0
    """Those that get nothing until they acknowledge."""
    bookie_problem: str = ""
    disks: dict[str, list[int]] = {}
    """Of the bookie in the same process: used and all bytes of the file system by directory."""
    damaged_entry_logs: int = 0


class ClusterOverview(Document):
    """`bookies`: each with its `state`, which is `writable`, `read-only` or `gone`."""

    brokers: list[BrokerOverview]
    bookies: list[dict[str, str]]
