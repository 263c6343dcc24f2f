"""From what there is and what is wanted to what there shall be. A cluster grows; it never shrinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from magnetar.processes.cluster.command_lines import parse_setting
from magnetar.processes.cluster.errors import ClusterError
from magnetar.processes.cluster.plan import (
    AUTORECOVERY,
    BOOKIE,
    BROKER,
    METADATA,
    START_ORDER,
    ZOOKEEPER,
    ClusterPlan,
    ProcessPlan,
)

PORTS = {
    METADATA: ("zk",),
    ZOOKEEPER: ("zk",),
    BOOKIE: ("bookie", "http"),
    AUTORECOVERY: ("http",),
    BROKER: ("pulsar", "http"),
}
"""What a process of each role listens for; the first is its main address."""

ENSEMBLE_PORTS = ("zk", "quorum", "election")
"""What a member of a ZooKeeper ensemble listens for."""

COPIES = 2
"""Of each entry, in a new cluster with so many bookies."""

COUNT_MAX = 99
"""Processes of a role; a machine is full long before."""

ZOOKEEPER_COUNTS = (0, 1, 3, 5, 7)
"""Sizes of a ZooKeeper ensemble; 0: the embedded metadata server instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What `up` is asked for. None: as the cluster is, or the default for a new one. Ports 0: any free one.

    `zookeeper`: servers of the ZooKeeper ensemble (1, 3, 5 or 7); 0 for the embedded metadata server.
    """

    bookies: int | None = None
    brokers: int | None = None
    autorecovery: int | None = None
    zookeeper: int | None = None
    ensemble: tuple[int | None, int | None, int | None] = (None, None, None)
    settings: Sequence[str] = ()
    broker_port: int = 0
    broker_http_port: int = 0


def grown(before: ClusterPlan | None, wish: Wish, free_ports: Callable[[int], list[int]]) -> ClusterPlan:
    """The cluster with everything that `wish` adds. Raises ClusterError for what cannot be had, ConfigError for settings."""
    plan = before or ClusterPlan((0, 0, 0))
    new = before is None
    ensemble = _zookeepers(plan, wish, new)
    counts = {
        METADATA: 0 if ensemble else 1,
        ZOOKEEPER: ensemble,
        BOOKIE: _count(wish.bookies, 3 if new else 0, "bookies"),
        AUTORECOVERY: _count(wish.autorecovery, 0, "autorecovery"),
        BROKER: _count(wish.brokers, 1 if new else 0, "brokers"),
    }
    processes = list(plan.processes)
    for role, count in counts.items():
        have = sum(process.role == role for process in processes)
        for number in range(have + 1, count + 1):
            name = role if role == METADATA or (role == ZOOKEEPER and ensemble == 1) else f"{role}{number}"
            processes.append(_planned(name, role, wish, free_ports))
    processes.sort(key=lambda process: START_ORDER.index(process.role))
    plan = replace(plan, processes=tuple(processes))
    names = frozenset(process.name for process in processes)
    given = [parse_setting(word, names) for word in wish.settings]
    kept = [old for old in plan.settings if all((old.target, old.key) != (each.target, each.key) for each in given)]
    return replace(plan, settings=(*kept, *given), ensemble=_ensemble(plan, wish, new))


def _zookeepers(plan: ClusterPlan, wish: Wish, new: bool) -> int:
    """How many ZooKeeper servers the cluster has; 0 with the embedded metadata server. Raises ClusterError."""
    have = len(plan.of_role(ZOOKEEPER))
    wanted = wish.zookeeper
    if wanted is None:
        return have
    if wanted not in ZOOKEEPER_COUNTS:
        counts = ", ".join(map(str, ZOOKEEPER_COUNTS[1:]))
        raise ClusterError(
            f"an ensemble of {wanted} ZooKeeper servers was asked for; take {counts}: a majority has to run, so an even "
            "number tolerates no more failures than one less"
        )
    if not new and wanted != have:
        there = "an embedded metadata server"
        if have:
            there = "one ZooKeeper server" if have == 1 else f"an ensemble of {have} ZooKeeper servers"
        raise ClusterError(f"this cluster has {there} and keeps it; begin another one with another --dir")
    return wanted


def _count(wanted: int | None, default: int, option: str) -> int:
    count = default if wanted is None else wanted
    if not 0 <= count <= COUNT_MAX:
        raise ClusterError(f"--{option} {count}: take 0 to {COUNT_MAX}")
    return count


def _planned(name: str, role: str, wish: Wish, free_ports: Callable[[int], list[int]]) -> ProcessPlan:
    purposes = ENSEMBLE_PORTS if role == ZOOKEEPER and name != ZOOKEEPER else PORTS[role]
    ports = dict(zip(purposes, free_ports(len(purposes)), strict=True))
    if name == f"{BROKER}1":
        ports["pulsar"] = wish.broker_port or ports["pulsar"]
        ports["http"] = wish.broker_http_port or ports["http"]
    return ProcessPlan(name, role, ports)


def _ensemble(plan: ClusterPlan, wish: Wish, new: bool) -> tuple[int, int, int]:
    """A new cluster: up to three bookies to a ledger, two copies of an entry, both on disk before it counts as stored."""
    bookies = len(plan.of_role(BOOKIE))
    size, write, ack = wish.ensemble
    if new:
        size = min(bookies, 3) if size is None else size
        write = min(size, COPIES) if write is None else write
        ack = write if ack is None else ack
    else:
        size, write, ack = (
            old if wanted is None else wanted for old, wanted in zip(plan.ensemble, wish.ensemble, strict=True)
        )
    assert size is not None
    assert write is not None
    assert ack is not None
    if plan.of_role(BROKER) and not 1 <= ack <= write <= size:
        raise ClusterError(
            f"ensemble size {size}, write quorum {write}, ack quorum {ack}: need 1 <= ack <= write <= ensemble"
        )
    if plan.of_role(BROKER) and size > bookies:
        raise ClusterError(f"ensemble size {size} needs {size} bookies, and there are {bookies}; pass --bookies {size}")
    return size, write, ack
