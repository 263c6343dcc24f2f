"""Equality join of rows whose times lie near each other: rows that nothing can match any more are forgotten.

A row on the left at time l and one on the right at time r can match only where `low_us <= l - r <= high_us`. Rows that are not late come
at or behind the watermark W, so a left row is done once `l - low_us < W`, and a right one once `r + high_us < W`. Which pairs match is
decided above the join; it only has to hold no row back that may still be wanted.
"""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa

from magnetar.pipeline.errors import LateRowsError
from magnetar.pipeline.operators.changelog import checked, empty
from magnetar.pipeline.operators.join import Join
from magnetar.pipeline.operators.operator import (
    LEFT,
    RIGHT,
    Deltas,
    EpochContext,
    Keys,
    Operator,
    OperatorResult,
    Slices,
)
from magnetar.pipeline.operators.stored_rows import puts_and_deletes
from magnetar.pipeline.operators.window import LATE_ROWS
from magnetar.pipeline.state.table import OP, PUT, StateTable


class IntervalJoin:
    """An inner join of two sides that only gain rows. A late row joins what is still there, is counted, and is kept only as long as others.

    In an epoch whose watermark has moved all state of the vnodes is read. `times`: the columns of both sides, timestamps in microseconds.
    A bound that is None lets the rows stay that it would let go. `fails_late`: late rows are a LateRowsError.
    """

    def __init__(
        self, inner: Join, times: tuple[str, str], low_us: int | None, high_us: int | None, *, fails_late: bool = False
    ) -> None:
        self._inner = inner
        self._tables: Final = dict(zip((LEFT, RIGHT), inner.state_tables(), strict=True))
        self._times = dict(zip((LEFT, RIGHT), times, strict=True))
        self._reach_us = {LEFT: None if low_us is None else -low_us, RIGHT: high_us}
        """How long behind its time a row of the side may still find a match."""
        self._fails_late = fails_late

    @property
    def output_schema(self) -> pa.Schema:
        return self._inner.output_schema

    @property
    def output_key(self) -> tuple[str, ...]:
        return self._inner.output_key

    def state_tables(self) -> list[StateTable]:
        return self._inner.state_tables()

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys:
        if context.watermark_us is not None and context.watermark_us != context.previous_watermark_us:
            return dict.fromkeys(table.table_id for table in self._tables.values())
        return self._inner.keys_needed(deltas, context)

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        late = self._late(deltas, context)
        if late and self._fails_late:
            raise LateRowsError(
                f"{self._tables[LEFT].name}: {late} rows came behind the watermark of the join; nothing of the epoch is kept. Say "
                "late_rows = 'drop' in its CREATE and run again to go on without them"
            )
        kept: dict[int, pl.DataFrame] = {}
        done: dict[int, pl.DataFrame] = {}
        for side, table in self._tables.items():
            found = state.get(table.table_id)
            rows = empty(table.schema) if found is None else found.select(table.schema.names)
            kept[table.table_id] = rows.filter(~self._is_done(side, context))
            done[table.table_id] = rows.filter(self._is_done(side, context))
        result = self._inner.apply(kept, deltas, context)
        writes = {}
        for side, table in self._tables.items():
            own = result.writes[table.table_id].filter(~(self._is_done(side, context) & (pl.col(OP) == PUT)))
            forgotten = puts_and_deletes(empty(table.schema), done[table.table_id], table.key)
            writes[table.table_id] = pl.concat([own, forgotten.select(own.columns)])
        return OperatorResult(writes, result.changelog, {**result.counters, LATE_ROWS: late})

    def _is_done(self, side: str, context: EpochContext) -> pl.Expr:
        reach = self._reach_us[side]
        if context.watermark_us is None or reach is None:
            return pl.lit(False)
        # a row without a time never matches
        return (pl.col(self._times[side]).cast(pl.Int64) + reach < context.watermark_us).fill_null(True)

    def _late(self, deltas: Deltas, context: EpochContext) -> int:
        if context.watermark_us is None:
            return 0
        counts = [
            checked(deltas.get(side), table.schema)
            .select((pl.col(self._times[side]).cast(pl.Int64) < context.watermark_us).sum())
            .item()
            for side, table in self._tables.items()
        ]
        return int(sum(count or 0 for count in counts))


def _is_operator(join: IntervalJoin) -> Operator:
    """For the type checker."""
    return join
