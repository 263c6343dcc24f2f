"""Tumbling and hopping windows: rows to windows, and aggregates of windows that end.

`assign` is a projection, done before rows are dispatched (Spark's `window()` gives the same windows). `WindowAggregate` is an aggregate
whose group has the end of a window, and which forgets a window once the watermark has reached its end: what comes for it later
is dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import LateRowsError, StateSchemaError
from magnetar.pipeline.operators.aggregate import MergedAggregate
from magnetar.pipeline.operators.aggregate_functions import stands_for
from magnetar.pipeline.operators.changelog import difference, empty, empty_changelog
from magnetar.pipeline.operators.operator import INPUT, Deltas, EpochContext, Keys, Operator, OperatorResult, Slices
from magnetar.pipeline.operators.recompute import RecomputeGroups
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.state.table import VNODE, StateTable

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"

LATE_ROWS: Final = "late_rows"
"""Counter: changes dropped because the watermark had reached their window's end; a row in several windows counts in each."""

ROWS_WITHOUT_TIME: Final = "rows_without_time"
"""What `assign` leaves out: rows whose time is NULL are in no window."""

WINDOWS_PER_ROW_MAX: Final = 1000
"""Hopping windows that one row may be in: more are refused when the window is declared."""


@dataclass(frozen=True)
class Windows:
    """Windows of `size_us` that begin every `hop_us` (the size: tumbling), counted from 1970 plus `offset_us`; the end is exclusive."""

    time_column: str
    size_us: int
    hop_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.hop_us <= self.size_us:
            raise StateSchemaError(
                f"windows of {self.size_us} us every {self.hop_us} us: the hop is above 0 and at most the size"
            )
        if self.size_us > self.hop_us * WINDOWS_PER_ROW_MAX:
            raise StateSchemaError(f"a row would be in more than {WINDOWS_PER_ROW_MAX} windows; hop further")

    def assign(self, changes: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """The changes once for each of their windows, with `window_start` and `window_end` of the time's type; and how many have no time.

        The time is a timestamp in microseconds.
        """
        timed = changes.filter(pl.col(self.time_column).is_not_null())
        time = pl.col(self.time_column).cast(pl.Int64) - self.offset_us
        last = time - time % self.hop_us  # the remainder has the divisor's sign, so times before 1970 are right as well
        count = -(-self.size_us // self.hop_us)
        kind = changes.schema[self.time_column]
        parts = []
        for back in range(count):
            start = last - back * self.hop_us
            inside = timed.filter(time < start + self.size_us)
            parts.append(
                inside.with_columns(
                    (start + self.offset_us).cast(kind).alias(WINDOW_START),
                    (start + self.offset_us + self.size_us).cast(kind).alias(WINDOW_END),
                )
            )
        return pl.concat(parts), changes.height - timed.height


class WindowAggregate:
    """An aggregate over windows. A window whose end is at or before the epoch's watermark is closed: its state goes, its result stays.

    `on_close`: no result before a window is closed, then one insert (EMIT ON WINDOW CLOSE); else each epoch's changes. Windows are
    closed before the epoch's rows are looked at. In an epoch whose watermark has moved all state of the vnodes is read.
    """

    def __init__(
        self,
        inner: MergedAggregate | RecomputeGroups,
        *,
        on_close: bool = False,
        end: str = WINDOW_END,
        fails_late: bool = False,
    ) -> None:
        """`end`: the column of the group that holds the window's end. `fails_late`: late rows are a LateRowsError."""
        if end not in inner.output_key:
            raise StateSchemaError(f"the aggregate's group needs the end of the window, {end}")
        self._inner = inner
        self._end = end
        self._on_close = on_close
        self._fails_late = fails_late
        (self._table,) = inner.state_tables()

    @property
    def inner(self) -> Operator:
        """What computes the rows."""
        return self._inner

    @property
    def on_close(self) -> bool:
        """Whether it gives a result only when a window is closed."""
        return self._on_close

    @property
    def output_schema(self) -> pa.Schema:
        return self._inner.output_schema

    @property
    def output_key(self) -> tuple[str, ...]:
        return self._inner.output_key

    def state_tables(self) -> list[StateTable]:
        return [self._table]

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        if context.watermark_us is not None and context.watermark_us != context.previous_watermark_us:
            return {self._table.table_id: None}
        return self._inner.keys_needed(deltas, context)

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        delta = self._inner.received(deltas).drop(VNODE, strict=False)  # what is forgotten below has none
        table_id = self._table.table_id
        found = state.get(table_id)
        stored = empty(self._table.schema) if found is None else found.select(self._table.schema.names)
        closed = stored.filter(self._closed(context))
        late = delta.filter(self._closed(context))
        if late.height and self._fails_late:
            raise LateRowsError(
                f"{self._table.name}: {stands_for(late)} rows came for windows that the watermark had closed; nothing of the epoch is "
                "kept. Say late_rows = 'drop' in its CREATE and run again to go on without them"
            )
        result = self._inner.apply(
            {table_id: stored.filter(~self._closed(context))}, {INPUT: delta.filter(~self._closed(context))}, context
        )
        changelog = result.changelog
        if self._on_close:
            changelog = empty_changelog(self.output_schema)
            if closed.height:
                changelog = difference(empty(self.output_schema), self._inner.results(closed), self.output_key)
        forgotten = puts_and_deletes(closed.clear(), closed, self._table.key)
        writes = pl.concat([result.writes[table_id], forgotten])
        return OperatorResult({table_id: writes}, changelog, {**result.counters, LATE_ROWS: stands_for(late)})

    def _closed(self, context: EpochContext) -> pl.Expr:
        if context.watermark_us is None:
            return pl.lit(False)
        return (pl.col(self._end).cast(pl.Int64) <= context.watermark_us).fill_null(False)


def _is_operator(window: WindowAggregate) -> Operator:
    """For the type checker."""
    return window
