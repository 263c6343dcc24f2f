"""From the `loadBalancer*` settings to what the load manager takes."""

from __future__ import annotations

from magnetar.broker.load_balance.config import MIB, LoadBalanceConfig
from magnetar.broker.settings.load_balance import LoadBalanceSettings


def load_balance_config(config: LoadBalanceSettings) -> LoadBalanceConfig:
    return LoadBalanceConfig(
        enabled=config.load_balancer_enabled,
        shedding_enabled=config.load_balancer_shedding_enabled,
        auto_split_enabled=config.load_balancer_auto_bundle_split_enabled,
        unload_split_bundles=config.load_balancer_auto_unload_split_bundles_enabled,
        distribute_evenly=config.load_balancer_distribute_bundles_evenly_enabled,
        placement=config.load_balancer_load_placement_strategy.rpartition(".")[2],
        shedder=config.load_balancer_load_shedding_strategy.rpartition(".")[2],
        report_threshold_percent=config.load_balancer_report_update_threshold_percentage,
        report_min_interval_s=config.load_balancer_report_update_min_interval_ms / 1000,
        report_max_interval_s=60 * config.load_balancer_report_update_max_interval_minutes,
        decision_interval_s=60 * config.load_balancer_shedding_interval_minutes,
        nic_speed_gbps=config.load_balancer_override_broker_nic_speed_gbps,
        cpu_weight=config.load_balancer_cpu_resource_weight,
        memory_weight=config.load_balancer_memory_resource_weight,
        bandwidth_in_weight=config.load_balancer_bandwidth_in_resource_weight,
        bandwidth_out_weight=config.load_balancer_bandwidth_out_resource_weight,
        history_share=config.load_balancer_history_resource_percentage,
        overloaded_percent=config.load_balancer_broker_overloaded_threshold_percentage,
        broker_topics_max=config.load_balancer_broker_max_topics,
        usage_difference_percent=config.load_balancer_average_resource_usage_difference_threshold_percentage,
        grace_period_s=60 * config.load_balancer_shedding_grace_period_minutes,
        threshold_percent=config.load_balancer_broker_threshold_shedder_percentage,
        lower_boundary=config.lower_boundary_shedding_enabled,
        unload_throughput_min=MIB * config.load_balancer_bundle_unload_min_throughput_threshold,
        rate_difference_percent=config.load_balancer_msg_rate_difference_shedder_threshold,
        throughput_ratio=config.load_balancer_msg_throughput_multiplier_difference_shedder_threshold,
        unload_rate_min=config.min_unload_message,
        uniform_throughput_min=config.min_unload_message_throughput,
        unload_share_max=config.max_unload_percentage,
        unload_bundles_max=config.max_unload_bundle_num_per_shedding,
        bundle_topics_max=config.load_balancer_namespace_bundle_max_topics,
        bundle_sessions_max=config.load_balancer_namespace_bundle_max_sessions,
        bundle_rate_max=config.load_balancer_namespace_bundle_max_msg_rate,
        bundle_throughput_max=MIB * config.load_balancer_namespace_bundle_max_bandwidth_mbytes,
        namespace_bundles_max=config.load_balancer_namespace_maximum_bundles,
        split_algorithm=config.default_namespace_bundle_split_algorithm,
    )
