"""Where the first message of a segment is, from entries' metadata: what the official client is asked of other topics."""

from __future__ import annotations

import time
from typing import Final

from magnetar.base.clock import SystemClock
from magnetar.pipeline.connect.errors import ReadStalledError
from magnetar.pipeline.connect.offsets import EARLIEST, Position
from magnetar.pipeline.connect.options import ReadOptions
from magnetar.pipeline.connect.raw.entries import Published, RawEntries, published_at

POLL_S: Final = 1.0
QUEUE: Final = 100
"""Messages that the broker may send ahead."""
SKEW_S: Final = 300
"""By so much the broker's clock may differ from this machine's: it is asked to begin that much earlier."""


def first_message(options: ReadOptions, topic: str, time_ms: int = 0) -> Position | None:
    """Of the first one that is still there and was published at or after a time; None when there is none. Raises ReadStalledError."""
    rollback_s = max((SystemClock().now_ms() - time_ms) // 1000 + SKEW_S, 1) if time_ms else 0
    source: RawEntries[Published] = RawEntries(
        options.connection, topic, EARLIEST, published_at, QUEUE, rollback_s=rollback_s
    )
    try:
        waited_s = 0.0
        while True:
            begun = time.monotonic()
            found = source.receive(POLL_S)
            for each in found:
                if each.time_ms >= time_ms:
                    return Position(each.ledger, each.entry)
            if not found and (source.missing or source.has_more() is False):
                return None
            waited_s = 0.0 if found else waited_s + time.monotonic() - begun
            if waited_s * 1000 >= options.poll_timeout_ms:
                raise ReadStalledError(
                    f"{topic}: no message within pollTimeoutMs={options.poll_timeout_ms}: {source.problem or 'is the broker well?'}"
                )
    finally:
        source.close()
