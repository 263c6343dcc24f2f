"""The simulation at a small scale: the load manager beats what it is compared with, by its own decisions."""

from __future__ import annotations

from magnetar.broker.load_balance.simulation import LOAD_MANAGER, MODULO, RANDOM, RING, Scenario, simulate
from magnetar.broker.settings.load_balance import UNIFORM, LoadBalanceSettings


def test_less_uneven_than_all_and_not_much_more_moved_than_a_ring_must() -> None:
    scenario = Scenario(brokers=40, topics=20_000, steps=40, namespaces=20)
    for config in (LoadBalanceSettings(), LoadBalanceSettings(load_balancer_load_shedding_strategy=UNIFORM)):
        found = simulate(scenario, config)
        spread = {name: sum(sample.spread for sample in each) / len(each) for name, each in found.items()}
        moved = {name: sum(sample.moved for sample in each) for name, each in found.items()}
        assert spread[LOAD_MANAGER] < 0.8 * min(spread[RANDOM], spread[RING])
        assert moved[LOAD_MANAGER] < 0.25 * moved[MODULO]
        assert all(sample.moved >= sample.forced for each in found.values() for sample in each)
        lost = found[LOAD_MANAGER][10]
        assert lost.event == "2 brokers lost"
        assert lost.forced > 0
    assert found == simulate(scenario, config), "the same seed, the same story"
