"""The expanded configuration of one seed: a random subset of faults, sizes, latencies.

Short, small and lopsided runs find more than long and mild ones."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

QUORUMS: Final = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 2, 2), (3, 3, 2), (3, 2, 1), (3, 3, 3), (4, 3, 2), (5, 3, 2))
"""(E, Qw, Qa)"""

REPAIRABLE: Final = (
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
    "disk full",
    "clock jump",
)
"""Faults that pass: afterwards everything must work and nothing may be missing."""

LASTING: Final = ("disk errors", "bit rot", "wipe", "bookie loss")
"""Faults that may cost one bookie its data: only ever of the same bookie in a run, and only when every ledger has Qa >= 2 and its ack
quorum can be reached without that bookie."""

AIMED: Final = (
    r"disk rename before checkpoint$",
    r"disk rename after checkpoint$",
    r"disk fsync (before|after) .*\.log$",
    r"disk fsync (before|after) .*\.journal$",
    r"disk write after .*\.journal$",
    r"disk fsync (before|after) index\.sim$",
    r"disk rename (before|after) .*\.journal$",
    r"disk rename (before|after) .*\.spare$",
    r"disk unlink (before|after) .*\.log$",
    r"disk write after .*\.log$",
    r"metadata put before /ledgers/\d\d/\d{4}/L\d{4}$",
    r"metadata put after /ledgers/\d\d/\d{4}/L\d{4}$",
    r"client fence sent",
    r"client fence answered",
    r"client recovery-read answered",
    r"client recovery-add sent",
    r"client recovery-add answered",
    r"client add answered",
)
"""Moments at which a fault may be aimed."""

ACTIONS: Final = (
    "kill self",
    "power self",
    "pause self",
    "drop metadata",
    "kill other",
    "power other",
    "cut self",
    "reset self",
    "pause other",
)
"""The faults of an aim. `self` is the process (or machine) that does it, `other` a random one of the other kind."""


@dataclass(frozen=True)
class Aim:
    """Do `action` the `count`-th time that a moment matches `moment`."""

    moment: str
    count: int
    action: str


@dataclass(frozen=True)
class Scenario:
    """Everything a run is made of. Times in virtual seconds."""

    seed: str
    bookies: int = 3
    writers: int = 2
    recoverers: int = 1
    readers: int = 1
    duration_s: float = 10.0
    quorums: tuple[tuple[int, int, int], ...] = ((3, 2, 2),)
    ledgers_max: int = 20
    entries_max: int = 500
    """Entries of all ledgers together, after which writers rest."""
    ledger_entries_max: int = 60
    window: int = 16
    payload_bytes_max: int = 400
    gap_s: float = 0.01
    """Mean pause between two appends of a writer; 0: none."""
    close_probability: float = 0.5
    delete_probability: float = 0.1
    takeover_probability: float = 0.4
    """Probability that a recoverer takes a ledger that is still being written."""
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
    """Mean time between two faults."""
    outage_s: float = 2.0
    """Mean time until a fault is undone."""
    down_max: int = 1
    """Bookies that faults may have down at a time; `all power` does not count."""
    aims: tuple[Aim, ...] = ()
    channel: dict[str, Any] = field(default_factory=dict)
    """Settings of the clients' connections (`ChannelOptions`)."""
    client: dict[str, Any] = field(default_factory=dict)
    """Settings of the clients (`ClientConfig`)."""
    autorecovery: int = 0
    """Processes that audit and re-replicate."""
    recovery: dict[str, Any] = field(default_factory=dict)
    """Their settings (`AutoRecoveryConfig`)."""
    bookie: dict[str, Any] = field(default_factory=dict)
    """Settings of the bookies (`BookieConfig`)."""

    def text(self) -> str:
        """One `name: value` per line."""
        return "\n".join(f"  {name}: {value}" for name, value in asdict(self).items())


def scenario(seed: str) -> Scenario:
    """The configuration that belongs to a seed."""
    rng = random.Random(f"{seed}/swarm")
    lasting = rng.random() < 0.25
    bookies = rng.choice((3, 3, 4, 5, 6))
    quorums = [
        (size, write_quorum, ack_quorum)
        for size, write_quorum, ack_quorum in QUORUMS
        if size <= bookies and (not lasting or (ack_quorum >= 2 and (ack_quorum < write_quorum or size < bookies)))
    ]
    chosen = tuple(rng.sample(quorums, min(len(quorums), rng.randint(1, 3))))
    faults = [name for name in REPAIRABLE if rng.random() < rng.choice((0.15, 0.4))]
    if lasting:
        faults.append(rng.choice(LASTING))
    aims = tuple(
        Aim(rng.choice(AIMED), int(rng.expovariate(1 / 8)) + 1, rng.choice(ACTIONS))
        for _ in range(rng.choice((0, 0, 1, 2, 4)))
    )
    return Scenario(
        seed=seed,
        bookies=bookies,
        writers=rng.randint(1, 3),
        recoverers=rng.choice((0, 1, 1, 2)),
        readers=rng.choice((0, 1, 1, 2)),
        duration_s=rng.uniform(2, 8),
        quorums=chosen,
        ledgers_max=rng.choice((3, 10, 25)),
        entries_max=rng.choice((100, 300, 600)),
        ledger_entries_max=rng.choice((5, 20, 60, 200)),
        window=rng.choice((1, 4, 16, 64)),
        payload_bytes_max=rng.choice((10, 100, 400, 2000)),
        gap_s=rng.choice((0.0, 0.001, 0.01, 0.05)),
        close_probability=rng.choice((0.0, 0.5, 0.9)),
        delete_probability=rng.choice((0.0, 0.1, 0.5)),
        takeover_probability=rng.choice((0.1, 0.5, 1.0)),
        delay_s=rng.choice((0.0001, 0.0005, 0.005)),
        jitter_s=rng.choice((0.0, 0.0005, 0.01)),
        spike_probability=rng.choice((0.0, 0.0, 0.01, 0.1)),
        split_probability=rng.choice((0.0, 0.1, 0.5)),
        fsync_s=rng.choice((0.0001, 0.0005, 0.005)),
        interleave=rng.choice((0.0, 0.1, 0.5)),
        ordered_names=rng.random() < 0.7,
        session_timeout_s=rng.choice((2.0, 4.0, 10.0)),
        skew_ms=rng.choice((0, 0, 3_600_000)),
        faults=tuple(faults),
        fault_gap_s=rng.choice((0.2, 0.7, 2.0)),
        outage_s=rng.choice((0.2, 1.0, 4.0, 8.0)),
        down_max=rng.choice((1, 1, 2)),
        aims=aims,
        bookie=_bookie(rng),
        autorecovery=rng.choice((0, 0, 1, 2)),
        recovery=_recovery(rng),
        channel=_channel(rng),
        client={
            "delay_ensemble_change": rng.random() < 0.3,
            "explicit_lac_interval_s": rng.choice((0.0, 0.0, 0.2)),
            "speculative_read_timeout_s": rng.choice((0.05, 2.0)),
            "recovery_reads_under_way": rng.choice((1, 16)),
            "add_hedge_s": rng.choice((0.0, 0.05, 0.4)),
        },
    )


def quiet(scenario: Scenario) -> Scenario:
    """The same without any fault."""
    return replace(scenario, faults=(), aims=())


def _channel(rng: random.Random) -> dict[str, Any]:
    timeout_s = rng.choice((0.3, 1.0, 5.0, 5.0))
    return {"add_timeout_s": timeout_s, "read_timeout_s": timeout_s, "connect_timeout_s": 2 * timeout_s}


def _recovery(rng: random.Random) -> dict[str, Any]:
    return {
        "lost_bookie_recovery_delay_s": rng.choice((0, 0, 2)),
        "auditor_periodic_bookie_check_interval_s": rng.choice((2.0, 10.0)),
        "auditor_periodic_check_interval_s": rng.choice((0.0, 4.0)),
        "auditor_replicas_check_interval_s": rng.choice((2.0, 10.0)),
        "auditor_second_look_s": 3.0,
        "open_ledger_rereplication_grace_period_s": rng.choice((0.5, 3.0)),
        "rereplication_entry_batch_size": rng.choice((1, 10, 64)),
        "failed_ledger_backoff_s": 0.5,
        "failed_ledger_backoff_max_s": 4.0,
        "poll_interval_s": 1.0,
        "read_timeout_s": rng.choice((2.0, 10.0)),
    }


def _bookie(rng: random.Random) -> dict[str, Any]:
    return {
        "journal_file_bytes": rng.choice((4, 16, 64)) * 1024,
        "journal_preallocate_bytes": rng.choice((512, 4096)),
        "write_cache_bytes": rng.choice((1, 8, 64)) * 1024,
        "entry_log_bytes": rng.choice((4, 16, 64)) * 1024,
        "flush_interval_s": rng.choice((0.1, 0.5, 3.0)),
        "gc_interval_s": rng.choice((0.5, 2.0, 10.0)),
        "read_cache_bytes": rng.choice((1, 64)) * 1024,
        "minor_compaction_interval_s": rng.choice((0.5, 3.0)),
        "major_compaction_interval_s": rng.choice((1.0, 6.0)),
        "tombstone_retention_s": rng.choice((5.0, 3600.0)),
        "compaction_step_bytes": rng.choice((256, 4096)),
    }
