"""Deliberate bugs for real processes, planted from outside. Most are the simulator's mutations, some are about processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from magnetar.bookkeeper.bookie.storage.journal import Journal, ignore
from magnetar.broker.replication.replicated_subscription import SnapshotCache
from magnetar.broker.replicators.link import Link
from magnetar.broker.transactions.buffer_state import BufferState
from magnetar.broker.transactions.pending_acks import PendingAcks
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.testing.sim.messaging import mutations
from magnetar.testing.sim.mutations import patch_attribute

LATE_S = 0.3


class Planted(NamedTuple):
    """A bug, the workload that has to catch it, and the faults that it needs."""

    patch: Callable[[ExitStack], None]
    workload: str
    faults: tuple[str, ...] = ("kill",)


def _receipts_before_the_write(stack: ExitStack) -> None:
    """Whoever adds an entry is answered at once; the journal writes it a third of a second later."""
    queue, write = Journal.append_run, Journal._write

    def append_run(self: Any, records: list[bytes], size_bytes: int, done: Callable[[int], None]) -> None:
        queue(self, records, size_bytes, ignore)
        asyncio.get_running_loop().call_soon(done, 0)

    def late(self: Any, records: list[bytes]) -> None:
        time.sleep(LATE_S)
        write(self, records)

    patch_attribute(stack, Journal, "append_run", append_run)
    patch_attribute(stack, Journal, "_write", late)


def _aborted_is_delivered(stack: ExitStack) -> None:
    patch_attribute(stack, BufferState, "is_aborted", lambda self, txn: False)


def _acks_of_a_commit_are_not_applied(stack: ExitStack) -> None:
    async def apply(self: Any, pending: Any) -> None:
        return

    patch_attribute(stack, PendingAcks, "_apply", apply)


def _a_snapshot_is_passed_when_read(stack: ExitStack) -> None:
    patch_attribute(stack, SnapshotCache, "at_or_before", lambda self, mark_delete: self.newest)


def _a_replicator_does_not_wait(stack: ExitStack) -> None:
    """Its cursor passes an entry when it is sent, and not when the other cluster has it."""
    send = Link._send

    def sent(self: Any, producer: Any, position: Any, entry: Any) -> None:
        send(self, producer, position, entry)
        self._done(position)

    patch_attribute(stack, Link, "_send", sent)


def _positions_are_an_epoch_behind(stack: ExitStack) -> None:
    """What a view has counted since is counted again by the next driver."""
    commit, before = ManifestStore.commit, dict[str, Any]()

    def committed(self: Any, manifest: Any) -> Any:
        written = commit(self, replace(manifest, sources=dict(before)))
        before.update(manifest.sources)
        return replace(written, sources=manifest.sources)

    patch_attribute(stack, ManifestStore, "commit", committed)


def _of_the_simulator(name: str) -> Callable[[ExitStack], None]:
    return mutations.MUTATIONS[name].patch


PLANTED: dict[str, Planted] = {
    "receipts before the write": Planted(_receipts_before_the_write, "set"),
    "the last entry of a recovered ledger is left out": Planted(
        _of_the_simulator("the last entry of a recovered ledger is left out"), "set"
    ),
    "a repeat is not recognized": Planted(_of_the_simulator("a repeat is not recognized"), "dedup"),
    "what was stored behind the snapshot is not replayed": Planted(
        _of_the_simulator("what was stored behind the snapshot is not replayed"), "dedup"
    ),
    "a draining slot is released while an entry is held": Planted(
        _of_the_simulator("a draining slot is released while an entry is held"), "key-shared", ()
    ),
    "a slot that moves does not drain": Planted(
        _of_the_simulator("a slot that moves does not drain"), "key-shared", ()
    ),
    "what a leaving consumer held is forgotten": Planted(
        _of_the_simulator("what a leaving consumer held is forgotten"), "key-shared", ()
    ),
    "an acknowledgement is confirmed before it is stored": Planted(
        _of_the_simulator("an acknowledgement is confirmed before it is stored"), "acks"
    ),
    "the mark-delete passes holes": Planted(_of_the_simulator("the mark-delete passes holes"), "acks"),
    "holes are not restored": Planted(_of_the_simulator("holes are not restored"), "acks"),
    "aborted messages are delivered": Planted(_aborted_is_delivered, "transactions", ()),
    "acknowledgements of a committed transaction are not applied": Planted(
        _acks_of_a_commit_are_not_applied, "pipeline", ()
    ),
    "a snapshot counts as passed when it is read": Planted(_a_snapshot_is_passed_when_read, "geo", ()),
    "a replicator's cursor passes what is on its way": Planted(
        _a_replicator_does_not_wait, "geo", ("kill", "partition")
    ),
    "a manifest names the positions of the epoch before": Planted(_positions_are_an_epoch_behind, "view", ()),
}
"""By name."""


def plant(name: str) -> None:
    """Until the process ends."""
    PLANTED[name].patch(ExitStack())
