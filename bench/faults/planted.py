"""Deliberate bugs for real processes, planted from outside. Most are the simulator's mutations, some are about processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from magnetar.base.errors import DiskFullError
from magnetar.bookkeeper.bookie import recovery as bookie_recovery
from magnetar.bookkeeper.bookie.storage.journal import Journal, ignore
from magnetar.bookkeeper.client.recovery import TailRecovery
from magnetar.broker.replication.replicated_subscription import SnapshotCache
from magnetar.broker.replicators.link import Link
from magnetar.broker.transactions.buffer_state import BufferState
from magnetar.broker.transactions.coordinator import TransactionCoordinator
from magnetar.broker.transactions.pending_acks import PendingAcks
from magnetar.managed_ledger import retention
from magnetar.managed_ledger.cursor.cursor import ManagedCursor, mark_delete_for
from magnetar.metadata.paths import MANAGED_LEDGERS_PATH
from magnetar.metadata.sqlite import SqliteMetadataStore
from magnetar.metadata.sqlite_tree import SqliteTree
from magnetar.pipeline.state.manifest import ManifestStore
from magnetar.testing.sim.messaging import mutations
from magnetar.testing.sim.mutations import patch_attribute

LATE_S = 0.3


class Planted(NamedTuple):
    """A bug, the workload that has to catch it, the faults that it needs, and settings with which it shows soon."""

    patch: Callable[[ExitStack], None]
    workload: str
    faults: tuple[str, ...] = ("kill",)
    settings: Mapping[str, object] = MappingProxyType({})


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


def _recovery_believes_the_writer(stack: ExitStack) -> None:
    """A ledger ends where its newest entry says that its writer knew all before to be stored. What follows is not looked for."""

    async def copy(self: Any, lac: int) -> tuple[int, int]:
        return lac, -1

    patch_attribute(stack, TailRecovery, "_copy", copy)


def _the_last_commit_counts_as_torn(stack: ExitStack) -> None:
    """What the journal's last commit holds is not replayed, though it is whole."""
    replay = bookie_recovery.replay

    def without_the_last(disk: Any, directory: str, mark: int, result: Any) -> Iterator[list[bytes]]:
        held: list[bytes] | None = None
        for records in replay(disk, directory, mark, result):
            if held is not None:
                yield held
            held = records
        if held is not None:  # keys and fences stay, or the bookie would notice
            yield [record for record in held if record[8] & 0x80]

    patch_attribute(stack, bookie_recovery, "replay", without_the_last)


def _lists_are_committed_later(stack: ExitStack) -> None:
    """A change of a managed ledger's list is answered at once, and committed with the next change of something else."""
    begin, commit, commit_batch = SqliteTree.begin, SqliteTree.commit, SqliteMetadataStore._commit
    later = False

    def batch(self: Any, writes: Any) -> None:
        nonlocal later
        later = all(write.path.startswith(MANAGED_LEDGERS_PATH) for write in writes)
        commit_batch(self, writes)

    def begun(self: Any) -> None:
        if not self.connection.in_transaction:
            begin(self)

    def committed(self: Any) -> None:
        if not later:
            commit(self)

    patch_attribute(stack, SqliteMetadataStore, "_commit", batch)
    patch_attribute(stack, SqliteTree, "begin", begun)
    patch_attribute(stack, SqliteTree, "commit", committed)


def _committed_before_it_is_logged(stack: ExitStack) -> None:
    """A client hears that its transaction is committed a third of a second before the coordinator's log does."""
    end = TransactionCoordinator.end
    under_way: set[asyncio.Task[None]] = set()

    async def later(self: Any, txn: Any, who: str | None) -> None:
        await asyncio.sleep(LATE_S)
        await end(self, txn, True, who)

    async def answered(self: Any, txn: Any, commit: bool, who: str | None) -> None:
        if not commit:
            await end(self, txn, commit, who)
            return
        task = asyncio.get_running_loop().create_task(later(self, txn, who))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    patch_attribute(stack, TransactionCoordinator, "end", answered)


def _a_reset_is_seen_before_it_is_stored(stack: ExitStack) -> None:
    reset = ManagedCursor.reset

    async def moved(self: Any, position: Any) -> None:
        self._move(mark_delete_for(self._context, position))
        await asyncio.sleep(3 * LATE_S)
        await reset(self, position)

    patch_attribute(stack, ManagedCursor, "reset", moved)


def _retention_asks_no_cursor(stack: ExitStack) -> None:
    """Every ledger but the current one counts as consumed."""

    def before(index: Any, current_ledger_id: int, slowest: Any) -> int:
        return current_ledger_id

    patch_attribute(stack, retention, "consumed_before", before)


def _a_full_disk_takes_it(stack: ExitStack) -> None:
    """What the journal finds no room for counts as written, and so does all that comes after it.

    The journal takes no room beforehand, so that it soon finds none."""
    init, write = Journal.__init__, Journal._write
    full = False

    def without_room(self: Any, *words: Any) -> None:
        init(self, *words)
        self._preallocate = 0

    def written(self: Any, records: list[bytes]) -> None:
        nonlocal full
        try:
            if not full:
                write(self, records)
        except DiskFullError:
            full = True

    patch_attribute(stack, Journal, "__init__", without_room)
    patch_attribute(stack, Journal, "_write", written)


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
    "a recovery does not look behind what the writer has confirmed": Planted(_recovery_believes_the_writer, "set"),
    "the last commit of a journal counts as torn": Planted(_the_last_commit_counts_as_torn, "set"),
    "what the full disk refused counts as written": Planted(_a_full_disk_takes_it, "set", ("disk", "kill")),
    "a list of ledgers is answered before it is committed": Planted(_lists_are_committed_later, "set"),
    "retention asks no cursor": Planted(
        _retention_asks_no_cursor, "set", settings={"retentionCheckIntervalInSeconds": 1}
    ),
    "a cursor is moved before its reset is stored": Planted(_a_reset_is_seen_before_it_is_stored, "register"),
    "a commit is answered before the coordinator has logged it": Planted(
        _committed_before_it_is_logged, "transactions"
    ),
    "a manifest names the positions of the epoch before": Planted(_positions_are_an_epoch_behind, "view", ()),
}
"""By name."""


def plant(name: str) -> None:
    """Until the process ends."""
    PLANTED[name].patch(ExitStack())
