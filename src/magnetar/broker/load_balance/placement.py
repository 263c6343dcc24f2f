"""Chooses a broker for a bundle without an owner: among those that may serve it, the one with the most room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from magnetar.broker.load_balance.view import BrokerProjection, Projection, namespace_of
from magnetar.broker.settings.load_balance import LEAST_MESSAGE_RATE, LEAST_RESOURCE_USAGE, LoadBalanceSettings

Roll = Callable[[], float]
"""A number from 0 up to 1, another one each time."""


class Choice(NamedTuple):
    """The broker, or None; and why."""

    broker: str | None
    reason: str


def choose(
    bundle: str, projection: Projection, settings: LoadBalanceSettings, roll: Roll, without: Iterable[str] = ()
) -> Choice:
    """A broker for `bundle`, none of `without`. Isolation is strict: a namespace with a policy never goes elsewhere."""
    active, left_out = projection.active, set(without)
    if not active:
        return Choice(None, "no broker takes bundles: all drain, or none is there")
    namespace = namespace_of(bundle)
    eligible = projection.eligible(namespace)
    names = [name for name in eligible.brokers if name not in left_out]
    if not names:
        return Choice(None, eligible.reason if not eligible.brokers else "no other broker may serve it")
    reasons = [eligible.reason] if eligible.reason else []
    spread = names
    if namespace in projection.isolation.groups:
        spread = projection.isolation.spread(namespace, names, projection.owners())
    if len(spread) < len(names):
        reasons.append("away from its anti-affinity group")
    names = _with_room(spread, active, settings)
    if settings.load_balancer_distribute_bundles_evenly_enabled:
        counts = [active[name].namespaces.get(namespace, 0) for name in names]
        fewest = min(counts)
        names = [name for name, count in zip(names, counts, strict=True) if count == fewest]
    broker, why = _by_load(names, active, settings, roll)
    return Choice(broker, "; ".join([*reasons, why]))


def _with_room(names: list[str], active: Mapping[str, BrokerProjection], settings: LoadBalanceSettings) -> list[str]:
    """The brokers that are not full or overloaded, unless all are: a bundle without an owner would be worse."""
    topics_max, overloaded = (
        settings.load_balancer_broker_max_topics,
        settings.load_balancer_broker_overloaded_threshold_percentage,
    )
    roomy = [name for name in names if active[name].percent < overloaded and active[name].topics < topics_max]
    return roomy or [name for name in names if active[name].topics < topics_max] or names


def _by_load(
    names: list[str], active: Mapping[str, BrokerProjection], settings: LoadBalanceSettings, roll: Roll
) -> tuple[str, str]:
    if len(names) == 1:
        return names[0], "the only one left"
    if settings.placement == LEAST_MESSAGE_RATE:
        return _least(names, active, roll)
    if settings.placement == LEAST_RESOURCE_USAGE:
        mean = sum(active[name].percent for name in names) / len(names)
        below = [
            name
            for name in names
            if active[name].percent + settings.load_balancer_average_resource_usage_difference_threshold_percentage
            <= mean
        ]
        picked = below or names
        name = picked[int(roll() * len(picked))]
        what = "well below" if below else "near"
        return name, f"usage {active[name].percent:.0f} % is {what} the mean of {mean:.0f} %"
    room = [max(1.0, 100.0 - active[name].percent) for name in names]
    place = roll() * sum(room)
    for name, weight in zip(names, room, strict=True):
        place -= weight
        if place < 0:
            return name, f"drawn by free capacity, usage {active[name].percent:.0f} %"
    return names[-1], f"drawn by free capacity, usage {active[names[-1]].percent:.0f} %"


def _least(names: list[str], active: Mapping[str, BrokerProjection], roll: Roll) -> tuple[str, str]:
    """The fewest messages; among equals the fewest bundles, then by chance."""
    rate = min([active[name].rate for name in names])
    ties = [name for name in names if active[name].rate == rate]
    count = min([len(active[name].bundles) for name in ties])
    ties = [name for name in ties if len(active[name].bundles) == count]
    return ties[int(roll() * len(ties))], f"least loaded: {rate:.0f} messages/s, {count} bundles"
