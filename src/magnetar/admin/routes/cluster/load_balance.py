"""The load manager: which load it sees on which broker, and what it would do. Ours; Pulsar shows neither over HTTP."""

from __future__ import annotations

from starlette.responses import Response

from magnetar.admin.answers import as_json
from magnetar.admin.call import Call
from magnetar.admin.documents.cluster import BrokerLoadRow, LoadPlan
from magnetar.admin.operation import documented
from magnetar.admin.redirects import require_leader
from magnetar.admin.routing import ADMIN, Route
from magnetar.broker.auth.decide import Access

ROOT = f"{ADMIN}/load-balance"


@documented(answer=list[BrokerLoadRow])
async def brokers(call: Call) -> Response:
    """Brokers with the load that they last reported."""
    broker = call.broker
    view = await broker.cluster.load_placement.view()
    leader = await broker.cluster.leadership.leader()
    now_ms = broker.clock.now_ms()
    config = broker.config.settings
    return as_json(
        [
            {
                "broker": name,
                "leader": leader is not None and leader.broker_id == name,
                "usage": load.weighed_percent(config),
                "cpu": load.cpu.percent,
                "memory": load.memory.percent,
                "bandwidthIn": load.bandwidth_in.percent,
                "bandwidthOut": load.bandwidth_out.percent,
                "msgRate": load.rate,
                "throughput": load.throughput,
                "bundles": len(load.bundles) + sum(owner == name for owner, _ in view.placed.values()),
                "topics": load.topics,
                "reportedSecondsAgo": max(0.0, (now_ms - load.updated_ms) / 1000) if load.updated_ms else -1.0,
            }
            for name, load in view.brokers.items()
        ]
    )


@documented(answer=LoadPlan)
async def plan(call: Call) -> Response:
    """What the leader would do now, and why; nothing is done. Other brokers send on to it: it remembers what moved before."""
    broker = call.broker
    await require_leader(call)
    _, found = await broker.load_manager.plan()
    return as_json(
        {
            "leader": broker.ownership.broker_id,
            "moves": [
                {
                    "bundle": move.bundle,
                    "source": move.source,
                    "destination": move.destination,
                    "msgRate": move.load.rate,
                    "throughput": move.load.throughput,
                    "usage": move.percent,
                    "reason": move.reason,
                }
                for move in found.moves
            ],
            "splits": [
                {"bundle": split.bundle, "broker": split.broker, "algorithm": split.algorithm, "reason": split.reason}
                for split in found.splits
            ],
            "held": [{"what": held.what, "reason": held.reason} for held in found.held],
            "peakBefore": found.before.peak,
            "peakAfter": found.after.peak,
            "spreadBefore": found.before.spread,
            "spreadAfter": found.after.spread,
        }
    )


ROUTES = (
    Route("GET", f"{ROOT}/brokers", Access.SUPERUSER, brokers),
    Route("GET", f"{ROOT}/plan", Access.SUPERUSER, plan),
)
