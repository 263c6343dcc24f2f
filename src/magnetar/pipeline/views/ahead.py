"""One epoch runs while the next one is planned: a thread that runs epochs one after another, and where they will have led."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from magnetar.hashing.mapping import VnodeMapping
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.views.epoch import Batch


@dataclass(frozen=True)
class Head:
    """Where a pipeline stands once the last epoch that was begun is committed. `time_us`: when it began, by the wall clock."""

    batch_id: int
    sources: Mapping[str, Any]
    mapping: VnodeMapping
    time_us: int

    @staticmethod
    def of(manifest: Manifest) -> Head:
        mapping = VnodeMapping.from_json(manifest.mapping)
        return Head(manifest.batch_id, manifest.sources, mapping, manifest.created_ms * 1000)

    def after(self, batch: Batch, mapping: VnodeMapping) -> Head:
        """With one more epoch."""
        return Head(batch.batch_id, {**self.sources, **batch.offsets}, mapping, batch.time_us)


class OneAhead:
    """At most one epoch runs. All methods but `failure` are for one thread at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="epoch")
        self._running: Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether none runs; one that failed counts as running until somebody has settled it."""
        return self._running is None or (self._running.done() and self._running.exception() is None)

    @property
    def failure(self) -> BaseException | None:
        """What the last epoch failed with, if it has."""
        running = self._running
        return running.exception() if running is not None and running.done() else None

    def settle(self) -> None:
        """Wait for the epoch that runs. Raises what it failed with."""
        if self._running is not None:
            self._running.result()

    def begin(self, epoch: Callable[[], None]) -> None:
        """In the other thread. After `settle`."""
        assert self.is_idle, "one epoch at a time"
        self._running = self._thread.submit(epoch)

    def close(self) -> None:
        """Waits for the epoch that runs."""
        self._thread.shutdown()
