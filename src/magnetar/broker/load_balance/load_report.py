"""What a broker says about its load: Pulsar's `LocalBrokerData`, as values and as the JSON in `/loadbalance/brokers/<id>`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.settings.load_balance import LoadBalanceSettings

REPORT_TYPE: Final = "LocalBrokerData"


@dataclass(frozen=True, slots=True)
class Usage:
    """So much of a resource out of so much."""

    usage: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """0 where no limit is known."""
        return min(100.0, 100.0 * self.usage / self.limit) if self.limit > 0 else 0.0


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """Messages and bytes a second, and who is connected."""

    rate_in: float = 0.0
    rate_out: float = 0.0
    throughput_in: float = 0.0
    throughput_out: float = 0.0
    topics: int = 0
    producers: int = 0
    consumers: int = 0

    @property
    def rate(self) -> float:
        return self.rate_in + self.rate_out

    @property
    def throughput(self) -> float:
        return self.throughput_in + self.throughput_out

    @property
    def sessions(self) -> int:
        return self.producers + self.consumers


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """One broker's report. `bundles` are those it owns, `tenant/namespace/0x..._0x...`. `draining`: it takes no more of them."""

    cpu: Usage = Usage()
    memory: Usage = Usage()
    bandwidth_in: Usage = Usage()
    bandwidth_out: Usage = Usage()
    bundles: Mapping[str, BundleLoad] = field(default_factory=dict)
    draining: bool = False
    updated_ms: int = 0
    started_ms: int = 0

    @property
    def rate(self) -> float:
        """Messages a second in and out."""
        return sum(bundle.rate for bundle in self.bundles.values())

    @property
    def throughput(self) -> float:
        """Bytes a second in and out."""
        return sum(bundle.throughput for bundle in self.bundles.values())

    @property
    def topics(self) -> int:
        return sum(bundle.topics for bundle in self.bundles.values())

    @property
    def max_percent(self) -> float:
        """The scarcest resource, unweighted. Memory is left out: what a process once took says little about its load."""
        return max(self.cpu.percent, self.bandwidth_in.percent, self.bandwidth_out.percent)

    def weighed_percent(self, settings: LoadBalanceSettings) -> float:
        """The scarcest resource by the weights of the settings, 0 to 100 for weights up to 1."""
        return max(
            self.cpu.percent * settings.load_balancer_cpu_resource_weight,
            self.memory.percent * settings.load_balancer_memory_resource_weight,
            self.bandwidth_in.percent * settings.load_balancer_bandwidth_in_resource_weight,
            self.bandwidth_out.percent * settings.load_balancer_bandwidth_out_resource_weight,
        )


def worth_reporting(last: BrokerLoad | None, now: BrokerLoad, settings: LoadBalanceSettings) -> str | None:
    """The reason to write the new figures, None while the last ones are good enough. Times are those in the reports."""
    if last is None:
        return "first report"
    age_s = (now.updated_ms - last.updated_ms) / 1000
    if age_s < settings.load_balancer_report_update_min_interval_ms / 1000:
        return None
    if age_s >= settings.load_balancer_report_update_max_interval_minutes * 60:
        return f"last written {age_s:.0f} s ago"
    if last.draining != now.draining:
        return "drains" if now.draining else "drains no more"
    if set(last.bundles) != set(now.bundles):
        return "bundles changed"
    for name, old, new in (
        ("usage", last.max_percent, now.max_percent),
        ("message rate", last.rate, now.rate),
        ("throughput", last.throughput, now.throughput),
        ("topics", last.topics, now.topics),
    ):
        # A usage is a percentage already; of what can grow without bound the change relative to before counts.
        change = abs(new - old) if name == "usage" else 100.0 * abs(new - old) / max(old, new, 1.0)
        if change > settings.load_balancer_report_update_threshold_percentage:
            return f"{name} changed by {change:.0f} %"
    return None


# ---- JSON


def report_document(load: BrokerLoad, identity: Mapping[str, Any], last: BrokerLoad | None = None) -> dict[str, Any]:
    """`identity`: URLs, version and what else does not change. `last` is the report before, for gains and losses."""
    before = set(last.bundles) if last is not None else set()
    loads = load.bundles.values()
    return {
        **identity,
        "loadReportType": REPORT_TYPE,
        "cpu": _usage(load.cpu),
        "memory": _usage(load.memory),
        "directMemory": _usage(Usage(0.0, load.memory.limit)),
        "bandwidthIn": _usage(load.bandwidth_in),
        "bandwidthOut": _usage(load.bandwidth_out),
        "msgThroughputIn": sum(bundle.throughput_in for bundle in loads),
        "msgThroughputOut": sum(bundle.throughput_out for bundle in loads),
        "msgRateIn": sum(bundle.rate_in for bundle in loads),
        "msgRateOut": sum(bundle.rate_out for bundle in loads),
        "maxResourceUsage": load.max_percent / 100,
        "lastUpdate": load.updated_ms,
        "startTimestamp": load.started_ms,
        "lastStats": {name: bundle_document(bundle) for name, bundle in load.bundles.items()},
        "numTopics": load.topics,
        "numBundles": len(load.bundles),
        "numConsumers": sum(bundle.consumers for bundle in loads),
        "numProducers": sum(bundle.producers for bundle in loads),
        "bundles": list(load.bundles),
        "lastBundleGains": sorted(set(load.bundles) - before),
        "lastBundleLosses": sorted(before - set(load.bundles)),
        "draining": load.draining,
    }


def bundle_document(load: BundleLoad) -> dict[str, Any]:
    """Pulsar's `NamespaceBundleStats`."""
    return {
        "msgRateIn": load.rate_in,
        "msgThroughputIn": load.throughput_in,
        "msgRateOut": load.rate_out,
        "msgThroughputOut": load.throughput_out,
        "consumerCount": load.consumers,
        "producerCount": load.producers,
        "topics": load.topics,
        "cacheSize": 0,
    }


def read_report(document: Mapping[str, Any]) -> BrokerLoad:
    """A Java broker's report reads as well as ours; what is missing or of another kind counts as 0."""
    stats = document.get("lastStats")
    bundles = {name: read_bundle(stats[name]) for name in stats} if isinstance(stats, dict) else {}
    for name in document.get("bundles") or ():
        if isinstance(name, str):
            bundles.setdefault(name, BundleLoad())
    return BrokerLoad(
        cpu=_read_usage(document.get("cpu")),
        memory=_read_usage(document.get("memory")),
        bandwidth_in=_read_usage(document.get("bandwidthIn")),
        bandwidth_out=_read_usage(document.get("bandwidthOut")),
        bundles=bundles,
        draining=document.get("draining") is True,
        updated_ms=int(_number(document, "lastUpdate")),
        started_ms=int(_number(document, "startTimestamp")),
    )


def read_bundle(document: Any) -> BundleLoad:
    if not isinstance(document, dict):
        return BundleLoad()
    return BundleLoad(
        _number(document, "msgRateIn"),
        _number(document, "msgRateOut"),
        _number(document, "msgThroughputIn"),
        _number(document, "msgThroughputOut"),
        int(_number(document, "topics")),
        int(_number(document, "producerCount")),
        int(_number(document, "consumerCount")),
    )


def read_quota(document: Mapping[str, Any]) -> BundleLoad:
    """Pulsar's `ResourceQuota`: what a bundle is expected to do."""
    return BundleLoad(
        _number(document, "msgRateIn"),
        _number(document, "msgRateOut"),
        _number(document, "bandwidthIn"),
        _number(document, "bandwidthOut"),
    )


def _usage(usage: Usage) -> dict[str, float]:
    return {"usage": usage.usage, "limit": usage.limit}


def _read_usage(document: Any) -> Usage:
    return Usage(_number(document, "usage"), _number(document, "limit")) if isinstance(document, dict) else Usage()


def _number(document: Mapping[str, Any], name: str) -> float:
    value = document.get(name)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if usable and value is not None else 0.0
