"""Rows before and after side by side: one join instead of one for each kind of change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from magnetar.pipeline.operators.changelog import CHANGE, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, with_one
from magnetar.pipeline.state import lookup
from magnetar.pipeline.state import table as state
from magnetar.pipeline.state.ordering import by_key
from magnetar.pipeline.state.table import OP, PUT, VNODE

OLD = "_old_"
"""In front of the names of the columns before."""

_PLACE = "_place"


@dataclass(frozen=True, slots=True)
class Paired:
    """Row i of `old` and `new` is of the same key; `was` and `stays` say in which of them it is there. In an order that the keys decide."""

    key: tuple[str, ...]
    old: pl.DataFrame
    new: pl.DataFrame
    was: pl.Series
    stays: pl.Series

    def changelog(self) -> pl.DataFrame:
        """What makes the new rows of the old ones: as `changelog.difference`, without looking for the keys again."""
        differs = self._differs()
        gone = self.was & (~self.stays | differs)
        comes = self.stays & (~self.was | differs)
        before = self._changes(self.old, gone, self.stays, UPDATE_BEFORE, DELETE)
        after = self._changes(self.new, comes, self.was, UPDATE_AFTER, INSERT)
        return pl.concat([before, after]).sort(_PLACE, maintain_order=True).drop(_PLACE)

    def writes(self) -> pl.DataFrame:
        """What the table of these rows must be told, with `_op`."""
        puts = (self.new if self.stays.all() else self.new.filter(self.stays)).with_columns(
            pl.lit(PUT, pl.Int8).alias(OP)
        )
        gone = self.old.filter(self.was & ~self.stays).with_columns(pl.lit(state.DELETE, pl.Int8).alias(OP))
        return pl.concat([puts, gone])

    def _differs(self) -> pl.Series:
        values = [name for name in self.new.columns if name not in (*self.key, VNODE)]
        found = pl.repeat(False, self.new.height, dtype=pl.Boolean, eager=True)
        for name in values:
            found |= self.old[name].ne_missing(self.new[name])
        return found

    def _changes(self, rows: pl.DataFrame, chosen: pl.Series, other: pl.Series, both: int, one: int) -> pl.DataFrame:
        kind = pl.when(pl.lit(other)).then(both).otherwise(one).cast(pl.Int8).alias(CHANGE)
        return rows.select(pl.int_range(pl.len()).alias(_PLACE), kind, pl.all()).filter(chosen)


def beside(change: pl.DataFrame, stored: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """The changes in the order of their keys (behind that of `_vnode`, where they carry it), each with the columns of its stored row under
    OLD names: NULL where there is none."""
    if key:
        ordered = by_key(change, key, VNODE if VNODE in change.columns else None)
        return lookup.beside(ordered, stored, list(key), OLD)
    old = stored.rename({name: OLD + name for name in stored.columns})
    left, on = with_one(change, key)
    right, _ = with_one(old, key)
    return left.join(right, on=on, how="left", maintain_order="left")
