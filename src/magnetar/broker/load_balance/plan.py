"""One round of the load manager: what would be split and what would move, with reasons; nothing happens here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from magnetar.broker.load_balance.cooldown import LeaderMemory
from magnetar.broker.load_balance.load_report import BundleLoad
from magnetar.broker.load_balance.placement import Choice, Roll, choose
from magnetar.broker.load_balance.shedding import Held, Move, Shedder
from magnetar.broker.load_balance.splitting import Split, decide_splits
from magnetar.broker.load_balance.view import ClusterView, Imbalance, Projection
from magnetar.broker.settings.load_balance import LoadBalanceSettings

EVEN: Final = Imbalance()


@dataclass(frozen=True, slots=True)
class Plan:
    """`before` and `after`: how uneven usage is now, and by estimate once the moves have been made."""

    moves: tuple[Move, ...] = ()
    splits: tuple[Split, ...] = ()
    held: tuple[Held, ...] = ()
    before: Imbalance = EVEN
    after: Imbalance = EVEN

    def validate(self, view: ClusterView, memory: LeaderMemory, settings: LoadBalanceSettings, now_s: float) -> None:
        """Assert what must hold of any plan for this view."""
        touched = [split.bundle for split in self.splits] + [move.bundle for move in self.moves]
        assert len(touched) == len(set(touched)), "no bundle is touched twice"
        for split in self.splits:
            assert split.bundle in view.brokers[split.broker].bundles
            assert split.load.topics > 1
        percents = dict.fromkeys((name for name, load in view.brokers.items() if not load.draining), 0.0)
        for move in self.moves:
            assert move.bundle in view.brokers[move.source].bundles, "only an owner gives a bundle up"
            assert move.source != move.destination
            assert move.destination in percents, "a broker that drains takes nothing"
            assert not view.brokers[move.source].draining, "a broker that drains gives up by itself"
            assert memory.cooling_s(move.bundle, now_s, settings) == 0
            policy = view.isolation.policy_of(move.bundle.rpartition("/")[0])
            if policy is not None:
                assert policy.is_primary(move.destination) or policy.is_secondary(move.destination)
        if settings.max_unload_bundle_num_per_shedding >= 0:
            assert len(self.moves) <= settings.max_unload_bundle_num_per_shedding


def decide(
    view: ClusterView,
    memory: LeaderMemory,
    settings: LoadBalanceSettings,
    now_s: float,
    roll: Roll,
    bundle_counts: Mapping[str, int] | None = None,
) -> Plan:
    """Splits first; what is split does not move in the same round. `memory` is only read."""
    projection = Projection(view, settings, memory.usage)
    before = projection.imbalance()
    splits: list[Split] = []
    held: list[Held] = []
    if settings.load_balancer_auto_bundle_split_enabled:
        splits, held = decide_splits(projection, bundle_counts or {}, settings, without=view.placed)
    moves: list[Move] = []
    if settings.load_balancer_shedding_enabled:
        changing = {split.bundle for split in splits} | set(view.placed)

        def cooling_s(bundle: str) -> float:
            return settings.grace_period_s if bundle in changing else memory.cooling_s(bundle, now_s, settings)

        shedder = Shedder(projection, settings, roll, cooling_s)
        shedder.run()
        moves = shedder.moves
        held += shedder.held
    return Plan(tuple(moves), tuple(splits), tuple(held), before, projection.imbalance())


def place_all(
    bundles: Mapping[str, BundleLoad],
    view: ClusterView,
    memory: LeaderMemory,
    settings: LoadBalanceSettings,
    roll: Roll,
) -> dict[str, Choice]:
    """Many bundles with the loads expected of them, one after the other: each counts where the next one is placed."""
    projection = Projection(view, settings, memory.usage)
    placed = {}
    for bundle, load in bundles.items():
        placed[bundle] = choice = choose(bundle, projection, settings, roll)
        if choice.broker is not None:
            standing = projection.standing[choice.broker]
            standing.add(bundle, load, standing.percent_of(load))
    return placed


def place(
    bundle: str,
    view: ClusterView,
    memory: LeaderMemory,
    settings: LoadBalanceSettings,
    roll: Roll,
    without: Iterable[str] = (),
) -> Choice:
    """A broker, none of `without`, for one bundle that nobody owns."""
    return choose(bundle, Projection(view, settings, memory.usage), settings, roll, without)
