"""Deliberate bugs in the load manager, patched into the running code. Each has a script of its own, and a focus for seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_manager.manager import PastMoves
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.testing.sim.balance.run import BalanceScenario
from magnetar.testing.sim.mutations import patch_attribute
from magnetar.testing.sim.swarm import Aim

Patch = Callable[[ExitStack], None]


class Mutation(NamedTuple):
    """One deliberate bug. `script` and `focus`: fields of the scenario; `broker` is merged into the other settings."""

    patch: Patch
    script: Mapping[str, Any]
    focus: Mapping[str, Any]


MUTATIONS: dict[str, Mutation] = {}
"""By name."""

BROKER: Final[Mapping[str, Any]] = {
    "load_balancer_enabled": True,
    "load_balancer_report_update_min_interval_ms": 200,
    "load_balancer_report_update_threshold_percentage": 1.0,
    "load_balancer_shedding_interval_minutes": 0.01,
    "load_balancer_shedding_grace_period_minutes": 0.4,
    "load_balancer_load_shedding_strategy": "ThresholdShedder",
    "load_balancer_history_resource_percentage": 0.0,
    "load_balancer_broker_threshold_shedder_percentage": 5.0,
    "load_balancer_bundle_unload_min_throughput_threshold": 0.0,
    "managed_ledger_ensemble_size": 2,
    "managed_ledger_write_quorum": 2,
    "managed_ledger_ack_quorum": 2,
    "transaction_coordinator_enabled": False,
}
"""The leader decides every 0.6 s, and what it has moved stays for 24 s."""

RESTLESS: Final[Mapping[str, Any]] = {
    "topics": 6,
    "gap_s": 0.2,
    "weather_gap_s": 1.5,
    "duration_s": 25.0,
    "messages_max": 1500,
}


def script_of(name: str) -> BalanceScenario:
    """Two brokers that are busy in turn, and what the bug's script says."""
    fields = dict(MUTATIONS[name].script)
    broker = {**BROKER, **fields.pop("broker", {})}
    base = BalanceScenario(name, producers=1, subscriptions=(("Failover", 1),), keeper=False, broker=broker)
    return replace(base, **{**RESTLESS, **fields})


def focused(scenario: BalanceScenario, name: str) -> BalanceScenario:
    """The scenario, changed so that the rule which the bug undoes matters."""
    focus = dict(MUTATIONS[name].focus)
    broker = {**scenario.broker, **BROKER, **focus.pop("broker", {})}
    return replace(scenario, broker=broker, **{**RESTLESS, **focus})


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The bug is in the code while this lasts."""
    with ExitStack() as stack:
        MUTATIONS[name].patch(stack)
        yield


def _mutation(name: str, script: Mapping[str, Any], focus: Mapping[str, Any]) -> Callable[[Patch], Patch]:
    def register(patch: Patch) -> Patch:
        MUTATIONS[name] = Mutation(patch, script, focus)
        return patch

    return register


@_mutation("a bundle that was moved may move again at once", {}, {"faults": (), "aims": ()})
def _no_cooling(stack: ExitStack) -> None:
    patch_attribute(stack, LeaderMemory, "cooling_s", lambda self, bundle, now_s, settings: 0.0)


STOPPED: Final = tuple(Aim(r"metadata put after /loadbalance/orders/", count, "stop self") for count in (1, 2, 3))


@_mutation(
    "the next leader does not know what was moved",
    {"brokers": 3, "topics": 8, "aims": STOPPED[:1], "duration_s": 30.0, "weather_gap_s": 3.0},
    {"faults": ("client stop",), "only_brokers": True, "fault_gap_s": 3.0, "aims": STOPPED},
)
def _forgotten(stack: ExitStack) -> None:
    """As in Pulsar."""

    async def read(self: Any) -> dict[str, float]:
        return {}

    patch_attribute(stack, PastMoves, "read", read)


@_mutation(
    "a bundle is split where no boundary may be",
    {"broker": {"load_balancer_namespace_bundle_max_topics": 1}},
    {"faults": (), "aims": (), "broker": {"load_balancer_namespace_bundle_max_topics": 1}},
)
def _boundary_lost(stack: ExitStack) -> None:
    """The new boundary takes the place of the upper one."""
    original = Ownership.split

    async def split(self: Any, bundle: Any, middle: str) -> Any:
        return await original(self, bundle, bundle.range.partition("_")[2])

    patch_attribute(stack, Ownership, "split", split)
