"""The settings of the load manager, part of a broker's configuration: Pulsar's key names."""

from __future__ import annotations

from typing import Final

from magnetar.base.settings import Settings, setting

_STRATEGY_PACKAGE = "org.apache.pulsar.broker.loadbalance.impl."

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


class LoadBalanceSettings(Settings):
    """docs/explanation/load-balance.md says what they mean together."""

    load_balancer_enabled: bool = setting(
        True, "loadBalancerEnabled", "Place bundles by load, and report it. Off: the fewest bundles count."
    )
    load_balancer_shedding_enabled: bool = setting(
        True,
        "loadBalancerSheddingEnabled",
        "Move bundles away from overloaded brokers, and to idle ones.",
        dynamic=True,
    )
    load_balancer_auto_bundle_split_enabled: bool = setting(
        True, "loadBalancerAutoBundleSplitEnabled", "Split bundles that hold or carry too much.", dynamic=True
    )
    load_balancer_auto_unload_split_bundles_enabled: bool = setting(
        True,
        "loadBalancerAutoUnloadSplitBundlesEnabled",
        "The upper half of a split bundle moves to where there is room.",
        dynamic=True,
    )
    load_balancer_distribute_bundles_evenly_enabled: bool = setting(
        True,
        "loadBalancerDistributeBundlesEvenlyEnabled",
        "A namespace's bundles go to brokers with the fewest of them.",
        dynamic=True,
    )
    load_balancer_load_placement_strategy: str = setting(
        PLACEMENTS[0],
        "loadBalancerLoadPlacementStrategy",
        "Which broker a bundle goes to that nobody owns; Pulsar's class names, with or without package.",
        choices=(*PLACEMENTS, *(_STRATEGY_PACKAGE + name for name in PLACEMENTS[:2])),
    )
    load_balancer_load_shedding_strategy: str = setting(
        SHEDDERS[0],
        "loadBalancerLoadSheddingStrategy",
        "Who is relieved, and of how much; Pulsar's class names, with or without package.",
        choices=(*SHEDDERS, *(_STRATEGY_PACKAGE + name for name in SHEDDERS)),
        dynamic=True,
    )
    load_balancer_report_update_threshold_percentage: float = setting(
        10.0,
        "loadBalancerReportUpdateThresholdPercentage",
        "Change that is worth a new report.",
        unit="%",
        minimum=0,
        dynamic=True,
    )
    load_balancer_report_update_min_interval_ms: int = setting(
        5000,
        "loadBalancerReportUpdateMinIntervalMillis",
        "Shortest time between two reports.",
        unit="ms",
        minimum=100,
        dynamic=True,
    )
    load_balancer_report_update_max_interval_minutes: float = setting(
        15.0,
        "loadBalancerReportUpdateMaxIntervalMinutes",
        "Longest time between two reports.",
        unit="min",
        minimum=0.01,
        dynamic=True,
    )
    load_balancer_shedding_interval_minutes: float = setting(
        1.0,
        "loadBalancerSheddingIntervalMinutes",
        "How often the leader decides.",
        unit="min",
        minimum=0.01,
        dynamic=True,
    )
    load_balancer_shedding_grace_period_minutes: float = setting(
        30.0,
        "loadBalancerSheddingGracePeriodMinutes",
        "A bundle that moved stays for so long.",
        unit="min",
        minimum=0,
        dynamic=True,
    )
    load_balancer_broker_overloaded_threshold_percentage: float = setting(
        85.0,
        "loadBalancerBrokerOverloadedThresholdPercentage",
        "Usage above which a broker gets no bundles while another is below it.",
        unit="%",
        minimum=1,
        maximum=100,
        dynamic=True,
    )
    load_balancer_broker_max_topics: int = setting(
        50_000,
        "loadBalancerBrokerMaxTopics",
        "Loaded topics above which a broker gets no bundles either.",
        minimum=1,
        dynamic=True,
    )
    load_balancer_average_resource_usage_difference_threshold_percentage: float = setting(
        10.0,
        "loadBalancerAverageResourceUsageDifferenceThresholdPercentage",
        "LeastResourceUsageWithWeight: brokers so far below the mean are preferred.",
        unit="%",
        minimum=0,
        dynamic=True,
    )
    load_balancer_broker_threshold_shedder_percentage: float = setting(
        10.0,
        "loadBalancerBrokerThresholdShedderPercentage",
        "ThresholdShedder: how far above the mean usage a broker is relieved.",
        unit="%",
        minimum=0,
        dynamic=True,
    )
    load_balancer_history_resource_percentage: float = setting(
        0.9,
        "loadBalancerHistoryResourcePercentage",
        "ThresholdShedder: weight of the past in the usage that counts.",
        minimum=0,
        maximum=1,
        dynamic=True,
    )
    lower_boundary_shedding_enabled: bool = setting(
        True,
        "lowerBoundarySheddingEnabled",
        "ThresholdShedder: fill brokers that are as far below the mean.",
        differs="A broker that was added is to be filled without anybody being overloaded.",
    )
    load_balancer_bundle_unload_min_throughput_threshold: float = setting(
        1.0,
        "loadBalancerBundleUnloadMinThroughputThreshold",
        "ThresholdShedder: less than this is not worth moving.",
        unit="MB/s",
        minimum=0,
        differs="Clusters are smaller here: 10 MB/s is more than most bundles have.",
        dynamic=True,
    )
    load_balancer_cpu_resource_weight: float = setting(
        1.0, "loadBalancerCPUResourceWeight", "Weight of the CPU in usage.", minimum=0, maximum=1, dynamic=True
    )
    load_balancer_memory_resource_weight: float = setting(
        0.0, "loadBalancerMemoryResourceWeight", "Weight of memory in usage.", minimum=0, maximum=1, dynamic=True
    )
    load_balancer_bandwidth_in_resource_weight: float = setting(
        1.0,
        "loadBalancerBandwidthInResourceWeight",
        "Weight of the network's inbound side.",
        minimum=0,
        maximum=1,
        dynamic=True,
    )
    load_balancer_bandwidth_out_resource_weight: float = setting(
        1.0,
        "loadBalancerBandwidthOutResourceWeight",
        "Weight of the network's outbound side.",
        minimum=0,
        maximum=1,
        dynamic=True,
    )
    load_balancer_override_broker_nic_speed_gbps: float = setting(
        0.0,
        "loadBalancerOverrideBrokerNicSpeedGbps",
        "Speed of the network; 0: what the interfaces say, and 10 where they say nothing.",
        unit="Gbit/s",
        minimum=0,
    )
    load_balancer_msg_rate_difference_shedder_threshold: float = setting(
        50.0,
        "loadBalancerMsgRateDifferenceShedderThreshold",
        "UniformLoadShedder: how much more messages the busiest broker may have than the idlest.",
        unit="%",
        minimum=0,
        dynamic=True,
    )
    load_balancer_msg_throughput_multiplier_difference_shedder_threshold: float = setting(
        4.0,
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        "UniformLoadShedder: how many times the bytes.",
        minimum=1,
        dynamic=True,
    )
    min_unload_message: float = setting(
        1000.0, "minUnloadMessage", "UniformLoadShedder: fewer messages a second do not move.", minimum=0, dynamic=True
    )
    min_unload_message_throughput: float = setting(
        1024.0 * 1024,
        "minUnloadMessageThroughput",
        "UniformLoadShedder: fewer bytes a second do not move.",
        minimum=0,
        dynamic=True,
    )
    max_unload_percentage: float = setting(
        0.2,
        "maxUnloadPercentage",
        "UniformLoadShedder: share of the difference that moves at once.",
        minimum=0,
        maximum=1,
        dynamic=True,
    )
    max_unload_bundle_num_per_shedding: int = setting(
        -1,
        "maxUnloadBundleNumPerShedding",
        "Bundles that one decision moves at most; -1: any number.",
        minimum=-1,
        dynamic=True,
    )
    load_balancer_namespace_bundle_max_topics: int = setting(
        1000,
        "loadBalancerNamespaceBundleMaxTopics",
        "Loaded topics above which a bundle is split.",
        minimum=1,
        dynamic=True,
    )
    load_balancer_namespace_bundle_max_sessions: int = setting(
        1000,
        "loadBalancerNamespaceBundleMaxSessions",
        "Producers and consumers above which it is split.",
        minimum=1,
        dynamic=True,
    )
    load_balancer_namespace_bundle_max_msg_rate: float = setting(
        30_000.0, "loadBalancerNamespaceBundleMaxMsgRate", "Messages a second, in and out.", minimum=1, dynamic=True
    )
    load_balancer_namespace_bundle_max_bandwidth_mbytes: float = setting(
        100.0,
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        "Bytes a second, in and out.",
        unit="MB/s",
        minimum=0.001,
        dynamic=True,
    )
    load_balancer_namespace_maximum_bundles: int = setting(
        128,
        "loadBalancerNamespaceMaximumBundles",
        "A namespace with so many bundles is not split by itself.",
        minimum=1,
        dynamic=True,
    )
    default_namespace_bundle_split_algorithm: str = setting(
        SPLITS[0],
        "defaultNamespaceBundleSplitAlgorithm",
        "Where a bundle is cut; by the load between its topics if its traffic is the reason.",
        choices=SPLITS,
        dynamic=True,
    )

    @property
    def placement(self) -> str:
        """One of PLACEMENTS."""
        return self.load_balancer_load_placement_strategy.rpartition(".")[2]

    @property
    def shedder(self) -> str:
        """One of SHEDDERS."""
        return self.load_balancer_load_shedding_strategy.rpartition(".")[2]

    @property
    def grace_period_s(self) -> float:
        """A bundle that was moved stays for so long."""
        return 60 * self.load_balancer_shedding_grace_period_minutes
