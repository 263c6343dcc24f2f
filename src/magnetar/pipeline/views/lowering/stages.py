"""What a view becomes before it runs: stages, each one shuffle by vnode and one operator per unit.

A view is a list of stages in topological order; the last one materializes its rows. Between two stages lies a changelog, to which
Spark SQL does what has no state (filters, expressions, windows): the steps of a feed. Stages are values of the driver; what is sent to
the tasks is their operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa

from magnetar.hashing.vnode import VnodeHash
from magnetar.pipeline.operators.native_partials import NativePartials, native_partials
from magnetar.pipeline.operators.operator import Operator
from magnetar.pipeline.sql import computed
from magnetar.pipeline.sql.plan import Named
from magnetar.pipeline.sql.statements import ErrorPolicy
from magnetar.pipeline.state.table import StateTable

ROW_ID: Final = "_row_id"
"""Of a source's row: a string that no other row of the source has, the same whenever it is read again. It sorts as the position does
within a topic partition."""

EPOCH_TIMESTAMP: Final = "__epoch_timestamp"
"""What `now()` became: a timestamp, the same for all rows of an epoch and whenever the epoch is repeated."""


ONE_ROW: Final = ""
"""The origin of the one row that a SELECT without FROM reads. No relation has this name."""


def quoted(name: str) -> str:
    """A column's name in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class Filter:
    """Rows for which this Spark SQL condition is true."""

    condition: str


@dataclass(frozen=True, slots=True)
class Select:
    """Exactly these columns (and `_change`, which every step keeps)."""

    outputs: tuple[Named, ...]


@dataclass(frozen=True, slots=True)
class AddWindows:
    """`window_start` and `window_end` behind the columns that are there, the row once for each of its windows. NULL times are in none."""

    spark_sql: str


@dataclass(frozen=True, slots=True)
class AddElements:
    """The column `name` behind those that are there: the row once for each element of an array, and the element's number (from 1) in
    `position`. `outer`: a row without elements once, with NULL in both."""

    spark_sql: str
    name: str
    position: str
    outer: bool = False


@dataclass(frozen=True, slots=True)
class OverGroups:
    """Spark SQL over whole groups: `sql` reads `__input`, which is the rows that are inserted.

    What comes in are groups that changed: all their rows as they are now (insert) and one delete a group, of which the columns
    `group` count: (the name before, the name behind). What goes out is the rows of `sql` as inserts, and the deletes as they came,
    NULL in all columns but the group's.
    """

    sql: str
    group: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Late:
    """Rows whose window, which ends at the time in the column `end`, is closed: the watermark of `sources` has reached it."""

    end: str
    sources: tuple[str, ...]


def failures(step: Filter | Select | AddWindows | AddElements | OverGroups | Late) -> tuple[tuple[str, str], ...]:
    """Of the expressions in a step that may fail: Spark SQL of whether one does, and how it was written."""
    match step:
        case Filter(condition):
            texts = [condition]
        case Select(outputs):
            texts = [output.sql for output in outputs]
        case AddElements(array):
            texts = [array]
        case _:
            texts = []
    return tuple({computed.fails(text): computed.written(text) for text in texts if computed.fails(text)}.items())


Step: TypeAlias = Filter | Select | AddWindows | AddElements | OverGroups | Late


@dataclass(frozen=True, slots=True)
class Feed:
    """The changes that go into one input of an operator, or out of a view.

    `origin`: the name of a source, table or view, or the id of an earlier stage. `schema`: what the steps leave, without `_change`.
    `place_by`: the columns whose vnode says which unit a row goes to; none: vnode 0. Several feeds may go into one input (UNION ALL).
    """

    input: str
    origin: str
    steps: tuple[Step, ...]
    schema: pa.Schema
    place_by: tuple[str, ...] = ()
    ordered_by: tuple[str, ...] = ()
    """Columns that the operator's delta has to be sorted by (upsert, dedup); they need not be in `schema`."""
    view: str = ""
    on_error: ErrorPolicy = "null"
    """What becomes of expressions of `view` that fail for a row."""

    @property
    def fallible(self) -> tuple[int, ...]:
        """The places of the steps with expressions that may fail for a row."""
        return tuple(place for place, step in enumerate(self.steps) if failures(step))

    @property
    def sends_failed(self) -> bool:
        """Whether rows for which an expression fails are left out, and their messages sent to a dead-letter topic."""
        return self.on_error == "dead_letter" and bool(self.fallible)

    @property
    def is_late(self) -> bool:
        """Whether it takes late rows, which the watermark decides."""
        return any(isinstance(step, Late) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Stage:
    """One operator. `stage_id` is the same whenever the same statement is planned again: its state tables belong to it."""

    stage_id: str
    feeds: tuple[Feed, ...]
    operator: Operator
    watermarks: tuple[str, ...] = ()
    """Sources by whose least watermark the operator's windows are closed."""
    preaggregate: tuple[Named, ...] | None = None
    """Aggregates in Spark SQL over the columns of the feed and `_change`, for each value of `place_by`: where they are given, the
    operator takes their result in place of the rows (a frame of `place_by` and these columns, without `_change`)."""
    takes_rows: bool = False
    """Whether the operator gives the same of rows, so that they may be sent as they are where there would hardly be fewer results."""

    @property
    def native(self) -> NativePartials | None:
        """How tasks make partial results before the rows are sent to units, where that comes to the same and is wanted."""
        return native_partials(self.operator) if self.preaggregate is not None and self.takes_rows else None

    @property
    def vnode_hash(self) -> VnodeHash:
        """The function that says a row's vnode: that of the operator's tables."""
        return next((table.vnode_hash for table in self.operator.state_tables()), "crc32")


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """A view (or a table): its stages, and the table that holds its rows after the last of them.

    A view's changelog is that of its last stage; it has the table's columns. `columns` are those that people see: the table may have
    more, which its key needs. `append_only`: rows are only ever added. `watermarks`: (relation, Spark SQL of the time in its rows,
    delay in microseconds) of the sources that this view's windows depend on.
    """

    name: str
    stages: tuple[Stage, ...]
    table: StateTable
    columns: tuple[str, ...]
    append_only: bool
    watermarks: Sequence[tuple[str, str, int]] = ()

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return self.table.schema

    @property
    def key(self) -> tuple[str, ...]:
        """What makes a row unique."""
        return self.table.key
