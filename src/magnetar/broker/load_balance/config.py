"""What the load manager is told. Names and defaults of Pulsar's `loadBalancer*` settings, where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAST_MESSAGE_RATE: Final = "LeastLongTermMessageRate"
LEAST_RESOURCE_USAGE: Final = "LeastResourceUsageWithWeight"
WEIGHTED_RANDOM: Final = "WeightedRandomSelection"
PLACEMENTS: Final = (LEAST_MESSAGE_RATE, LEAST_RESOURCE_USAGE, WEIGHTED_RANDOM)

THRESHOLD: Final = "ThresholdShedder"
UNIFORM: Final = "UniformLoadShedder"
SHEDDERS: Final = (THRESHOLD, UNIFORM)

RANGE: Final = "range_equally_divide"
TOPIC_COUNT: Final = "topic_count_equally_divide"
FLOW_OR_QPS: Final = "flow_or_qps_equally_divide"
SPLITS: Final = (RANGE, TOPIC_COUNT, FLOW_OR_QPS)

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LoadBalanceConfig:
    """Percentages are 0 to 100; rates are messages a second, throughputs bytes a second, in and out together."""

    enabled: bool = True
    shedding_enabled: bool = True
    auto_split_enabled: bool = True
    unload_split_bundles: bool = True
    distribute_evenly: bool = True
    placement: str = LEAST_MESSAGE_RATE
    shedder: str = THRESHOLD

    # ---- Reports
    report_threshold_percent: float = 10.0
    report_min_interval_s: float = 5.0
    report_max_interval_s: float = 900.0
    decision_interval_s: float = 60.0
    nic_speed_gbps: float = 0.0

    # ---- How usage is weighed
    cpu_weight: float = 1.0
    memory_weight: float = 0.0
    bandwidth_in_weight: float = 1.0
    bandwidth_out_weight: float = 1.0
    history_share: float = 0.9
    """Of what usage was before, in the usage that the threshold shedder looks at."""

    # ---- Placement
    overloaded_percent: float = 85.0
    broker_topics_max: int = 50_000
    usage_difference_percent: float = 10.0

    # ---- Shedding
    grace_period_s: float = 1800.0
    """A bundle that was moved stays for so long."""
    threshold_percent: float = 10.0
    lower_boundary: bool = True
    """Brokers far below the mean are filled up, also while none is far above it: new ones would stay empty."""
    unload_throughput_min: float = 1.0 * MIB
    """A broker is not worth the disturbance for less, with the threshold shedder."""
    rate_difference_percent: float = 50.0
    throughput_ratio: float = 4.0
    unload_rate_min: float = 1000.0
    uniform_throughput_min: float = 1.0 * MIB
    unload_share_max: float = 0.2
    unload_bundles_max: int = -1
    """Of one decision; -1: as many as it takes."""

    # ---- Splitting
    bundle_topics_max: int = 1000
    bundle_sessions_max: int = 1000
    bundle_rate_max: float = 30_000.0
    bundle_throughput_max: float = 100.0 * MIB
    namespace_bundles_max: int = 128
    split_algorithm: str = RANGE
    hot_bundle_share: float = 0.5
    """Of its broker's traffic: a bundle above it cannot be shed from an overloaded broker without overloading the next one."""
