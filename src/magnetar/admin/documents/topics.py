"""Documents about topics, their messages, subscriptions and schemas, as types. Fields that are not named are ignored."""

from __future__ import annotations

from typing import Any, Literal

from magnetar.admin.documents.cluster import Document

SchemaKind = Literal[
    "NONE",
    "STRING",
    "JSON",
    "PROTOBUF",
    "AVRO",
    "BOOLEAN",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "KEY_VALUE",
    "INSTANT",
    "LOCAL_DATE",
    "LOCAL_TIME",
    "LOCAL_DATE_TIME",
    "PROTOBUF_NATIVE",
]


class MessageId(Document):
    """Position of a message. `batchIndex` and `batchSize` only for one inside a batch."""

    ledger_id: int = -1
    entry_id: int = -1
    partition_index: int = -1
    batch_index: int | None = None
    batch_size: int | None = None


class ResetPosition(Document):
    """A message id from outside; `isExcluded` stands for the place behind it, or before it."""

    ledger_id: int = -1
    entry_id: int = -1
    is_excluded: bool | None = None
    properties: dict[str, str] | None = None


class PartitionedTopic(Document):
    """Number of partitions; 0 for a topic that has none."""

    partitions: int
    properties: dict[str, str] | None = None
    deleted: bool = False


class ProducerStats(Document):
    """One connected producer."""

    producer_id: int
    producer_name: str | None = None
    access_mode: str | None = None
    address: str | None = None
    connected_since: str | None = None
    client_version: str | None = None
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    metadata: dict[str, str] = {}


class ConsumerStats(Document):
    """One connected consumer."""

    consumer_name: str | None = None
    address: str | None = None
    connected_since: str | None = None
    client_version: str | None = None
    available_permits: int = 0
    unacked_messages: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    last_consumed_flow_timestamp: int = 0
    metadata: dict[str, str] = {}


class SubscriptionStats(Document):
    """One subscription. Backlogs are in messages, sizes in bytes, times in ms since 1970."""

    type: str
    msg_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    msg_delayed: int = 0
    unacked_messages: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    active_consumer_name: str | None = None
    is_durable: bool = True
    is_replicated: bool = False
    consumers: list[ConsumerStats] = []
    non_contiguous_deleted_messages_ranges: int = 0
    subscription_properties: dict[str, str] = {}
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0


class TopicStats(Document):
    """Rates a second, counters since the topic was loaded, sizes in bytes."""

    publishers: list[ProducerStats]
    subscriptions: dict[str, SubscriptionStats]
    replication: dict[str, Any]
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_in: float = 0.0
    msg_throughput_out: float = 0.0
    msg_in_counter: int = 0
    bytes_in_counter: int = 0
    msg_out_counter: int = 0
    bytes_out_counter: int = 0
    average_msg_size: float = 0.0
    storage_size: int = 0
    backlog_size: int = 0
    backlog_quota_limit_size: int = -1
    backlog_quota_limit_time: int = -1
    oldest_backlog_message_age_seconds: int = -1
    oldest_backlog_message_subscription_name: str | None = None
    earliest_msg_publish_time_in_backlogs: int = 0
    waiting_publishers: int = 0
    deduplication_status: str | None = None
    topic_epoch: int | None = None
    topic_creation_time_stamp: int = 0
    last_publish_timestamp: int = 0
    owner_broker: str | None = None


class PartitionedTopicStats(TopicStats, kw_only=True):
    """The sum over the partitions, and with `perPartition` each of them by its complete name."""

    metadata: PartitionedTopic
    partitions: dict[str, TopicStats] = {}


class LedgerInfo(Document):
    """One ledger of a topic."""

    ledger_id: int
    entries: int
    size: int
    offloaded: bool = False
    under_replicated: bool = False


class CursorStats(Document):
    """A cursor's state."""

    mark_delete_position: str
    read_position: str
    state: str
    active: bool = False
    messages_consumed_counter: int = 0
    individually_deleted_messages: str = ""
    number_of_entries_since_first_not_acked_message: int = 0
    total_non_contiguous_deleted_messages_range: int = 0
    properties: dict[str, int] = {}


class InternalStats(Document):
    """A topic's managed ledger. A non-persistent topic has none: nothing but `entriesAddedCounter` says something."""

    entries_added_counter: int
    ledgers: list[LedgerInfo]
    cursors: dict[str, CursorStats]
    number_of_entries: int = 0
    total_size: int = 0
    current_ledger_entries: int = 0
    current_ledger_size: int = 0
    last_confirmed_entry: str | None = None
    state: str | None = None
    compacted_ledger: LedgerInfo | None = None
    properties: dict[str, str] = {}


class PartitionedInternalStats(Document):
    """By the partitions' complete names."""

    metadata: PartitionedTopic
    partitions: dict[str, InternalStats]


class StoredLedger(Document):
    """One ledger as the managed ledger's list has it. `timestamp` is when it was closed, 0 while it is open."""

    ledger_id: int
    entries: int
    size: int
    timestamp: int


class CursorBacklog(Document):
    """What one subscription has not consumed yet, in entries."""

    cursor_backlog: int
    cursor_ledger_id: int


class TopicBacklog(Document):
    """What is stored of a topic, and what has not been consumed, in entries."""

    storage_size: int
    total_messages: int
    message_backlog: int
    broker_name: str
    topic_name: str
    data_ledger_details: list[StoredLedger]
    cursor_details: dict[str, CursorBacklog]
    stat_generated_at: str


class BacklogAnalysis(Document):
    """What a subscription still has to consume; `aborted`: there is more than was counted."""

    entries: int
    messages: int
    marker_messages: int
    aborted: bool
    first_message_id: str | None
    last_message_id: str | None
    filter_accepted_entries: int = 0
    filter_accepted_messages: int = 0
    filter_rejected_entries: int = 0
    filter_rejected_messages: int = 0
    filter_rescheduled_entries: int = 0
    filter_rescheduled_messages: int = 0


class RunStatus(Document):
    """State of a job in the background."""

    status: Literal["NOT_RUN", "RUNNING", "SUCCESS", "ERROR"]
    last_error: str | None = None


class LookupResult(Document):
    """Addresses of the broker that serves a topic."""

    broker_url: str
    broker_url_tls: str
    broker_url_ssl: str
    http_url: str
    http_url_tls: str
    native_url: str


# ---- Schemas


class SchemaPayload(Document):
    """A schema to be stored or compared. `schema` is its definition as a text."""

    type: SchemaKind
    schema: str | None = None
    properties: dict[str, str] | None = None


class SchemaInfo(Document):
    """A stored schema. `data` is its definition as a text; `timestamp` in ms since 1970."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class SchemaList(Document):
    """All versions, the oldest first."""

    get_schema_responses: list[SchemaInfo]


class Version(Document):
    """Number of a version."""

    version: int


class SchemaVersion(Document):
    """As Pulsar nests it."""

    version: Version


class Compatibility(Document):
    """Whether the schema is compatible, and the strategy that decided it."""

    compatibility: bool
    schema_compatibility_strategy: str


class SchemaPlace(Document):
    """Position of a version's entry."""

    ledger_id: int
    entry_id: int
    version: int


class SchemaMetadata(Document):
    """The latest version's place, and that of each."""

    info: SchemaPlace
    index: list[SchemaPlace]


class ReplicatedCluster(Document):
    """Another cluster of the topic. `missing`: the next snapshot waits for it."""

    cluster: str
    connected: bool
    excluded: bool
    missing: bool


class ReplicatedSubscriptionState(Document):
    """Positions are `ledger:entry`, of a scalable topic those of its segments, `segment@ledger:entry`. `told_position`: where the last
    snapshot lies that other clusters follow; null, as `would_repeat_messages` then is: none was passed
    since the topic was loaded. `reason`: why others are not as far. `places_elsewhere`, of a scalable topic alone: the places
    in segments of their own that other clusters were told."""

    subscription: str
    mark_delete_position: str
    told_position: str | None
    next_snapshot_position: str | None
    would_repeat_messages: int | None
    reason: str
    places_elsewhere: dict[str, str] | None = None


class ReplicatedSubscriptionsStatus(Document):
    """Of one topic, or one partition. Times in ms since 1970; null before the first snapshot since the topic was loaded."""

    topic: str
    cluster: str
    enabled: bool
    snapshot_frequency_millis: int
    clusters: list[ReplicatedCluster]
    pending_snapshot: str | None
    last_snapshot_position: str | None
    last_snapshot_timestamp: int | None
    last_snapshot_age_millis: int | None
    subscriptions: list[ReplicatedSubscriptionState]


class TopicRow(Document):
    """A topic in a list. Numbers are the sums over its loaded partitions; `loaded` says how many those are. `standing`: subscriptions that
    stand still; `reason`: the code of what weighs most among their causes, empty where none does."""

    name: str
    partitions: int = 0
    loaded: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    throughput_in: float = 0.0
    throughput_out: float = 0.0
    msg_backlog: int = 0
    storage_size: int = 0
    producers: int = 0
    subscriptions: int = 0
    consumers: int = 0
    standing: int = 0
    reason: str = ""


class TopicPage(Document):
    """One page of a namespace's topics. `total`: names in the namespace, or loaded topics where they are sorted by a number."""

    topics: list[TopicRow]
    total: int = 0
    next: str = ""
    """What to ask `after` for the next page; empty behind the last one."""


class ShownMessage(Document):
    """One message as text. `batchIndex` is -1 outside of a batch; `encoding` says how the payload was decoded: AVRO, JSON, STRING, INT32
    and the like by its schema, `text` and `hex` without one, `none` for what cannot be shown, where `text` has the reason."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    publish_time: int = 0
    event_time: int = 0
    deliver_at_time: int = 0
    producer_name: str = ""
    sequence_id: int = 0
    key: str | None = None
    ordering_key: str | None = None
    properties: dict[str, str] = {}
    size: int = 0
    replicated_from: str | None = None
    transaction: str | None = None
    schema_version: int | None = None
    encoding: str = "text"
    text: str = ""
    truncated: bool = False


class MessagePage(Document):
    """Messages in the order of the log. `next` and `previous` are what `from` takes for those pages, empty at the end and the beginning."""

    messages: list[ShownMessage]
    next: str = ""
    previous: str = ""
    scanned: int = 0
    """Entries that were looked at."""


class NewMessage(Document):
    """A message that a person writes. `bySchema`: the payload is JSON, or text, to be encoded by the topic's latest schema."""

    payload: str
    key: str | None = None
    properties: dict[str, str] = {}
    event_time: int = 0
    by_schema: bool = False


class PolicySource(Document):
    """One policy: the value in effect, the level that it comes from, and what each level says (null: nothing)."""

    effective: Any = None
    level: Literal["topic", "namespace", "broker"] = "broker"
    topic: Any = None
    namespace: Any = None
    broker: Any = None
