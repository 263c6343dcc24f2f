"""Why a bundle is on its broker, what would move it, and where it would go."""

from __future__ import annotations

from typing import Any

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
    if if_broker_dies:
        details["what_if"] = _after_death(name, owner.broker_id if owner else "", if_broker_dies, projection, settings)
    details["brokers"] = {
        other: {"usage": round(standing.percent, 1), "bundles": len(standing.bundles), "draining": standing.draining}
        for other, standing in projection.standing.items()
    }
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


def _after_death(
    name: str, owner: str, dead: str, projection: Projection, settings: LoadBalanceSettings
) -> dict[str, Any]:
    """Where it would go."""
    known = dead in projection.standing
    if owner != dead:
        return {
            "broker_dies": dead,
            "known": known,
            "moves": False,
            "broker_after": owner or None,
            "reason": "another broker has it",
        }
    choice = choose(name, projection, settings, _middle, (dead,))
    moved = sum(True for each in projection.standing[dead].bundles) if known else 0
    return {
        "broker_dies": dead,
        "known": known,
        "moves": True,
        "broker_after": choice.broker,
        "reason": choice.reason,
        "bundles_moved": moved,
    }
