"""The same client for asyncio: each call runs in a thread of the event loop's executor.

async with AsyncAdminClient("http://127.0.0.1:8080") as admin:
    names = await admin.run(lambda sync: sync.topics.list("public/default"))   # typed
    names = await admin.topics.list("public/default")                          # the same, not seen by type checkers
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from magnetar.admin.client.client import AdminClient

T = TypeVar("T")


class AsyncAdminClient:
    """Takes what AdminClient takes; its nouns' methods are coroutines here."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = AdminClient(url, **options)

    async def run(self, work: Callable[[AdminClient], T]) -> T:
        """`work` with the synchronous client, in a thread."""
        return await asyncio.to_thread(work, self._client)

    def __getattr__(self, noun: str) -> Any:
        return _Noun(getattr(self._client, noun))

    async def __aenter__(self) -> AsyncAdminClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


class _Noun:
    """A noun, or a policy of one."""

    def __init__(self, noun: Any) -> None:
        self._noun = noun

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._noun, name)
        if not callable(found):
            return _Noun(found)

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return asyncio.to_thread(found, *args, **kwargs)

        return call
