"""The control requests of one connection that are under way: each a task of the broker, and only so many at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from magnetar.base.errors import MagnetarError
from magnetar.base.limits import PENDING_REQUESTS_PER_CONNECTION_MAX
from magnetar.base.tasks import TaskScope

logger = logging.getLogger(__name__)


class ControlRequests:
    """Calls `on_many` when the limit is reached, `on_few` when half of them have ended."""

    __slots__ = ("_on_few", "_on_many", "_scope", "count")

    def __init__(self, scope: TaskScope, on_many: Callable[[], None], on_few: Callable[[], None]) -> None:
        self.count = 0
        self._scope = scope
        self._on_many = on_many
        self._on_few = on_few

    def spawn(self, work: Coroutine[Any, Any, None], name: str, address: str) -> None:
        """Run `work`; what it raises is logged with the client's address."""
        self.count += 1
        if self.count >= PENDING_REQUESTS_PER_CONNECTION_MAX:
            self._on_many()
        self._scope.spawn(self._guarded(work, address), name)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Around a wait that only the client can end: its further requests are read however many of these there are."""
        self._ended()
        try:
            yield
        finally:
            self.count += 1

    async def _guarded(self, work: Coroutine[Any, Any, None], address: str) -> None:
        try:
            await work
        except MagnetarError as error:
            logger.warning("request failed address=%s error=%s", address, error)
        except Exception:
            logger.exception("request failed address=%s", address)
        finally:
            self._ended()

    def _ended(self) -> None:
        self.count -= 1
        if self.count <= PENDING_REQUESTS_PER_CONNECTION_MAX // 2:
            self._on_few()
