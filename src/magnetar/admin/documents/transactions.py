"""Documents about transactions, as types: fields of Pulsar's admin API v3."""

from __future__ import annotations

from typing import Any, Literal

from magnetar.admin.documents.cluster import Document


class CoordinatorInfo(Document):
    """The broker that serves a coordinator."""

    id: int
    broker_service_url: str


class CoordinatorStats(Document):
    """`state` is None until its first transaction. `leastSigBits`: the highest number given out. Times in ms, 0 for not yet."""

    state: Literal["None", "Ready"] = "None"
    least_sig_bits: int = 0
    low_water_mark: int = 0
    ongoing_txn_size: int = 0
    recover_start_time: int = 0
    recover_end_time: int = 0


class InBufferStats(Document):
    """A transaction in one topic: where its first message lies, as `ledger:entry`."""

    start_position: str | None = None
    aborted: bool = False


class InPendingAckStats(Document):
    """A transaction in one subscription."""

    cumulative_ack_position: str | None = None


class TransactionMetadata(Document):
    """`timeoutAt` is how long it may be open, in ms, as in Pulsar."""

    txn_id: str
    status: str
    open_timestamp: int
    timeout_at: int
    produced_partitions: dict[str, InBufferStats] = {}
    acked_partitions: dict[str, dict[str, InPendingAckStats]] = {}
    owner: str | None = None


class BufferStats(Document):
    """What a topic knows of transactions. `state` NoSnapshot: it never saw one."""

    state: Literal["NoSnapshot", "Ready"] = "NoSnapshot"
    max_read_position: str = ""
    last_snapshot_timestamps: int = 0
    low_water_marks: dict[str, int] | None = None
    ongoing_txn_size: int = 0
    total_aborted_transactions: int = 0
    recover_start_time: int = 0
    recover_end_time: int = 0


class PendingAckStats(Document):
    """What a subscription holds for open transactions."""

    state: Literal["None", "Ready"] = "None"
    low_water_marks: dict[str, int] | None = None
    ongoing_txn_size: int = 0


class PositionInPendingAck(Document):
    """State of an acknowledgement in a transaction."""

    state: Literal["PendingAck", "MarkDelete", "NotInPendingAck", "PendingAckNotReady", "InvalidPosition"]


class LogStats(Document):
    """The managed ledger of a log."""

    managed_ledger_name: str
    managed_ledger_internal_stats: dict[str, Any]


class CoordinatorInternalStats(Document):
    transaction_log_stats: LogStats


class PendingAckInternalStats(Document):
    pending_ack_log_stats: LogStats
