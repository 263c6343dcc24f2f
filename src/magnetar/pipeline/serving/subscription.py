"""The changes of views as they commit: each row's insert, update and delete with its epoch, for as many readers as ask.

A reader begins with the rows that there are, or behind an epoch it names, and misses nothing after that: the same rows that begin it are
the ones that the next epoch is compared with. One that does not read is told so and ends; it does not hold others up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import PipelineError
from magnetar.pipeline.serving.engine import Column, as_query_error
from magnetar.pipeline.serving.held_table import Changed, load
from magnetar.pipeline.serving.reader import Snapshot, Views
from magnetar.pipeline.serving.sql.translate import QueryError
from magnetar.pipeline.serving.wire import messages
from magnetar.pipeline.serving.wire.types import BY_NAME, of_arrow
from magnetar.pipeline.serving.wire.values import encode_column
from magnetar.pipeline.state.manifest import Manifest
from magnetar.pipeline.state.table import VNODE

EPOCH: Final = "_epoch"
OP: Final = "_op"
INSERT, UPDATE_DELETE, UPDATE_INSERT, DELETE = "insert", "update_delete", "update_insert", "delete"

PENDING_ROWS_MAX: Final = 500_000
"""Changes that wait for a reader; with more its subscription ends, and it may begin again behind the last epoch it has seen."""

WAIT_S: Final = 0.5
"""How long a thread waits for a change before it looks whether the reader is still there."""


class Feed:
    """The subscriptions of one pipeline. `refresh` is what brings new epochs, called by one thread again and again."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self.lock = threading.Lock()
        self._readers: dict[int, list[Subscription]] = {}
        views.on_change = self._changed

    def refresh(self) -> bool:
        """Whether there was a new epoch. PipelineError."""
        with self.lock:
            return self.views.refresh()

    def columns(self, view: str) -> tuple[Column, ...]:
        """Of a subscription. Raises QueryError."""
        try:
            return _columns(self.views.newest(), view)
        except PipelineError as error:
            raise as_query_error(error) from error

    def subscribe(self, view: str, *, rows_first: bool = True, since: int | None = None) -> Subscription:
        """With the rows that there are, unless told otherwise, or with what has changed after the epoch `since`. Raises QueryError."""
        with self.lock:
            try:
                snapshot = self.views.newest()
                state = snapshot.state(view)
                if since is not None and since > snapshot.manifest.epoch:
                    raise QueryError(
                        "22023", f"epoch {since} has not been yet; the newest is {snapshot.manifest.epoch}"
                    )
                held = self.views.load(snapshot, state)
                made = Subscription(self, view, snapshot)
                if since is not None:
                    self._catch_up(made, view, since, snapshot)
                elif rows_first:
                    rows = pl.concat([held.base, held.newer]).drop(VNODE)
                    made.add(snapshot.manifest.epoch, Changed(rows.head(0), rows))
            except PipelineError as error:
                raise as_query_error(error) from error
            self._readers.setdefault(state.table.table_id, []).append(made)
            self.views.keep(state.table.table_id, 1)
        return made

    def _catch_up(self, made: Subscription, view: str, since: int, now: Snapshot) -> None:
        """What each epoch after `since` has changed, as far as manifests are kept. UnknownEpochError."""
        first = self.views.at_epoch(since)
        held = self.views.reading(first, lambda: load(self.views.files, first.state(view), since))
        for epoch in range(since + 1, now.manifest.epoch + 1):
            at = self.views.at_epoch(epoch)
            held, changed = self.views.reading(
                at,
                lambda held=held, at=at: held.advanced(self.views.files, at.state(view), at.manifest.epoch),  # type: ignore[misc]
            )
            if changed is not None:
                made.add(epoch, changed)

    def _changed(self, manifest: Manifest, table_id: int, changed: Changed) -> None:
        for reader in self._readers.get(table_id, ()):
            reader.add(manifest.epoch, changed)

    def end(self, subscription: Subscription) -> None:
        """Nothing more is kept for it. May be called again."""
        with self.lock:
            readers = self._readers.get(subscription.table_id, [])
            if subscription in readers:
                readers.remove(subscription)
                self.views.keep(subscription.table_id, -1)


class Subscription:
    """Changes that wait for one reader, oldest first."""

    def __init__(self, feed: Feed, view: str, snapshot: Snapshot) -> None:
        table = snapshot.state(view).table
        self.table_id = table.table_id
        self.columns = _columns(snapshot, view)
        self._feed = feed
        self._key = list(table.key)
        self._shown = snapshot.columns(view)
        self._waiting: deque[pa.Table] = deque()
        self._rows = 0
        self._behind = False
        self._condition = threading.Condition()

    def add(self, epoch: int, changed: Changed) -> None:
        rows = self._table(epoch, changed)
        if not rows.num_rows:
            return
        with self._condition:
            if self._waiting and self._rows + rows.num_rows > PENDING_ROWS_MAX:
                self._behind = True
                self._waiting.clear()
            if not self._behind:
                self._waiting.append(rows)
                self._rows += rows.num_rows
            self._condition.notify_all()

    def next(self, timeout_s: float) -> pa.Table | None:
        """The changes of one epoch, or None when none came in time. Raises QueryError when the reader was too slow."""
        with self._condition:
            if not self._waiting and not self._behind:
                self._condition.wait(timeout_s)
            if self._behind:
                raise QueryError(
                    "53400",
                    f"more than {PENDING_ROWS_MAX} changes waited to be read",
                    f"subscribe again, SINCE EPOCH n with the last {EPOCH} that was read, or from the beginning",
                )
            if not self._waiting:
                return None
            found = self._waiting.popleft()
            self._rows -= found.num_rows
            return found

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def close(self) -> None:
        self._feed.end(self)

    def _table(self, epoch: int, changed: Changed) -> pa.Table:
        rows = in_order(changed, self._key, self._shown.names)
        found = rows.to_arrow()
        plain = [
            field if pa.types.is_string(field.type) or pa.types.is_binary(field.type) else None for field in self._shown
        ]
        columns = [
            found.column(field.name) if same is not None else found.column(field.name).cast(field.type)
            for field, same in zip(self._shown, plain, strict=True)
        ]
        epochs = pa.chunked_array([pa.array([epoch], pa.int64()).take(pa.array([0] * found.num_rows, pa.int64()))])
        return pa.Table.from_arrays([epochs, found.column(OP), *columns], names=[EPOCH, OP, *self._shown.names])


def in_order(changed: Changed, key: Sequence[str], shown: Sequence[str]) -> pl.DataFrame:
    """`_op` and the shown columns: rows that went, rows that came, then for each row that changed what it was and what it is.

    A row whose shown columns are as before has not changed.
    """
    before, after = changed.before, changed.after
    if not key:
        gone, came = before, after
        pairs = before.head(0).with_columns(pl.lit(UPDATE_DELETE).alias(OP))
    else:
        same = before.join(after, on=list(before.columns), how="semi", nulls_equal=True)
        gone = before.join(after, on=list(key), how="anti", nulls_equal=True)
        came = after.join(before, on=list(key), how="anti", nulls_equal=True)
        was = before.join(after, on=list(key), how="semi", nulls_equal=True)
        now = after.join(before, on=list(key), how="semi", nulls_equal=True)
        if same.height:
            was, now = (each.join(same, on=list(key), how="anti", nulls_equal=True) for each in (was, now))
        pairs = pl.concat(
            [
                each.sort(list(key)).with_row_index("_at").with_columns(pl.lit(op).alias(OP))
                for each, op in ((was, UPDATE_DELETE), (now, UPDATE_INSERT))
            ]
        ).sort("_at", OP)
    parts = [gone.with_columns(pl.lit(DELETE).alias(OP)), came.with_columns(pl.lit(INSERT).alias(OP)), pairs]
    return pl.concat([part.select(OP, *shown) for part in parts])


class SubscriptionRows:
    """A subscription as rows of a portal. It waits for changes; a FETCH ends with those that there are, once it has some."""

    def __init__(self, feed: Feed, view: str, options: Mapping[str, str], since: int | None = None) -> None:
        """`options` of WITH: `snapshot` (true), whether it begins with the rows that there are. Raises QueryError."""
        unknown = set(options) - {"snapshot", "progress"}
        if unknown:
            raise QueryError("42601", f"SUBSCRIBE has no option {sorted(unknown)[0]}; it has snapshot = true or false")
        rows_first = options.get("snapshot", "true").lower() not in ("false", "off", "0")
        self._subscription = feed.subscribe(view, rows_first=rows_first, since=since)
        self.columns = self._subscription.columns
        self._left: pa.Table | None = None
        self._cancelled = False
        self._streams = True
        self._until: float | None = None

    def begin_fetch(self, timeout_s: float | None, *, streams: bool = True) -> None:
        """`streams`: until it is cancelled; else until there are rows, or for `timeout_s`."""
        self._streams = streams
        self._until = None if timeout_s is None else time.monotonic() + timeout_s

    def take(self, most: int, formats: Sequence[int]) -> tuple[list[bytes], bool]:
        rows, more = self._next(most)
        if rows is None:
            return [], more
        encoded = [
            encode_column(rows.column(at), column.kind, formats[at] == 1) for at, column in enumerate(self.columns)
        ]
        return list(messages.data_rows(encoded, rows.num_rows)), more

    def take_plain(self, most: int) -> tuple[list[list[bytes | None]], bool]:
        rows, more = self._next(most)
        if rows is None:
            return [], more
        encoded = [encode_column(rows.column(at), column.kind, False) for at, column in enumerate(self.columns)]
        return [list(row) for row in zip(*encoded, strict=True)], more

    def _next(self, most: int) -> tuple[pa.Table | None, bool]:
        rows = self._left
        if rows is None:
            wait_s = WAIT_S if self._until is None else max(0.0, min(WAIT_S, self._until - time.monotonic()))
            rows = self._subscription.next(wait_s)
        if self._cancelled:
            raise QueryError("57014", "canceling statement due to user request")
        if rows is None:
            over = self._until is not None and time.monotonic() >= self._until
            return None, not over
        self._left = rows.slice(most) if rows.num_rows > most else None
        return rows.slice(0, most), self._streams or self._left is not None

    def cancel(self) -> None:
        self._cancelled = True
        self._subscription.wake()

    def close(self) -> None:
        self._subscription.close()


def _columns(snapshot: Snapshot, view: str) -> tuple[Column, ...]:
    own = (Column(EPOCH, BY_NAME["int8"], -1), Column(OP, BY_NAME["text"], -1))
    return own + tuple(Column(field.name, *of_arrow(field.type)) for field in snapshot.columns(view))
