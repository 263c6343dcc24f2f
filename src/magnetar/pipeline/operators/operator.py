"""What every operator is, and how whoever runs one calls it.

Once an epoch and unit: ask `keys_needed`, read those rows of its state tables (`read_slices(..., keys_to_read(...))` for the unit's
vnodes; None stands for all rows of these vnodes), call `apply`, write `writes` (`rows_to_write` makes them a run's rows) and the
changelog. An operator holds nothing between calls, so an epoch that is repeated with the same input gives the same rows in the same order.

A changelog is a frame with `_change` and the columns (`changelog.py`). Deltas are changelogs, one for each input by name. They hold
only rows whose vnode (`vnodes_of_changes`, the same by any of the operator's tables) is the unit's; a change that moves a row from one
group to another is therefore the removal in one unit and the addition in another. A delta may carry that `_vnode`; an operator whose
writes and changes lie where its input does may hand it on, which spares hashing the keys again. Unless an operator says otherwise the
order of a delta's rows means nothing, so a shuffle may change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import polars as pl
import pyarrow as pa

from magnetar.pipeline.state.table import OP, VNODE, StateTable, as_arrow

INPUT: Final = "input"
"""The name of the only input of operators with one."""
LEFT: Final = "left"
RIGHT: Final = "right"

Deltas = Mapping[str, pl.DataFrame]
"""By input; a missing one is empty."""

Slices = Mapping[int, pl.DataFrame]
"""Live rows by table id, with or without `_vnode`; at least those with the keys needed. A missing one is empty."""

Keys = Mapping[int, pl.DataFrame | None]
"""By table id: the values of some key columns, or None for all rows."""


@dataclass(frozen=True, slots=True)
class EpochContext:
    """The epoch's facts. Times in microseconds since 1970, from the manifest before the epoch so that a repetition sees the same ones.

    `watermark_us`: no more rows are expected from before it. `previous_watermark_us`: what the epoch before had.
    """

    epoch: int
    now_us: int
    watermark_us: int | None = None
    previous_watermark_us: int | None = None
    holds_first_vnode: bool = False
    """Whether the unit that is asked has vnode 0, where the row of a table without a key lies."""


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """`writes`: rows with `_op` by table id, each key at most once. `changelog`: in an order that only its rows decide.

    Both with `_vnode` where the operator hands it on.
    """

    writes: Mapping[int, pl.DataFrame]
    changelog: pl.DataFrame
    counters: Mapping[str, int] = field(default_factory=dict)


class Operator(Protocol):
    """An incremental operator. `output_key`: the columns that make a row of the output unique."""

    @property
    def output_schema(self) -> pa.Schema: ...

    @property
    def output_key(self) -> tuple[str, ...]: ...

    def state_tables(self) -> list[StateTable]: ...

    def keys_needed(self, deltas: Deltas, context: EpochContext) -> Keys: ...

    def apply(self, state: Slices, deltas: Deltas, context: EpochContext) -> OperatorResult:
        """Raises ChangelogError when a delta does not fit its columns or the state."""
        ...


def rows_to_write(table: StateTable, writes: pl.DataFrame) -> pl.DataFrame:
    """An operator's writes as `write_run` takes them: with vnodes, in storage order. `_vnode` is theirs, where they carry it."""
    carried = [pa.field(VNODE, pa.uint16(), False)] if VNODE in writes.columns else []
    schema = pa.schema([*carried, *table.schema, pa.field(OP, pa.int8(), False)])
    return table.with_vnodes(as_arrow(table, writes, schema))


def keys_to_read(table: StateTable, keys: pl.DataFrame | None) -> pa.Table | None:
    """Needed keys as `read_slices` takes them."""
    return None if keys is None else as_arrow(table, keys, _of(table, keys.columns))


def vnodes_of_changes(table: StateTable, changes: pl.DataFrame) -> Any:
    """The vnode of every change of a delta (numpy uint16): where it is to be sent."""
    if not table.distributed_by:  # a frame without columns would have no rows
        return pl.zeros(changes.height, pl.UInt16, eager=True).to_numpy()
    return table.vnodes_of(as_arrow(table, changes, _of(table, table.distributed_by)))


def _of(table: StateTable, columns: Iterable[str]) -> pa.Schema:
    return pa.schema([table.schema.field(name) for name in columns])
