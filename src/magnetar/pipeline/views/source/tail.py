"""The ends of a pipeline's sources as its driver follows them: where the next epoch may end, and waiting until there is more.

Nothing is asked in an interval while brokers tell by themselves (`TopicEnd`): only whether topics have got partitions.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.pipeline.connect.broker import is_transient
from magnetar.pipeline.connect.errors import ReadStalledError
from magnetar.pipeline.connect.offsets import EARLIEST, Range, from_document, ranges
from magnetar.pipeline.connect.planning import RangePartition
from magnetar.pipeline.connect.raw.connection import RawConnectionError, is_supported
from magnetar.pipeline.connect.raw.topic_end import Told, wait_for_any
from magnetar.pipeline.connect.stream import TopicStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from magnetar.pipeline.connect.options import ReadOptions

ASK_S: Final = 0.2
"""Between two looks where a broker cannot be made to tell: it does not answer, or takes credentials that only the official client knows."""


class _KeptReader(TopicStreamReader):
    keeps_ends = True


class Tail:
    """`sources`: how each is read, and its columns. For one thread, but for `wake`."""

    def __init__(self, sources: Mapping[str, tuple[ReadOptions, StructType]]) -> None:
        self._options = {name: options for name, (options, _) in sources.items()}
        self._readers = {name: _KeptReader(options, schema) for name, (options, schema) in sources.items()}
        self._silent_since_s: float | None = None
        self._asleep, self._waker = socket.socketpair()
        self._asleep.setblocking(False)
        self._waker.setblocking(False)
        self._by_itself = all(is_supported(options.connection) for options in self._options.values())

    def stop_at_end(self) -> None:
        """What is there now is all there will be. Raises ReadStalledError when no broker answers."""
        for reader in self._readers.values():
            reader.prepareForTriggerAvailableNow()

    def ends(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """By source, where the next epoch ends, of those that have more than `start`, by the limits of their options.

        Empty also while a broker does not answer. Raises ReadStalledError when it has not for pollTimeoutMs, DataLossError, OffsetError.
        """
        found = {}
        try:
            for name, reader in self._readers.items():
                at = start.get(name, {})
                end = reader.latest(at, reader.getDefaultReadLimit())
                if end != at:
                    found[name] = end
        except Exception as error:
            if not is_transient(error):
                raise
            self._has_failed(error)
            return {}
        self._silent_since_s = None
        return found

    def ranges(self, name: str, start: Any, end: Any) -> list[Range]:
        """What is to be read of a source between two positions."""
        return ranges(from_document(start or {}), from_document(end))

    def pieces(self, name: str, start: Any, end: Any) -> list[Range]:
        """The same for several tasks, by the source's minPartitions."""
        found = self._readers[name].partitions(start or {}, end)
        return [each.part for each in found if isinstance(each, RangePartition)]

    @property
    def is_silent(self) -> bool:
        """Whether a broker did not answer when it was asked last."""
        return self._silent_since_s is not None

    def entries(self, name: str, parts: Sequence[Range]) -> int | None:
        """How many entries these have together; None where that is not known without looking at them."""
        found = 0
        for part in parts:
            start = part.start
            if start <= EARLIEST:
                start = self._readers[name].first(part.topic) or part.end
            if start.ledger != part.end.ledger:
                return None
            found += part.end.entry - start.entry + (1 if part.end.batch else 0)
        return found

    def wait(self, start: Mapping[str, Any], timeout_s: float) -> None:
        """Until there may be more than `start`, `wake` is called, or the time is over."""
        ends: list[Told] = []
        able = self._by_itself and self._silent_since_s is None
        if able:
            try:
                for name, reader in self._readers.items():
                    ends += reader.told_by(from_document(start.get(name, {})))
                for end in ends:
                    end.arm()
            except RawConnectionError:
                able = False
        if able and self.ends(start):
            return  # it came before the broker was asked to tell
        wait_for_any(ends if able else [], self._asleep, timeout_s if able else min(timeout_s, ASK_S))

    def wake(self) -> None:
        """End a `wait`. From any thread."""
        try:
            self._waker.send(b"w")
        except OSError:
            pass  # it is full of them, or closed

    def close(self) -> None:
        for reader in self._readers.values():
            reader.stop()
        self._asleep.close()
        self._waker.close()

    def _has_failed(self, error: Exception) -> None:
        now_s = time.monotonic()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        for options in self._options.values():
            if (now_s - self._silent_since_s) * 1000 >= options.poll_timeout_ms:
                raise ReadStalledError(
                    f"no broker answers at {options.connection.service_url} within pollTimeoutMs={options.poll_timeout_ms}: "
                    f"{type(error).__name__}: {error}"
                ) from error
