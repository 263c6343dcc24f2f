"""Metrics of the load manager: this broker's usage, and what it decided while it led (Pulsar's `pulsar_lb_*`)."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.admin.metrics.families import families, labels
from magnetar.broker.service import Broker


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
