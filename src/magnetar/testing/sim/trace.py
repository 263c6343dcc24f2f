"""The trace of all events in order: a running hash that two runs of one seed must share, and the last events for a reader."""

from __future__ import annotations

from collections import deque
from hashlib import blake2b

TAIL_EVENTS_MAX = 400
"""Events kept for the report of a failing seed; older ones are only in the hash."""


class Trace:
    """`add` an event; `digest()` of everything so far."""

    __slots__ = ("_hash", "events_total", "mix", "tail", "watch")

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.tail: deque[tuple[float, str, str]] = deque(maxlen=TAIL_EVENTS_MAX)
        self.events_total = 0
        self.mix = 0
        """The processes' callbacks since the last event; part of the hash."""
        self.watch = False
        """Print each event as it happens."""

    def add(self, now_s: float, who: str, what: str) -> None:
        self.events_total += 1
        self._hash.update(f"{now_s:.9f} {self.mix:x} {who} {what}\n".encode())
        self.mix = 0
        self.tail.append((now_s, who, what))
        if self.watch:
            print(f"{now_s:12.6f} {who:12} {what}")

    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self, count: int) -> list[str]:
        """The last `count` events as text."""
        events = list(self.tail)[-count:]
        return [f"{now_s:12.6f} {who:12} {what}" for now_s, who, what in events]
