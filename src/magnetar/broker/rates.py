"""Rates per second, from counters that only grow. Sampled by the upkeep loop, so that the message path counts and nothing else."""

from __future__ import annotations


class Rates:
    """Of the last sampling interval."""

    __slots__ = ("_bytes", "_entries", "_messages", "_sampled_s", "bytes_per_s", "entries_per_s", "messages_per_s")

    def __init__(self) -> None:
        self._messages = self._bytes = self._entries = 0
        self._sampled_s: float | None = None
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self.entries_per_s = 0.0

    def sample(self, messages: int, size_bytes: int, now_s: float, entries: int = 0) -> None:
        """The counters as they are at `now_s` (monotonic)."""
        if self._sampled_s is not None and now_s > self._sampled_s:
            elapsed_s = now_s - self._sampled_s
            self.messages_per_s = (messages - self._messages) / elapsed_s
            self.bytes_per_s = (size_bytes - self._bytes) / elapsed_s
            self.entries_per_s = (entries - self._entries) / elapsed_s
        self._messages, self._bytes, self._entries, self._sampled_s = messages, size_bytes, entries, now_s
