"""Why a bundle is on its broker, what would move it, and where it would go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from magnetar.broker.explain.answer import Explanation
from magnetar.broker.explain.sentences import in_order, verdict
from magnetar.broker.load_balance.placement import choose
from magnetar.broker.load_balance.view import Projection
from magnetar.broker.load_manager.manager import LoadManager, LoadPlacement
from magnetar.broker.namespaces.ownership import Ownership
from magnetar.broker.namespaces.records import BundleName
from magnetar.broker.reasons import Code, Reason, because
from magnetar.broker.settings.load_balance import LoadBalanceSettings

MIDDLE = 0.5
"""The number that a what-if draws: the same each time."""


async def explain_bundle(
    bundle: BundleName,
    topic: str,
    ownership: Ownership,
    manager: LoadManager,
    placement: LoadPlacement,
    settings: LoadBalanceSettings,
    if_broker_dies: str = "",
) -> Explanation:
    """At the leader, which remembers what has moved before. `if_broker_dies`: id of a broker, `host:port` of its admin API."""
    name = str(bundle)
    owner = await ownership.owner(bundle)
    view, plan = await manager.plan()
    projection = Projection(view, settings, placement.memory.usage)
    reasons: list[Reason] = []
    details: dict[str, Any] = {"bundle": name, "broker": owner.broker_id if owner is not None else None}
    if owner is None:
        choice = choose(name, projection, settings, _middle)
        reasons.append(because(Code.BUNDLE_UNOWNED, bundle=name, broker=choice.broker or "none", problem=choice.reason))
    elif owner.leaving:
        successor = owner.successor or "any broker"
        reasons.append(because(Code.BUNDLE_LEAVING, bundle=name, broker=owner.broker_id, successor=successor))
    else:
        reasons += _of_owner(name, owner.broker_id, projection)
        moves = [move for move in plan.moves if move.bundle == name]
        splits = [split for split in plan.splits if split.bundle == name]
        reasons += [
            because(Code.BUNDLE_WOULD_MOVE, bundle=name, broker=move.destination, problem=move.reason) for move in moves
        ]
        reasons += [because(Code.BUNDLE_WOULD_SPLIT, bundle=name, problem=split.reason) for split in splits]
        reasons += [
            because(Code.BUNDLE_HELD, bundle=name, problem=held.reason)
            for held in plan.held
            if held.what in (name, owner.broker_id)
        ]
    details["brokers"] = {
        other: {"usage": round(standing.percent, 1), "bundles": len(standing.bundles), "draining": standing.draining}
        for other, standing in projection.standing.items()
    }
    if if_broker_dies:
        details["what_if"] = _after_death(name, owner.broker_id if owner else "", if_broker_dies, projection, settings)
    reasons = in_order(reasons)
    moving = owner is not None and not owner.leaving
    subject = {"kind": "bundle", "topic": topic, "bundle": name}
    return Explanation(subject, verdict(f"Bundle {name}", moving, reasons), moving, reasons, details)


def _middle() -> float:
    return MIDDLE


def _of_owner(name: str, owner: str, projection: Projection) -> list[Reason]:
    standing = projection.standing.get(owner)
    namespace = name.rpartition("/")[0]
    policy = projection.isolation.policy_of(namespace)
    eligible = projection.eligible(namespace).brokers
    return [
        because(
            Code.BUNDLE_SERVED,
            bundle=name,
            broker=owner,
            usage=round(standing.percent, 1) if standing is not None else 0.0,
            bundles=len(standing.bundles) if standing is not None else 0,
            others=[each for each in eligible if each != owner],
            isolated=policy is not None,
        )
    ]


BUNDLES_MAX: Final = 512
"""Bundles of a broker that are given new ones in an answer, those of the topic's namespace first."""


def _after_death(
    name: str, owner: str, dead: str, projection: Projection, settings: LoadBalanceSettings
) -> dict[str, Any]:
    """Where it would go, with all other bundles of that broker; for the namespace of the bundle the ranges before and after."""
    known = dead in projection.standing
    before = {bundle: broker for broker, standing in projection.standing.items() for bundle in standing.bundles}
    if owner:
        before[name] = owner
    gone = [bundle for bundle, broker in before.items() if broker == dead]
    namespace = name.rpartition("/")[0]
    gone.sort(key=lambda bundle: (bundle != name, bundle.rpartition("/")[0] != namespace, bundle))
    after = dict(before)
    reasons: dict[str, str] = {}
    for bundle in gone[:BUNDLES_MAX]:
        choice = choose(bundle, projection, settings, _middle, (dead,))
        reasons[bundle] = choice.reason
        if choice.broker is None:
            del after[bundle]
            continue
        after[bundle] = choice.broker
        if known and bundle in projection.standing[dead].bundles:
            projection.move(bundle, dead, choice.broker)
    return {
        "broker_dies": dead,
        "known": known,
        "moves": owner == dead,
        "broker_after": after.get(name) if owner else None,
        "reason": reasons.get(name, "another broker has it"),
        "bundles_moved": len(gone),
        "ranges_before": _ranges(namespace, before),
        "ranges_after": _ranges(namespace, after),
    }


def _ranges(namespace: str, owners: Mapping[str, str]) -> list[list[Any]]:
    """(first hash, last hash, broker) of a namespace's bundles, ascending."""
    found = []
    for bundle, broker in owners.items():
        space, _, edges = bundle.rpartition("/")
        if space == namespace:
            low, _, high = edges.partition("_")
            found.append([int(low, 16), max(int(high, 16) - 1, int(low, 16)), broker])
    return sorted(found)
