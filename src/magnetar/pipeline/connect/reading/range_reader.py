"""Exactly the messages of one range [start, end), as Arrow batches: what a Spark task runs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from magnetar.pipeline.connect.broker import Topics
from magnetar.pipeline.connect.errors import DataLossError, ReadStalledError, SourceError
from magnetar.pipeline.connect.offsets import EARLIEST, Position, Range
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.raw.connection import is_supported
from magnetar.pipeline.connect.raw.entries import Entry, RawEntries, UnreadableEntryError
from magnetar.pipeline.connect.reading.columns import Columns
from magnetar.pipeline.connect.reading.entries import ClientEntries, entries
from magnetar.pipeline.connect.segment_order import is_segment

BATCH_ROWS: Final = 5000
"""Rows of a record batch: between 1,000 and 10,000 Spark is fastest."""
BATCH_BYTES: Final = 8 << 20
"""A batch is handed over once the entries it is made of are that large, whatever its rows."""
POLL_S: Final = 1.0
"""After so long without an entry the broker is asked whether there is one at all."""

_frozen = False


class Source(Protocol):
    """Where entries come from."""

    problem: str
    missing: bool

    def has_more(self) -> bool | None: ...


KEPT_S: Final = 10.0
"""A connection that nobody has read from for longer is not taken again: the broker may have given it up, as nobody answers its pings."""
KEPT_AT_ALL_S: Final = 30.0
"""Nor one that was made longer ago: nothing is acknowledged over it, and the broker remembers what it has sent."""
KEPT_MAX: Final = 64
"""Topics; further ones are connected to for each range."""


@dataclass
class _Kept:
    """Where `source` goes on, after the entries that it has already given."""

    source: RawEntries[Entry]
    behind: Position
    given: list[Entry]
    made_s: float
    used_s: float

    def is_fit(self, part: Range) -> bool:
        """Whether it may go on with this range."""
        now_s = time.monotonic()
        return self.behind == part.start and now_s - self.used_s < KEPT_S and now_s - self.made_s < KEPT_AT_ALL_S


class KeptConnections:
    """Connections for a process that reads range after range of the same topics, each from where the last one ended. For one thread."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def take(self, part: Range) -> _Kept | None:
        """The one that stands at the beginning of the range, if there is one."""
        found = self._kept.pop(part.topic, None)
        if found is None or found.is_fit(part):
            return found
        found.source.close()
        return None

    def put(self, part: Range, source: RawEntries[Entry], given: list[Entry], made_s: float) -> None:
        """`given`: what the source gave beyond the range, with the entry that the range ends in. `made_s`: monotonic, of the source."""
        if len(self._kept) < KEPT_MAX:
            self._kept[part.topic] = _Kept(source, part.end, given, made_s, time.monotonic())
        else:
            source.close()

    def close(self) -> None:
        for each in self._kept.values():
            each.source.close()
        self._kept.clear()


def read_range(
    options: ReadOptions,
    part: Range,
    columns: Columns,
    taken: Callable[[Entry], Entry] | None = None,
    kept: KeptConnections | None = None,
) -> Iterator[pa.RecordBatch]:
    """`taken`: leaves of an entry the messages that are wanted, which may be none.

    Raises DataLossError when the range's last messages are gone, ReadStalledError when they do not come."""
    _freeze_once()
    size = 0
    for whole in read_entries(options, part, kept):
        entry = whole if taken is None else taken(whole)
        if not len(entry.messages):
            continue
        columns.add(part.topic, entry)
        size += len(entry.messages.data)
        if columns.rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield columns.batch()
            size = 0
    if columns.rows:
        yield columns.batch()


def read_entries(options: ReadOptions, part: Range, kept: KeptConnections | None = None) -> Iterator[Entry]:
    """The range's entries, less the messages of the first and last one outside of it; also over connections that break."""
    raw = is_supported(options.connection)
    resumed = kept.take(part) if kept is not None else None
    source: RawEntries[Entry] | ClientEntries
    if resumed is not None:
        source, given, made_s = resumed.source, resumed.given, resumed.made_s
    else:
        source = entries(options.connection, part.topic, part.start, raw, options.receiver_queue)
        given, made_s = [], time.monotonic()
    behind, waited_s, is_whole = part.start, 0.0, False
    try:
        while behind < part.end:
            begun = time.monotonic()
            try:
                found, given = (given, []) if given else (source.receive(POLL_S), [])
            except UnreadableEntryError:
                source.close()
                if is_segment(part.topic):
                    raise SourceError(
                        f"{part.topic} at {behind.document()}: the entry is encrypted, or a part of a message in chunks, which cannot be "
                        "read from segments; read the topic with a client of Pulsar 5"
                    ) from None
                source = entries(options.connection, part.topic, behind, False, options.receiver_queue)
                continue
            for place, entry in enumerate(found):
                if part.start.batch and behind == part.start and (entry.ledger, entry.entry) != part.start[:2]:
                    _lost(options, part, behind)
                if Position(entry.ledger, entry.entry) >= part.end:
                    if EARLIEST < behind == part.start and entry.ledger > part.end.ledger:
                        _check_there(options, part)
                    given, is_whole = found[place:], True
                    return
                behind = _behind(entry)
                inside = entry.within(part.start, part.end)
                if len(inside.messages):
                    yield inside
                if behind >= part.end:
                    given, is_whole = found[place if behind > part.end else place + 1 :], True
                    return
            waited_s = 0.0 if found else waited_s + time.monotonic() - begun
            if not found and has_ended(source, options, part, behind, waited_s):
                return
    finally:
        if is_whole and kept is not None and isinstance(source, RawEntries):
            kept.put(part, source, given, made_s)
        else:
            source.close()


def _behind(entry: Entry) -> Position:
    """Behind what the entry is known to hold: the client hands a batch over message by message."""
    last = entry.messages.indexes[-1] if len(entry.messages) else entry.batch_size
    if last + 1 >= entry.batch_size:
        return Position(entry.ledger, entry.entry + 1)
    return Position(entry.ledger, entry.entry, last + 1)


def has_ended(source: Source, options: ReadOptions, part: Range, behind: Position, waited_s: float) -> bool:
    """Nothing came for a while: True when the topic has no more and that is allowed."""
    if source.has_more() is False or (source.missing and is_segment(part.topic)):
        _lost(options, part, behind)
        return True
    if waited_s * 1000 >= options.poll_timeout_ms:
        why = source.problem or "is the broker well?"
        raise ReadStalledError(
            f"{part.topic}: no message within pollTimeoutMs={options.poll_timeout_ms} at {behind.document()}: {why}"
        )
    return False


def _lost(options: ReadOptions, part: Range, behind: Position) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{part.topic}: the messages from {behind.document()} to {part.end.document()} are not there any more; "
            "set failOnDataLoss=false to go on without them"
        )


def _check_there(options: ReadOptions, part: Range) -> None:
    """None of the range's messages came. They may have been of aborted transactions; where its ledgers are gone, they were deleted."""
    first = Topics(options).first(part.topic)
    if first is None or first.ledger > part.end.ledger:
        _lost(options, part, part.start)


def _freeze_once() -> None:
    """Spark collects garbage after every task; what modules brought in need not be looked at each time."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
