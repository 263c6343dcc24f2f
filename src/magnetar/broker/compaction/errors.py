"""Errors of compaction."""

from __future__ import annotations

from magnetar.base.errors import BrokerError


class CompactionRunningError(BrokerError):
    """The topic is being compacted already; its status says when that has ended."""

    slug = "compaction-running"


class TooManyKeysError(BrokerError):
    """The distinct keys of the topic do not fit into the memory set aside for compaction."""

    slug = "too-many-keys"


class CompactedDataError(BrokerError):
    """An entry of a compacted ledger is not what was written there."""

    slug = "compacted-data"
