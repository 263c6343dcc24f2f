"""Metrics of the broker as a whole and of its bookie, each a family of one line or a few, under Pulsar's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from magnetar.admin.metrics.families import Row, families, heading, labels
from magnetar.base.admission import Admission
from magnetar.bookkeeper.bookie.statistics import BookieStatistics
from magnetar.bookkeeper.bookie.storage.latencies import QUANTILES, LatencySummary
from magnetar.bookkeeper.client.statistics import ClientStatistics
from magnetar.broker.replication.ports import SnapshotCounters
from magnetar.broker.scalable.service import ScalableTopics
from magnetar.broker.service import Broker
from magnetar.broker.transactions.coordinator import LATENCY_BOUNDS_MS, TransactionCoordinator


def broker_families(broker: Broker, cluster: str) -> Iterator[str]:
    topics = broker.topics.loaded
    counters = broker.context.counters
    yield from families(
        (
            ("pulsar_broker_topics_count", len(topics)),
            ("pulsar_active_connections", counters.active),
            ("pulsar_connection_created_total_count", counters.opened),
            ("pulsar_broker_refused_connections_total", broker.admission.protocol.refused_total),
            ("pulsar_broker_refused_frames_total", counters.refused_frames),
            ("pulsar_broker_checksum_errors_total", counters.checksum_errors),
            ("magnetar_clock_jumps_total", broker.clock.jumps),
            ("magnetar_clock_ahead_seconds", broker.clock.ahead_ms / 1000),
            ("magnetar_traces_total", broker.traces.made),
            ("magnetar_traces_refused_total", broker.traces.refused),
        ),
        labels(cluster=cluster),
    )
    yield from admission_families(broker.admission, cluster=cluster)
    yield from replicated_subscription_families(broker.snapshot_counters, cluster)
    yield from scalable_topic_families(broker.scalable, cluster)


def scalable_topic_families(scalable: ScalableTopics, cluster: str) -> Iterator[str]:
    """Of the topics that this broker controls, and the layouts that its clients follow."""
    controllers = scalable.controllers
    subscriptions = [each for controller in controllers for each in controller.subscriptions]
    yield from families(
        (
            ("pulsar_scalable_topic_controller_count", len(controllers)),
            ("pulsar_scalable_topic_segment_count", sum(len(each.layout.segments) for each in controllers)),
            (
                "pulsar_scalable_topic_segment_unwritable_count",
                sum(each.record.pending is not None for each in controllers),
            ),
            ("pulsar_scalable_topic_consumer_count", sum(len(each.sessions) for each in subscriptions)),
            ("pulsar_scalable_topic_layout_operation_count_total", scalable.counters.changes),
            ("pulsar_scalable_topic_segments_deleted_total", scalable.counters.segments_deleted),
            ("pulsar_scalable_topic_watch_session_count", scalable.watched),
        ),
        labels(cluster=cluster),
    )


def admission_families(admission: Admission, /, **names: str) -> Iterator[str]:
    """Connections by kind of port, TLS ports included: open ones, refused ones, and strangers that made room for newcomers."""
    for name, values in (
        ("magnetar_connections", [share.total for share in admission.shares]),
        ("magnetar_connections_refused_total", [share.refused_total for share in admission.shares]),
        ("magnetar_connections_evicted_total", [share.evicted_total for share in admission.shares]),
    ):
        yield heading(name)
        for share, value in zip(admission.shares, values, strict=True):
            yield f"{name}{labels(**names, port=share.name)} {value}\n"


def replicated_subscription_families(counters: SnapshotCounters, cluster: str) -> Iterator[str]:
    """Snapshots across clusters, of all topics; updates that cursors here have followed, and those told to others."""
    yield from families(
        (
            ("pulsar_replicated_subscriptions_pending_snapshots", counters.pending),
            ("pulsar_replicated_subscriptions_timedout_snapshots", counters.timed_out),
            ("pulsar_replicated_subscriptions_snapshot_ms_count", counters.completed),
            ("pulsar_replicated_subscriptions_snapshot_ms_sum", counters.duration_ms),
            ("pulsar_replicated_subscriptions_updates_told_total", counters.updates_told),
            ("pulsar_replicated_subscriptions_updates_applied_total", counters.updates_applied),
        ),
        labels(cluster=cluster),
    )


def ledger_client_families(client: ClientStatistics, cluster: str) -> Iterator[str]:
    """Ensemble changes and the seconds that writers waited for them; recoveries and reads that failed."""
    yield from families(
        (
            ("bookkeeper_client_ensemble_changes_total", client.ensemble_changes),
            ("bookkeeper_client_ensemble_change_failures_total", client.ensemble_change_failures),
            ("bookkeeper_client_bookies_replaced_total", client.bookies_replaced),
            ("bookkeeper_client_ensemble_change_seconds_total", client.ensemble_change_s_total),
            ("bookkeeper_client_ensemble_change_seconds_max", client.ensemble_change_s_max),
            ("bookkeeper_client_ensemble_change_seconds_last", client.ensemble_change_s_last),
            ("bookkeeper_client_add_retries_total", client.add_retries),
            ("bookkeeper_client_add_quorum_timeouts_total", client.add_quorum_timeouts),
            ("bookkeeper_client_hedged_ensemble_changes_total", client.hedged_changes),
            ("bookkeeper_client_recoveries_total", client.recoveries),
            ("bookkeeper_client_recovered_entries_total", client.recovered_entries),
            ("bookkeeper_client_speculative_reads_total", client.speculative_reads),
            ("bookkeeper_client_digest_mismatches_total", client.digest_mismatches),
            ("bookkeeper_client_damaged_copies_total", client.damaged_copies),
            ("bookkeeper_client_copies_checked_total", client.copies_checked),
            ("bookkeeper_client_copies_found_damaged_total", client.copies_found_damaged),
            ("bookkeeper_client_damage_reports_total", client.damage_reports),
            ("bookkeeper_client_damage_reports_dropped_total", client.damage_reports_dropped),
        ),
        labels(cluster=cluster),
    )


def namespace_families(counts: dict[str, int], cluster: str) -> Iterator[str]:
    """Topics by namespace."""
    if counts:
        yield heading("pulsar_topics_count")
        for namespace, count in counts.items():
            yield f"pulsar_topics_count{labels(cluster=cluster, namespace=namespace)} {count}\n"


def bookie_families(bookie: BookieStatistics, /, **names: str) -> Iterator[str]:
    """SERVER_STATUS is 1 while it takes entries, 0 while it is read-only, -1 after it failed, as BookKeeper's. `names`: labels."""
    status = -1 if bookie.failed else 0 if bookie.read_only else 1
    own = labels(**names)
    yield from families(
        (
            ("bookie_SERVER_STATUS", status),
            ("bookie_ledgers_count", bookie.ledgers),
            ("bookie_WRITE_BYTES", bookie.add_bytes_total),
            ("bookie_READ_BYTES", bookie.read_bytes_total),
            ("bookie_journal_JOURNAL_QUEUE_SIZE", bookie.journal_queued),
            ("bookie_journal_JOURNAL_WRITE_BYTES", bookie.journal_bytes_total),
            ("bookie_journal_JOURNAL_PENDING_BYTES", bookie.journal_pending_bytes),
            ("bookie_write_cache_size", bookie.write_cache_bytes),
            ("bookie_write_cache_count", bookie.write_cache_entries),
            ("bookie_read_cache_size", bookie.read_cache_bytes),
            ("bookie_read_cache_misses", bookie.reads_from_disk_total),
            ("bookie_flush_count", bookie.flushes_total),
            ("bookie_entry_log_count", bookie.entry_logs),
            ("bookie_entry_log_bytes", bookie.entry_log_bytes),
            ("bookie_damaged_entry_logs", bookie.damaged_entry_logs),
            ("bookie_DELETED_LEDGER_COUNT", bookie.ledgers_deleted_total),
            ("bookie_OVERREPLICATED_DELETED_LEDGER_COUNT", bookie.overreplicated_deleted_total),
            ("bookie_gc_reclaimed_entry_logs", bookie.entry_logs_deleted_total),
            ("bookie_gc_failed", bookie.garbage_collections_failed_total),
            ("bookie_ledger_writable_dirs", 0 if bookie.read_only or bookie.failed else len(bookie.directories)),
        ),
        own,
    )
    yield from _by_success("bookkeeper_server_ADD_ENTRY_count", bookie.adds_total, bookie.adds_refused_total, names)
    yield from _by_success("bookkeeper_server_READ_ENTRY_count", bookie.reads_total, bookie.read_errors_total, names)
    yield from _summary("bookie_journal_JOURNAL_SYNC", bookie.journal_sync, names)
    yield from _summary("bookie_journal_JOURNAL_ADD_ENTRY", bookie.journal_add, names)
    yield from _summary("bookkeeper_server_ADD_ENTRY_REQUEST", bookie.journal_add, names)
    yield from _summary("bookkeeper_server_READ_ENTRY_REQUEST", bookie.disk_read, names)
    if bookie.directories:
        yield heading("bookie_ledger_dir_usage")
        for directory in bookie.directories:
            used = 100.0 * (1 - directory.free_bytes / directory.total_bytes) if directory.total_bytes else 0.0
            yield f"bookie_ledger_dir_usage{labels(**names, path=directory.path)} {used!r}\n"


def _by_success(name: str, succeeded: int, failed: int, names: Mapping[str, str]) -> Iterator[str]:
    yield heading(name)
    yield f"{name}{labels(**names, success='true')} {succeeded}\n"
    yield f"{name}{labels(**names, success='false')} {failed}\n"


def _summary(name: str, latency: LatencySummary, names: Mapping[str, str]) -> Iterator[str]:
    """Milliseconds, as BookKeeper reports them. What failed counts in the `success="false"` counters, not here."""
    yield f"# TYPE {name} summary\n"
    values = [repr(value_ms) for value_ms in latency.quantiles_ms] or ["NaN"] * len(QUANTILES)
    for quantile, value in zip(QUANTILES, values, strict=True):
        yield f"{name}{labels(**names, success='true', quantile=str(quantile))} {value}\n"
    own = labels(**names, success="true")
    yield f"{name}_count{own} {latency.samples}\n{name}_sum{own} {latency.sum_ms!r}\n"


def load_balance_families(broker: Broker, cluster: str) -> Iterator[str]:
    """Usage in percent of the limit."""
    manager = broker.load_manager
    load, counters = manager.reporter.load, manager.counters
    name = broker.ownership.broker_id
    yield from families(
        (
            ("pulsar_lb_cpu_usage", load.cpu.percent),
            ("pulsar_lb_memory_usage", load.memory.percent),
            ("pulsar_lb_directMemory_usage", 0.0),
            ("pulsar_lb_bandwidth_in_usage", load.bandwidth_in.percent),
            ("pulsar_lb_bandwidth_out_usage", load.bandwidth_out.percent),
        ),
        labels(cluster=cluster, broker=name, metric="loadBalancing"),
    )
    yield from families(
        (
            ("pulsar_lb_unload_broker_total", counters.unload_brokers),
            ("pulsar_lb_unload_bundle_total", counters.unload_bundles),
        ),
        labels(cluster=cluster, metric="bundleUnloading"),
    )
    yield from families(
        (("pulsar_lb_bundles_split_total", counters.split_bundles),), labels(cluster=cluster, metric="bundlesSplit")
    )
    yield from families(
        (
            ("pulsar_lb_is_leader", int(broker.cluster.leadership.is_leader)),
            ("pulsar_lb_decisions_total", counters.decisions),
            ("pulsar_lb_reports_written_total", manager.reporter.reports_written),
            ("pulsar_lb_orders_unloaded_total", manager.executor.unloads),
            ("pulsar_lb_orders_split_total", manager.executor.splits),
        ),
        labels(cluster=cluster, broker=name),
    )


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
