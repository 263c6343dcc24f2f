"""The load manager's decisions in single cases: who is relieved, who is filled, what is split, what stays and why."""

from __future__ import annotations

import dataclasses

from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.isolation import Isolation, IsolationPolicy, read_policies
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage, worth_reporting
from magnetar.broker.load_balance.plan import Plan, decide, place, place_all
from magnetar.broker.load_balance.splitting import TopicLoad, boundary
from magnetar.broker.load_balance.view import ClusterView
from magnetar.broker.settings.load_balance import (
    FLOW_OR_QPS,
    MIB,
    TOPIC_COUNT,
    UNIFORM,
    WEIGHTED_RANDOM,
    LoadBalanceSettings,
)

CONFIG = LoadBalanceSettings()
NOW_S = 10_000.0


def bundle(rate: float, topics: int = 10, **more: int) -> BundleLoad:
    return BundleLoad(rate, rate, rate * 1000, rate * 1000, topics, **more)


def broker(cpu: float, *rates: float, namespace: str = "t/n", first: int = 0, draining: bool = False) -> BrokerLoad:
    names = [f"{namespace}/0x{first + number:08x}_0x{first + number + 1:08x}" for number in range(len(rates))]
    loads = {name: bundle(rate) for name, rate in zip(names, rates, strict=True)}
    return BrokerLoad(cpu=Usage(cpu, 100), bundles=loads, draining=draining, updated_ms=1)


def decided(view: ClusterView, config: LoadBalanceSettings = CONFIG, memory: LeaderMemory | None = None) -> Plan:
    memory = memory or LeaderMemory()
    memory.observe(view.brokers, config)
    plan = decide(view, memory, config, NOW_S, lambda: 0.5)
    plan.validate(view, memory, config, NOW_S)
    return plan


def test_an_overloaded_broker_gives_its_largest_bundles_to_the_idle_one() -> None:
    view = ClusterView({"a": broker(80, 4000, 3000, 2000, 1000), "b": broker(10, 500, first=16)})
    plan = decided(view)
    assert [(move.bundle[-21:-11], move.source, move.destination) for move in plan.moves] == [("0x00000000", "a", "b")]
    assert "usage 80 % is above the mean of 45 %" in plan.moves[0].reason
    assert plan.after.peak < plan.before.peak


def test_what_moved_not_long_ago_stays_and_the_plan_says_so() -> None:
    view = ClusterView({"a": broker(80, 4000, 3000), "b": broker(10, 500, first=16)})
    memory = LeaderMemory()
    for name in view.brokers["a"].bundles:
        memory.moved(name, NOW_S - 60, CONFIG)
    plan = decided(view, memory=memory)
    assert plan.moves == ()
    assert "2 of its bundles moved not long ago and cool down" in plan.held[0].reason
    later = decide(view, memory, CONFIG, NOW_S + CONFIG.grace_period_s, lambda: 0.5)
    assert later.moves


def test_a_new_leader_lets_cool_down_what_the_old_one_moved() -> None:
    view = ClusterView({"a": broker(80, 4000, 3000), "b": broker(10, 500, first=16)})
    old, new, late_s = LeaderMemory(), LeaderMemory(), 600.0
    first, second = view.brokers["a"].bundles
    old.moved(first, NOW_S - 60, CONFIG)
    old.moved(second, NOW_S - CONFIG.grace_period_s + 60, CONFIG)
    old.moved("t/n/long-ago", NOW_S - CONFIG.grace_period_s, CONFIG)
    left = old.recent(NOW_S, CONFIG)
    assert left == {first: 60.0, second: CONFIG.grace_period_s - 60}
    new.recall({name: age_s + late_s for name, age_s in left.items()}, 5.0, CONFIG)  # another process, another clock
    assert new.cooling_s(first, 5.0, CONFIG) == CONFIG.grace_period_s - 60 - late_s
    assert new.cooling_s(second, 5.0, CONFIG) == 0, "its time is over"
    new.observe(view.brokers, CONFIG)
    plan = decide(view, new, CONFIG, 5.0, lambda: 0.5)
    assert [move.bundle for move in plan.moves] == [second]
    forgetful = LeaderMemory()
    forgetful.observe(view.brokers, CONFIG)
    assert [move.bundle for move in decide(view, forgetful, CONFIG, 5.0, lambda: 0.5).moves][:1] == [first]
    new.recall({second: -3600.0}, 5.0, CONFIG)
    assert new.cooling_s(second, 5.0, CONFIG) == CONFIG.grace_period_s, "clocks that differ do not make it longer"


def test_a_broker_with_one_bundle_is_not_relieved_but_its_hot_bundle_is_split() -> None:
    view = ClusterView({"a": broker(95, 9000), "b": broker(10, 500, first=16)})
    plan = decided(view)
    assert plan.moves == ()
    assert [split.bundle for split in plan.splits] == list(view.brokers["a"].bundles)
    assert plan.splits[0].reason.startswith("hot: 100 % of the traffic of a broker at 95 %")
    assert plan.splits[0].algorithm == FLOW_OR_QPS


def test_a_new_broker_is_filled_although_nobody_is_overloaded() -> None:
    view = ClusterView({"a": broker(50, *[1000] * 10), "b": broker(50, *[1000] * 10, first=16), "new": broker(0)})
    plan = decided(view)
    assert {move.destination for move in plan.moves} == {"new"}
    assert {move.source for move in plan.moves} == {"a", "b"}
    off = decided(
        view,
        dataclasses.replace(
            CONFIG, lower_boundary_shedding_enabled=False, load_balancer_broker_threshold_shedder_percentage=20
        ),
    )
    assert off.moves == ()


def test_draining_brokers_neither_take_nor_count() -> None:
    view = ClusterView({"a": broker(80, *[1000] * 9), "b": broker(75, 500, first=16), "gone": broker(0, draining=True)})
    assert decided(view).moves == ()


def test_the_uniform_shedder_levels_messages_between_the_busiest_and_the_idlest() -> None:
    view = ClusterView(
        {"a": broker(20, *[1000] * 10), "b": broker(20, 1000, first=16), "c": broker(20, *[600] * 9, first=32)}
    )
    plan = decided(view, dataclasses.replace(CONFIG, load_balancer_load_shedding_strategy=UNIFORM))
    assert (plan.moves[0].source, plan.moves[0].destination) == ("a", "b")
    assert sum(move.load.rate for move in plan.moves if move.source == "a") <= 0.2 * 18_000
    near = ClusterView({"a": broker(90, *[1000] * 10), "b": broker(20, *[900] * 10, first=16)})
    assert decided(near, dataclasses.replace(CONFIG, load_balancer_load_shedding_strategy=UNIFORM)).moves == ()


def test_bundles_are_split_by_topics_sessions_messages_and_bytes() -> None:
    loads = {
        "t/n/0x00000000_0x10000000": bundle(1, topics=1001),
        "t/n/0x10000000_0x20000000": bundle(1, producers=600, consumers=500),
        "t/n/0x20000000_0x30000000": BundleLoad(20_000, 11_000, 1, 1, 10),
        "t/n/0x30000000_0x40000000": BundleLoad(1, 1, 60 * MIB, 60 * MIB, 10),
        "t/n/0x40000000_0x50000000": BundleLoad(99_000, 1, 1, 1, 1),
        "t/n/0x50000000_0x60000000": bundle(1),
    }
    plan = decided(ClusterView({"a": BrokerLoad(bundles=loads)}))
    assert [split.bundle for split in plan.splits] == list(loads)[:4]
    words = ("topics", "producers and consumers", "messages/s", "bytes/s")
    assert all(word in split.reason for word, split in zip(words, plan.splits, strict=True))
    assert [held.what for held in plan.held] == ["t/n/0x40000000_0x50000000"]
    assert "a single topic cannot be split" in plan.held[0].reason


def test_a_namespace_has_no_more_bundles_than_allowed() -> None:
    loads = {f"t/n/0x{number:08x}_0x{number + 1:08x}": bundle(1, topics=5000) for number in range(4)}
    plan = decided(
        ClusterView({"a": BrokerLoad(bundles=loads)}),
        dataclasses.replace(CONFIG, load_balancer_namespace_maximum_bundles=6),
    )
    assert len(plan.splits) == 2
    assert "loadBalancerNamespaceMaximumBundles" in plan.held[0].reason


def test_where_a_bundle_is_cut() -> None:
    topics = [TopicLoad(10, 1.0), TopicLoad(20, 1.0), TopicLoad(30, 10.0), TopicLoad(90, 12.0)]
    assert boundary("range_equally_divide", 0, 100, topics) == 50
    assert boundary(TOPIC_COUNT, 0, 100, topics) == 25
    assert boundary(FLOW_OR_QPS, 0, 100, topics) == 60  # 12 to 12
    assert boundary(FLOW_OR_QPS, 0, 100, [TopicLoad(10), TopicLoad(20)]) == 15
    assert boundary(TOPIC_COUNT, 0, 100, [TopicLoad(10), TopicLoad(10)]) is None


def test_an_isolated_namespace_goes_to_its_primary_brokers_and_fails_over_below_the_limit() -> None:
    policy = {
        "namespaces": ["t/n.*"],
        "primary": ["one:.*"],
        "secondary": ["two"],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
    }
    isolation = Isolation(read_policies({"p": policy}))
    usage = {"one:1": 10.0, "two:1": 10.0, "three:1": 10.0}
    assert isolation.eligible("t/n1", usage).brokers == ["one:1"]
    assert isolation.eligible("t/n1", usage | {"one:1": 81.0}).brokers == ["one:1", "two:1"]
    assert isolation.eligible("t/n1", {"two:1": 0.0}).brokers == ["two:1"]
    assert isolation.eligible("t/n1", {"three:1": 0.0}).brokers == []
    assert isolation.eligible("t/other", usage).brokers == ["two:1", "three:1"]
    assert isolation.eligible("t/other", {"one:1": 0.0}).brokers == ["one:1"], "better than nobody"
    view = ClusterView({"three:1": broker(0)}, isolation)
    choice = place("t/n/0x00000000_0xffffffff", view, LeaderMemory(), CONFIG, lambda: 0.0)
    assert choice.broker is None
    assert "isolation policy p names no broker that is there" in choice.reason


def test_an_isolated_bundle_is_not_shed_to_a_stranger() -> None:
    isolation = Isolation((IsolationPolicy("p", ("t/n",), ("a",)),))
    plan = decided(ClusterView({"a": broker(90, *[1000] * 8), "b": broker(0)}, isolation))
    assert plan.moves == ()
    assert plan.held


def test_namespaces_of_one_group_go_to_different_failure_domains() -> None:
    isolation = Isolation(
        (), {"a": "rack-1", "b": "rack-1", "c": "rack-2"}, {"t/n": "group", "t/m": "group", "t/o": "group"}
    )
    brokers = {"a": broker(0, 1, namespace="t/m"), "b": broker(0), "c": broker(50, 5000, namespace="other/n")}
    choice = place("t/n/0x0_0x1", ClusterView(brokers, isolation), LeaderMemory(), CONFIG, lambda: 0.0)
    assert choice.broker == "c"
    assert "anti-affinity" in choice.reason
    both = brokers | {"c": broker(50, 5000, namespace="t/o")}
    assert place("t/n/0x0_0x1", ClusterView(both, isolation), LeaderMemory(), CONFIG, lambda: 0.0).broker == "b"


def test_unowned_bundles_spread_one_by_one() -> None:
    view = ClusterView({"a": broker(30, 100), "b": broker(0), "c": broker(0)})
    names = [f"t/new/0x{number:08x}_0x{number + 1:08x}" for number in range(6)]
    placed = place_all(dict.fromkeys(names, BundleLoad()), view, LeaderMemory(), CONFIG, lambda: 0.0)
    counts = [sum(choice.broker == name for choice in placed.values()) for name in "abc"]
    assert counts == [2, 2, 2], "evenly within a namespace"
    drawn = place(
        "t/new/0x0_0x1",
        view,
        LeaderMemory(),
        dataclasses.replace(
            CONFIG,
            load_balancer_load_placement_strategy=WEIGHTED_RANDOM,
            load_balancer_distribute_bundles_evenly_enabled=False,
        ),
        lambda: 0.0,
    )
    assert drawn.broker == "a"


def test_what_was_placed_since_the_last_report_counts() -> None:
    view = ClusterView({"a": broker(0), "b": broker(0)}, placed={"t/x/0x0_0x1": ("a", bundle(100))})
    assert place("t/y/0x0_0x1", view, LeaderMemory(), CONFIG, lambda: 0.0).broker == "b"


def test_usage_is_smoothed_but_a_report_counts_once() -> None:
    memory = LeaderMemory()
    memory.observe({"a": broker(10)}, CONFIG)
    second = dataclasses.replace(broker(90), updated_ms=2)
    memory.observe({"a": second}, CONFIG)
    memory.observe({"a": second}, CONFIG)
    assert round(memory.usage["a"], 3) == 18.0
    memory.observe({}, CONFIG)
    assert memory.usage == {}


def test_reports_are_written_when_they_say_something_new() -> None:
    first = broker(10, 100)
    later = dataclasses.replace(first, updated_ms=6000)
    assert worth_reporting(None, first, CONFIG) == "first report"
    assert worth_reporting(first, later, CONFIG) is None
    assert worth_reporting(first, dataclasses.replace(later, cpu=Usage(30, 100)), CONFIG) == "usage changed by 20 %"
    soon = dataclasses.replace(first, updated_ms=100, draining=True)
    assert worth_reporting(first, soon, CONFIG) is None, "not within loadBalancerReportUpdateMinIntervalMillis"
    assert worth_reporting(first, dataclasses.replace(soon, updated_ms=6000), CONFIG) == "drains"
    assert "ago" in str(worth_reporting(first, dataclasses.replace(first, updated_ms=900_001), CONFIG))
