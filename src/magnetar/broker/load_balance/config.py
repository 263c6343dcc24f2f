"""What the load manager is told. Each default is the declared one of its `loadBalancer*` setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnetar.broker.settings.load_balance import LoadBalanceSettings

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

    enabled: bool = LoadBalanceSettings.load_balancer_enabled
    shedding_enabled: bool = LoadBalanceSettings.load_balancer_shedding_enabled
    auto_split_enabled: bool = LoadBalanceSettings.load_balancer_auto_bundle_split_enabled
    unload_split_bundles: bool = LoadBalanceSettings.load_balancer_auto_unload_split_bundles_enabled
    distribute_evenly: bool = LoadBalanceSettings.load_balancer_distribute_bundles_evenly_enabled
    placement: str = LoadBalanceSettings.load_balancer_load_placement_strategy.rpartition(".")[2]
    shedder: str = LoadBalanceSettings.load_balancer_load_shedding_strategy.rpartition(".")[2]

    # ---- Reports
    report_threshold_percent: float = LoadBalanceSettings.load_balancer_report_update_threshold_percentage
    report_min_interval_s: float = LoadBalanceSettings.load_balancer_report_update_min_interval_ms / 1000
    report_max_interval_s: float = 60 * LoadBalanceSettings.load_balancer_report_update_max_interval_minutes
    decision_interval_s: float = 60 * LoadBalanceSettings.load_balancer_shedding_interval_minutes
    nic_speed_gbps: float = LoadBalanceSettings.load_balancer_override_broker_nic_speed_gbps

    # ---- How usage is weighed
    cpu_weight: float = LoadBalanceSettings.load_balancer_cpu_resource_weight
    memory_weight: float = LoadBalanceSettings.load_balancer_memory_resource_weight
    bandwidth_in_weight: float = LoadBalanceSettings.load_balancer_bandwidth_in_resource_weight
    bandwidth_out_weight: float = LoadBalanceSettings.load_balancer_bandwidth_out_resource_weight
    history_share: float = LoadBalanceSettings.load_balancer_history_resource_percentage
    """Of what usage was before, in the usage that the threshold shedder looks at."""

    # ---- Placement
    overloaded_percent: float = LoadBalanceSettings.load_balancer_broker_overloaded_threshold_percentage
    broker_topics_max: int = LoadBalanceSettings.load_balancer_broker_max_topics
    usage_difference_percent: float = (
        LoadBalanceSettings.load_balancer_average_resource_usage_difference_threshold_percentage
    )

    # ---- Shedding
    grace_period_s: float = 60 * LoadBalanceSettings.load_balancer_shedding_grace_period_minutes
    """A bundle that was moved stays for so long."""
    threshold_percent: float = LoadBalanceSettings.load_balancer_broker_threshold_shedder_percentage
    lower_boundary: bool = LoadBalanceSettings.lower_boundary_shedding_enabled
    """Brokers far below the mean are filled up, also while none is far above it: new ones would stay empty."""
    unload_throughput_min: float = MIB * LoadBalanceSettings.load_balancer_bundle_unload_min_throughput_threshold
    """A broker is not worth the disturbance for less, with the threshold shedder."""
    rate_difference_percent: float = LoadBalanceSettings.load_balancer_msg_rate_difference_shedder_threshold
    throughput_ratio: float = LoadBalanceSettings.load_balancer_msg_throughput_multiplier_difference_shedder_threshold
    unload_rate_min: float = LoadBalanceSettings.min_unload_message
    uniform_throughput_min: float = LoadBalanceSettings.min_unload_message_throughput
    unload_share_max: float = LoadBalanceSettings.max_unload_percentage
    unload_bundles_max: int = LoadBalanceSettings.max_unload_bundle_num_per_shedding
    """Of one decision; -1: as many as it takes."""

    # ---- Splitting
    bundle_topics_max: int = LoadBalanceSettings.load_balancer_namespace_bundle_max_topics
    bundle_sessions_max: int = LoadBalanceSettings.load_balancer_namespace_bundle_max_sessions
    bundle_rate_max: float = LoadBalanceSettings.load_balancer_namespace_bundle_max_msg_rate
    bundle_throughput_max: float = MIB * LoadBalanceSettings.load_balancer_namespace_bundle_max_bandwidth_mbytes
    namespace_bundles_max: int = LoadBalanceSettings.load_balancer_namespace_maximum_bundles
    split_algorithm: str = LoadBalanceSettings.default_namespace_bundle_split_algorithm
    hot_bundle_share: float = 0.5
    """Of its broker's traffic: a bundle above it cannot be shed from an overloaded broker without overloading the next one."""
