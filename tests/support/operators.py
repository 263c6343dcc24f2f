"""Operators for tests: streams of changes cut into epochs, state and output held in memory, rows compared as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from magnetar.pipeline.operators.changelog import (
    CHANGE,
    DELETE,
    INSERT,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    empty,
    empty_changelog,
)
from magnetar.pipeline.operators.operator import Deltas, EpochContext, Operator, rows_to_write
from magnetar.pipeline.state.reader import live, merge
from magnetar.pipeline.state.table import OP, VNODE, StateTable, as_frame

Row = dict[str, Any]
Change = tuple[int, Row]

NAN = float("nan")
GROUPS = st.sampled_from(["a", "a", "a", "b", None])  # one group gets most of the rows
DOUBLES = st.sampled_from([None, NAN, -1.5, 0.0, 0.5, 2.0, 1024.0])  # sums of these are exact in any order
INTEGERS = st.sampled_from([None, -7, 0, 1, 1, 2**40])

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("n", pa.int64()), ("v", pa.float64())])
"""`k` is the key of a row."""


@st.composite
def histories(
    draw: st.DrawFn, values: Mapping[str, st.SearchStrategy[Any]], append_only: bool = False
) -> list[list[Change]]:
    """Epochs of changes to rows of `k` and the values: inserts, updates and deletes that fit each other."""
    rows: dict[int, Row] = {}
    epochs: list[list[Change]] = [[]]
    step = st.tuples(st.integers(0, 5), st.booleans(), st.fixed_dictionaries(dict(values)), st.integers(0, 2))
    for number, (key, deletes, value, cut) in enumerate(draw(st.lists(step, min_size=1, max_size=25))):
        key = number if append_only else key
        row = {"k": key, **value}
        if key not in rows:
            epochs[-1].append((INSERT, row))
        elif deletes:
            epochs[-1].append((DELETE, rows.pop(key)))
        else:
            epochs[-1] += [(UPDATE_BEFORE, rows[key]), (UPDATE_AFTER, row)]
        if key in rows or not deletes or epochs[-1][-1][0] == INSERT:
            rows[key] = row
        if cut == 0:
            epochs.append([])
    return epochs


def delta(changes: Iterable[Change], schema: pa.Schema = SCHEMA) -> pl.DataFrame:
    """As operators take it."""
    rows = [{CHANGE: change, **row} for change, row in changes]
    return pl.DataFrame(rows, schema=empty_changelog(schema).schema, orient="row")


def final_rows(epochs: Iterable[Iterable[Change]], key: Sequence[str] = ("k",)) -> list[Row]:
    """What is there in the end."""
    rows: dict[Any, Row] = {}
    for changes in epochs:
        for change, row in changes:
            place = key_of(row, key)
            if change in (INSERT, UPDATE_AFTER):
                rows[place] = row
            else:
                del rows[place]
    return list(rows.values())


def key_of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(plain(row[name]) for name in key)


def plain(value: Any) -> Any:
    """NaN is equal to itself, and 0 of either sign."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def plain_rows(rows: Iterable[Row]) -> set[tuple[tuple[str, Any], ...]]:
    """To compare rows regardless of order."""
    listed = [tuple(sorted((name, plain(value)) for name, value in row.items())) for row in rows]
    assert len(set(listed)) == len(listed), "rows are unique"
    return set(listed)


class View:
    """A table that a changelog fills; refuses changes that do not fit."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._rows: dict[Any, Row] = {}

    def apply(self, changelog: pl.DataFrame) -> None:
        before: Any = None
        for row in changelog.to_dicts():
            change = row.pop(CHANGE)
            place = key_of(row, self._key)
            if change in (INSERT, UPDATE_AFTER):
                assert place not in self._rows, f"{row} is there already"
                assert (change == UPDATE_AFTER) == (before == place), "an update is two neighbours"
                self._rows[place] = row
            else:
                assert plain_rows([self._rows.pop(place)]) == plain_rows([row])
            assert change == UPDATE_AFTER or before is None, "an update is two neighbours"
            before = place if change == UPDATE_BEFORE else None
        assert before is None

    @property
    def rows(self) -> set[tuple[tuple[str, Any], ...]]:
        return plain_rows(self._rows.values())

    def all(self) -> list[Row]:
        """As they are."""
        return list(self._rows.values())


class Memory:
    """Runs an operator in one unit, its state in memory. Gives it the rows it asked for and no others."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.tables: dict[int, tuple[StateTable, pl.DataFrame]] = {
            table.table_id: (table, as_frame(table.stored_schema.empty_table())) for table in operator.state_tables()
        }
        self.view = View(operator.output_key)
        self.counters: dict[str, int] = {}
        self._epoch = 0
        self._watermark: int | None = None

    def epoch(self, deltas: Deltas, watermark_us: int | None = None) -> pl.DataFrame:
        self._epoch += 1
        context = EpochContext(self._epoch, 0, watermark_us, self._watermark)
        self._watermark = watermark_us
        needed = self.operator.keys_needed(deltas, context)
        assert set(needed) <= set(self.tables)
        slices = {table_id: self._slice(table_id, keys) for table_id, keys in needed.items()}
        result = self.operator.apply(slices, deltas, context)
        assert result.changelog.schema == empty_changelog(self.operator.output_schema).schema
        assert set(result.writes) <= set(self.tables)
        for table_id, writes in result.writes.items():
            table, stored = self.tables[table_id]
            rows = rows_to_write(table, writes)
            assert not rows.height or not rows.select(VNODE, *table.key).is_duplicated().any(), "each key once"
            merged = live(table, merge(table, [stored, rows]))
            self.tables[table_id] = (table, merged.with_columns(pl.lit(0, pl.Int8).alias(OP)))
        self.view.apply(result.changelog)
        for name, count in result.counters.items():
            self.counters[name] = self.counters.get(name, 0) + count
        return result.changelog

    def state_rows(self, table_id: int) -> int:
        return self.tables[table_id][1].height

    def _slice(self, table_id: int, keys: pl.DataFrame | None) -> pl.DataFrame:
        table, stored = self.tables[table_id]
        rows = stored.drop(OP)
        if keys is None:
            return rows
        assert set(table.distributed_by) <= set(keys.columns) <= set(table.key)
        return rows.join(keys, on=keys.columns, how="semi", nulls_equal=True)


def nothing(schema: pa.Schema = SCHEMA) -> pl.DataFrame:
    return empty(schema)
