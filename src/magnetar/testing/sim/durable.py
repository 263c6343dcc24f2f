"""What is on the disks: every bookie is started in thought, on a copy of what a power cut at this moment would leave."""

from __future__ import annotations

from dataclasses import dataclass, field

from magnetar.base.errors import StorageError
from magnetar.bookkeeper.bookie.recovery import recover
from magnetar.bookkeeper.bookie.storage import LedgerStorage
from magnetar.testing.sim.disk import SimDisk
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
        found.entries.setdefault(ledger_id, {}).update(entries)
    found.fenced = {ledger_id for ledger_id, state in recovered.ledgers.items() if state.fenced}
    return found
