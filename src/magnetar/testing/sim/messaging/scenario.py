"""The configuration of one seed with brokers: topics, subscriptions, clients, sizes, latencies and a random subset of faults."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from magnetar.testing.sim.swarm import Aim

KINDS: Final = ("Exclusive", "Failover", "Shared", "Key_Shared")

FAULTS: Final = (
    "bookie kill",
    "bookie power",
    "all power",
    "bookie pause",
    "client pause",
    "client kill",
    "cut",
    "one-way cut",
    "reset",
    "metadata drop",
    "metadata cut",
    "session expiry",
    "slow link",
    "slow disk",
    "clock jump",
)
"""Of `sim.faults`. A "client" is a broker, a producer or a consumer here."""

AIMED: Final = (
    r"metadata put before /managed-ledgers/",
    r"metadata put after /managed-ledgers/",
    r"metadata put (before|after) /ledgers/\d\d/\d{4}/L\d{4}$",
    r"metadata delete (before|after) /ledgers/",
    r"metadata put (before|after) /namespace/",
    r"disk fsync (before|after) .*\.journal$",
    r"disk rename (before|after) checkpoint$",
)
"""Moments at which a fault may be aimed."""

ACTIONS: Final = ("kill self", "power self", "pause self", "drop metadata", "cut self", "reset self", "kill other")


@dataclass(frozen=True)
class MessagingScenario:
    """Everything a run is made of. Times in virtual seconds."""

    seed: str
    bookies: int = 3
    brokers: int = 2
    topics: int = 1
    producers: int = 2
    """For each topic."""
    subscriptions: tuple[tuple[str, int], ...] = (("Shared", 2),)
    """Kind and number of consumers, for each topic."""
    keeper: bool = True
    """One more subscription that acknowledges nothing, so that all of the topic can be read at the end. Without it ledgers are trimmed."""
    deduplicated: bool = False
    workers: int = 0
    """Applications that take messages from the first topic and append to the others, in transactions."""
    aborts: float = 0.25
    """Probability that a worker aborts a transaction on purpose."""
    linger: float = 0.05
    """Probability that a worker lets a transaction lie, perhaps until its time is up, or for good."""
    ttl_s: float = 3.0
    """Time-out of transactions."""
    duration_s: float = 6.0
    messages_max: int = 300
    """Of all producers together."""
    keys: int = 8
    batch_max: int = 1
    """Messages of the largest batch; 1: no batches."""
    window: int = 8
    """Entries of a producer without receipt."""
    gap_s: float = 0.02
    payload_bytes_max: int = 200
    queue: int = 10
    """Permits of a consumer."""
    work_s: float = 0.005
    """Mean time that a consumer takes for a message."""
    receipts: float = 0.5
    """Probability that an acknowledgement asks for a receipt."""
    negative: float = 0.0
    """Probability that a consumer asks for a message again. Not with Key_Shared and Failover, where it may change the order."""
    leave: float = 0.0
    """Probability, for each message, that a consumer leaves and comes back: others take over meanwhile."""
    hoard: float = 0.0
    """Probability, for each message, that a consumer keeps it unacknowledged for a while and goes on."""
    delay_s: float = 0.0003
    jitter_s: float = 0.0003
    spike_probability: float = 0.0
    split_probability: float = 0.1
    fsync_s: float = 0.0005
    interleave: float = 0.1
    ordered_names: bool = True
    session_timeout_s: float = 4.0
    skew_ms: int = 0
    faults: tuple[str, ...] = ()
    fault_gap_s: float = 1.0
    outage_s: float = 2.0
    down_max: int = 1
    only_brokers: bool = False
    """Faults of clients hit brokers and no applications."""
    aims: tuple[Aim, ...] = ()
    broker: dict[str, Any] = field(default_factory=dict)
    """Settings of the brokers (`BrokerSettings`)."""
    bookie: dict[str, Any] = field(default_factory=dict)
    """Settings of the bookies (`BookieConfig`)."""

    def text(self) -> str:
        """One `name: value` per line."""
        return "\n".join(f"  {name}: {value}" for name, value in asdict(self).items())


def messaging_scenario(seed: str) -> MessagingScenario:
    """The configuration that belongs to a seed."""
    rng = random.Random(f"{seed}/messaging")
    deduplicated = rng.random() < 0.4
    subscriptions = tuple(
        (kind, 1 if kind == "Exclusive" else rng.randint(1, 3)) for kind in rng.sample(KINDS, rng.choice((1, 1, 2, 3)))
    )
    faults = tuple(name for name in FAULTS if rng.random() < rng.choice((0.1, 0.35)))
    aims = tuple(
        Aim(rng.choice(AIMED), int(rng.expovariate(1 / 6)) + 1, rng.choice(ACTIONS))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    return MessagingScenario(
        seed=seed,
        bookies=rng.choice((3, 3, 4)),
        brokers=rng.choice((1, 2, 2, 3)),
        topics=rng.choice((1, 1, 2)),
        producers=rng.choice((1, 2, 3)),
        subscriptions=subscriptions,
        keeper=rng.random() < 0.6,
        deduplicated=deduplicated,
        duration_s=rng.uniform(2, 8),
        messages_max=rng.choice((60, 200, 400)),
        keys=rng.choice((1, 3, 8, 30)),
        batch_max=rng.choice((1, 1, 3, 70)),
        window=rng.choice((1, 4, 16, 64)),
        gap_s=rng.choice((0.0, 0.005, 0.02, 0.1)),
        payload_bytes_max=rng.choice((10, 200, 2000)),
        queue=rng.choice((1, 3, 10, 100)),
        work_s=rng.choice((0.0, 0.002, 0.02)),
        receipts=rng.choice((0.0, 0.5, 1.0)),
        negative=rng.choice((0.0, 0.0, 0.1)),
        leave=rng.choice((0.0, 0.0, 0.02, 0.1)),
        hoard=rng.choice((0.0, 0.1, 0.5)),
        delay_s=rng.choice((0.0001, 0.0005, 0.005)),
        jitter_s=rng.choice((0.0, 0.0005, 0.01)),
        spike_probability=rng.choice((0.0, 0.0, 0.01)),
        split_probability=rng.choice((0.0, 0.1, 0.5)),
        fsync_s=rng.choice((0.0001, 0.0005, 0.005)),
        interleave=rng.choice((0.0, 0.1)),
        ordered_names=rng.random() < 0.7,
        session_timeout_s=rng.choice((2.0, 4.0)),
        skew_ms=rng.choice((0, 0, 3_600_000)),
        faults=faults,
        fault_gap_s=rng.choice((0.5, 1.0, 3.0)),
        outage_s=rng.choice((0.2, 1.0, 4.0)),
        aims=aims,
        broker=_broker(rng, deduplicated),
        bookie={
            "journal_file_bytes": rng.choice((16, 64)) * 1024,
            "write_cache_bytes": rng.choice((8, 64)) * 1024,
            "entry_log_bytes": rng.choice((16, 64)) * 1024,
            "flush_interval_s": rng.choice((0.1, 0.5, 3.0)),
            "gc_interval_s": rng.choice((0.5, 2.0, 10.0)),
        },
    )


def _broker(rng: random.Random, deduplicated: bool) -> dict[str, Any]:
    size, write_quorum, ack_quorum = rng.choice(((3, 2, 2), (3, 3, 2), (2, 2, 2), (2, 2, 1), (1, 1, 1)))
    return {
        "managed_ledger_ensemble_size": size,
        "managed_ledger_write_quorum": write_quorum,
        "managed_ledger_ack_quorum": ack_quorum,
        "managed_ledger_max_entries_per_ledger": rng.choice((5, 20, 100)),
        "managed_ledger_min_rollover_minutes": 0,
        "managed_ledger_cursor_max_entries_per_ledger": rng.choice((5, 20, 1000)),
        "broker_deduplication_enabled": deduplicated,
        "broker_deduplication_entries_interval": rng.choice((5, 50)),
        "subscription_key_shared_use_consistent_hashing": rng.random() < 0.5,
        "acknowledgment_at_batch_index_level_enabled": rng.random() < 0.5,
        "max_unacked_messages_per_consumer": rng.choice((5, 100, 50_000)),
        "load_balancer_enabled": False,
        "transaction_coordinator_enabled": False,
    }


def without_faults(scenario: MessagingScenario) -> MessagingScenario:
    return replace(scenario, faults=(), aims=())


TRANSACTION_AIMED: Final = (
    r"metadata put (before|after) /managed-ledgers/pulsar/system/persistent/__transaction_log_",
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/.*__transaction_pending_ack",
    r"metadata put (before|after) /managed-ledgers/public/default/persistent/[^/]*/pulsar.transactions",
    r"metadata put (before|after) /namespace/",
    r"disk fsync (before|after) .*\.journal$",
)


def transaction_scenario(seed: str) -> MessagingScenario:
    """The same with transactions; clocks are right, since the time of a transaction is the wall time of its coordinator."""
    base = messaging_scenario(seed)
    rng = random.Random(f"{seed}/transactions")
    aims = tuple(
        Aim(rng.choice(TRANSACTION_AIMED), int(rng.expovariate(1 / 6)) + 1, rng.choice(ACTIONS))
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    broker = {
        **base.broker,
        "transaction_coordinator_enabled": True,
        "initial_num_transaction_coordinators": rng.choice((1, 2, 3)),
        "transaction_buffer_snapshot_max_transaction_count": rng.choice((1, 5, 1000)),
        "transaction_buffer_snapshot_min_time_ms": rng.choice((20, 1000, 5000)),
        "acknowledgment_at_batch_index_level_enabled": True,
    }
    return replace(
        base,
        topics=rng.choice((2, 2, 3)),
        producers=1,
        keeper=True,
        messages_max=rng.choice((60, 120, 200)),
        batch_max=rng.choice((1, 1, 3)),
        workers=rng.choice((1, 2, 3)),
        aborts=rng.choice((0.1, 0.4)),
        linger=rng.choice((0.0, 0.1)),
        ttl_s=rng.choice((1.0, 3.0)),
        skew_ms=0,
        faults=tuple(fault for fault in base.faults if fault != "clock jump"),
        aims=aims,
        broker=broker,
    )
