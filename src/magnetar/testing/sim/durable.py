"""Checks what is on the disks: every bookie is started on a copy of what a power cut at this moment would leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.base.errors import StorageError
from magnetar.bookkeeper.bookie.recovery import recover
from magnetar.bookkeeper.bookie.storage.storage import LedgerStorage
from magnetar.bookkeeper.entry_format import Digest, DigestType, unpack_entry
from magnetar.bookkeeper.errors import DigestMismatchError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.bookkeeper.quorum import write_set
from magnetar.testing.sim.checkers import DURABLE, GONE, Checkers
from magnetar.testing.sim.cluster import Cluster
from magnetar.testing.sim.disk import SimDisk
from magnetar.testing.sim.history import History, LedgerHistory
from magnetar.testing.sim.index import SimIndex
from magnetar.testing.sim.nodes import BookieNode


@dataclass(slots=True)
class Durable:
    """`entries[ledger id][entry id]` is the packed entry; `fenced` ledgers refuse ordinary adds."""

    entries: dict[int, dict[int, bytes]] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)
    problem: StorageError | None = None
    """It could not even be started."""


def durable_state(node: BookieNode) -> Durable:
    """Runs the bookie's own start-up code on a copy of its disk."""
    found = Durable()
    copy = node.machine.medium.durable_copy()
    if node.config.ledger_path not in copy.directories:
        return found
    disk = SimDisk(copy, node.world.loop.outside)
    try:
        index = SimIndex(disk, node.config.ledger_path)
        storage = LedgerStorage(node.config, disk, index, lambda: None)
        recovered = recover(node.config, disk, storage)
        for ledger_id, entry_id in index.ids():
            if ledger_id in recovered.ledgers and recovered.ledgers[ledger_id].deleted_ms is None:
                for entry in storage.read(ledger_id, entry_id, 1, 0):
                    found.entries.setdefault(ledger_id, {})[entry_id] = entry
    except StorageError as error:
        found.problem = error
        return found
    for ledger_id, entries in recovered.half.ledgers.items():
        for first_entry_id, run in entries.runs():
            held = {entry_id: entry for entry_id, entry in enumerate(run, first_entry_id) if entry}
            found.entries.setdefault(ledger_id, {}).update(held)
    found.fenced = {ledger_id for ledger_id, state in recovered.ledgers.items() if state.fenced or state.keyless}
    return found


def durable_problems(
    cluster: Cluster, history: History, checkers: Checkers, repaired: bool = False
) -> list[tuple[str, str]]:
    """(checker, text) for every acknowledged entry that is not on Qa bookies of its ensemble (`repaired`: on Qw, none of them
    lost), and every damaged copy."""
    problems: list[tuple[str, str]] = []
    states = {bookie.bookie_id: durable_state(bookie) for bookie in cluster.bookies}
    given_up = cluster.given_up - cluster.lost if repaired else cluster.given_up
    excused = {bookie.bookie_id for bookie in cluster.bookies if bookie.name in given_up}
    if repaired:
        for bookie in cluster.bookies:
            if bookie.name in cluster.lost:
                states[bookie.bookie_id] = Durable()
    for bookie_id, state in states.items():
        if state.problem is not None and bookie_id not in excused:
            problems.append((DURABLE, f"{bookie_id} could not start after a power cut: {state.problem}"))
    for ledger in history.ledgers.values():
        if not ledger.deleted:
            copies = ledger.write_quorum if repaired else ledger.ack_quorum
            problem = _ledger_problem(ledger, checkers.metadata(ledger.ledger_id), states, excused, copies)
            if problem is not None:
                problems.append(problem)
    return problems


def _ledger_problem(
    ledger: LedgerHistory,
    metadata: LedgerMetadata | None,
    states: dict[str, Durable],
    excused: set[str],
    copies: int,
) -> tuple[str, str] | None:
    if metadata is None:
        return GONE, f"{ledger.ledger_id} has no metadata"
    digest = Digest(DigestType.CRC32C, ledger.password)
    for entry_id in ledger.acked:
        ensemble = metadata.segments[metadata.segment_index(entry_id)].ensemble
        holders = [ensemble[index] for index in write_set(entry_id, ledger.ensemble_size, ledger.write_quorum)]
        good = 0
        for bookie_id in holders:
            packed = states[bookie_id].entries.get(ledger.ledger_id, {}).get(entry_id)
            if bookie_id in excused:
                good += 1
            elif packed is not None:
                problem = _copy_problem(digest, ledger, entry_id, packed)
                if problem is not None:
                    return DURABLE, f"{bookie_id}: {problem}"
                good += 1
        if good < copies:
            where = f"{good} of {holders}, {copies} copies are due"
            return DURABLE, f"{ledger.ledger_id}: entry {entry_id} is on {where}"
    return None


def _copy_problem(digest: Digest, ledger: LedgerHistory, entry_id: int, packed: bytes) -> str | None:
    try:
        payload = unpack_entry(packed, digest, ledger.ledger_id, entry_id).payload
    except DigestMismatchError as error:
        return f"a damaged entry: {error}"
    return None if payload == ledger.sent[entry_id] else f"other bytes in {ledger.ledger_id}:{entry_id}"
