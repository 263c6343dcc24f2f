"""Shared: entries go round robin to the consumers of the best priority level that can take them.

Lower `priority_level` numbers are served first; the next level gets entries only while nobody above has permits. Permits are
counted in messages, so a batch costs its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from magnetar.broker.dispatch import why
from magnetar.broker.dispatch.delayed import DelayedIndex
from magnetar.broker.dispatch.dispatcher import Where
from magnetar.broker.dispatch.entry_metadata import NOT_PLAIN, held_values, metadata_of
from magnetar.broker.dispatch.ports import EntrySource
from magnetar.broker.dispatch.receiver import Receiver
from magnetar.broker.dispatch.redelivery import RedeliveryQueue
from magnetar.broker.dispatch.sharing import Deliveries, SharingDispatcher
from magnetar.broker.reasons import Standing
from magnetar.managed_ledger.entry import Entry


class PriorityLevels:
    """Round robin within a priority level, levels in order."""

    __slots__ = ("_levels", "_turns")

    def __init__(self) -> None:
        self._levels: list[list[Receiver]] = []
        self._turns: list[int] = []
        """Per level: whose turn it is."""

    def add(self, consumer: Receiver) -> None:
        for level in self._levels:
            if level[0].priority_level == consumer.priority_level:
                level.append(consumer)
                return
        self._levels.append([consumer])
        self._levels.sort(key=lambda level: level[0].priority_level)
        self._turns = [0] * len(self._levels)

    def remove(self, consumer: Receiver) -> None:
        for number, level in enumerate(self._levels):
            if consumer in level:
                level.remove(consumer)
                if not level:
                    del self._levels[number]
                    del self._turns[number]
                return

    def next(self) -> Receiver | None:
        """The consumer whose turn it is, None when nobody can take an entry."""
        for consumer in self.takers():
            self.served(consumer)
            return consumer
        return None

    def takers(self) -> list[Receiver]:
        """Those of the best level that can take entries, in the order of their turns; none when nobody can."""
        for number, level in enumerate(self._levels):
            turn = self._turns[number]
            able = [
                consumer
                for consumer in (*level[turn:], *level[:turn])
                if consumer.permits > 0 and not consumer.blocked_on_unacked and consumer.channel.writable
            ]
            if able:
                return able
        return []

    def served(self, last: Receiver | None) -> None:
        """The last entry went to `last`: the next one of its level is for who comes behind."""
        if last is None:
            return
        for number, level in enumerate(self._levels):
            if level[0].priority_level == last.priority_level:
                self._turns[number] = level.index(last) + 1

    def permits(self, enough: int) -> int:
        """Permits of those who can take entries, added up until there are `enough`."""
        total = 0
        for level in self._levels:
            for consumer in level:
                if consumer.permits > 0 and not consumer.blocked_on_unacked and consumer.channel.writable:
                    total += consumer.permits
                    if total >= enough:
                        return total
        return total


class SharedDispatcher(SharingDispatcher):
    """Hands entries to whoever has permits."""

    __slots__ = ("_leftover", "_levels", "replay")

    def __init__(self, source: EntrySource, delayed: DelayedIndex | None, max_unacked: int) -> None:
        super().__init__(source, delayed, max_unacked)
        self._levels = PriorityLevels()
        self._leftover: list[Entry] = []
        """Read, but the permits ran out."""
        self.replay = RedeliveryQueue()

    def add(self, consumer: Receiver, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self.consumers.append(consumer)
        self._levels.add(consumer)

    def remove(self, consumer: Receiver) -> None:
        self._levels.remove(consumer)
        super().remove(consumer)

    def requeue(self, waiting: Iterable[tuple[int, int]]) -> None:
        self.replay.update([key for key, _ in waiting])

    def taken_back(self, held: Mapping[int, int]) -> None:
        self.replay.update(held)

    def settled(self, key: int, slot: int) -> None:
        """No effect: no entry waits for a slot."""

    def settled_all(self, values: Sequence[int]) -> None:
        """No effect: no entry waits for a slot."""

    def acknowledged(self, consumer: Receiver, key: int, left: int = 0) -> None:
        super().acknowledged(consumer, key, left)
        if not left and len(self.replay):
            self.replay.discard(key)

    def acknowledged_all(self, consumer: Receiver, keys: Sequence[int]) -> None:
        super().acknowledged_all(consumer, keys)
        if len(self.replay):
            for key in keys:
                self.replay.discard(key)

    def take_replay(self, limit: int, now_ms: int) -> list[int]:
        self._freed = False
        if self.delayed is not None:
            self.requeue(self.take_due(self.delayed, now_ms, limit))
        if self.blocked_on_unacked or not self.consumers:
            return []
        if not len(self.replay):
            return []
        return self.replay.take(min(limit, self._takers(limit)))

    def take_back(self, keys: Sequence[int]) -> None:
        self.replay.update(keys)

    def dispatch_replayed(self, entries: list[Entry], keys: Sequence[int], now_ms: int) -> None:
        left = self._send(entries, now_ms, fresh=False)
        if left:
            self.replay.update([entry.ledger_id << 32 | entry.entry_id for entry in left])

    def wanted(self, limit: int, now_ms: int) -> int:
        if self.blocked_on_unacked:
            return 0
        if self._leftover:
            entries = self._leftover
            self._leftover = []
            self._leftover = self._send(entries, now_ms, fresh=True)
            if self._leftover:
                return 0
        return min(limit, self._takers(limit))

    def dispatch(self, entries: list[Entry], now_ms: int) -> None:
        self._leftover = self._send(entries, now_ms, fresh=True)

    def rewound(self) -> None:
        super().rewound()
        self._leftover.clear()
        self.replay.clear()

    def leftover_changed(self) -> None:
        acknowledged = self.source.is_acknowledged
        self._leftover = [entry for entry in self._leftover if not acknowledged(entry.position)]

    @property
    def leftover(self) -> bool:
        return bool(self._leftover)

    @property
    def waiting_count(self) -> int:
        return len(self.replay)

    def _takers(self, limit: int) -> int:
        """Entries that the permits there are stand for."""
        average = self.average_messages
        permits = self._levels.permits(int(limit * average) + 1)
        return (int(permits / average) or 1) if permits > 0 else 0

    def _send(self, entries: list[Entry], now_ms: int, *, fresh: bool) -> list[Entry]:
        """Send in order; returns those for whom there was no taker. `fresh`: read for the first time."""
        counts = self.counts.by_key
        levels = self._levels
        deliveries = Deliveries()
        runs = deliveries.runs
        markers: list[Entry] = []
        left: list[Entry] = []
        takers = levels.takers()
        turn = 0
        last: Receiver | None = None
        for index, value in enumerate(held_values(entries, False)):
            entry = entries[index]
            key = entry.ledger_id << 32 | entry.entry_id
            if value == NOT_PLAIN:
                metadata = metadata_of(entry)
                if metadata.marker_type >= 0:
                    markers.append(entry)
                    continue
                if metadata.deliver_at_ms and (
                    self.hold_back(metadata, key, now_ms) if fresh else self.came_due_twice(metadata, key)
                ):
                    continue
            while takers:
                if turn == len(takers):
                    turn = 0
                consumer = takers[turn]
                if consumer.permits > 0 and not consumer.blocked_on_unacked:
                    break
                del takers[turn]
                if not takers:  # it is the next level's turn
                    levels.served(last)
                    takers = levels.takers()
            if not takers or self.blocked_on_unacked:
                left = entries[index:]
                break
            turn += 1
            last = consumer
            if value == NOT_PLAIN or counts:
                self.assign(deliveries, consumer, entry, key, 0)
                continue
            # `assign` for what nearly every entry is
            consumer.permits -= 1
            consumer.held[key] = value
            consumer.messages_out += 1
            unacked = consumer.unacked_messages = consumer.unacked_messages + 1
            if unacked >= consumer.max_unacked > 0:
                consumer.blocked_on_unacked = True
            self.unacked_messages += 1
            if self.unacked_messages >= self.max_unacked > 0:
                self.blocked_on_unacked = True
            run = runs.get(consumer)
            if run is None:
                runs[consumer] = [entry]
            else:
                run.append(entry)
        levels.served(last)
        self.hand_over(deliveries, now_ms)
        if markers:
            self.pass_markers(markers)
        return left

    def where(self, key: int, slot: int) -> Where:
        return Where(self.holder_of(key), self.counts.by_key.get(key, 0))

    def standing(self, has_more: bool) -> Standing:
        reasons = why.redelivered(self.counts)
        if not (has_more or self._leftover or len(self.replay)):
            return Standing(True, reasons)
        if self.blocked_on_unacked:
            return Standing(
                False, [why.unacked_limit(self.consumers, self.unacked_messages, self.max_unacked), *reasons]
            )
        held_up = why.those_held_up(self.consumers)
        return Standing(self._levels.permits(1) > 0, [*held_up, *reasons])

    def validate(self) -> None:
        super().validate()
        self.replay.validate()
