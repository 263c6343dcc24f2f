"""Stats documents of partitions, added up as Pulsar does. Pure."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

LATEST_OF = frozenset(
    {
        "lastPublishTimestamp",
        "lastExpireTimestamp",
        "lastConsumedFlowTimestamp",
        "lastConsumedTimestamp",
        "lastAckedTimestamp",
        "lastMarkDeleteAdvancedTimestamp",
    }
)
"""Moments: the latest one counts."""

EARLIEST_OF = frozenset(
    {"topicCreationTimeStamp", "earliestMsgPublishTimeInBacklog", "earliestMsgPublishTimeInBacklogs"}
)
"""Moments: the earliest one counts, and 0 stands for none."""

LARGEST_OF = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "oldestBacklogMessageAgeSeconds"})
"""Limits and ages of a partition each: the largest one counts."""

BY_NAME = ("subscriptions", "replication")
"""Documents by subscription and by cluster, which are added up for themselves."""


OF_A_PARTITION = ("deduplicationStatus", "ownerBroker")
"""What a topic as a whole does not have."""


class Sum:
    """One document of many: numbers added, lists joined, subscriptions and clusters joined by name."""

    def __init__(self) -> None:
        self._total: Document = {"publishers": [], "subscriptions": {}, "replication": {}}

    def add(self, document: Document) -> None:
        total = self._total
        if document.get("oldestBacklogMessageAgeSeconds", -1) > total.get("oldestBacklogMessageAgeSeconds", -1):
            total["oldestBacklogMessageSubscriptionName"] = document.get("oldestBacklogMessageSubscriptionName")
        _add(total, {key: value for key, value in document.items() if key not in BY_NAME})
        for key in BY_NAME:
            for name, part in document.get(key, {}).items():
                _add(total[key].setdefault(name, {}), part)

    @property
    def document(self) -> Document:
        messages = self._total.get("msgInCounter", 0)
        return {
            **{key: value for key, value in self._total.items() if key not in OF_A_PARTITION},
            "averageMsgSize": self._total.get("bytesInCounter", 0) / messages if messages else 0.0,
        }


def _add(total: Document, part: Document) -> None:
    for key, value in part.items():
        known = total.get(key)
        if known is None:
            total[key] = list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
        elif isinstance(value, bool) and isinstance(known, bool):
            total[key] = known or value
        elif isinstance(value, list) and isinstance(known, list):
            known.extend(value)
        elif isinstance(value, int | float) and isinstance(known, int | float):
            total[key] = _number(key, known, value)


def _number(key: str, known: float, value: float) -> float:
    if key in LATEST_OF:
        return max(known, value)
    if key in EARLIEST_OF:
        return min(known, value) if known and value else known or value
    if key in LARGEST_OF:
        return max(known, value)
    return -1 if known == -1 or value == -1 else known + value  # -1: not computed


def without(document: Document, *, publishers: bool, consumers: bool) -> Document:
    """The document with the lists left empty that the caller does not want."""
    if publishers:
        document["publishers"] = []
    if consumers:
        subscriptions = document.get("subscriptions", {})
        document["subscriptions"] = {name: {**stats, "consumers": []} for name, stats in subscriptions.items()}
    return document
