"""Exactly the messages of one range [start, end), as Arrow batches: what a Spark task runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Final

import pulsar
import pyarrow as pa

from magnetar.pipeline.connect.broker import id_position, open_reader, shared_client
from magnetar.pipeline.connect.columns import Columns
from magnetar.pipeline.connect.errors import DataLossError, ReadStalledError
from magnetar.pipeline.connect.offsets import Position, Range
from magnetar.pipeline.connect.options import ReadOptions

BATCH_ROWS: Final = 5000
"""Rows of a record batch: between 1,000 and 10,000 Spark is fastest."""
BATCH_BYTES: Final = 8 << 20
"""A batch is handed over once its values are that large, whatever its rows."""
RECEIVER_QUEUE: Final = 5000
POLL_MS: Final = 1000
"""After so long without a message the broker is asked whether there is one at all."""

_frozen = False


def read_range(options: ReadOptions, part: Range, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Raises DataLossError when the range's last messages are gone, ReadStalledError when they do not come."""
    _freeze_once()
    size = 0
    for message in messages(options, part):
        columns.add(message)
        size += len(message.data())
        if columns.rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield columns.batch()
            size = 0
    if columns.rows:
        yield columns.batch()


def messages(options: ReadOptions, part: Range) -> Iterator[pulsar.Message]:
    """The range's messages once each and in order, also when the client connects anew and delivers some again."""
    reader = open_reader(shared_client(options.connection), part.topic, part.start, RECEIVER_QUEUE)
    try:
        behind = part.start
        while behind < part.end:
            if _in_last_entry(behind, part.end) and not reader.has_message_available():
                return
            message = _receive(reader, options, part, behind)
            if message is None:
                return
            at = id_position(message.message_id())
            if at >= part.end:
                return
            if at >= behind:
                behind = at.after()
                yield message
    finally:
        reader.close()


def _in_last_entry(behind: Position, end: Position) -> bool:
    """Whether the range's last message may have been read: only then does the end need the broker's word."""
    return end.batch == 0 and behind.batch > 0 and behind.ledger == end.ledger and behind.entry == end.entry - 1


def _receive(reader: pulsar.Reader, options: ReadOptions, part: Range, behind: Position) -> pulsar.Message | None:
    """The next message; None when the topic has no more and that is allowed."""
    waited_ms = 0
    while waited_ms < options.poll_timeout_ms:
        wait_ms = min(POLL_MS, options.poll_timeout_ms - waited_ms)
        try:
            return reader.read_next(wait_ms)
        except pulsar.Timeout:
            waited_ms += wait_ms
        if not reader.has_message_available():
            if not options.fail_on_data_loss:
                return None
            raise DataLossError(
                f"{part.topic}: the messages from {behind.document()} to {part.end.document()} are not there any more; "
                "set failOnDataLoss=false to go on without them"
            )
    raise ReadStalledError(
        f"{part.topic}: no message within pollTimeoutMs={options.poll_timeout_ms} at {behind.document()}; is the broker well?"
    )


def _freeze_once() -> None:
    """Spark collects garbage after every task; what modules brought in need not be looked at each time."""
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
