"""The pure parts: JSON limits, policy checks, sums of stats, lines of metrics, statuses of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magnetar.admin.call import JSON_DEPTH_MAX, depth_exceeds, parse_json
from magnetar.admin.context import runtime_settings
from magnetar.admin.documents.partitioned_stats import Sum, without
from magnetar.admin.errors import BadRequestError, reason_of, status_of
from magnetar.admin.metrics.families import families, labels, parsed_labels, parsed_samples, table
from magnetar.admin.pacing import Pace, Workload
from magnetar.admin.policy_rows import backlog_quota, check_document
from magnetar.base.clock import iso_time
from magnetar.base.errors import CorruptionError, MagnetarError, MetadataError
from magnetar.base.settings import HIDDEN
from magnetar.broker import errors as broker_errors
from magnetar.broker.namespaces.errors import AlreadyExistsError, NamespaceNotFoundError, PreconditionFailedError
from magnetar.broker.rate_limits import Rates
from magnetar.broker.settings.broker import BrokerSettings
from magnetar.managed_ledger.errors import EntryNotFoundError, ManagedLedgerFencedError


def test_depth_is_counted_outside_texts() -> None:
    allowed = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert not depth_exceeds(allowed, JSON_DEPTH_MAX)
    assert depth_exceeds(b"[" + allowed + b"]", JSON_DEPTH_MAX)
    assert not depth_exceeds(json.dumps(["[{" * 1000, '\\"[[', "\\"]).encode(), JSON_DEPTH_MAX)
    assert not depth_exceeds(b"[]," * 1000, JSON_DEPTH_MAX)


@pytest.mark.parametrize("body", [b"NaN", b"-Infinity", b"{", b"'a'", b"\xff", b"[" * 100_000])
def test_what_is_no_json(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_json(body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NamespaceNotFoundError("x"), 404),
        (broker_errors.TopicNotFoundError("x"), 404),
        (broker_errors.SubscriptionNotFoundError("x"), 404),
        (EntryNotFoundError("x"), 404),
        (broker_errors.NotAllowedError("x"), 405),
        (AlreadyExistsError("x"), 409),
        (PreconditionFailedError("x"), 412),
        (broker_errors.InvalidTopicNameError("x"), 412),
        (broker_errors.ConsumerBusyError("x"), 412),
        (broker_errors.AuthorizationError("x"), 403),
        (broker_errors.ServiceNotReadyError("x"), 503),
        (ManagedLedgerFencedError("x"), 503),
        (MetadataError("x"), 500),
        (CorruptionError("x"), 500),
        (KeyError("x"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_statuses(error: Exception, status: int) -> None:
    assert status_of(error) == status


def test_refusals_are_explained_and_failures_are_not() -> None:
    assert reason_of(AlreadyExistsError("it is there"), 409) == "it is there"
    for error in (CorruptionError("/data/secret"), KeyError("secret"), ManagedLedgerFencedError("secret")):
        assert "secret" not in reason_of(error, status_of(error))
    assert "storage" in reason_of(_Storage("secret"), 500)


class _Storage(MagnetarError):
    slug = "storage"


def test_quotas_are_normalised() -> None:
    policy = "producer_exception"
    stored = {"limit": 5, "limitSize": 5, "limitTime": -1, "policy": policy}
    for size in ({"limitSize": 5}, {"limit": 5}, {"limit": "5"}):
        assert backlog_quota({**size, "policy": policy}, "destination_storage") == stored
    assert backlog_quota({"limitSize": -1, "policy": policy}, "message_age")["limitSize"] == -1
    for bad in ({"limitSize": 1.5}, {"limit": "1e3"}, {"limit": "9" * 5000}, {"limit": [1]}):
        with pytest.raises(BadRequestError):
            backlog_quota({**bad, "policy": policy}, "destination_storage")


@pytest.mark.parametrize(
    "document",
    [
        {"retention_policies": 5},
        {"persistence": {"bookkeeperEnsemble": "one"}},
        {"delayed_delivery_policies": {"active": 1}},
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": "yes"}},
        {"backlog_quota_map": {"destination_storage": None}},
        {"auth_policies": {"namespace_auth": []}},
        {"replication_clusters": "standalone"},
        {"encryption_required": "no"},
    ],
)
def test_documents_that_the_broker_could_not_read(document: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        check_document(document)


def test_documents_keep_what_is_unknown() -> None:
    document = {"offload_threshold": -1, "somethingNew": {"a": [1]}, "message_ttl_in_seconds": None}
    check_document(document)
    assert document == {"offload_threshold": -1, "somethingNew": {"a": [1]}, "message_ttl_in_seconds": None}


def test_stats_add_up() -> None:
    first = {
        "msgInCounter": 2,
        "bytesInCounter": 20,
        "averageMsgSize": 10.0,
        "lastPublishTimestamp": 7,
        "topicCreationTimeStamp": 3,
        "publishers": [{"producerName": "a"}],
        "deduplicationStatus": "Disabled",
        "subscriptions": {"s": {"msgBacklog": 1, "isDurable": True, "backlogSize": -1, "consumers": [{}]}},
        "replication": {},
    }
    second = {
        **first,
        "msgInCounter": 3,
        "bytesInCounter": 40,
        "lastPublishTimestamp": 5,
        "topicCreationTimeStamp": 2,
        "subscriptions": {**first["subscriptions"], "only-here": {"msgBacklog": 9}},  # type: ignore[dict-item]
    }
    added = Sum()
    added.add(first)
    added.add(second)
    total = added.document
    assert (total["msgInCounter"], total["bytesInCounter"], total["averageMsgSize"]) == (5, 60, 12.0)
    assert (total["lastPublishTimestamp"], total["topicCreationTimeStamp"]) == (7, 2)
    assert len(total["publishers"]) == 2
    assert "deduplicationStatus" not in total, "that is a partition's"
    assert total["subscriptions"]["s"] == {"msgBacklog": 2, "isDurable": True, "backlogSize": -1, "consumers": [{}, {}]}
    assert total["subscriptions"]["only-here"] == {"msgBacklog": 9}
    assert first["publishers"] == [{"producerName": "a"}], "the parts are left as they were"
    assert without(total, publishers=True, consumers=True)["subscriptions"]["s"]["consumers"] == []


def test_what_does_not_add_up_by_addition() -> None:
    """Clusters like subscriptions; of limits and ages the largest, with the name that belongs to it; of moments the earliest there is."""
    added = Sum()
    for age_s, name, earliest, limit, sent in ((-1, None, 0, 7, 1), (30, "old", 500, 7, 2), (20, "young", 400, 7, 3)):
        added.add(
            {
                "oldestBacklogMessageAgeSeconds": age_s,
                "oldestBacklogMessageSubscriptionName": name,
                "earliestMsgPublishTimeInBacklogs": earliest,
                "backlogQuotaLimitSize": limit,
                "replication": {"b": {"msgOutCount": sent, "connected": sent == 2}},
            }
        )
    total = added.document
    assert (total["oldestBacklogMessageAgeSeconds"], total["oldestBacklogMessageSubscriptionName"]) == (30, "old")
    assert (total["earliestMsgPublishTimeInBacklogs"], total["backlogQuotaLimitSize"]) == (400, 7)
    assert total["replication"] == {"b": {"msgOutCount": 6, "connected": True}}


def test_no_partitions_make_an_empty_document() -> None:
    assert Sum().document == {"publishers": [], "subscriptions": {}, "replication": {}, "averageMsgSize": 0.0}


async def test_tables_group_lines_by_family() -> None:
    rows = [(labels(topic=f't"{index}'), (index, index * 0.5)) for index in range(1200)]
    text = "".join([part async for part in table(("a_total", "b"), rows, Pace(Workload()))])
    lines = text.splitlines()
    assert lines[0] == "# TYPE a_total counter"
    assert lines[1] == 'a_total{topic="t\\"0"} 0'
    assert lines[1201] == "# TYPE b gauge"
    assert lines[1203] == 'b{topic="t\\"1"} 0.5'
    assert len(lines) == 2402
    assert [part async for part in table(("a",), [], Pace(Workload()))] == []


def test_settings_are_texts() -> None:
    settings = runtime_settings(BrokerSettings(token_secret_key="data:;base64,AAAA"))
    assert settings["allowAutoTopicCreation"] == "true"
    assert settings["brokerServicePort"] == "6650"
    assert settings["tokenSecretKey"] == HIDDEN


def test_rates_are_of_the_last_interval() -> None:
    rates = Rates()
    rates.sample(100, 1000, 50.0, entries=10)
    assert rates.messages_per_s == 0.0
    rates.sample(150, 3000, 55.0, entries=20)
    assert (rates.messages_per_s, rates.bytes_per_s, rates.entries_per_s) == (10.0, 400.0, 2.0)
    rates.sample(150, 3000, 55.0, entries=20)
    assert rates.messages_per_s == 10.0, "no time has passed"
    rates.sample(150, 3000, 60.0, entries=20)
    assert (rates.messages_per_s, rates.bytes_per_s, rates.entries_per_s) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (1357034400123, "2013-01-01T10:00:00.123Z"),
        (-5, "1970-01-01T00:00:00.000Z"),
        (2**63, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times(timestamp_ms: int, text: str) -> None:
    assert iso_time(timestamp_ms) == text


def test_labels_are_read_as_they_were_written() -> None:
    values = {"topic": 'persistent://t/n/a"b\\c', "subscription": "two\nlines, a=\\n"}
    assert parsed_labels(labels(**values)) == values


def test_samples_are_read_as_they_were_written() -> None:
    """Also where a name holds what Python takes for the end of a line."""
    name = "a\u2028b\x85c\x0bd\re\nf 7"
    text = "".join(families([("magnetar_one", 1.5), ("magnetar_two", 2)], labels(task=name)))
    assert list(parsed_samples(text)) == [("magnetar_one", {"task": name}, 1.5), ("magnetar_two", {"task": name}, 2.0)]
