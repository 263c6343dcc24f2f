"""The configuration of one seed with a scalable topic."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.testing.sim.messaging.scenario import ACTIONS, MessagingScenario, messaging_scenario
from magnetar.testing.sim.swarm import Aim

QUEUE, STREAM, CHECKPOINT = "queue", "stream", "checkpoint"

TOPIC: Final = "scaled"
"""Local name of the topic."""

AIMED: Final = (
    rf"metadata put before /topics/public/default/{TOPIC}$",
    rf"metadata put after /topics/public/default/{TOPIC}$",
    rf"metadata put (before|after) /topics/public/default/{TOPIC}/(controller|subscriptions/.*)$",
    r"metadata put (before|after) /managed-ledgers/public/default/segment/[^/]+/[^/]+$",
    r"metadata put (before|after) /managed-ledgers/public/default/segment/[^/]+/[^/]+/[^/]+$",
    r"metadata put (before|after) /namespace/",
)
"""Moments of splits, merges and deletions at which a fault may be aimed."""

Step = tuple[str, tuple[int, ...]]
"""`split` of a segment, or `merge` of two, by their ids."""


@dataclass(frozen=True)
class ScalableScenario(MessagingScenario):
    """`subscriptions`: of the kinds queue, stream and checkpoint. `producers`, `keeper`, `hoard` ... as in the other runs with brokers."""

    segments: int = 1
    """At the beginning."""
    change_gap_s: float = 0.5
    """Mean time between two splits or merges by hand."""
    merges: float = 0.4
    """Probability that a change is a merge."""
    steps: tuple[Step, ...] = ()
    """These changes, one after the other, instead of random ones."""
    patience_s: float = 2.0
    """How long a producer that has nothing to do, and a consumer that leaves, stay away at most."""


def scalable_scenario(seed: str) -> ScalableScenario:
    """The configuration that belongs to a seed."""
    base = messaging_scenario(seed)
    rng = random.Random(f"{seed}/scalable")
    kinds = rng.sample((QUEUE, STREAM, STREAM, CHECKPOINT), rng.choice((1, 2, 2, 3)))
    subscriptions = tuple(
        (f"{kind}-{number}", 1 if kind == CHECKPOINT else rng.randint(1, 3)) for number, kind in enumerate(kinds)
    )
    aims = tuple(
        Aim(rng.choice(AIMED), int(rng.expovariate(1 / 5)) + 1, rng.choice((*ACTIONS, "stop self")))
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )
    fields = {name: getattr(base, name) for name in MessagingScenario.__dataclass_fields__}
    scenario = ScalableScenario(**fields)
    faults = tuple(fault for fault in base.faults if fault != "clock jump")
    if rng.random() < 0.3:
        faults += ("client stop",)
    return replace(
        scenario,
        topics=0,
        workers=0,
        brokers=rng.choice((1, 2, 2, 3)),
        producers=rng.choice((1, 2)),
        subscriptions=subscriptions,
        keeper=rng.random() < 0.4,
        deduplicated=False,
        duration_s=rng.uniform(3, 8),
        messages_max=rng.choice((60, 150, 300)),
        keys=rng.choice((3, 10, 40)),
        batch_max=rng.choice((1, 1, 3)),
        gap_s=rng.choice((0.005, 0.02, 0.05)),
        skew_ms=0,
        faults=faults,
        aims=aims,
        segments=rng.choice((1, 1, 2, 4)),
        change_gap_s=rng.choice((0.1, 0.3, 1.0)),
        merges=rng.choice((0.0, 0.3, 0.6)),
        broker=_broker(rng, base.broker),
    )


def _broker(rng: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    return {
        **base,
        "broker_deduplication_enabled": False,
        "scalable_consumer_grace_s": rng.choice((0.5, 3.0)),
        "scalable_auto_scale_enabled": rng.random() < 0.3,
        "scalable_auto_scale_interval_s": rng.choice((0.3, 1.0)),
        "scalable_split_cooldown_s": 1.0,
        "scalable_merge_cooldown_s": 1.0,
        "scalable_merge_window_s": 1.0,
        "scalable_max_segments": rng.choice((4, 16)),
    }
