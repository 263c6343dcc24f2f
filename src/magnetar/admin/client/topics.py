"""Topics, by short or complete name: as things, their stats, their messages."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from magnetar.admin.client.http import Answer
from magnetar.admin.client.namespaces import QuotaType
from magnetar.admin.client.noun import ADMIN, TOPIC, Noun, Texts, namespace_names, topic_names
from magnetar.admin.documents.policies import BacklogQuota
from magnetar.admin.documents.topics import (
    InternalStats,
    MessageId,
    MessagePage,
    NewMessage,
    PartitionedInternalStats,
    PartitionedTopic,
    PartitionedTopicStats,
    PolicySource,
    ResetPosition,
    RunStatus,
    TopicBacklog,
    TopicStats,
)

Domain = Literal["persistent", "non-persistent"]

_IN_NAMESPACE = "/{domain}/{tenant}/{namespace}"
_PARTITIONS = TOPIC + "/partitions"


class Topics(Noun):
    """Policies of single topics are in `AdminClient.topic_policies`, subscriptions in `AdminClient.subscriptions`."""

    def list(self, namespace: str, *, domain: Domain = "persistent") -> Texts:
        """Topics that hold messages: partitions separately."""
        return list(self._get(_IN_NAMESPACE, Texts, domain=domain, **namespace_names(namespace)))

    def list_partitioned(self, namespace: str, *, domain: Domain = "persistent") -> Texts:
        template = _IN_NAMESPACE + "/partitioned"
        return list(self._get(template, Texts, domain=domain, **namespace_names(namespace)))

    def create(self, topic: str, *, properties: dict[str, str] | None = None) -> None:
        """Without partitions."""
        self._put(TOPIC, properties, **topic_names(topic))

    def delete(self, topic: str, *, force: bool = False) -> None:
        """`force`: even while clients are connected."""
        self._delete(TOPIC, {"force": force}, **topic_names(topic))

    def create_partitioned(self, topic: str, partitions: int, *, properties: dict[str, str] | None = None) -> None:
        body = {"partitions": partitions, "properties": properties} if properties else partitions
        self._put(_PARTITIONS, body, **topic_names(topic))

    def update_partitioned(self, topic: str, partitions: int) -> None:
        """Increase the number of partitions. It cannot be decreased."""
        self._post(_PARTITIONS, partitions, **topic_names(topic))

    def partitions(self, topic: str, *, create: bool | None = None) -> PartitionedTopic:
        """`create`: where policies allow it, as a client's lookup does."""
        query = {"checkAllowAutoCreation": create}
        found: PartitionedTopic = self._get(_PARTITIONS, PartitionedTopic, query, **topic_names(topic))
        return found

    def delete_partitioned(self, topic: str, *, force: bool = False) -> None:
        self._delete(_PARTITIONS, {"force": force}, **topic_names(topic))

    def create_missed_partitions(self, topic: str) -> None:
        self._post(TOPIC + "/createMissedPartitions", **topic_names(topic))

    def unload(self, topic: str) -> None:
        """Close it; clients come back by themselves."""
        self._put(TOPIC + "/unload", **topic_names(topic))

    def properties(self, topic: str) -> dict[str, str]:
        return dict(self._get(TOPIC + "/properties", dict[str, str], **topic_names(topic)))

    def update_properties(self, topic: str, properties: dict[str, str]) -> None:
        self._put(TOPIC + "/properties", properties, **topic_names(topic))

    def remove_property(self, topic: str, key: str) -> None:
        self._delete(TOPIC + "/properties", {"key": key}, **topic_names(topic))

    # ---- What they say about themselves

    def stats(self, topic: str, *, publishers: bool = True, consumers: bool = True) -> TopicStats:
        query = {"excludePublishers": not publishers, "excludeConsumers": not consumers}
        found: TopicStats = self._get(TOPIC + "/stats", TopicStats, query, **topic_names(topic))
        return found

    def partitioned_stats(self, topic: str, *, per_partition: bool = False) -> PartitionedTopicStats:
        query, kind = {"perPartition": per_partition}, PartitionedTopicStats
        found: PartitionedTopicStats = self._get(TOPIC + "/partitioned-stats", kind, query, **topic_names(topic))
        return found

    def internal_stats(self, topic: str) -> InternalStats:
        found: InternalStats = self._get(TOPIC + "/internalStats", InternalStats, **topic_names(topic))
        return found

    def partitioned_internal_stats(self, topic: str) -> PartitionedInternalStats:
        template, kind = TOPIC + "/partitioned-internalStats", PartitionedInternalStats
        found: PartitionedInternalStats = self._get(template, kind, **topic_names(topic))
        return found

    def internal_info(self, topic: str) -> dict[str, Any]:
        """The list of ledgers and cursors, as stored."""
        return dict(self._get(TOPIC + "/internal-info", dict[str, Any], **topic_names(topic)))

    def backlog(self, topic: str) -> TopicBacklog:
        found: TopicBacklog = self._get(TOPIC + "/backlog", TopicBacklog, **topic_names(topic))
        return found

    def backlog_size(self, topic: str, after: MessageId | None = None) -> int:
        """Bytes behind a message, or of everything."""
        body = None if after is None else ResetPosition(ledger_id=after.ledger_id, entry_id=after.entry_id)
        template = ADMIN + TOPIC + "/backlogSize"
        answer = self._call("PUT", template, topic_names(topic), None, msgspec.to_builtins(body))
        return int(self._converted(answer, int))

    def messages(
        self,
        topic: str,
        *,
        start: str | None = None,
        time: int | None = None,
        limit: int | None = None,
        key: str | None = None,
    ) -> MessagePage:
        """A page of decoded messages, from `start` (earliest, latest, LEDGER:ENTRY) or a time in ms since 1970. Nothing is consumed."""
        query = {"from": start, "time": time, "limit": limit, "key": key}
        found: MessagePage = self._get(TOPIC + "/messages", MessagePage, query, **topic_names(topic))
        return found

    def publish(self, topic: str, message: NewMessage) -> MessageId:
        """One message, written by hand."""
        answer = self._call("POST", ADMIN + TOPIC + "/messages", topic_names(topic), None, msgspec.to_builtins(message))
        found: MessageId = self._converted(answer, MessageId)
        return found

    def policy_sources(self, topic: str) -> dict[str, PolicySource]:
        """Every policy with the level that it comes from."""
        return dict(self._get(TOPIC + "/policySources", dict[str, PolicySource], **topic_names(topic)))

    # ---- What is done to them

    def terminate(self, topic: str) -> MessageId:
        """It takes no more messages. Answers the last one's id."""
        found: MessageId = self._converted(self._post(TOPIC + "/terminate", **topic_names(topic)), MessageId)
        return found

    def terminate_partitions(self, topic: str) -> dict[str, MessageId]:
        """Last ids by partition."""
        answer = self._post(TOPIC + "/terminate/partitions", **topic_names(topic))
        return dict(self._converted(answer, dict[str, MessageId]))

    def compact(self, topic: str) -> None:
        """Begin to keep only the last message of each key for those who read compacted."""
        self._put(TOPIC + "/compaction", **topic_names(topic))

    def compaction_status(self, topic: str) -> RunStatus:
        found: RunStatus = self._get(TOPIC + "/compaction", RunStatus, **topic_names(topic))
        return found

    def stop_compacting(self, topic: str) -> None:
        """Delete what was compacted."""
        self._delete(TOPIC + "/compaction", **topic_names(topic))

    def offload(self, topic: str, upto: MessageId) -> None:
        body = ResetPosition(ledger_id=upto.ledger_id, entry_id=upto.entry_id)
        self._put(TOPIC + "/offload", body, **topic_names(topic))

    def offload_status(self, topic: str) -> RunStatus:
        found: RunStatus = self._get(TOPIC + "/offload", RunStatus, **topic_names(topic))
        return found

    def trim(self, topic: str) -> None:
        """Give back storage that retention no longer keeps."""
        self._post(TOPIC + "/trim", **topic_names(topic))

    def truncate(self, topic: str) -> None:
        """Everything counts as consumed."""
        self._delete(TOPIC + "/truncate", **topic_names(topic))

    # ---- Permissions

    def permissions(self, topic: str) -> dict[str, Texts]:
        """Actions by role, the namespace's with them."""
        return dict(self._get(TOPIC + "/permissions", dict[str, Texts], **topic_names(topic)))

    def grant(self, topic: str, role: str, actions: Texts) -> None:
        self._post(TOPIC + "/permissions/{role}", actions, role=role, **topic_names(topic))

    def revoke(self, topic: str, role: str) -> None:
        self._delete(TOPIC + "/permissions/{role}", role=role, **topic_names(topic))

    # ---- Backlog quotas

    def backlog_quotas(self, topic: str, *, applied: bool | None = None) -> dict[str, BacklogQuota]:
        template, kind = TOPIC + "/backlogQuotaMap", dict[str, BacklogQuota]
        return dict(self._get(template, kind, {"applied": applied}, **topic_names(topic)))

    def set_backlog_quota(
        self, topic: str, quota: BacklogQuota, *, quota_type: QuotaType = "destination_storage"
    ) -> None:
        self._post(TOPIC + "/backlogQuota", quota, {"backlogQuotaType": quota_type}, **topic_names(topic))

    def remove_backlog_quota(self, topic: str, *, quota_type: QuotaType = "destination_storage") -> None:
        self._delete(TOPIC + "/backlogQuota", {"backlogQuotaType": quota_type}, **topic_names(topic))

    # ---- Messages: the stored payload, a batch packed; headers say what it is

    def last_message_id(self, topic: str) -> MessageId:
        found: MessageId = self._get(TOPIC + "/lastMessageId", MessageId, **topic_names(topic))
        return found

    def message_id_at(self, topic: str, timestamp_ms: int) -> MessageId:
        """Id of the first message published at or after a time."""
        template = TOPIC + "/messageid/{timestamp}"
        found: MessageId = self._get(template, MessageId, timestamp=timestamp_ms, **topic_names(topic))
        return found

    def remove_policies(self, topic: str) -> None:
        """All that the topic has of its own."""
        self._delete(TOPIC + "/policies", **topic_names(topic))

    def message_id_by_index(self, topic: str, index: int) -> MessageId:
        """Id of the message with an index. Needs an index for each message (Pulsar with broker entry metadata)."""
        found: MessageId = self._get(TOPIC + "/getMessageIdByIndex", MessageId, {"index": index}, **topic_names(topic))
        return found

    def message_by_id(self, topic: str, ledger_id: int, entry_id: int) -> Answer:
        names = {"ledger": ledger_id, "entry": entry_id, **topic_names(topic)}
        return self._call("GET", ADMIN + TOPIC + "/ledger/{ledger}/entry/{entry}", names)

    def examine_message(
        self, topic: str, *, position: int = 1, origin: Literal["earliest", "latest"] = "latest"
    ) -> Answer:
        """The message at a place counted from the beginning or the end, from 1."""
        query = {"initialPosition": origin, "messagePosition": position}
        return self._call("GET", ADMIN + TOPIC + "/examinemessage", topic_names(topic), query)
