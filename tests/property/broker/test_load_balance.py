"""The load manager's decisions on any cluster: invariants of plans, placement within policies, splits that split."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.isolation import Isolation, IsolationPolicy
from magnetar.broker.load_balance.load_report import BrokerLoad, BundleLoad, Usage, read_report, report_document
from magnetar.broker.load_balance.plan import decide, place
from magnetar.broker.load_balance.splitting import TopicLoad, boundary
from magnetar.broker.load_balance.view import ClusterView
from magnetar.broker.settings.load_balance import PLACEMENTS, SHEDDERS, SPLITS, LoadBalanceSettings

NAMESPACES = ("a/x", "a/y", "b/x")
rates = st.floats(0, 1e5, allow_nan=False)
bundle_loads = st.builds(
    BundleLoad, rates, rates, rates, rates, st.integers(0, 3000), st.integers(0, 900), st.integers(0, 900)
)
usages = st.builds(Usage, st.floats(0, 100), st.just(100.0))
configs = st.builds(
    LoadBalanceSettings,
    load_balancer_load_placement_strategy=st.sampled_from(PLACEMENTS),
    load_balancer_load_shedding_strategy=st.sampled_from(SHEDDERS),
    load_balancer_distribute_bundles_evenly_enabled=st.booleans(),
    load_balancer_bundle_unload_min_throughput_threshold=st.sampled_from([0.0, 0.001]),
    min_unload_message=st.sampled_from([0.0, 100.0]),
    min_unload_message_throughput=st.just(0.0),
    max_unload_bundle_num_per_shedding=st.sampled_from([-1, 0, 2]),
    load_balancer_broker_threshold_shedder_percentage=st.sampled_from([0.0, 10.0]),
)
isolations = st.builds(
    Isolation,
    st.sampled_from(
        [
            (),
            (IsolationPolicy("p", ("a/.*",), ("b[01]",), ("b2",)),),
            (IsolationPolicy("p", (".*/x",), ("b0",), (), 2),),
        ]
    ),
    st.sampled_from([{}, {"b0": "d0", "b1": "d0", "b2": "d1"}]),
    st.sampled_from([{}, {"a/x": "g", "b/x": "g"}]),
)


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    """Up to five brokers, each bundle owned by one of them."""
    count = draw(st.integers(1, 5))
    owned: list[dict[str, BundleLoad]] = [{} for _ in range(count)]
    for number in range(draw(st.integers(0, 16))):
        name = f"{draw(st.sampled_from(NAMESPACES))}/0x{number:08x}_0x{number + 1:08x}"
        owned[draw(st.integers(0, count - 1))][name] = draw(bundle_loads)
    brokers = {
        f"b{number}": BrokerLoad(
            cpu=draw(usages),
            bandwidth_in=draw(usages),
            bundles=bundles,
            draining=draw(st.integers(0, 4)) == 0,
            updated_ms=1,
        )
        for number, bundles in enumerate(owned)
    }
    names = st.sampled_from([*brokers, "gone"])
    placed = {
        f"{draw(st.sampled_from(NAMESPACES))}/0x{number:08x}_0x{number + 1:08x}": (draw(names), draw(bundle_loads))
        for number in range(100, 100 + draw(st.integers(0, 4)))
    }
    return ClusterView(brokers, draw(isolations), placed)


@given(views(), configs, st.integers(), st.sets(st.integers(0, 16)))
def test_a_plan_keeps_its_promises_on_any_cluster(
    view: ClusterView, config: LoadBalanceSettings, seed: int, cooling: set[int]
) -> None:
    memory = LeaderMemory()
    memory.observe(view.brokers, config)
    bundles = sorted(bundle for load in view.brokers.values() for bundle in load.bundles)
    for number in cooling & set(range(len(bundles))):
        memory.moved(bundles[number], 100.0, config)
    plan = decide(view, memory, config, 200.0, random.Random(seed).random)
    plan.validate(view, memory, config, 200.0)
    assert plan == decide(view, memory, config, 200.0, random.Random(seed).random)


@given(views(), configs, st.integers())
def test_the_threshold_shedder_never_makes_the_most_loaded_broker_worse(
    view: ClusterView, config: LoadBalanceSettings, seed: int
) -> None:
    memory = LeaderMemory()
    memory.observe(view.brokers, config)
    plan = decide(view, memory, config, 0.0, random.Random(seed).random)
    if config.shedder == "ThresholdShedder":
        assert plan.after.peak <= plan.before.peak + 1e-6


@given(views(), configs, st.integers(), st.sampled_from(NAMESPACES))
def test_a_placement_is_on_a_broker_that_may_serve_it(
    view: ClusterView, config: LoadBalanceSettings, seed: int, namespace: str
) -> None:
    memory = LeaderMemory()
    choice = place(f"{namespace}/0xf0000000_0xffffffff", view, memory, config, random.Random(seed).random)
    active = [name for name, load in view.brokers.items() if not load.draining]
    policy = view.isolation.policy_of(namespace)
    if choice.broker is None:
        allowed = [n for n in active if policy is None or policy.is_primary(n) or policy.is_secondary(n)]
        assert not allowed
        assert choice.reason
    else:
        assert choice.broker in active
        assert policy is None or policy.is_primary(choice.broker) or policy.is_secondary(choice.broker)


@given(
    st.sampled_from(SPLITS),
    st.lists(st.builds(TopicLoad, st.integers(0x1000, 0x1FFF), st.floats(0, 1e6)), min_size=2, max_size=40),
)
def test_a_cut_leaves_something_on_both_sides(algorithm: str, topics: list[TopicLoad]) -> None:
    cut = boundary(algorithm, 0x1000, 0x2000, topics)
    below = [topic for topic in topics if cut is not None and topic.place < cut]
    if algorithm == "range_equally_divide":
        assert cut == 0x1800
    elif cut is None:
        assert len({topic.place for topic in topics}) == 1
    else:
        assert 0 < len(below) < len(topics)
        if len({topic.place for topic in topics}) == len(topics) and algorithm == "topic_count_equally_divide":
            assert len(below) == len(topics) // 2


@given(views())
def test_a_report_reads_as_it_was_written(view: ClusterView) -> None:
    for load in view.brokers.values():
        assert read_report(report_document(load, {"pulsarServiceUrl": "pulsar://x:1"})) == load
