"""Partial results that tasks make of rows without Spark's rows in between, and their way to the units.

A task sends each unit its groups as one message of Arrow's stream format, so what Spark shuffles is a row a task and unit, whatever the
number of groups. Imported by Python workers only when such a task runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from magnetar.pipeline.operators.native_partials import NativePartials
from magnetar.pipeline.state.table import VNODE
from magnetar.pipeline.views.source.native_rows import UnreadRowsError

GROUPS_PER_MESSAGE: Final = 1 << 18
"""Groups of one row of the shuffle at most."""

UNIT_FIELD: Final = "_pid"
ROWS_FIELD: Final = "_groups"


def to_units(partials: pa.Table, owners: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Rows of (unit, bytes). `owners`: by vnode the index of its unit."""
    units = np.asarray(owners, np.int32)[partials.column(VNODE).to_numpy()]
    order = np.argsort(units, kind="stable")
    ordered = partials.take(order)
    first = 0
    for unit, count in enumerate(np.bincount(units, minlength=1)):
        for start in range(first, first + int(count), GROUPS_PER_MESSAGE):
            size = min(GROUPS_PER_MESSAGE, first + int(count) - start)
            yield message(unit, _packed(ordered.slice(start, size)))
        first += int(count)


def message(unit: int, data: bytes) -> pa.RecordBatch:
    """One row of the shuffle."""
    return pa.RecordBatch.from_arrays(
        [pa.array([unit], pa.int32()), pa.array([data], pa.binary())], names=[UNIT_FIELD, ROWS_FIELD]
    )


def unread(units: int) -> Iterator[pa.RecordBatch]:
    """What a task sends that cannot read its rows: each unit learns of it, and does nothing."""
    for unit in range(units):
        yield message(unit, b"")


def of_unit(batches: Iterable[Any], partials: NativePartials) -> pa.Table | None:
    """What came for a unit as one row for each group; None for nothing. Raises UnreadRowsError where a task could not read its rows."""
    found = []
    for batch in batches:
        for data in batch.column(batch.schema.get_field_index(ROWS_FIELD)):
            if not len(data.as_buffer()):
                raise UnreadRowsError("a task could not read its rows by itself")
            found.append(pa.ipc.open_stream(data.as_buffer()).read_all())
    return partials.merged(pa.concat_tables(found)) if found else None


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
