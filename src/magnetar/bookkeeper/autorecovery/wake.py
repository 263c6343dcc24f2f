"""Sleeping until something that matters has changed in the metadata store, or for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from magnetar.metadata.store import MetadataStore


class StoreWake:
    """`with StoreWake(store, *prefixes) as wake: await wake.wait(timeout_s)`. What changed before a wait ends the next one at once."""

    def __init__(self, store: MetadataStore, *prefixes: str) -> None:
        self._store = store
        self._prefixes = prefixes
        self._changed = asyncio.Event()
        self._ends: list[Callable[[], None]] = []

    def __enter__(self) -> StoreWake:
        self._ends = [self._store.watch(self._on_change, prefix) for prefix in self._prefixes]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for end in self._ends:
            end()

    def wake(self) -> None:
        self._changed.set()

    async def wait(self, timeout_s: float) -> bool:
        """True when something has changed since the last call."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _on_change(self, path: str) -> None:
        self._changed.set()
