"""What a client's session writes: statements that become messages, those that wait for COMMIT, and FLUSH."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from magnetar.pipeline.connect.offsets import Position
from magnetar.pipeline.connect.options import Connection
from magnetar.pipeline.home import local_side
from magnetar.pipeline.serving.engine import Engine, Result
from magnetar.pipeline.serving.reader import Snapshot
from magnetar.pipeline.serving.rows import Batches
from magnetar.pipeline.serving.sql.translate import Context, Query, QueryError
from magnetar.pipeline.serving.sql.writes import Write, read_write
from magnetar.pipeline.serving.writer import ROWS_MAX, Change, Credential, Writer, changes_of, is_read, topic_of
from magnetar.pipeline.sql.statements import CreateSource
from magnetar.pipeline.views.control.driver_lock import holder

FLUSH_LOOK_S: Final = 0.01
RUNNING_LOOK_S: Final = 0.5


class SessionWrites:
    """Methods that read or send block: they are for worker threads, one at a time."""

    def __init__(self, engine: Engine, writer: Writer, credential: Credential | None) -> None:
        self._engine = engine
        self._writer = writer
        self._credential = credential
        self._waiting: list[tuple[CreateSource, list[Change]]] = []
        self._savepoints: dict[str, int] = {}
        self._connections: set[Connection] = set()

    def prepare(self, text: str, context: Context, types: Sequence[int]) -> tuple[Write, Query]:
        """Raises QueryError."""
        snapshot = self._engine.snapshot()

        def width_of(query: str) -> int:
            found = self._engine.translate(query, context, types, snapshot=snapshot)
            return len(self._engine.describe(found, snapshot))

        write = read_write(text, lambda name: self._engine.relation(name, snapshot), width_of)
        return write, self._engine.translate(write.query, context, types, snapshot=snapshot, keyed=write.table.name)

    def open(self, query: Query, values: Mapping[int, Any], snapshot: Snapshot) -> Result:
        """The rows that a statement writes. Raises QueryError."""
        return self._engine.run(query, values, snapshot)

    def collect(self, write: Write, result: Batches) -> tuple[list[Change], list[pa.RecordBatch]]:
        """All of them as messages, checked, and what RETURNING gives. Raises QueryError."""
        batches, rows = [], sum(len(changes) for _, changes in self._waiting)
        for batch in result.batches():
            rows += batch.num_rows
            if rows > ROWS_MAX:
                raise QueryError(
                    "54000",
                    f"more than {ROWS_MAX} rows in one statement or transaction",
                    "write them in several, or publish them to a topic",
                )
            batches.append(batch)
        width = len(write.names)
        returned = [batch.select(range(width, batch.num_columns)) for batch in batches] if write.returns else []
        return changes_of(write, [batch.select(range(width)) for batch in batches]), returned

    def keep(self, write: Write, changes: list[Change]) -> None:
        """Until COMMIT."""
        self._waiting.append((write.table, changes))

    def send(self, table: CreateSource, changes: list[Change]) -> None:
        """Raises QueryError."""
        if not changes:
            return
        connection = self._writer.connection(table, self._credential)
        if connection not in self._connections:
            self._writer.open(connection)
            self._connections.add(connection)
        self._writer.send(table, connection, changes)

    def commit(self) -> None:
        """Send what waits, in its order. Raises QueryError; then some of it may be written."""
        waiting, self._waiting = self._waiting, []
        self._savepoints.clear()
        for table, changes in waiting:
            self.send(table, changes)

    def rollback(self) -> None:
        self._waiting.clear()
        self._savepoints.clear()

    def savepoint(self, name: str) -> None:
        self._savepoints[name] = len(self._waiting)

    def rollback_to(self, name: str) -> None:
        """Raises QueryError."""
        if name not in self._savepoints:
            raise QueryError("3B001", f'savepoint "{name}" does not exist')
        del self._waiting[self._savepoints[name] :]

    def release(self, name: str) -> None:
        """Raises QueryError."""
        if self._savepoints.pop(name, None) is None:
            raise QueryError("3B001", f'savepoint "{name}" does not exist')

    def close(self) -> None:
        for connection in self._connections:
            self._writer.release(connection)
        self._connections.clear()

    async def flush(self, cancelled: Callable[[], bool], limit_s: float) -> None:
        """Until what this server has written is readable. Raises QueryError."""
        written, time_s = self._writer.written(), asyncio.get_running_loop().time
        began_s = looked_s = time_s()
        while not self._is_readable(written):
            if cancelled():
                raise QueryError("57014", "canceling statement due to user request")
            if time_s() - began_s > limit_s:
                raise QueryError("57014", f"canceling statement due to statement timeout ({limit_s:g} s)")
            if time_s() - looked_s > RUNNING_LOOK_S:
                looked_s = time_s()
                self._check_running()
            await asyncio.sleep(FLUSH_LOOK_S)

    def _is_readable(self, written: Mapping[str, Mapping[str, Position]]) -> bool:
        """Whether the newest epoch has it. What was written into a table that was dropped since is waited for no longer, also where
        there is another one of its name, whose rows lie in another topic."""
        snapshot = self._engine.snapshot()
        present = {}
        for name, ends in written.items():
            table = self._engine.relation(name, snapshot)
            if isinstance(table, CreateSource):
                topic = topic_of(table)
                own = (each for each in ends if each == topic or each.startswith(f"{topic}-partition-"))
                present[name] = {each: ends[each] for each in own}
        return is_read(present, snapshot.manifest.sources)

    def _check_running(self) -> None:
        """Raises QueryError when no epoch will come: nobody runs the pipeline on this machine, where it lives."""
        files = self._engine.views.files
        if files.local and holder(local_side(files.root_url)) is None:
            raise QueryError(
                "55000",
                f"pipeline {self._engine.database} does not run: what was written is durable, and readable when it runs again",
                "magnetar pipeline run FILE",
            )
