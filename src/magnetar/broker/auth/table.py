"""The one table: what every command of the binary protocol and every route of the admin API asks for.

A command or route without a row is denied to everybody; a test holds the rows against the live lists in both directions. In paths
`{domain}` stands for `persistent` and `non-persistent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from magnetar.broker.auth.decide import Access

COMMANDS: Mapping[str, Access] = {
    # ---- The connection itself; refused in other ways before CONNECT
    "CONNECT": Access.OPEN,
    "AUTH_RESPONSE": Access.OPEN,
    "PING": Access.OPEN,
    "PONG": Access.OPEN,
    # ---- Names
    "PARTITIONED_METADATA": Access.LOOKUP,
    "LOOKUP": Access.LOOKUP,
    "GET_TOPICS_OF_NAMESPACE": Access.NAMESPACE,
    # ---- Producing
    "PRODUCER": Access.PRODUCE,
    "SEND": Access.OWN,
    "CLOSE_PRODUCER": Access.OWN,
    # ---- Consuming
    "SUBSCRIBE": Access.CONSUME,
    "FLOW": Access.OWN,
    "ACK": Access.OWN,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": Access.OWN,
    "CLOSE_CONSUMER": Access.OWN,
    "UNSUBSCRIBE": Access.CONSUME,
    "SEEK": Access.CONSUME,
    "GET_LAST_MESSAGE_ID": Access.CONSUME,
    "CONSUMER_STATS": Access.CONSUME,
    # ---- Schemas
    "GET_SCHEMA": Access.LOOKUP,
    "GET_OR_CREATE_SCHEMA": Access.PRODUCE,
    # ---- Transactions
    "TC_CLIENT_CONNECT_REQUEST": Access.AUTHENTICATED,
    "NEW_TXN": Access.SOMEWHERE,
    "ADD_PARTITION_TO_TXN": Access.PRODUCE,
    "ADD_SUBSCRIPTION_TO_TXN": Access.CONSUME,
    "END_TXN": Access.AUTHENTICATED,  # and the coordinator asks for the owner
    "END_TXN_ON_PARTITION": Access.SUPERUSER,
    "END_TXN_ON_SUBSCRIPTION": Access.SUPERUSER,
}
"""Access by the name of the command's type in BaseCommand."""

_ADMIN = "/admin/v2"
_CLUSTER = f"{_ADMIN}/clusters/{{cluster}}"
_NAMESPACE = f"{_ADMIN}/namespaces/{{tenant}}/{{namespace}}"
_IN_NAMESPACE = f"{_ADMIN}/{{domain}}/{{tenant}}/{{namespace}}"
_TOPIC = f"{_IN_NAMESPACE}/{{topic}}"
_SUBSCRIPTION = f"{_TOPIC}/subscription/{{subscription}}"
_SCHEMAS = f"{_ADMIN}/schemas/{{tenant}}/{{namespace}}/{{topic}}"
_LOOKUP = "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"

BROKER_STATS = (
    "allocator-stats/{allocator}",
    "broker-resource-availability/{tenant}/{namespace}",
    "load-report",
    "mbeans",
    "metrics",
    "topics",
)

_TRANSACTIONS = "/admin/v3/transactions"
_OF_TOPIC = "{tenant}/{namespace}/{topic}"
_TXN = "{mostSigBits}/{leastSigBits}"

COORDINATORS = (
    ("GET", "coordinators"),
    ("GET", "coordinatorStats"),
    ("GET", "coordinatorInternalStats/{coordinatorId}"),
    ("GET", f"transactionMetadata/{_TXN}"),
    ("GET", "slowTransactions/{timeout}"),
    ("POST", f"abortTransaction/{_TXN}"),
    ("POST", "transactionCoordinator/replicas"),
    ("POST", "participants"),
)
"""Transactions of everybody: for superusers (in CVE-2026-105931 such routes skipped the check of their siblings)."""

TRANSACTIONS_OF_TOPICS = (
    f"transactionBufferStats/{_OF_TOPIC}",
    f"transactionBufferInternalStats/{_OF_TOPIC}",
    f"transactionInBufferStats/{_OF_TOPIC}/{_TXN}",
    f"pendingAckStats/{_OF_TOPIC}/{{subscription}}",
    f"pendingAckInternalStats/{_OF_TOPIC}/{{subscription}}",
    f"transactionInPendingAckStats/{_OF_TOPIC}/{{subscription}}/{_TXN}",
    f"positionStatsInPendingAck/{_OF_TOPIC}/{{subscription}}/{{ledger}}/{{entry}}",
)
"""Routes about transactions in one topic: for the tenant's administrators."""

NO_FUNCTIONS = (
    *(f"{_ADMIN}/worker/{leaf}" for leaf in ("assignments", "cluster", "cluster/leader", "cluster/leader/ready")),
    *(
        f"/admin/v3/{kind}{leaf}"
        for kind in ("functions", "sources", "sinks")
        for leaf in ("", "/{tenant}/{namespace}")
    ),
)
"""Routes that answer everybody that there is no functions worker."""

NAMESPACE_POLICIES = (
    "autoSubscriptionCreation",
    "autoTopicCreation",
    "deduplication",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "dispatchRate",
    "encryptionRequired",
    "inactiveTopicPolicies",
    "maxConsumersPerSubscription",
    "maxConsumersPerTopic",
    "maxProducersPerTopic",
    "maxSubscriptionsPerTopic",
    "maxTopicsPerNamespace",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "messageTTL",
    "offloadPolicies",
    "persistence",
    "publishRate",
    "replication",
    "replicatorDispatchRate",
    "isAllowAutoUpdateSchema",
    "schemaValidationEnforced",
    "retention",
    "subscribeRate",
    "subscriptionAuthMode",
    "subscriptionDispatchRate",
    "subscriptionExpirationTime",
)
"""Read and written by the tenant's administrators; a role that produces or consumes may do neither (CVE-2024-28098)."""

NAMESPACE_POLICIES_PUT = (
    "compactionThreshold",
    "offloadDeletionLagMs",
    "offloadThreshold",
    "offloadThresholdInSeconds",
    "schemaCompatibilityStrategy",
)
"""The same, set by PUT."""

TOPIC_POLICIES = (
    "autoSubscriptionCreation",
    "compactionThreshold",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "dispatchRate",
    "inactiveTopicPolicies",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxMessageSize",
    "maxProducers",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "messageTTL",
    "offloadPolicies",
    "persistence",
    "publishRate",
    "replication",
    "replicatorDispatchRate",
    "retention",
    "schemaValidationEnforced",
    "subscribeRate",
    "subscriptionDispatchRate",
)
"""Routes of policies of single topics, also for the tenant's administrators."""

_ROWS: tuple[tuple[Access, str, tuple[str, ...]], ...] = (
    (Access.OPEN, "/status.html", ("GET",)),
    (Access.OPEN, f"{_ADMIN}/brokers/ready", ("GET",)),
    (Access.METRICS, "/metrics", ("GET",)),
    (Access.AUTHENTICATED, "/openapi.json", ("GET",)),
    (Access.AUTHENTICATED, "/docs", ("GET",)),
    # ---- The server
    (Access.AUTHENTICATED, f"{_ADMIN}/brokers/version", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/backlog-quota-check", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/configuration", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/configuration/runtime", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/configuration/values", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/health", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/internal-configuration", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/leaderBroker", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/load-balance/brokers", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/load-balance/plan", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/{{cluster}}", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/{{cluster}}/{{broker}}/ownedNamespaces", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/configuration/{{key}}", ("DELETE",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/configuration/{{key}}/{{value}}", ("POST",)),
    (Access.SUPERUSER, f"{_ADMIN}/brokers/shutdown", ("POST",)),
    *((Access.SUPERUSER, f"{_ADMIN}/broker-stats/{leaf}", ("GET",)) for leaf in BROKER_STATS),
    (Access.SUPERUSER, f"{_ADMIN}/resource-quotas", ("GET", "POST")),
    (Access.SUPERUSER, f"{_ADMIN}/resource-quotas/{{tenant}}/{{namespace}}/{{bundle}}", ("GET", "POST", "DELETE")),
    *((Access.AUTHENTICATED, path, ("GET",)) for path in NO_FUNCTIONS),
    # ---- Bookies
    (Access.SUPERUSER, f"{_ADMIN}/bookies/all", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/bookies/racks-info", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/bookies/racks-info/{{bookie}}", ("GET", "POST", "DELETE")),
    # ---- Transactions
    *((Access.SUPERUSER, f"{_TRANSACTIONS}/{leaf}", (method,)) for method, leaf in COORDINATORS),
    *((Access.TENANT, f"{_TRANSACTIONS}/{leaf}", ("GET",)) for leaf in TRANSACTIONS_OF_TOPICS),
    # ---- Clusters and tenants
    (Access.AUTHENTICATED, f"{_ADMIN}/clusters", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/clusters/{{cluster}}", ("GET", "PUT", "POST", "DELETE")),
    (Access.SUPERUSER, f"{_CLUSTER}/peers", ("GET", "POST")),
    (Access.SUPERUSER, f"{_CLUSTER}/failureDomains", ("GET",)),
    (Access.SUPERUSER, f"{_CLUSTER}/failureDomains/{{domainName}}", ("GET", "POST", "DELETE")),
    (Access.SUPERUSER, f"{_CLUSTER}/namespaceIsolationPolicies", ("GET",)),
    (Access.SUPERUSER, f"{_CLUSTER}/namespaceIsolationPolicies/{{policyName}}", ("GET", "POST", "DELETE")),
    (Access.SUPERUSER, f"{_CLUSTER}/namespaceIsolationPolicies/brokers", ("GET",)),
    (Access.SUPERUSER, f"{_CLUSTER}/namespaceIsolationPolicies/brokers/{{broker}}", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/tenants", ("GET",)),
    (Access.TENANT, f"{_ADMIN}/tenants/{{tenant}}", ("GET",)),
    (Access.SUPERUSER, f"{_ADMIN}/tenants/{{tenant}}", ("PUT", "POST", "DELETE")),
    # ---- Namespaces
    (Access.TENANT, f"{_ADMIN}/namespaces/{{tenant}}", ("GET",)),
    (Access.TENANT, _NAMESPACE, ("GET", "PUT", "DELETE")),
    (Access.NAMESPACE, f"{_NAMESPACE}/topics", ("GET",)),
    (Access.NAMESPACE, f"{_NAMESPACE}/bundles", ("GET",)),
    (Access.TENANT, f"{_NAMESPACE}/permissions", ("GET",)),
    (Access.TENANT, f"{_NAMESPACE}/permissions/{{role}}", ("POST", "DELETE")),
    (Access.TENANT, f"{_NAMESPACE}/permissions/subscription", ("GET",)),
    (Access.TENANT, f"{_NAMESPACE}/permissions/subscription/{{subscription}}", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/permissions/{{subscription}}/{{role}}", ("DELETE",)),
    *((Access.TENANT, f"{_NAMESPACE}/{policy}", ("GET", "PUT", "DELETE")) for policy in NAMESPACE_POLICIES_PUT),
    (Access.TENANT, f"{_NAMESPACE}/removeOffloadPolicies", ("DELETE",)),
    (Access.TENANT, f"{_NAMESPACE}/backlogQuotaMap", ("GET",)),
    (Access.TENANT, f"{_NAMESPACE}/backlogQuota", ("POST", "DELETE")),
    *((Access.TENANT, f"{_NAMESPACE}/{policy}", ("GET", "POST", "DELETE")) for policy in NAMESPACE_POLICIES),
    # Over all topics at once: more than a role that may consume one subscription is trusted with (CVE-2026-105938)
    (Access.TENANT, f"{_NAMESPACE}/clearBacklog", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/clearBacklog/{{subscription}}", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/unsubscribe/{{subscription}}", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/{{bundle}}/clearBacklog", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/{{bundle}}/clearBacklog/{{subscription}}", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/{{bundle}}/unsubscribe/{{subscription}}", ("POST",)),
    (Access.TENANT, f"{_NAMESPACE}/properties", ("GET", "PUT", "DELETE")),
    (Access.TENANT, f"{_NAMESPACE}/property/{{key}}", ("GET", "DELETE")),
    (Access.TENANT, f"{_NAMESPACE}/property/{{key}}/{{value}}", ("PUT",)),
    (Access.SUPERUSER, f"{_NAMESPACE}/persistence/bookieAffinity", ("GET", "POST", "DELETE")),
    (Access.TENANT, f"{_NAMESPACE}/{{bundle}}", ("DELETE",)),
    (Access.SUPERUSER, f"{_NAMESPACE}/{{bundle}}/split", ("PUT",)),
    (Access.SUPERUSER, f"{_NAMESPACE}/unload", ("PUT",)),
    (Access.SUPERUSER, f"{_NAMESPACE}/{{bundle}}/unload", ("PUT",)),
    # ---- Topics: to make, change and empty them is administration; to look at one takes a reason to use it
    (Access.NAMESPACE, _IN_NAMESPACE, ("GET",)),
    (Access.NAMESPACE, f"{_IN_NAMESPACE}/partitioned", ("GET",)),
    (Access.TENANT, _TOPIC, ("PUT", "DELETE")),
    (Access.LOOKUP, f"{_TOPIC}/partitions", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/partitions", ("PUT", "POST", "DELETE")),
    (Access.TENANT, f"{_TOPIC}/createMissedPartitions", ("POST",)),
    (Access.LOOKUP, f"{_TOPIC}/properties", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/properties", ("PUT", "DELETE")),
    (Access.TENANT, f"{_TOPIC}/permissions", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/permissions/{{role}}", ("POST", "DELETE")),
    (Access.TENANT, f"{_TOPIC}/terminate", ("POST",)),
    (Access.TENANT, f"{_TOPIC}/terminate/partitions", ("POST",)),
    (Access.LOOKUP, f"{_TOPIC}/offload", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/offload", ("PUT",)),
    (Access.LOOKUP, f"{_TOPIC}/compaction", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/compaction", ("PUT", "DELETE")),
    (Access.TENANT, f"{_TOPIC}/trim", ("POST",)),
    (Access.TENANT, f"{_TOPIC}/truncate", ("DELETE",)),
    (Access.TENANT, f"{_TOPIC}/unload", ("PUT",)),
    *((Access.TENANT, f"{_TOPIC}/{policy}", ("GET", "POST", "DELETE")) for policy in TOPIC_POLICIES),
    (Access.TENANT, f"{_TOPIC}/schemaCompatibilityStrategy", ("GET", "PUT", "DELETE")),
    (Access.TENANT, f"{_TOPIC}/backlogQuotaMap", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/backlogQuota", ("POST", "DELETE")),
    (Access.LOOKUP, f"{_TOPIC}/stats", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/partitioned-stats", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/internalStats", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/partitioned-internalStats", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/internal-info", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/backlog", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/subscriptions", ("GET",)),
    (Access.LOOKUP, f"{_TOPIC}/replicatedSubscriptions", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/replicatedSubscriptions/snapshot", ("POST",)),
    (Access.TENANT, f"{_TOPIC}/replicatedSubscriptions/excluded/{{cluster}}", ("POST",)),
    (Access.CONSUME, f"{_TOPIC}/examinemessage", ("GET",)),
    (Access.CONSUME, f"{_TOPIC}/messageIdByIndex", ("GET",)),
    (Access.CONSUME, f"{_TOPIC}/lastMessageId", ("GET",)),
    (Access.CONSUME, f"{_TOPIC}/messageid/{{timestamp}}", ("GET",)),
    (Access.CONSUME, f"{_TOPIC}/backlogSize", ("PUT",)),
    (Access.CONSUME, f"{_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", ("GET",)),
    (Access.TENANT, f"{_TOPIC}/all_subscription/expireMessages/{{seconds}}", ("POST",)),
    # ---- Subscriptions
    (Access.CONSUME, _SUBSCRIPTION, ("PUT", "DELETE")),
    (Access.CONSUME, f"{_SUBSCRIPTION}/properties", ("GET", "PUT")),
    (Access.CONSUME, f"{_SUBSCRIPTION}/analyzeBacklog", ("GET",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/expireMessages", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/expireMessages/{{seconds}}", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/position/{{number}}", ("GET",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/resetcursor", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/resetcursor/{{timestamp}}", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/skip/{{count}}", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/skip_all", ("POST",)),
    (Access.CONSUME, f"{_SUBSCRIPTION}/replicatedSubscriptionStatus", ("GET", "POST")),
    # ---- Schemas; asking what a schema would do to a topic is for those who produce there
    (Access.LOOKUP, f"{_SCHEMAS}/schema", ("GET",)),
    (Access.PRODUCE, f"{_SCHEMAS}/schema", ("POST",)),
    (Access.TENANT, f"{_SCHEMAS}/schema", ("DELETE",)),
    (Access.LOOKUP, f"{_SCHEMAS}/schema/{{version}}", ("GET",)),
    (Access.LOOKUP, f"{_SCHEMAS}/schemas", ("GET",)),
    (Access.LOOKUP, f"{_SCHEMAS}/metadata", ("GET",)),
    (Access.PRODUCE, f"{_SCHEMAS}/version", ("POST",)),
    (Access.PRODUCE, f"{_SCHEMAS}/compatibility", ("POST",)),
    # ---- Lookup
    (Access.LOOKUP, _LOOKUP, ("GET",)),
    (Access.LOOKUP, f"{_LOOKUP}/bundle", ("GET",)),
)


def _routes() -> Iterator[tuple[tuple[str, str], Access]]:
    for access, path, methods in _ROWS:
        for method in methods:
            yield (method, path), access


ROUTES: Mapping[tuple[str, str], Access] = dict(_routes())
"""Access by method and path."""

assert len(ROUTES) == sum(len(methods) for _, _, methods in _ROWS), "a route has two rows"
