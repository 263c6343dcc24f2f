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

COUNT_MAX = 99
"""Processes of a role; a machine is full long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What `up` is asked for. None: as the cluster is, or the default for a new one. Ports 0: any free one."""

    bookies: int | None = None
    brokers: int | None = None
    autorecovery: int | None = None
    zookeeper: bool | None = None
    ensemble: tuple[int | None, int | None, int | None] = (None, None, None)
    settings: Sequence[str] = ()
    broker_port: int = 0
    broker_http_port: int = 0


def grown(before: ClusterPlan | None, wish: Wish, free_ports: Callable[[int], list[int]]) -> ClusterPlan:
    """The cluster with everything that `wish` adds. Raises ClusterError for what cannot be had, ConfigError for settings."""
    plan = before or ClusterPlan((0, 0, 0))
    has_zookeeper = bool(plan.of_role(ZOOKEEPER))
    if before is not None and wish.zookeeper is not None and wish.zookeeper != has_zookeeper:
        there = "a ZooKeeper" if has_zookeeper else "an embedded metadata server"
        raise ClusterError(f"this cluster has {there} and keeps it; begin another one with another --dir")
    server = ZOOKEEPER if (has_zookeeper or (before is None and wish.zookeeper)) else METADATA
    new = before is None
    counts = {
        server: 1,
        BOOKIE: _count(wish.bookies, 3 if new else 0, "bookies"),
        AUTORECOVERY: _count(wish.autorecovery, 0, "autorecovery"),
        BROKER: _count(wish.brokers, 1 if new else 0, "brokers"),
    }
    processes = list(plan.processes)
    for role, count in counts.items():
        have = sum(process.role == role for process in processes)
        for number in range(have + 1, count + 1):
            name = role if role in (METADATA, ZOOKEEPER) else f"{role}{number}"
            processes.append(_planned(name, role, wish, free_ports))
    processes.sort(key=lambda process: START_ORDER.index(process.role))
    plan = replace(plan, processes=tuple(processes))
    names = frozenset(process.name for process in processes)
    given = [parse_setting(word, names) for word in wish.settings]
    kept = [old for old in plan.settings if all((old.target, old.key) != (each.target, each.key) for each in given)]
    return replace(plan, settings=(*kept, *given), ensemble=_ensemble(plan, wish, new))


def _count(wanted: int | None, default: int, option: str) -> int:
    count = default if wanted is None else wanted
    if not 0 <= count <= COUNT_MAX:
        raise ClusterError(f"--{option} {count}: take 0 to {COUNT_MAX}")
    return count


def _planned(name: str, role: str, wish: Wish, free_ports: Callable[[int], list[int]]) -> ProcessPlan:
    ports = dict(zip(PORTS[role], free_ports(len(PORTS[role])), strict=True))
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
        write = min(size, 2) if write is None else write
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
        raise ClusterError(f"ensemble size {size} needs {size} bookies, and there are {bookies}; say --bookies {size}")
    return size, write, ack
