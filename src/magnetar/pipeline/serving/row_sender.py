"""Rows on their way to a client: as fast as it reads them, for queries, FETCH, MOVE and COPY."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from magnetar.pipeline.serving.rows import CSV, Rows, copy_line, formats_of
from magnetar.pipeline.serving.session_settings import milliseconds
from magnetar.pipeline.serving.sql.commands import Command
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.serving.subscription import SubscriptionRows
from magnetar.pipeline.serving.wire import messages

CHUNK_ROWS: Final = 2048
"""Rows between two looks at whether the client still reads."""


class InThread(Protocol):
    """Work of the engine in a thread; `running`: the rows that a cancel reaches."""

    async def __call__(self, work: Callable[[], Any], running: Rows | None = None) -> Any: ...


class RowSender:
    """`write` puts bytes into the connection, `drain` waits until the client has read enough of them."""

    def __init__(
        self, write: Callable[[bytes], None], drain: Callable[[], Awaitable[None]], in_thread: InThread
    ) -> None:
        self._write = write
        self._drain = drain
        self._in_thread = in_thread

    async def send(
        self, rows: Rows, most: int, given: Sequence[int], timeout_s: float | None = None, *, fetch: bool = False
    ) -> tuple[int, bool]:
        """So many rows (0: all) to the client: how many went, and whether there may be more."""
        formats = formats_of(rows.columns, given)
        sent, more = 0, True
        if isinstance(rows, SubscriptionRows):
            rows.begin_fetch(timeout_s, streams=not fetch)
        while more and (not most or sent < most):
            want = min(most - sent, CHUNK_ROWS) if most else CHUNK_ROWS
            found, more = await self._in_thread(lambda want=want: rows.take(want, formats), rows)  # type: ignore[misc]
            if found:
                self._write(b"".join(found))
            sent += len(found)
            await self._drain()
        return sent, more

    async def fetch(self, source: Rows, command: Command, formats: Sequence[int]) -> None:
        """FETCH and MOVE: rows of another portal."""
        most = command.count
        timeout = command.options.get("timeout")
        timeout_s = None if timeout is None else _seconds(timeout)
        if command.options["word"] == "MOVE":
            moved = 0
            while most is None or moved < most:
                want = CHUNK_ROWS if most is None else min(CHUNK_ROWS, most - moved)
                found, more = await self._in_thread(lambda want=want: source.take_plain(want), source)  # type: ignore[misc]
                moved += len(found)
                if not more:
                    break
            self._write(messages.command_complete(f"MOVE {moved}"))
            return
        sent = 0
        if most != 0:
            sent, _ = await self.send(source, most or 0, formats, timeout_s, fetch=True)
        self._write(messages.command_complete(f"FETCH {sent}"))

    async def copy(self, rows: Rows, rest: str) -> None:
        """`rest`: what stands behind COPY ... TO STDOUT."""
        if "binary" in rest:
            raise QueryError("0A000", "COPY TO STDOUT gives text or csv, not binary")
        form = CSV if CSV in rest else "text"
        self._write(messages.copy_out(len(rows.columns)))
        if form == CSV and "header" in rest:
            line = copy_line([column.name.encode() for column in rows.columns], form)
            self._write(messages.copy_data(line))
        sent, more = 0, True
        if isinstance(rows, SubscriptionRows):
            rows.begin_fetch(None)
        while more:
            found, more = await self._in_thread(lambda: rows.take_plain(CHUNK_ROWS), rows)
            self._write(b"".join(messages.copy_data(copy_line(row, form)) for row in found))
            sent += len(found)
            await self._drain()
        self._write(messages.COPY_DONE)
        self._write(messages.command_complete(f"COPY {sent}"))


def _seconds(text: str) -> float:
    return milliseconds(text) / 1000
