"""Commands of pulsar-admin in the order in which they are given to both servers.

`{ns}` is a namespace of the run's own, `{tenant}` its tenant, `{t}` a topic there with messages, `{p}` a partitioned one, `{n}` one of
the name n, `{id:2}` the id of the third message of `{t}`. A line that begins with `!` is no command: something that the official client
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final


def policies(group: str, target: str, rows: str, *, getter: str = "") -> Iterator[str]:
    """Each row `noun: flags of set` as set, get and remove, with what is there before and afterwards. `-` leaves the removal out."""
    for row in rows.strip().splitlines():
        noun, _, flags = row.strip().partition(":")
        kept = noun.startswith("-")
        noun = noun.lstrip("-")
        own = f" -s s{getter}" if noun.endswith("@") else getter
        noun = noun.rstrip("@")
        subscription = " -s s" if own.startswith(" -s") else ""
        yield f"{group} get-{noun} {target}{own}"
        yield f"{group} set-{noun} {target}{subscription} {flags.strip()}"
        yield f"{group} get-{noun} {target}{own}"
        if not kept:
            yield f"{group} remove-{noun} {target}{subscription}"
            yield f"{group} get-{noun} {target}{own}"


TENANTS: Final = """
tenants list
tenants create {tenant}-x -r admin,other -c standalone
tenants get {tenant}-x
tenants create {tenant}-x -c standalone
tenants update {tenant}-x -r third -c standalone
tenants get {tenant}-x
tenants create {tenant}-y -c nowhere
tenants update {tenant}-z -r a
tenants get {tenant}-z
tenants delete {tenant}-z
namespaces create {tenant}-x/n
tenants delete {tenant}-x
tenants delete {tenant}-x -f
tenants get {tenant}-x
tenants create a/b
clusters list
clusters list -c
clusters get standalone
clusters get nowhere
clusters create far --url http://far:8080 --broker-url pulsar://far:6650
clusters get far
clusters update far --url http://far:8081 --broker-url pulsar://far:6651
clusters get far
clusters create far --url http://far:8080
clusters update-peer-clusters far --peer-clusters standalone
clusters get-peer-clusters far
clusters update-peer-clusters far --peer-clusters far
clusters create-failure-domain standalone --domain-name d --broker-list b1:8080,b2:8080
clusters list-failure-domains standalone
clusters get-failure-domain standalone --domain-name d
clusters update-failure-domain standalone --domain-name d --broker-list b3:8080
clusters get-failure-domain standalone --domain-name d
clusters get-failure-domain standalone --domain-name e
clusters delete-failure-domain standalone --domain-name d
clusters delete-failure-domain standalone --domain-name d
clusters update-peer-clusters far --peer-clusters ""
clusters delete far
clusters get far
clusters delete far
"""

BROKERS: Final = """
brokers list standalone
brokers list nowhere
brokers leader-broker
brokers healthcheck
brokers healthcheck -tv V2
brokers backlog-quota-check
brokers get-internal-config
brokers get-all-dynamic-config
brokers update-dynamic-config --config dispatchThrottlingRatePerTopicInMsg --value 77
brokers get-all-dynamic-config
brokers delete-dynamic-config --config dispatchThrottlingRatePerTopicInMsg
brokers get-all-dynamic-config
brokers update-dynamic-config --config noSuchSetting --value 1
brokers update-dynamic-config --config dispatchThrottlingRatePerTopicInMsg --value many
brokers delete-dynamic-config --config noSuchSetting
broker-stats load-report
broker-stats topics -i
broker-stats mbeans
broker-stats monitoring-metrics
broker-stats allocator-stats default
ns-isolation-policy list standalone
{isolate}
ns-isolation-policy get standalone p
ns-isolation-policy list standalone
ns-isolation-policy get standalone q
ns-isolation-policy brokers standalone
ns-isolation-policy delete standalone p
ns-isolation-policy delete standalone p
ns-isolation-policy list nowhere
resourcegroups list
resourcegroups create g -mp 100 -bp 1000 -md 50 -bd 500
resourcegroups get g
resourcegroups update g -mp 7
resourcegroups get g
resourcegroups create g -mp 1
resourcegroups get h
resourcegroups update h -mp 1
resourcegroups list
bookies racks-placement
bookies set-bookie-rack -b 127.0.0.1:9 -r /r1 -hn h1
bookies get-bookie-rack -b 127.0.0.1:9
bookies racks-placement
bookies delete-bookie-rack -b 127.0.0.1:9
bookies delete-bookie-rack -b 127.0.0.1:9
bookies get-bookie-rack -b 127.0.0.1:9
bookies list-bookies
resource-quotas get
"""

NAMESPACES: Final = """
namespaces list {tenant}
namespaces create {ns}
namespaces create {ns}
namespaces create nobody/n
namespaces create {tenant}/bad*name
namespaces create {ns}-bundles -b 8
namespaces bundles {ns}-bundles
namespaces create {ns}-clusters -c standalone
namespaces create {ns}-nowhere -c nowhere
namespaces list {tenant}
namespaces list nobody
namespaces policies {ns}
namespaces policies {tenant}/missing
namespaces bundles {ns}
namespaces topics {ns}
namespaces permissions {ns}
namespaces grant-permission {ns} --role r --actions produce,consume
namespaces grant-permission {ns} --role q --actions functions
namespaces permissions {ns}
namespaces revoke-permission {ns} --role r
namespaces revoke-permission {ns} --role r
namespaces permissions {ns}
namespaces subscription-permission {ns}
namespaces grant-subscription-permission {ns} -s s -rs a,b
namespaces subscription-permission {ns}
namespaces revoke-subscription-permission {ns} -s s -r a
namespaces subscription-permission {ns}
namespaces get-clusters {ns}
namespaces set-clusters {ns} -c standalone
namespaces set-clusters {ns} -c nowhere
namespaces get-allowed-clusters {ns}
namespaces set-allowed-clusters {ns} -c standalone
namespaces get-allowed-clusters {ns}
namespaces get-anti-affinity-group {ns}
namespaces set-anti-affinity-group {ns} -g apart
namespaces get-anti-affinity-group {ns}
namespaces get-anti-affinity-namespaces -c standalone -g apart -p {tenant}
namespaces delete-anti-affinity-group {ns}
namespaces get-anti-affinity-group {ns}
namespaces get-bookie-affinity-group {ns}
namespaces set-bookie-affinity-group {ns} -pg default
namespaces get-bookie-affinity-group {ns}
namespaces delete-bookie-affinity-group {ns}
namespaces get-bookie-affinity-group {ns}
namespaces get-properties {ns}
namespaces set-properties {ns} -p a=1,b=2
namespaces set-property {ns} -k c -v 3
namespaces get-property {ns} -k c
namespaces get-properties {ns}
namespaces remove-property {ns} -k c
namespaces get-property {ns} -k c
namespaces clear-properties {ns}
namespaces get-properties {ns}
namespaces get-resource-group {ns}
namespaces set-resource-group {ns} -rgn g
namespaces get-resource-group {ns}
namespaces set-resource-group {ns} -rgn h
resourcegroups delete g
namespaces remove-resource-group {ns}
resourcegroups delete g
resourcegroups delete g
namespaces split-bundle {ns}-bundles -b 0x00000000_0x20000000
namespaces bundles {ns}-bundles
namespaces split-bundle {ns}-bundles -b 0x00000000_0x30000000
namespaces unload {ns}-bundles -b 0x20000000_0x40000000
namespaces unload {ns}-bundles
namespaces delete {ns}-bundles
namespaces delete {ns}-bundles
namespaces delete {ns}-clusters
namespaces set-encryption-required {ns} -e
namespaces get-encryption-required {ns}
namespaces set-encryption-required {ns} -d
namespaces set-subscription-auth-mode {ns} -m Prefix
namespaces get-subscription-auth-mode {ns}
namespaces set-subscription-auth-mode {ns} -m None
namespaces get-schema-validation-enforce {ns}
namespaces set-schema-validation-enforce {ns} -e
namespaces get-schema-validation-enforce {ns}
namespaces set-schema-validation-enforce {ns} -d
namespaces get-is-allow-auto-update-schema {ns}
namespaces set-is-allow-auto-update-schema {ns} -d
namespaces get-is-allow-auto-update-schema {ns}
namespaces set-is-allow-auto-update-schema {ns} -e
namespaces get-schema-compatibility-strategy {ns}
namespaces set-schema-compatibility-strategy {ns} -c FULL
namespaces get-schema-compatibility-strategy {ns}
namespaces get-backlog-quotas {ns}
namespaces set-backlog-quota {ns} -l 10M -p producer_exception
namespaces set-backlog-quota {ns} -lt 3600 -p consumer_backlog_eviction -t message_age
namespaces get-backlog-quotas {ns}
namespaces remove-backlog-quota {ns}
namespaces get-backlog-quotas {ns}
namespaces remove-backlog-quota {ns} -t message_age
namespaces get-compaction-threshold {tenant}/missing
namespaces set-retention {tenant}/missing -t 1h -s 1G
namespaces set-retention {ns} -t 10m -s 100M
namespaces set-backlog-quota {ns} -l 1G -p consumer_backlog_eviction
namespaces remove-retention {ns}
"""

NAMESPACE_POLICIES: Final = """
persistence: -e 1 -w 1 -a 1 -r 2
persistence: -e 1 -w 2 -a 3 -r 0
message-ttl: -ttl 60
max-subscriptions-per-topic: -m 9
subscription-expiration-time: -t 7
subscription-types-enabled: -t Shared,Failover
deduplication: -e
auto-topic-creation: -e -t partitioned -n 3
auto-topic-creation: -d
auto-subscription-creation:
retention: -t 3h -s 10M
retention: -t -1 -s -1
dispatch-rate: -md 10 -bd 1000 -dt 2 -rp
subscribe-rate: -sr 5 -st 10
subscription-dispatch-rate: -md 10 -bd 1000
publish-rate: -m 100 -b 10000
replicator-dispatch-rate: -md 10 -bd 100 -dt 1
delayed-delivery: -e -t 2s
inactive-topic-policies: -e -t 120s -m delete_when_no_subscriptions
max-producers-per-topic: -p 3
max-consumers-per-topic: -c 4
max-consumers-per-subscription: -c 5
max-unacked-messages-per-subscription: -c 6
max-unacked-messages-per-consumer: -c 7
compaction-threshold: -t 100M
deduplication-snapshot-interval: -i 500
max-topics-per-namespace: -t 100
message-ttl: -ttl -1
max-producers-per-topic: -p -1
"""

TOPICS: Final = """
topics create {n}
topics create {n}
topics create persistent://nobody/n/t
topics create persistent://{tenant}/missing/t
topics list {ns}
topics list {tenant}/missing
topics create-partitioned-topic {p} -p 3 -m a=1
topics create-partitioned-topic {p} -p 3
topics create-partitioned-topic {p}0 -p 0
topics get-partitioned-topic-metadata {p}
topics get-partitioned-topic-metadata {n}
topics get-partitioned-topic-metadata {n}-missing
topics list-partitioned-topics {ns}
topics update-partitioned-topic {p} -p 4
topics update-partitioned-topic {p} -p 2
topics update-partitioned-topic {p} -p 4
topics create-missed-partitions {p}
topics get-properties {p}
topics update-properties {p} -p b=2
topics get-properties {p}
topics remove-properties {p} -k a
topics get-properties {p}
topics update-properties {n} -p x=y
topics get-properties {n}
topics remove-properties {n} -k x
topics get-properties {n}-missing
topics lookup {n}
topics partitioned-lookup {p}
topics partitioned-lookup {p} -s
topics partitioned-lookup {n}
topics bundle-range {n}
topics list {ns} -b 0x00000000_0x40000000
namespaces topics {ns}
namespaces topics {ns} -m NON_PERSISTENT
topics permissions {n}
topics grant-permission {n} -r r -a produce
topics permissions {n}
topics revoke-permission {n} -r r
topics revoke-permission {n} -r r
topics permissions {n}
!produce {t}
topics create-subscription {t} -s s -m earliest
topics create-subscription {t} -s s -m earliest
topics create-subscription {t} -s late -p k=v
topics create-subscription {t} -s at -m {id:3}
topics create-subscription {t} -s r -r
topics create-subscription {t}-missing -s s
topics subscriptions {t}
topics subscriptions {t}-missing
topics subscriptions {p}
topics create-subscription {p} -s s
topics subscriptions {p}
topics get-subscription-properties {t} -s late
topics update-subscription-properties {t} -s late -p k2=v2
topics get-subscription-properties {t} -s late
topics update-subscription-properties {t} -s late -c
topics get-subscription-properties {t} -s late
topics get-subscription-properties {t} -s nobody
topics stats {t}
topics stats {t} -gpb -sbs -etb
topics stats {n}
topics stats {t}-missing
topics stats {p}
topics stats-internal {t}
topics stats-internal {t} -m
topics info-internal {t}
topics stats-internal {t}-missing
topics partitioned-stats {p}
topics partitioned-stats {p} --per-partition
topics partitioned-stats {n}
topics partitioned-stats-internal {p}
topics peek-messages {t} -s s -n 3
topics peek-messages {t} -s s -n 100
topics examine-messages {t} -i earliest -m 2
topics examine-messages {t} -i latest -m 1
topics get-message-by-id {t} -l {ledger} -e 1
topics get-message-by-id {t} -l {ledger} -e 99
topics get-message-by-id {t} -l 999999 -e 0
topics get-message-id {t} -d 2020-01-01T00:00:00Z
topics last-message-id {t}
topics last-message-id {n}
topics last-message-id {t}-missing
topics skip {t} -s s -n 2
topics stats {t}
topics skip {t} -s nobody -n 2
topics get-backlog-size {t} -m {id:2}
topics analyze-backlog {t} -s s
topics analyze-backlog {t} -s nobody
topics reset-cursor {t} -s s -m {id:1}
topics stats {t}
topics reset-cursor {t} -s s -m {id:1} -e
topics reset-cursor {t} -s s -t 10m
topics reset-cursor {t} -s nobody -t 10m
topics expire-messages {t} -s s -t 10000
topics expire-messages {t} -s s -p {id:1}
topics expire-messages {t} -s nobody -t 1
topics expire-messages-all-subscriptions {t} -t 10000
topics clear-backlog {t} -s s
topics clear-backlog {t} -s nobody
topics stats {t}
topics unsubscribe {t} -s at
topics unsubscribe {t} -s at
topics set-replicated-subscription-status {t} -s s -e
topics get-replicated-subscription-status {t} -s s
topics set-replicated-subscription-status {t} -s s -d
topics get-replicated-subscription-status {t} -s nobody
topics compaction-status {t}
topics compact {t}
topics compaction-status {t}
topics compact {t}-missing
topics unload {t}
topics unload {t}-missing
topics stats {t}
topics truncate {t}
topics trim-topic {t}
topics peek-messages {t} -s nobody
topics terminate {n}
topics terminate {n}
topics stats {n}
topics terminate {t}-missing
topics partitioned-terminate {p}
topics delete {n}
topics delete {n}
topics delete {t}
topics delete-partitioned-topic {p}
topics delete-partitioned-topic {p} -f
topics delete-partitioned-topic {p}
topics create non-persistent://{ns}/np
topics stats non-persistent://{ns}/np
non-persistent create-partitioned-topic non-persistent://{ns}/npp -p 2
non-persistent get-partitioned-topic-metadata non-persistent://{ns}/npp
non-persistent list {ns}
topics list {ns} -td non_persistent
topics get-schema-validation-enforce {t}
schemas get {t}
schemas metadata {t}
!schema {s}
schemas get {s}
schemas get {s} -v 0
schemas get {s} -v 9
schemas get {s} -a
schemas metadata {s}
schemas upload {s} -f {avro}
schemas compatibility {s} -f {avro}
schemas upload {s} -f {string}
schemas delete {s}
schemas get {s}
schemas delete {s}
topics create {n}
topics delete {n} -d
!consume {c}
topics stats {c}
topics unsubscribe {c} -s s
topics unsubscribe {c} -s s -f
topics delete {c}
topics delete {c} -f
"""

TOPIC_POLICIES: Final = """
backlog-quota: -l 10M -p producer_exception
message-ttl: -t 60
max-unacked-messages-per-consumer: -m 7
max-consumers-per-subscription: -c 5
subscription-types-enabled: -t Shared,Failover
retention: -t 3h -s 10G
max-producers: -p 3
max-message-size: -m 1000
deduplication: -e
deduplication-snapshot-interval: -i 500
persistence: -e 1 -w 1 -a 1 -r 2
subscription-dispatch-rate: -md 10 -bd 1000
subscription-dispatch-rate@: -md 10 -bd 1000
replicator-dispatch-rate: -md 10 -bd 1000
publish-rate: -m 100 -b 10000
compaction-threshold: -t 100M
subscribe-rate: -sr 5 -st 10
max-consumers: -c 4
delayed-delivery: -e -t 2s
dispatch-rate: -md 10 -bd 1000 -dt 2 -rp
max-unacked-messages-per-subscription: -m 6
inactive-topic-policies: -e -t 120s -m delete_when_no_subscriptions
max-subscriptions-per-topic: -s 9
schema-compatibility-strategy: -s FULL
auto-subscription-creation:
"""

APPLIED: Final = """
backlog-quota message-ttl max-unacked-messages-per-consumer retention max-producers replicator-dispatch-rate compaction-threshold
subscribe-rate max-consumers delayed-delivery dispatch-rate max-unacked-messages-per-subscription inactive-topic-policies
subscription-dispatch-rate schema-compatibility-strategy
"""
"""What holds where nobody has said anything."""

OLD_TOPIC_POLICIES: Final = """
message-ttl: -t 60
retention: -t 3h -s 10M
maxProducers: -p 3
max-consumers: -c 4
dispatch-rate: -md 10 -bd 1000
-backlog-quotas: -l 1G -p producer_exception
replication-clusters: -c standalone
"""

TRANSACTIONS: Final = """
transactions coordinators-list
transactions coordinator-stats -c 0
transactions coordinator-internal-stats -c 0
transactions coordinator-stats -c 999
transactions slow-transactions -c 0 -t 10s
transactions transaction-metadata -m 0 -l 12345
transactions transaction-buffer-stats -t {x}
transactions transaction-buffer-stats -t {x}-missing
transactions pending-ack-stats -t {x} -s s
transactions pending-ack-stats -t {x} -s nobody
transactions transaction-in-buffer-stats -t {x} -m 0 -l 1
transactions scale-transactionCoordinators -r 1
"""

ENDING: Final = """
namespaces delete {ns}
namespaces unsubscribe {ns} -s s
namespaces clear-backlog {ns} -force
namespaces delete {ns} -f
namespaces policies {ns}
namespaces list {tenant}
"""


ISOLATE: Final = (
    "ns-isolation-policy set standalone p --namespaces {tenant}/.* --primary nobody.* --secondary none.* "
    "--auto-failover-policy-type min_available --auto-failover-policy-params min_limit=1,usage_threshold=80"
)


def commands() -> list[str]:
    """All of them, each under the name by which an allow-list knows it: one that comes again has its number at its end."""
    found = [*TENANTS.split("\n"), *BROKERS.replace("{isolate}", ISOLATE).split("\n"), *NAMESPACES.split("\n")]
    found += policies("namespaces", "{ns}", NAMESPACE_POLICIES)
    found += TOPICS.split("\n")
    found += ["topics create {k}", "topics create-subscription {k} -s s"]
    found += [f"topicPolicies get-{noun} {{k}} -ap" for noun in APPLIED.split()]
    found += policies("topicPolicies", "{k}", TOPIC_POLICIES)
    found += ["topics create {x}", "topics create-subscription {x} -s s", *TRANSACTIONS.split("\n")]
    found += ENDING.split("\n")
    return [line for line in found if line]
