"""Where things lie in the metadata tree: the znode paths of BookKeeper and Pulsar, as pure functions.

The same paths in every store, so that a ZooKeeper written by Apache BookKeeper or Pulsar can be taken over and given back.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote_plus, unquote_plus

from magnetar.base.errors import InvalidArgumentError

# ---- BookKeeper
LEDGERS_ROOT: Final = "/ledgers"
LAYOUT_PATH: Final = f"{LEDGERS_ROOT}/LAYOUT"
INSTANCE_ID_PATH: Final = f"{LEDGERS_ROOT}/INSTANCEID"
AVAILABLE_BOOKIES_PATH: Final = f"{LEDGERS_ROOT}/available"
READ_ONLY_BOOKIES_PATH: Final = f"{AVAILABLE_BOOKIES_PATH}/readonly"
COOKIES_PATH: Final = f"{LEDGERS_ROOT}/cookies"
LEDGER_ID_PREFIX: Final = f"{LEDGERS_ROOT}/idgen/ID-"
LONG_LEDGER_ID_PARENT: Final = f"{LEDGERS_ROOT}/idgen-long"
UNDERREPLICATION_PATH: Final = f"{LEDGERS_ROOT}/underreplication"
UNDERREPLICATION_LAYOUT_PATH: Final = f"{UNDERREPLICATION_PATH}/LAYOUT"
UNDERREPLICATED_LEDGERS_PATH: Final = f"{UNDERREPLICATION_PATH}/ledgers"
UNDERREPLICATION_LOCKS_PATH: Final = f"{UNDERREPLICATION_PATH}/locks"
AUDITOR_VOTE_PREFIX: Final = f"{UNDERREPLICATION_PATH}/auditorelection/V_"
REPLICATION_DISABLED_PATH: Final = f"{UNDERREPLICATION_PATH}/disable"
LOST_BOOKIE_RECOVERY_DELAY_PATH: Final = f"{UNDERREPLICATION_PATH}/lostBookieRecoveryDelay"
CHECK_ALL_LEDGERS_TIME_PATH: Final = f"{UNDERREPLICATION_PATH}/checkallledgersctime"
PLACEMENT_POLICY_CHECK_TIME_PATH: Final = f"{UNDERREPLICATION_PATH}/placementpolicycheckctime"
REPLICAS_CHECK_TIME_PATH: Final = f"{UNDERREPLICATION_PATH}/replicascheckctime"

SHORT_LEDGER_ID_LIMIT: Final = 2**31 - 1
"""Ids below it use the ten-digit path and come from `idgen`; the others use nineteen digits and come from `idgen-long`."""

LEDGER_ID_MAX: Final = 2**63 - 1

# ---- Pulsar
ADMIN_PATH: Final = "/admin"
"""Clusters, policies, dynamic configuration: what administrators change. Brokers watch this, and not every ledger of everybody."""

CLUSTERS_PATH: Final = "/admin/clusters"
POLICIES_PATH: Final = "/admin/policies"
LOCAL_POLICIES_PATH: Final = "/admin/local-policies"
TOPIC_POLICIES_PATH: Final = "/admin/topic-policies"
"""Ours: Pulsar keeps the policies of single topics in a system topic (docs/reference/policies.md says why we do not)."""

PARTITIONED_TOPICS_PATH: Final = "/admin/partitioned-topics"
POLICIES_READ_ONLY_PATH: Final = "/admin/flags/policies-readonly"
DYNAMIC_CONFIGURATION_PATH: Final = "/admin/configuration"
MANAGED_LEDGERS_PATH: Final = "/managed-ledgers"
NAMESPACE_OWNERSHIP_PATH: Final = "/namespace"
BROKERS_PATH: Final = "/loadbalance/brokers"
LEADER_PATH: Final = "/loadbalance/leader"
LOAD_MOVES_PATH: Final = "/loadbalance/moves"
"""Ours: which bundles leaders have moved not long ago."""

LOAD_ORDERS_PATH: Final = "/loadbalance/orders"
"""Ours: what the leader tells a broker to unload or to split, by the broker's id."""

BUNDLE_DATA_PATH: Final = "/loadbalance/bundle-data"
BROKER_TIME_AVERAGE_PATH: Final = "/loadbalance/broker-time-average"
BOOKIE_RACKS_PATH: Final = "/bookies"
RESOURCE_GROUPS_PATH: Final = "/admin/resourcegroups"
RESOURCE_QUOTAS_PATH: Final = "/loadbalance/resource-quota"
SCHEMAS_PATH: Final = "/schemas"
SCALABLE_TOPICS_PATH: Final = "/topics"
PRODUCER_NAME_PREFIX: Final = "/counters/producer-name/"

# ---- magnetar
PIPELINES_PATH: Final = "/magnetar/pipelines"
COPIES_CHECK_PATH: Final = "/magnetar/copies-check"
"""How far the check of all copies has come: a ledger's id."""
DAMAGED_COPIES_PATH: Final = "/magnetar/damaged-copies"
"""Below it, by ledger id: which bookies were found to have damaged copies; a JSON list."""
RESTORED_PATH: Final = "/magnetar/restored"
"""Which ledger ids may have been handed out between a backup and its restore: JSON, one object for each restore."""


def encode(text: str) -> str:
    """A topic or subscription name as one path part, like Java's URLEncoder: `[A-Za-z0-9.*_-]` stay, space becomes `+`."""
    return quote_plus(text, safe="*").replace("~", "%7E")


def decode(part: str) -> str:
    """The inverse of `encode`."""
    return unquote_plus(part, errors="strict") if "%" in part or "+" in part else part


# ---- BookKeeper: ledgers and their ids


def ledger_path(ledger_id: int) -> str:
    """`/ledgers/NN/NNNN/LNNNN` below 2^31-1, else the long form."""
    if not 0 <= ledger_id < SHORT_LEDGER_ID_LIMIT:
        return long_ledger_path(ledger_id)
    digits = f"{ledger_id:010d}"
    return f"{LEDGERS_ROOT}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def long_ledger_path(ledger_id: int) -> str:
    """`/ledgers/NNN/NNNN/NNNN/NNNN/LNNNN`, for any id."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise InvalidArgumentError(f"ledger id {ledger_id} must be between 0 and 2^63-1")
    digits = f"{ledger_id:019d}"
    return f"{LEDGERS_ROOT}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of_path(path: str) -> int:
    """The id behind a path of either form. Raises InvalidArgumentError for any other path."""
    head, _, rest = path.partition(f"{LEDGERS_ROOT}/")
    parts = rest.split("/")
    if not head and tuple(len(part) for part in parts) in ((2, 4, 5), (3, 4, 4, 4, 5)) and parts[-1][0] == "L":
        digits = "".join(parts[:-1]) + parts[-1][1:]
        if digits.isascii() and digits.isdigit():
            return int(digits)
    raise InvalidArgumentError(f"{path!r} is not the path of a ledger")


def long_ledger_id_prefix(high_bits: int) -> str:
    """The sequential prefix that yields the low 32 bits of ids whose upper part is `high_bits` (at least 1)."""
    return f"{LONG_LEDGER_ID_PARENT}/HOB-{high_bits:010d}/ID-"


def sequence_of(path: str) -> int:
    """The number at the end of a sequential node's path."""
    return int(path[-10:])


# ---- BookKeeper: bookies and replication


def available_bookie_path(bookie_id: str) -> str:
    return _join(AVAILABLE_BOOKIES_PATH, _bookie(bookie_id))


def read_only_bookie_path(bookie_id: str) -> str:
    return _join(READ_ONLY_BOOKIES_PATH, _bookie(bookie_id))


def cookie_path(bookie_id: str) -> str:
    return _join(COOKIES_PATH, _bookie(bookie_id))


def underreplicated_ledger_path(ledger_id: int) -> str:
    """Four levels of 16 bits in hexadecimal, then `urL%010d`."""
    digits = f"{ledger_id:016x}"
    levels = "/".join(digits[start : start + 4] for start in range(0, 16, 4))
    return f"{UNDERREPLICATED_LEDGERS_PATH}/{levels}/urL{ledger_id:010d}"


def underreplicated_ledger_id(name: str) -> int | None:
    """The id in `urL%010d`, of a marked ledger or of a lock; None for any other name."""
    digits = name.removeprefix("urL")
    return int(digits) if digits != name and digits.isascii() and digits.isdigit() else None


def damaged_copies_path(ledger_id: int) -> str:
    return f"{DAMAGED_COPIES_PATH}/{ledger_id}"


def underreplication_lock_path(ledger_id: int) -> str:
    return f"{UNDERREPLICATION_LOCKS_PATH}/urL{ledger_id:010d}"


# ---- Pulsar: policies


def cluster_path(cluster: str) -> str:
    return _join(CLUSTERS_PATH, cluster)


def isolation_policies_path(cluster: str) -> str:
    return _join(CLUSTERS_PATH, cluster, "namespaceIsolationPolicies")


def failure_domains_path(cluster: str) -> str:
    return _join(CLUSTERS_PATH, cluster, "failureDomain")


def failure_domain_path(cluster: str, domain: str) -> str:
    return _join(CLUSTERS_PATH, cluster, "failureDomain", domain)


def resource_quota_path(*names: str) -> str:
    """Without names the default; of a bundle with tenant, namespace and bundle."""
    return _join(RESOURCE_QUOTAS_PATH, *(names or ("default",)))


def resource_group_path(name: str) -> str:
    return _join(RESOURCE_GROUPS_PATH, name)


def tenant_path(tenant: str) -> str:
    return _join(POLICIES_PATH, tenant)


def policies_path(tenant: str, namespace: str) -> str:
    return _join(POLICIES_PATH, tenant, namespace)


def local_policies_path(tenant: str, namespace: str) -> str:
    return _join(LOCAL_POLICIES_PATH, tenant, namespace)


def topics_policies_path(tenant: str, namespace: str) -> str:
    """The parent of the domains below which a namespace's topic policies lie."""
    return _join(TOPIC_POLICIES_PATH, tenant, namespace)


def topic_policies_path(tenant: str, namespace: str, domain: str, topic: str) -> str:
    """`topic` is the name without a partition: all partitions share its policies."""
    return _join(TOPIC_POLICIES_PATH, tenant, namespace, domain, encode(topic))


def partitioned_topics_path(tenant: str, namespace: str, domain: str = "persistent") -> str:
    """The parent of a namespace's partitioned topics."""
    return _join(PARTITIONED_TOPICS_PATH, tenant, namespace, domain)


def partitioned_topic_path(tenant: str, namespace: str, domain: str, topic: str) -> str:
    return _join(PARTITIONED_TOPICS_PATH, tenant, namespace, domain, encode(topic))


def schema_path(tenant: str, namespace: str, topic: str) -> str:
    return _join(SCHEMAS_PATH, tenant, namespace, encode(topic))


# ---- Pulsar: managed ledgers


def managed_ledgers_path(tenant: str, namespace: str, domain: str = "persistent") -> str:
    """The parent of a namespace's managed ledgers: its children are the encoded topic names."""
    return _join(MANAGED_LEDGERS_PATH, tenant, namespace, domain)


def managed_ledger_path(tenant: str, namespace: str, domain: str, topic: str) -> str:
    """A segment's `topic` is `topic/descriptor`: two parts of the path, as in Pulsar."""
    return _join(MANAGED_LEDGERS_PATH, tenant, namespace, domain, *map(encode, topic.split("/")))


def managed_ledger_name(tenant: str, namespace: str, domain: str, topic: str) -> str:
    """`tenant/namespace/domain/encoded-topic`: how the managed ledger itself is called."""
    return managed_ledger_path(tenant, namespace, domain, topic)[len(MANAGED_LEDGERS_PATH) + 1 :]


def named_managed_ledger_path(name: str) -> str:
    """The path of a managed ledger from its name (already encoded)."""
    return _join(MANAGED_LEDGERS_PATH, *name.split("/"))


def cursor_path(ledger_name: str, cursor: str) -> str:
    """`ledger_name` as of `managed_ledger_name`; `cursor` is the plain subscription name."""
    return _join(named_managed_ledger_path(ledger_name), encode(cursor))


# ---- Pulsar: scalable topics


def scalable_topics_path(tenant: str, namespace: str) -> str:
    """The parent of a namespace's scalable topics: its children are the encoded names."""
    return _join(SCALABLE_TOPICS_PATH, tenant, namespace)


def scalable_topic_path(tenant: str, namespace: str, topic: str) -> str:
    """The record of a scalable topic. Below it lie its controller, its subscriptions and the load of its segments."""
    return _join(SCALABLE_TOPICS_PATH, tenant, namespace, encode(topic))


# ---- Pulsar: ownership and load


def bundle_ownership_path(tenant: str, namespace: str, bundle: str) -> str:
    """`bundle` like `0x00000000_0x40000000`."""
    return _join(NAMESPACE_OWNERSHIP_PATH, tenant, namespace, bundle)


def broker_path(broker_id: str) -> str:
    return _join(BROKERS_PATH, broker_id)


def load_orders_path(broker_id: str) -> str:
    return _join(LOAD_ORDERS_PATH, broker_id)


def bundle_data_path(tenant: str, namespace: str, bundle: str) -> str:
    return _join(BUNDLE_DATA_PATH, tenant, namespace, bundle)


def broker_time_average_path(broker_id: str) -> str:
    return _join(BROKER_TIME_AVERAGE_PATH, broker_id)


def _bookie(bookie_id: str) -> str:
    if bookie_id == "readonly":
        raise InvalidArgumentError("a bookie must not be called 'readonly', a name that BookKeeper's tree uses itself")
    return bookie_id


def _join(root: str, *parts: str) -> str:
    for part in parts:
        if not part or "/" in part:
            raise InvalidArgumentError(f"{part!r} cannot be one part of a metadata path: it is empty or contains '/'")
    return "/".join((root, *parts))
