#!/usr/bin/env python3
"""Write the Grafana dashboards of deploy/grafana from the panels declared here and the metrics that the code declares.

  dashboards.py           write deploy/grafana/*.json
  dashboards.py --check   exit 1 when a file is stale, or when a panel or an alert asks for a metric that nothing exports

Metrics are found where they are declared, by the same search that makes the site's reference of metrics (tools/site.py). A metric
that goes, or is renamed, breaks the check; so does a new one, because the last dashboard has a panel for each.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import metric_names

ROOT = Path(__file__).resolve().parent.parent
GRAFANA = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"

_NAME = re.compile(r"\b(?:pulsar|bookie|bookkeeper|magnetar|autorecovery|process|python)_\w+")
_SUFFIXES = ("_bucket", "_count", "_sum")
PROCESS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
}
"""Of `admin/metrics/process.py`."""


class Panel(NamedTuple):
    """`queries`: (PromQL, legend). `unit` is Grafana's: short, ops, Bps, bytes, s, ms, percent."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    about: str = ""


BROKER, TOPIC = 'cluster=~"$cluster"', 'cluster=~"$cluster", namespace=~"$namespace"'

OVERVIEW = (
    (
        "Messages",
        (
            Panel("Messages in", "ops", ((f"sum(pulsar_rate_in{{{TOPIC}}})", "in"),)),
            Panel("Messages out", "ops", ((f"sum(pulsar_rate_out{{{TOPIC}}})", "out"),)),
            Panel(
                "Bytes",
                "Bps",
                ((f"sum(pulsar_throughput_in{{{TOPIC}}})", "in"), (f"sum(pulsar_throughput_out{{{TOPIC}}})", "out")),
            ),
            Panel(
                "Backlog",
                "short",
                ((f"sum(pulsar_msg_backlog{{{TOPIC}}}) by (namespace)", "{{namespace}}"),),
                "Entries that a subscription has not consumed.",
            ),
            Panel("Stored", "bytes", ((f"sum(pulsar_storage_size{{{TOPIC}}}) by (namespace)", "{{namespace}}"),)),
            Panel(
                "Blocked subscriptions",
                "short",
                ((f"sum(pulsar_subscription_blocked_on_unacked_messages{{{TOPIC}}})", "blocked"),),
                "They get nothing until messages are acknowledged.",
            ),
        ),
    ),
    (
        "Brokers",
        (
            Panel(
                "CPU",
                "percent",
                ((f"pulsar_lb_cpu_usage{{{BROKER}}}", "{{broker}}"),),
                "Of one core: a broker is one process.",
            ),
            Panel("Memory", "bytes", (('process_resident_memory_bytes{job=~"broker|standalone"}', "{{instance}}"),)),
            Panel("Connections", "short", ((f"magnetar_connections{{{BROKER}}}", "{{instance}} {{port}}"),)),
            Panel(
                "Refused and evicted",
                "ops",
                (
                    (f"rate(magnetar_connections_refused_total{{{BROKER}}}[$__rate_interval])", "refused {{port}}"),
                    (f"rate(magnetar_connections_evicted_total{{{BROKER}}}[$__rate_interval])", "evicted {{port}}"),
                ),
            ),
            Panel("Loaded topics", "short", ((f"pulsar_broker_topics_count{{{BROKER}}}", "{{instance}}"),)),
            Panel(
                "Bundles unloaded and split",
                "ops",
                (
                    (f"rate(pulsar_lb_orders_unloaded_total{{{BROKER}}}[$__rate_interval])", "unloaded {{broker}}"),
                    (f"rate(pulsar_lb_orders_split_total{{{BROKER}}}[$__rate_interval])", "split {{broker}}"),
                ),
            ),
            Panel(
                "Background work that failed",
                "ops",
                (("rate(magnetar_task_failures_total[$__rate_interval])", "{{task}}"),),
            ),
            Panel(
                "Replication backlog",
                "short",
                ((f"sum(pulsar_replication_backlog{{{TOPIC}}}) by (remote_cluster)", "{{remote_cluster}}"),),
            ),
        ),
    ),
)

TOPICS = (
    (
        "The largest",
        (
            Panel("Backlog", "short", ((f"topk(10, pulsar_msg_backlog{{{TOPIC}}})", "{{topic}}"),)),
            Panel("Messages in", "ops", ((f"topk(10, pulsar_rate_in{{{TOPIC}}})", "{{topic}}"),)),
            Panel("Messages out", "ops", ((f"topk(10, pulsar_rate_out{{{TOPIC}}})", "{{topic}}"),)),
            Panel("Stored", "bytes", ((f"topk(10, pulsar_storage_size{{{TOPIC}}})", "{{topic}}"),)),
        ),
    ),
    (
        "Subscriptions",
        (
            Panel(
                "Backlog",
                "short",
                ((f"topk(10, pulsar_subscription_back_log{{{TOPIC}}})", "{{topic}} {{subscription}}"),),
            ),
            Panel(
                "Unacknowledged",
                "short",
                ((f"topk(10, pulsar_subscription_unacked_messages{{{TOPIC}}})", "{{topic}} {{subscription}}"),),
            ),
            Panel(
                "Delayed",
                "short",
                ((f"topk(10, pulsar_subscription_delayed{{{TOPIC}}})", "{{topic}} {{subscription}}"),),
            ),
            Panel(
                "Waiting for a consumer",
                "short",
                ((f"topk(10, pulsar_subscription_in_replay{{{TOPIC}}})", "{{topic}} {{subscription}}"),),
                "Of Key_Shared: entries whose consumer has no permits, or whose slot drains.",
            ),
        ),
    ),
)

BOOKIES = (
    (
        "Writing",
        (
            Panel(
                "Entries added",
                "ops",
                (('rate(bookkeeper_server_ADD_ENTRY_count{success="true"}[$__rate_interval])', "{{bookie}}"),),
            ),
            Panel(
                "Adds refused",
                "ops",
                (('rate(bookkeeper_server_ADD_ENTRY_count{success="false"}[$__rate_interval])', "{{bookie}}"),),
            ),
            Panel(
                "Journal sync",
                "ms",
                (
                    ('bookie_journal_JOURNAL_SYNC{quantile="0.99"}', "{{bookie}} 99 %"),
                    ('bookie_journal_JOURNAL_SYNC{quantile="0.5"}', "{{bookie}} 50 %"),
                ),
            ),
            Panel("Journal queue", "short", (("bookie_journal_JOURNAL_QUEUE_SIZE", "{{bookie}}"),)),
            Panel("Write cache", "bytes", (("bookie_write_cache_size", "{{bookie}}"),)),
        ),
    ),
    (
        "Reading and keeping",
        (
            Panel(
                "Entries read",
                "ops",
                (('rate(bookkeeper_server_READ_ENTRY_count{success="true"}[$__rate_interval])', "{{bookie}}"),),
            ),
            Panel("Reads from the disk", "ops", (("rate(bookie_read_cache_misses[$__rate_interval])", "{{bookie}}"),)),
            Panel("Disks", "percent", (("bookie_ledger_dir_usage", "{{bookie}} {{path}}"),)),
            Panel(
                "State",
                "short",
                (("bookie_SERVER_STATUS", "{{bookie}}"),),
                "1 takes entries, 0 is read-only, -1 has failed.",
            ),
            Panel(
                "Ensemble changes",
                "ops",
                (("rate(bookkeeper_client_ensemble_changes_total[$__rate_interval])", "{{instance}}"),),
                "Bookies that failed a writer and were replaced.",
            ),
            Panel("Waiting for repair", "short", (("autorecovery_ledgers_waiting", "{{instance}}"),)),
            Panel(
                "Damaged copies",
                "short",
                (
                    ("bookie_damaged_entry_logs", "{{bookie}} entry logs"),
                    ("autorecovery_copies_damaged_total", "{{instance}} found by the check"),
                ),
            ),
        ),
    ),
)

PIPELINE = 'pipeline=~"$pipeline"'
_EPOCHS = (
    f"histogram_quantile(0.95, sum(rate(magnetar_pipeline_epoch_seconds_bucket{{{PIPELINE}}}[$__rate_interval])) "
    "by (le, pipeline))"
)
PIPELINES = (
    (
        "Freshness",
        (
            Panel("Messages behind", "short", ((f"magnetar_pipeline_lag_messages{{{PIPELINE}}}", "{{pipeline}}"),)),
            Panel("Rows", "ops", ((f"magnetar_pipeline_rows_per_second{{{PIPELINE}}}", "{{pipeline}}"),)),
            Panel(
                "Time of an epoch",
                "s",
                (
                    (
                        _EPOCHS,
                        "{{pipeline}} 95 %",
                    ),
                ),
            ),
            Panel(
                "Phases of the last epoch",
                "s",
                ((f"magnetar_pipeline_epoch_phase_seconds{{{PIPELINE}}}", "{{pipeline}} {{phase}}"),),
            ),
            Panel(
                "Busy",
                "percentunit",
                (
                    (f"magnetar_pipeline_busy_ratio{{{PIPELINE}}}", "{{pipeline}}"),
                    (f"magnetar_pipeline_work_ratio{{{PIPELINE}}}", "{{pipeline}} units"),
                ),
            ),
            Panel("State", "bytes", ((f"magnetar_pipeline_state_bytes{{{PIPELINE}}}", "{{pipeline}}"),)),
            Panel("Units", "short", ((f"magnetar_pipeline_units{{{PIPELINE}}}", "{{pipeline}}"),)),
            Panel(
                "Late rows, duplicates and the like",
                "ops",
                ((f"rate(magnetar_pipeline_events_total{{{PIPELINE}}}[$__rate_interval])", "{{event}}"),),
            ),
        ),
    ),
)


def every_metric() -> Iterator[tuple[str, tuple[Panel, ...]]]:
    """A row for each declaration, a panel for each of its metrics: rates of counters, values of the rest."""
    for group, names in sorted(declared().items()):
        panels = [_plain(name) for name in sorted(names)]
        if panels:
            yield group, tuple(panels)


def _plain(name: str) -> Panel:
    if name.endswith("_total"):
        return Panel(name, "ops", ((f"sum(rate({name}[$__rate_interval])) by (job, instance)", "{{instance}}"),))
    return Panel(name, "short", ((f"sum({name}) by (job, instance)", "{{instance}}"),))


DASHBOARDS = {
    "overview": ("magnetar: overview", OVERVIEW, ("cluster", "namespace")),
    "topics": ("magnetar: topics", TOPICS, ("cluster", "namespace")),
    "bookies": ("magnetar: bookies", BOOKIES, ()),
    "pipelines": ("magnetar: pipelines", PIPELINES, ("pipeline",)),
}
_VALUES = {
    "cluster": "label_values(pulsar_broker_topics_count, cluster)",
    "namespace": 'label_values(pulsar_topics_count{cluster=~"$cluster"}, namespace)',
    "pipeline": "label_values(magnetar_pipeline_epoch, pipeline)",
}


# ---- What the code declares


def declared() -> dict[str, set[str]]:
    """Names of metrics by the module that declares them; those whose names are computed in full are written out."""
    from magnetar.bookkeeper.autorecovery.statistics import AutoRecoveryStatistics

    found = {group: {name for name in names if "*" not in name} for group, names in metric_names.by_module().items()}
    found["autorecovery"] = {f"autorecovery_{field.name}" for field in fields(AutoRecoveryStatistics)}
    found["pipelines"] = pipeline_metrics()
    return {group: names for group, names in found.items() if names}


def pipeline_metrics() -> set[str]:
    """Asked of the registry itself: the library makes the names there."""
    from magnetar.pipeline.views.control.metrics import PipelineMetrics

    families = PipelineMetrics("x").registry.collect()
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def exported() -> set[str]:
    """Every name that a query may ask for."""
    names = set().union(*declared().values(), PROCESS)
    return names | {name + suffix for name in names for suffix in _SUFFIXES}


def asked_for() -> dict[str, str]:
    """Every metric that a dashboard or an alert asks for, by where."""
    found: dict[str, str] = {}
    for file, (_, rows, _) in DASHBOARDS.items():
        for _, panels in rows:
            for panel in panels:
                for query, _ in panel.queries:
                    found |= dict.fromkeys(_NAME.findall(query), f"dashboard {file}, panel {panel.title!r}")
    found |= dict.fromkeys(
        _NAME.findall(re.sub(r"(?m)^\s*(summary|description|#).*$", "", RULES.read_text())), "alert rules"
    )
    return found


# ---- Grafana's JSON

WIDTH, COLUMNS, HEIGHT = 24, 3, 8


def dashboard(
    uid: str, title: str, rows: Sequence[tuple[str, Sequence[Panel]]], variables: Sequence[str]
) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for name, members in rows:
        panels.append(
            {
                "type": "row",
                "title": name,
                "collapsed": False,
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
                "panels": [],
            }
        )
        y += 1
        for place, member in enumerate(members):
            x = place % COLUMNS * (WIDTH // COLUMNS)
            panels.append(
                _panel(member, {"h": HEIGHT, "w": WIDTH // COLUMNS, "x": x, "y": y + place // COLUMNS * HEIGHT})
            )
        y += -(-len(members) // COLUMNS) * HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": f"magnetar-{uid}",
        "title": title,
        "tags": ["magnetar"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_SOURCE, *(_variable(name) for name in variables)]},
        "panels": panels,
    }


_SOURCE = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": _VALUES[name], "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0 if panel.unit != "short" else None,
                "custom": {"fillOpacity": 8, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }


def files() -> dict[Path, str]:
    """Every dashboard's file with its text."""
    found = {name: dashboard(name, *about) for name, about in DASHBOARDS.items()}
    found["every-metric"] = dashboard("every-metric", "magnetar: every metric", list(every_metric()), ())
    return {GRAFANA / f"{name}.json": json.dumps(each, indent=1) + "\n" for name, each in found.items()}


def problems() -> Iterator[str]:
    """What does not fit together, a sentence each."""
    names = exported()
    for name, place in sorted(asked_for().items()):
        if name not in names:
            yield f"{place} asks for {name}, which nothing exports: change it, or give the metric back"
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            yield f"{path.relative_to(ROOT)} is stale: run tools/dashboards.py"


def main() -> None:
    if "--check" in sys.argv[1:]:
        found = list(problems())
        print("\n".join(found) or f"dashboards: {len(files())} files")
        sys.exit(1 if found else 0)
    GRAFANA.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
