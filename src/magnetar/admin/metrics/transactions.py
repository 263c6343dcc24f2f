"""Metrics of transaction coordinators, by `coordinator_id`, under Pulsar's names."""

from __future__ import annotations

from magnetar.admin.metrics.families import Row, labels
from magnetar.broker.transactions.coordinator import LATENCY_BOUNDS_MS, TransactionCoordinator

COORDINATOR_COLUMNS = (
    "pulsar_txn_active_count",
    "pulsar_txn_created_count",
    "pulsar_txn_committed_count",
    "pulsar_txn_aborted_count",
    "pulsar_txn_timeout_count",
    "pulsar_txn_append_log_count",
    *(f"pulsar_txn_execution_latency_le_{bound}" for bound in LATENCY_BOUNDS_MS),
    "pulsar_txn_execution_latency_le_overflow",
)


def coordinator_row(coordinator: TransactionCoordinator, cluster: str) -> Row:
    """Latencies are from opening a transaction to its end everywhere; each bucket counts its own stretch, as in Pulsar."""
    counters = coordinator.counters
    return labels(cluster=cluster, coordinator_id=str(coordinator.coordinator_id)), (
        len(coordinator.state),
        counters.created,
        counters.committed,
        counters.aborted,
        counters.timed_out,
        coordinator.log.appended,
        *counters.latency_buckets,
    )
