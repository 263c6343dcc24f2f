"""One subscription's place in a managed ledger: what it reads next and what it has acknowledged.

Durable cursors store their acknowledgements; the others live as long as their reader. The message path (`read`, `replay`,
`acknowledge*`) is plain calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from magnetar.base.errors import MagnetarError
from magnetar.managed_ledger.ack_ranges import AckRanges
from magnetar.managed_ledger.context import LedgerContext
from magnetar.managed_ledger.cursor.persister import CursorPersister
from magnetar.managed_ledger.cursor.reader import CursorReader, ReadGate
from magnetar.managed_ledger.cursor.store import CursorStore, StoredState
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import CursorClosedError
from magnetar.managed_ledger.ports import DurableDone, ReadEntriesDone
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position

REPLICATED_PROPERTY: Final = "pulsar.replicated.subscription"
KEPT_PROPERTIES: Final = (REPLICATED_PROPERTY,)
"""What Pulsar keeps among the properties of the mark-delete although it is about the cursor: only `keep_property` changes it."""


class ManagedCursor:
    """`properties` go with the mark-delete (the caller's numbers about it), `cursor_properties` with the cursor."""

    __slots__ = ("_closed", "_context", "_persister", "_reader", "_state", "_store", "acks", "moved", "name")

    def __init__(self, context: LedgerContext, name: str, state: StoredState, store: CursorStore | None) -> None:
        """`store` None: the cursor is not durable."""
        self.name = name
        self._context = context
        self._state = state
        self.acks: AckRanges = state.acks
        """What is acknowledged, for looking: it is changed through this class."""
        self._store = store
        self._persister = None if store is None else CursorPersister(context, store, state)
        self._reader = CursorReader(context, state.acks, self._lost)
        self.moved: Callable[[], None] | None = None
        """Called after each change of what is acknowledged; not to change it itself."""
        self._closed = False

    # ---- Where it is

    @property
    def closed(self) -> bool:
        """True if the cursor answers no more reads and stores nothing; open it again."""
        return self._closed

    @property
    def durable(self) -> bool:
        return self._store is not None

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to it is acknowledged."""
        return self.acks.mark_delete

    @property
    def stored_mark_delete(self) -> Position:
        """The mark-delete a crash would come back to."""
        return self.acks.mark_delete if self._persister is None else self._persister.stored_mark_delete

    @property
    def read_position(self) -> Position:
        """The position where the next read starts (acknowledged entries there are skipped)."""
        return self._reader.position

    @property
    def has_more(self) -> bool:
        """True if entries are stored at or after the read position."""
        return self._reader.has_more

    @property
    def backlog_entries(self) -> int:
        """Entries that are not acknowledged, without hidden ones and those that a gate holds back."""
        index, gate = self._context.index, self._reader.gate
        left = index.entries_between(self.acks.mark_delete, index.end()) - self.acks.acked_count
        left -= self._context.hidden.unacknowledged(self.acks)
        return left if gate is None else max(0, left - gate.held_back(self.acks.mark_delete))

    @property
    def gate(self) -> ReadGate | None:
        """The gate that says what may be read, None for everything."""
        return self._reader.gate

    @gate.setter
    def gate(self, gate: ReadGate | None) -> None:
        self._reader.gate = gate

    @property
    def properties(self) -> dict[str, int]:
        return self._state.properties

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """As they are stored; none without a store."""
        return {} if self._store is None else self._store.cursor_properties

    @property
    def last_active_ms(self) -> int:
        """Wall time of the last acknowledgement or reset."""
        return self._state.last_active_ms

    def touch(self) -> None:
        """A consumer came or went: the cursor is active now."""
        self._state.last_active_ms = self._context.clock.now_ms()

    # ---- Reading

    def read(self, max_entries: int, max_bytes: int, done: ReadEntriesDone) -> None:
        """The next entries that are not acknowledged, in order, at most `max_entries` and about `max_bytes` (at least one).

        `done(None, [])` means there is nothing to read now, or that `rewind` or `reset` came in between. One read at a time. `done`
        runs before this returns when the entries are in memory or there are none.
        """
        self._reader.read(max_entries, max_bytes, done)

    def replay(
        self,
        positions: Sequence[Position],
        done: ReadEntriesDone,
        kept: Mapping[tuple[int, int], Entry] | None = None,
    ) -> None:
        """Exactly these entries, in the order given, without those acknowledged meanwhile or gone. Moves nothing.

        `kept`: entries that the caller has in memory; they are not read."""
        self._reader.replay(positions, done, kept)

    def rewind(self) -> None:
        """Read again everything that is not acknowledged."""
        self._reader.seek(self._context.index.next(self.acks.mark_delete))

    def read_from(self, position: Position) -> None:
        """Make `position` the next to be read; acknowledgements stay as they are."""
        self._reader.seek(position)

    async def reset(self, position: Position) -> None:
        """Make `position` (or EARLIEST, LATEST) the next to be read, acknowledged up to there and not beyond.

        Stored first: until it is durable nothing has moved. A second one waits for the first. What is acknowledged meanwhile counts
        as acknowledged before it. Raises what storing raised; nothing has moved then.
        """
        self._check_open()
        async with self._context.store.lock:  # no trim can remove its ledgers before `stored_mark_delete` holds them
            mark_delete = mark_delete_for(self._context, position)
            if self._persister is None:
                self._move(mark_delete)
                return
            storing = self._persister.store_first(
                lambda: StoredState(
                    AckRanges(self._context.index, mark_delete), self._kept({}), self._context.clock.now_ms()
                ),
                lambda: self._move(mark_delete),
                mark_delete,
            )
        await storing

    def _move(self, mark_delete: Position) -> None:
        self.acks.reset(mark_delete)
        self._state.properties = self._kept({})
        self.touch()
        self.rewind()
        if self.moved is not None:
            self.moved()

    # ---- Acknowledging

    def acknowledge(self, positions: Sequence[tuple[int, int]], done: DurableDone | None = None) -> None:
        """Acknowledge single entries. Those acknowledged before, removed or never written are ignored."""
        acks = self.acks
        changed = acks.add(*positions[0]) if len(positions) == 1 else acks.add_all(positions)
        if changed or done is not None:
            self._after_ack(changed, done)

    def acknowledge_cumulative(
        self, position: Position, properties: Mapping[str, int] | None = None, done: DurableDone | None = None
    ) -> None:
        """Acknowledge everything up to `position` (at most what is written). `properties` replace the mark-delete's."""
        index = self._context.index
        end = index.end()
        position = min(position, end)
        held = index.get(position[0])
        if held is not None and position[1] >= held.entries:
            position = Position(position[0], held.entries - 1)
        changed = self.acks.mark_deleted_upto(position)
        if properties is not None and (changed or position == self.acks.mark_delete):
            properties = self._kept(properties)
            changed = changed or self._state.properties != properties
            self._state.properties = properties
        if changed or done is not None:
            self._after_ack(changed, done)

    def acknowledge_batch(
        self, position: Position, ack_set: Sequence[int], batch_size: int, done: DurableDone | None = None
    ) -> bool:
        """Acknowledge indexes of one batch: those whose bit in `ack_set` is clear. True when the whole entry became acknowledged."""
        changed, whole = self.acks.add_batch(position[0], position[1], ack_set, batch_size)
        if changed or done is not None:
            self._after_ack(changed, done)
        return whole

    def pass_over(self, first: Position, upto: Position) -> None:
        """Acknowledge the entries from `first` on and before `upto`, as far as they exist."""
        changed = False
        for ledger_id in self._context.index.ledger_ids:
            if first.ledger_id <= ledger_id <= upto.ledger_id:
                low = first.entry_id if ledger_id == first.ledger_id else 0
                high = (
                    upto.entry_id - 1 if ledger_id == upto.ledger_id else self._context.index.entries_in(ledger_id) - 1
                )
                changed |= self.acks.add_range(ledger_id, low, high)
        if changed:
            self._after_ack(True, None)

    def is_acknowledged(self, position: Position) -> bool:
        return self.acks.contains(position[0], position[1])

    def ack_set_of(self, position: Position) -> list[int] | None:
        """The words of the indexes still to be acknowledged, None unless the batch is partly acknowledged."""
        words = self.acks.remaining_of_batch(position[0], position[1])
        gate = self._reader.gate
        return words if gate is None else gate.remaining(position, words)

    def individual_ranges(self, limit: int | None = None) -> list[tuple[Position, Position]]:
        """Acknowledged runs above the mark-delete: (exclusive lower, inclusive upper), ascending, none across ledgers.

        There may be hundreds of thousands (about 3 us each): pass a `limit` unless all are needed, or ask `acks` for the count.
        """
        return list(islice(self.acks.ranges(), limit))

    # ---- Storing

    async def flush(self) -> None:
        """Wait until all acknowledgements so far are durable."""
        if self._persister is not None:
            await self._persister.flush()

    async def change_cursor_properties(self, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Make of them what `change` makes of them. Stored first: durable, and to be seen, on return.

        Changes come one after the other; `change` is not to wait for anything. Raises what storing raised; nothing has changed then.
        """
        self._check_open()
        if self._store is not None:
            await self._store.save_node(self._state, change)

    async def keep_property(self, name: str, value: int | None) -> None:
        """Set a property of `KEPT_PROPERTIES`, or remove it with None. Stored first, as a reset is."""
        self._check_open()
        state = self._state

        def changed() -> dict[str, int]:
            others = {key: held for key, held in state.properties.items() if key != name}
            return others if value is None else {**others, name: value}

        def apply() -> None:
            state.properties = changed()

        if self._persister is None:
            apply()
        else:
            await self._persister.store_first(lambda: StoredState(self.acks, changed(), state.last_active_ms), apply)

    def stop_reading(self) -> None:
        """Close without storing anything."""
        self._closed = True
        self._reader.close()

    async def close(self) -> None:
        """Store the state for good and take no more reads. Acknowledgements still waiting are told."""
        if self._closed:
            return
        self.stop_reading()
        if self._persister is None or self._store is None:
            return
        changed = await self._persister.end()
        try:
            await self._store.close(self._state, changed=changed)
        except MagnetarError as error:
            self._persister.release(error)
            raise
        self._persister.release(self._context.fenced_by)

    async def delete_stored(self) -> None:
        """Close without storing, and remove what is stored."""
        self.stop_reading()
        if self._persister is not None and self._store is not None:
            await self._persister.end()
            self._persister.release(CursorClosedError(f"cursor {self.name} was deleted"))
            await self._store.delete()

    def ledgers_removed(self) -> None:
        """Ledgers left the list: the mark-delete moves over what was not acknowledged in them."""
        before = self.acks.mark_delete
        self.acks.settle()
        if self._persister is not None and self.acks.mark_delete != before:
            self._persister.changed(None)

    # ---- Inside

    def _kept(self, properties: Mapping[str, int]) -> dict[str, int]:
        """`properties`, and those of the old ones that stay whatever the acknowledgement brings."""
        old = self._state.properties
        return {**properties, **{name: old[name] for name in KEPT_PROPERTIES if name in old}}

    def _after_ack(self, changed: bool, done: DurableDone | None) -> None:
        if changed and self.moved is not None:
            self.moved()
        persister = self._persister
        if persister is None:
            if done is not None:
                done(None)
        elif self._closed:
            if done is not None:
                done(CursorClosedError(f"cursor {self.name} is closed"))
        elif changed:
            persister.changed(done)
        elif done is not None:
            persister.settled(done)

    def _lost(self, ledger_id: int, first: int, last: int) -> None:
        """Entries that cannot be read any more and are to be passed over: they count as acknowledged."""
        if self.acks.add_range(ledger_id, first, last) and self._persister is not None:
            self._persister.changed(None)

    def _check_open(self) -> None:
        if self._closed:
            raise CursorClosedError(f"cursor {self.name} is closed")


def mark_delete_for(context: LedgerContext, position: Position) -> Position:
    """The mark-delete with which `position` is the next to be read."""
    index = context.index
    end = index.end()
    if position >= LATEST or position > end:
        return end
    if position <= EARLIEST or position <= index.first():
        return index.before_first()
    return index.previous(position)
