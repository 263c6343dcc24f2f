"""What a portal gives its client: columns, and rows in pieces, of a query or made on the spot. Used in worker threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from magnetar.pipeline.serving.engine import BATCH_ROWS, Column
from magnetar.pipeline.serving.sql.commands import Command
from magnetar.pipeline.serving.sql.translate import Query, QueryError
from magnetar.pipeline.serving.sql.writes import Write
from magnetar.pipeline.serving.wire import messages
from magnetar.pipeline.serving.wire.types import TEXT
from magnetar.pipeline.serving.wire.values import encode_column


class Rows(Protocol):
    """`take` and `close` are called in one thread at a time, `cancel` in any."""

    columns: tuple[Column, ...]

    def take(self, most: int, formats: Sequence[int]) -> tuple[list[bytes], bool]:
        """At most so many DataRow messages, and whether there may be more. Raises QueryError."""
        ...

    def take_plain(self, most: int) -> tuple[list[list[bytes | None]], bool]:
        """The same as texts, for COPY."""
        ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Batches(Protocol):
    """What the engine's `Result` gives."""

    columns: tuple[Column, ...]

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Returned:
    """The rows of RETURNING, which are there when their statement is done."""

    def __init__(self, columns: tuple[Column, ...], batches: Sequence[pa.RecordBatch]) -> None:
        self.columns = columns
        self._batches = batches

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        self._batches = ()


class QueryRows:
    """Of a result of the engine, or of a statement with RETURNING."""

    def __init__(self, result: Batches) -> None:
        self.columns = result.columns
        self.result = result
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._left: Any = None

    def take(self, most: int, formats: Sequence[int]) -> tuple[list[bytes], bool]:
        batch = self._next(most)
        if batch is None:
            return [], False
        return list(messages.data_rows(self._encoded(batch, formats), batch.num_rows)), True

    def take_plain(self, most: int) -> tuple[list[list[bytes | None]], bool]:
        batch = self._next(most)
        if batch is None:
            return [], False
        columns = self._encoded(batch, [0] * len(self.columns))
        return [list(row) for row in zip(*columns, strict=True)] or [[] for _ in range(batch.num_rows)], True

    def _encoded(self, batch: Any, formats: Sequence[int]) -> list[list[bytes | None]]:
        try:
            return [
                encode_column(batch.column(at), column.kind, formats[at] == 1) for at, column in enumerate(self.columns)
            ]
        except (ValueError, OverflowError, TypeError) as error:
            raise QueryError("22P03", f"a value cannot be sent: {error}") from error

    def _next(self, most: int) -> Any:
        if self._batches is None:
            self._batches = self.result.batches(BATCH_ROWS)
        batch = self._left if self._left is not None else next(self._batches, None)
        self._left = None
        if batch is not None and batch.num_rows > most:
            batch, self._left = batch.slice(0, most), batch.slice(most)
        return batch

    def cancel(self) -> None:
        self.result.cancel()

    def close(self) -> None:
        self._left = self._batches = None
        self.result.close()


class FixedRows:
    """A few rows of texts: of SHOW, EXPLAIN and the like."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> None:
        self.columns = tuple(Column(name, TEXT, -1) for name in names)
        self._rows = [[None if value is None else value.encode() for value in row] for row in rows]
        self._at = 0

    def take(self, most: int, formats: Sequence[int]) -> tuple[list[bytes], bool]:
        rows, more = self.take_plain(most)
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in self.columns]
        return list(messages.data_rows(columns, len(rows))), more

    def take_plain(self, most: int) -> tuple[list[list[bytes | None]], bool]:
        rows = self._rows[self._at : self._at + most]
        self._at += len(rows)
        return rows, self._at < len(self._rows)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass


def fields_of(columns: Sequence[Column]) -> list[messages.Field]:
    return [messages.Field(column.name, column.kind.oid, column.kind.size, column.modifier) for column in columns]


def formats_of(columns: Sequence[Column], given: Sequence[int]) -> list[int]:
    """One for each column: none given means text, one means all. Raises QueryError."""
    if len(given) == 1:
        return [given[0]] * len(columns)
    if not given:
        return [0] * len(columns)
    if len(given) != len(columns):
        raise QueryError("08P01", f"bind message has {len(given)} result formats but query has {len(columns)} columns")
    return list(given)


CSV: Final = "csv"


def copy_line(row: Sequence[bytes | None], form: str) -> bytes:
    """A line of COPY TO STDOUT."""
    if form == CSV:
        parts = []
        for value in row:
            if value is None:
                parts.append(b"")
            elif value == b"" or any(sign in value for sign in (b",", b'"', b"\n", b"\r")):
                parts.append(b'"' + value.replace(b'"', b'""') + b'"')
            else:
                parts.append(value)
        return b",".join(parts) + b"\n"
    escaped = [
        b"\\N"
        if value is None
        else value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        for value in row
    ]
    return b"\t".join(escaped) + b"\n"


@dataclass(slots=True)
class Prepared:
    """A statement after Parse. `query` is of the statement itself or of the one within (DECLARE, COPY, EXPLAIN); `columns` when asked."""

    command: Command
    query: Query | None
    types: tuple[int, ...]
    write: Write | None = None
    columns: tuple[Column, ...] | None = None


@dataclass(slots=True)
class Portal:
    """`rows` None: a command without rows that is done when it is executed. `tag`: of one that is done, whose rows are left to be sent."""

    prepared: Prepared
    values: dict[int, Any]
    formats: Sequence[int]
    rows: Rows | None = None
    done: int = 0
    tag: str = ""
    held: bool = False
    """Made by DECLARE: it stays until CLOSE or the transaction's end."""
