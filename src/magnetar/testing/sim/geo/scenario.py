"""The configuration of one seed with several clusters (sites), each with bookies, brokers and metadata of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from magnetar.testing.sim.messaging.scenario import ACTIONS, MessagingScenario, messaging_scenario
from magnetar.testing.sim.swarm import Aim

SITE_NAMES: Final = ("west", "east", "north")

SITE_FAULTS: Final = ("site cut", "site one-way cut", "site slow", "site reset", "site away")
"""Between the brokers of two sites, or (away) of one site and all others."""

AIMED: Final = (
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/[^/]+/pulsar\.repl\.",
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/[^/]+/pulsar\.replicated\.",
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/[^/]+/pulsar\.dedup",
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/[^/]+$",
    r"metadata put (before|after) /namespace/",
    r"disk fsync (before|after) .*\.journal$",
)
"""Moments of replication at which a fault may be aimed."""

KINDS: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")


@dataclass(frozen=True)
class GeoScenario(MessagingScenario):
    """`bookies`, `brokers`, `producers`: of each site. `subscriptions`: each is replicated, and consumed at one site at a time."""

    sites: int = 2
    far_s: float = 0.02
    """What the way between two sites adds to each delay."""
    failover_gap_s: float = 1.5
    """Mean time between two failovers of a subscription to another site."""
    between_s: float = 0.0
    """Longest time between leaving one site and going on in the other."""
    failovers: tuple[tuple[float, str], ...] = ()
    """Failovers of all subscriptions, each at its time and to its site (empty: to none), instead of random ones."""
    everywhere: bool = True
    """Subscriptions are made at every site before the first message; else at the first one, and by its updates elsewhere."""
    site_faults: tuple[str, ...] = ()
    site_fault_gap_s: float = 1.0
    quiet_sites: tuple[str, ...] = ()
    """Sites where nobody produces."""

    @property
    def site_names(self) -> tuple[str, ...]:
        return SITE_NAMES[: self.sites]


def geo_scenario(seed: str) -> GeoScenario:
    """The configuration that belongs to a seed."""
    base = messaging_scenario(seed)
    rng = random.Random(f"{seed}/geo")
    aims = tuple(
        Aim(rng.choice(AIMED), int(rng.expovariate(1 / 4)) + 1, rng.choice(ACTIONS))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    keeper = rng.random() < 0.7
    far_s = rng.choice((0.002, 0.02, 0.1))
    kinds = rng.sample(KINDS, rng.choice((1, 1, 2)))
    sites = rng.choice((2, 2, 2, 3))
    fields = {name: getattr(base, name) for name in MessagingScenario.__dataclass_fields__}
    return replace(
        GeoScenario(**fields),
        sites=sites,
        bookies=2,
        brokers=rng.choice((1, 1, 2)),
        topics=1,
        producers=rng.choice((1, 1, 2)),
        subscriptions=tuple((kind, 1 if kind == "Exclusive" else rng.randint(1, 2)) for kind in kinds),
        keeper=keeper,
        duration_s=rng.uniform(3, 8),
        messages_max=rng.choice((60, 120, 240)),
        batch_max=rng.choice((1, 1, 1, 3)),
        gap_s=rng.choice((0.005, 0.02, 0.05)),
        negative=0.0,
        faults=tuple(fault for fault in base.faults if fault != "clock jump"),
        aims=aims,
        skew_ms=rng.choice((0, 0, 3_600_000)),
        far_s=far_s,
        failover_gap_s=rng.choice((0.5, 1.5, 4.0)),
        between_s=rng.choice((0.0, 0.0, 1.0)),
        everywhere=not keeper or rng.random() < 0.7,
        site_faults=tuple(fault for fault in SITE_FAULTS if rng.random() < 0.35),
        site_fault_gap_s=rng.choice((0.5, 1.5, 4.0)),
        quiet_sites=SITE_NAMES[1:sites] if rng.random() < 0.2 else (),
        broker=_broker(rng, base.broker, far_s),
    )


def _broker(rng: random.Random, base: dict[str, Any], far_s: float) -> dict[str, Any]:
    """A snapshot takes several ways between sites: one that may send a single entry at a time, far away, would never complete in time."""
    size, write_quorum, ack_quorum = rng.choice(((2, 2, 2), (2, 2, 1), (1, 1, 1)))
    return {
        **base,
        "managed_ledger_ensemble_size": size,
        "managed_ledger_write_quorum": write_quorum,
        "managed_ledger_ack_quorum": ack_quorum,
        "replication_start_at": "earliest",
        "replication_producer_queue_size": rng.choice((1, 5, 1000) if far_s < 0.1 else (5, 1000)),
        "replicated_subscriptions_snapshot_frequency_ms": rng.choice((50, 200, 1000)),
        "replicated_subscriptions_snapshot_timeout_s": rng.choice((5, 30)),
        "replicated_subscriptions_snapshot_max_cached_per_subscription": rng.choice((3, 30)),
    }
